//! Prepared rows: a second training on the same rows does not run their query again.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use volley_tests::{Cluster, Run, eventually};

/// Time limit for what is to happen soon.
const SOON: Duration = Duration::from_secs(60);

/// Writes rows whose labels can be learned.
fn write_rows(file: &Path, rows: usize) {
    let mut text = String::from("k,x,y\n");
    for row in 0..rows {
        let (k, x) = (row % 7, row * 37 % 101);
        writeln!(text, "k{k},{x},{}", k * 3 + x).unwrap();
    }
    fs::write(file, text).unwrap();
}

fn train(cluster: &Cluster, file: &Path, options: &str) -> Run {
    let query = format!(
        "SELECT k, avg(x) OVER (PARTITION BY k) + x AS x, y FROM '{}'",
        file.display()
    );
    let sql = format!(
        "CREATE OR REPLACE MODEL m OPTIONS (input_label_cols = ['y'], epochs = 2, ranks = 2, device = 'cpu', \
         {options}) AS {query};"
    );
    let run = cluster.run(&["--format", "json", "-c", &sql]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run
}

fn are_prepared(run: &Run) -> bool {
    run.stderr.contains("the query is skipped")
}

/// Returns the losses of a training's ranks.
fn losses(run: &Run) -> Vec<[Value; 3]> {
    let rows = run.rows().into_iter();
    let columns = ["train_rows", "loss", "eval_loss"];
    rows.map(|row| columns.map(|column| row[column].clone()))
        .collect()
}

fn prepared(cluster: &Cluster) -> Vec<Value> {
    cluster.query("SELECT *, array_length(executors) AS holders FROM volley.prepared")
}

#[test]
fn the_same_rows_are_encoded_once() {
    let cluster = Cluster::start(2);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 2_000);
    let first = train(&cluster, &file, "hidden_units = [8]");
    assert!(!are_prepared(&first), "{}", first.stderr);
    let known = prepared(&cluster);
    assert_eq!(known.len(), 1, "{known:?}");
    assert_eq!(known[0]["rows"], 2_000);
    assert_eq!(known[0]["holders"], 2);
    let second = train(&cluster, &file, "hidden_units = [8]");
    assert!(are_prepared(&second), "{}", second.stderr);
    assert_eq!(losses(&second), losses(&first));
    // Another network and optimizer, the same rows.
    let other = train(&cluster, &file, "hidden_units = [4, 4], learn_rate = 0.01");
    assert!(are_prepared(&other), "{}", other.stderr);
    assert_ne!(losses(&other), losses(&first));
    assert_eq!(prepared(&cluster)[0]["uses"], 2);
    // Other rows: each is a training of its own.
    for options in ["seed = 7", "shards = 6", "data_split_method = 'no_split'"] {
        let run = train(&cluster, &file, options);
        assert!(!are_prepared(&run), "{options}: {}", run.stderr);
    }
    let run = train(&cluster, &file, "seed = 7, batch_size = 64");
    assert!(are_prepared(&run), "{}", run.stderr);
}

#[test]
fn changed_files_are_read_again() {
    let cluster = Cluster::start(2);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 1_000);
    train(&cluster, &file, "hidden_units = [4]");
    // The same size, at another time.
    let other = fs::read_to_string(&file).unwrap().replace('7', "3");
    fs::write(&file, other).unwrap();
    let run = train(&cluster, &file, "hidden_units = [4]");
    assert!(!are_prepared(&run), "{}", run.stderr);
    write_rows(&file, 1_200);
    let run = train(&cluster, &file, "hidden_units = [4]");
    assert!(!are_prepared(&run), "{}", run.stderr);
    let rows = run.rows();
    let rows = |column: &str| {
        rows.iter()
            .map(|row| row[column].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(rows("train_rows") + rows("eval_rows"), 1_200);
}

#[test]
fn ranks_run_where_their_rows_are() {
    let cluster = Cluster::start(4);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 1_000);
    let first = train(&cluster, &file, "hidden_units = [4]");
    eventually("both executors to keep their rows", SOON, || {
        (prepared(&cluster).first()?["holders"] == 2).then_some(())
    });
    for _ in 0..3 {
        let again = train(&cluster, &file, "hidden_units = [4]");
        assert!(are_prepared(&again), "{}", again.stderr);
        assert!(!again.stderr.contains("not there"), "{}", again.stderr);
        assert_eq!(losses(&again), losses(&first));
    }
    assert_eq!(prepared(&cluster)[0]["uses"], 3);
}

#[test]
fn rows_that_are_others_each_time_are_not_kept() {
    let cluster = Cluster::start(1);
    let sql = "CREATE MODEL m OPTIONS (input_label_cols = ['y'], epochs = 1) AS
               SELECT value AS x, random() AS y FROM range(100)";
    cluster.query(sql);
    assert!(prepared(&cluster).is_empty());
}

#[test]
fn dropped_rows_are_removed_and_missed_ones_are_read_again() {
    let cluster = Cluster::start(2);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 1_000);
    let first = train(&cluster, &file, "hidden_units = [4]");
    let folders = || {
        let work_dirs = (0..2).map(|executor| cluster.work_dir(executor));
        let shuffles = work_dirs.flat_map(|dir| fs::read_dir(dir).unwrap().flatten());
        let prepared = shuffles.filter_map(|dir| fs::read_dir(dir.path().join("prepared")).ok());
        let folders = prepared.flat_map(|folders| folders.flatten().map(|folder| folder.path()));
        folders.collect::<Vec<_>>()
    };
    assert_eq!(folders().len(), 2, "{:?}", folders());
    // As if an executor had removed them for space.
    fs::remove_dir_all(&folders()[0]).unwrap();
    let again = train(&cluster, &file, "hidden_units = [4]");
    assert_eq!(losses(&again), losses(&first));
    assert!(again.stderr.contains("is not there"), "{}", again.stderr);
    assert!(are_prepared(&train(&cluster, &file, "hidden_units = [4]")));
    let said = cluster.fail("DROP PREPARED '01234567-89ab-7def-8123-456789abcdef'");
    assert!(said.contains("unknown prepared rows"), "{said}");
    cluster.query("DROP PREPARED ALL");
    assert!(prepared(&cluster).is_empty());
    eventually("executors to remove the files", SOON, || {
        folders().is_empty().then_some(())
    });
    assert!(!are_prepared(&train(&cluster, &file, "hidden_units = [4]")));
}
