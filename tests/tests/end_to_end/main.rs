//! The main job, with real processes, through the command line.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use volley_tests::{Cluster, Numbers};

mod access;
mod addresses;
mod classes;
mod configuration;
mod delta;
mod deploy;
mod doctor;
mod early;
mod errors;
mod examples;
mod files;
mod found;
mod image;
mod jwt;
mod kept_plans;
mod labels;
mod limits;
mod logs;
mod memory;
mod mistakes;
mod models;
mod numbers;
mod page;
mod places;
mod prepared;
mod prompt;
mod quantiles;
mod queues;
/// Layer of an example, whose test runs here.
#[path = "../../../examples/custom-layer/src/rbf.rs"]
mod rbf;
mod report;
mod rossmann;
mod scratch;
mod shards;
mod stores;
mod tables;
mod terminal;
mod tls;
mod traces;
mod transform;
mod upgrade;
mod versions;

/// Returns the message of a command that has to fail.
fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?}: {said}");
    said
}

/// Writes a small training set with a relation to learn: `y = e^(k/4 + x/10)`, no noise.
fn write_table(dir: &Path, rows: usize) -> String {
    let mut csv = String::from("id,k,x,flag,text,y,empty,split\n");
    for id in 0..rows {
        let (k, x) = (id % 7, (id * 37 % 101) as f64 / 10.0);
        let y = (k as f64 / 4.0 + x / 10.0).exp();
        let split = if id % 5 == 0 { "EVAL" } else { "TRAIN" };
        csv.push_str(&format!("{id},{k},{x},{},t{k},{y},,{split}\n", id % 2 == 0));
    }
    let path = dir.join("table.csv");
    fs::write(&path, csv).unwrap();
    format!(
        "CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT, x DOUBLE, flag BOOLEAN, text VARCHAR, \
         y DOUBLE, empty DOUBLE, split VARCHAR) STORED AS CSV LOCATION '{}' \
         OPTIONS ('format.has_header' 'true');",
        path.display()
    )
}

fn create_model(name: &str, options: &str) -> String {
    format!(
        "CREATE MODEL {name} OPTIONS (model_type = 'dnn_regressor', input_label_cols = ['y'], \
         categorical = ['k'], continuous = ['x'], hidden_units = [16], batch_size = 8, \
         data_split_method = 'custom', data_split_col = 'split', device = 'cpu' {options}) \
         AS SELECT k, x, y, split, id FROM t;"
    )
}

/// Runs a query and a training of this many ranks, whose model predicts, on the table of [`write_table`] with 300 rows.
fn query_and_train(table: &str, ranks: usize, run: impl Fn(&str) -> Vec<Value>) {
    let rows = run(&format!(
        "{table} SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY k"
    ));
    let expected = (0..7).map(|k| json!({"k": k, "n": 43 - i32::from(k == 6)}));
    assert_eq!(rows, Vec::from_iter(expected));
    let train = create_model("m", &format!(", ranks = {ranks}, epochs = 2"));
    let predict = "SELECT count(*) AS n FROM ML.PREDICT(MODEL m, (SELECT k, x FROM t))";
    let rows = run(&format!("{table} {train} {predict}"));
    assert_eq!(rows.len(), ranks + 1, "a row a rank: {rows:?}");
    assert_eq!(rows.last(), Some(&json!({"n": 300})));
}

#[test]
fn gangs_start_whole_wait_their_turn_or_are_refused() {
    let cluster = Cluster::start(5);
    let table = write_table(cluster.dir(), 300);
    for ranks in [1, 2, 3, 5] {
        let options = format!(", ranks = {ranks}, epochs = 1");
        let rows = cluster.query(&format!(
            "{table} {}",
            create_model(&format!("m{ranks}"), &options)
        ));
        let executors: std::collections::BTreeSet<_> = rows
            .iter()
            .map(|row| row["executor"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(executors.len(), ranks, "one rank an executor");
        let trained: u64 = rows
            .iter()
            .map(|row| row["train_rows"].as_u64().unwrap())
            .sum();
        assert_eq!(trained, 240, "every row once with {ranks} ranks");
    }

    let said = cluster.fail(&format!("{table} {}", create_model("m6", ", ranks = 6")));
    assert!(
        said.contains("6 ranks") && said.contains("5 executors"),
        "{said}"
    );

    // Two gangs that each need all executors run one after the other, without a deadlock.
    std::thread::scope(|scope| {
        let train = |name: &'static str| {
            let (cluster, table) = (&cluster, &table);
            scope.spawn(move || {
                let sql = create_model(name, ", ranks = 5, epochs = 30");
                cluster.run(&["--format", "json", "-c", &format!("{table} {sql}")])
            })
        };
        let (a, b) = (train("a"), train("b"));
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        assert_eq!(
            (a.code, b.code),
            (Some(0), Some(0)),
            "{}\n{}",
            a.stderr,
            b.stderr
        );
    });
}

#[test]
fn options_of_copy_reach_the_file() {
    let cluster = Cluster::start(1);
    for (options, expected) in [
        ("'format.has_header' 'true'", "id,t\n1,a\n"),
        (
            "'format.has_header' 'false', 'format.delimiter' '|'",
            "1|a\n",
        ),
        (
            "'format.quote_style' 'always'",
            "\"id\",\"t\"\n\"1\",\"a\"\n",
        ),
    ] {
        let path = cluster.dir().join("copy.csv");
        fs::remove_file(&path).ok();
        let copy = format!("COPY (SELECT 1 AS id, 'a' AS t) TO '{}'", path.display());
        cluster.query(&format!("{copy} STORED AS CSV OPTIONS ({options})"));
        assert_eq!(fs::read_to_string(&path).unwrap(), expected, "{options}");
    }
}

/// The arguments are columns: the scheduler would compute constants.
#[test]
fn functions_of_arrays_run_on_executors() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 400);
    let rows = cluster.query(&format!(
        "{table}SELECT sum(cardinality(make_array(id, k))) AS n, \
         count(*) FILTER (WHERE array_has(string_to_array(text, 't'), '3')) AS threes FROM t"
    ));
    assert_eq!(rows, [json!({"n": 800, "threes": 57})]);
}

#[test]
fn folders_take_more_rows_and_keep_an_order() {
    let cluster = Cluster::start(2);
    let numbers = Numbers::write(cluster.dir(), 5_000);
    let (kept, ordered) = (cluster.dir().join("kept"), cluster.dir().join("ordered"));
    fs::create_dir(&kept).unwrap();
    let counted = cluster.query(&format!(
        "{} CREATE EXTERNAL TABLE kept (id BIGINT, v BIGINT) STORED AS CSV LOCATION '{}/'; \
         INSERT INTO kept SELECT id, v FROM facts; \
         INSERT INTO kept SELECT id, v FROM facts WHERE id < 10; \
         SELECT count(*) AS n, count(DISTINCT id) AS ids FROM kept",
        numbers.tables(),
        kept.display()
    ));
    let expected = json!({"n": numbers.facts() + 10, "ids": numbers.facts()});
    assert_eq!(counted.last(), Some(&expected));
    let names = fs::read_dir(&kept).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    let is_csv = |name: &OsString| name.to_string_lossy().ends_with(".csv");
    assert!(names.iter().all(is_csv), "{names:?}");

    cluster.query(&format!(
        "{} COPY ({}) TO '{}/' STORED AS CSV",
        numbers.tables(),
        numbers.listing(),
        ordered.display()
    ));
    let mut rows = 0;
    for file in fs::read_dir(&ordered).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let row = |line: &str| {
            let (id, v) = line.split_once(',').unwrap();
            (v.parse::<u64>().unwrap(), id.parse::<u64>().unwrap())
        };
        let read: Vec<_> = text.lines().skip(1).map(row).collect();
        assert!(read.is_sorted(), "the rows of a file are in order");
        rows += read.len() as u64;
    }
    assert_eq!(rows, numbers.facts());
}
