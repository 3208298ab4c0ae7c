//! Kept plans: equal queries are optimized once, and see all changes of their files, tables, settings and models.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use volley_tests::{Cluster, Setup};

use crate::{create_model, write_table};

fn start() -> Cluster {
    Cluster::start_with(Setup {
        executors: 2,
        log: Some("info,volley_scheduler=debug"),
        ..Setup::default()
    })
}

/// Returns how often the scheduler has taken a kept plan.
fn taken(cluster: &mut Cluster) -> usize {
    let log = cluster.scheduler().output();
    log.matches("taking a kept plan").count()
}

fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Returns the rows of a script with places in a folder, `{d}` in its text.
fn ask(cluster: &Cluster, dir: &Path, sql: &str) -> Vec<Value> {
    cluster.query(&sql.replace("{d}", dir.to_str().unwrap()))
}

#[test]
fn equal_queries_are_optimized_once() {
    let mut cluster = start();
    let dir = cluster.dir().join("files");
    write(&dir.join("t.csv"), "k,v\n1,5\n1,6\n2,7\n");
    for sql in [
        "SELECT 1 + 1 AS two",
        "SELECT count(*) AS n FROM range(7)",
        "SELECT k, sum(v) AS s FROM '{d}/t.csv' GROUP BY k ORDER BY k",
        "SELECT a.v FROM '{d}/t.csv' a JOIN '{d}/t.csv' b USING (v) ORDER BY 1",
    ] {
        let before = taken(&mut cluster);
        let first = ask(&cluster, &dir, sql);
        assert_eq!(taken(&mut cluster), before, "{sql}");
        for time in 1..=2 {
            assert_eq!(ask(&cluster, &dir, sql), first, "{sql}");
            assert_eq!(taken(&mut cluster), before + time, "{sql}");
        }
    }
    let before = taken(&mut cluster);
    // Other settings, another constant, and other values each time.
    for sql in [
        "SET datafusion.execution.batch_size = 7; SELECT 1 + 1 AS two",
        "SET volley.single_task_bytes = 0; SELECT 1 + 1 AS two",
        "SELECT 1 + 2 AS two",
    ] {
        assert_eq!(ask(&cluster, &dir, sql).len(), 1, "{sql}");
    }
    for sql in [
        "SELECT CAST(now() AS VARCHAR) AS x",
        "SELECT random() AS x",
        "SELECT v + random() AS x FROM '{d}/t.csv' LIMIT 1",
    ] {
        let first = ask(&cluster, &dir, sql);
        assert_ne!(ask(&cluster, &dir, sql), first, "{sql}");
    }
    assert_eq!(taken(&mut cluster), before);
}

#[test]
fn equal_queries_see_changes_of_files() {
    let mut cluster = start();
    let dir = cluster.dir().join("files");
    let sum = "SELECT sum(v) AS s, count(*) AS n FROM '{d}/t/*.csv'";
    let [one, two] = ["t/1.csv", "t/2.csv"].map(|name| dir.join(name));
    write(&one, "k,v\n1,5\n");
    for _ in 0..2 {
        assert_eq!(ask(&cluster, &dir, sum), [json!({"s": 5, "n": 1})]);
    }
    // As many bytes, at another time.
    write(&one, "k,v\n1,7\n");
    assert_eq!(ask(&cluster, &dir, sum), [json!({"s": 7, "n": 1})]);
    assert_eq!(taken(&mut cluster), 2);
    write(&two, "k,v\n2,9\n");
    assert_eq!(ask(&cluster, &dir, sum), [json!({"s": 16, "n": 2})]);
    fs::remove_file(one).unwrap();
    assert_eq!(ask(&cluster, &dir, sum), [json!({"s": 9, "n": 1})]);

    let all = "SELECT * FROM '{d}/t/*.csv'";
    for _ in 0..2 {
        assert_eq!(ask(&cluster, &dir, all), [json!({"k": 2, "v": 9})]);
    }
    write(&two, "k,w\n2,x\n");
    assert_eq!(ask(&cluster, &dir, all), [json!({"k": 2, "w": "x"})]);

    // Their metadata answers these.
    let count = "SELECT count(*) AS n, max(value) AS m FROM '{d}/p/*.parquet'";
    fs::create_dir(dir.join("p")).unwrap();
    let copy = |rows: usize, file: &str| {
        let copy = format!("COPY (SELECT value FROM range({rows})) TO '{{d}}/p/{file}'");
        ask(&cluster, &dir, &copy);
    };
    copy(3, "1.parquet");
    for _ in 0..2 {
        assert_eq!(ask(&cluster, &dir, count), [json!({"n": 3, "m": 2})]);
    }
    copy(5, "2.parquet");
    assert_eq!(ask(&cluster, &dir, count), [json!({"n": 8, "m": 4})]);
    fs::remove_file(dir.join("p/1.parquet")).unwrap();
    assert_eq!(ask(&cluster, &dir, count), [json!({"n": 5, "m": 4})]);

    // A folder of the same files, which has columns of its own.
    let folders = "SELECT y, sum(v) AS s FROM '{d}/h/y=*/*.csv' GROUP BY y ORDER BY y";
    for year in [2023, 2024, 2025] {
        write(&dir.join(format!("h/y={year}/a.csv")), "v\n1\n");
        let years = (2023..=year).map(|year| json!({"y": year, "s": 1}));
        let years = Vec::from_iter(years);
        for _ in 0..2 {
            assert_eq!(ask(&cluster, &dir, folders), years);
        }
    }
}

#[test]
fn equal_queries_see_changes_of_their_session() {
    let cluster = start();
    let dir = cluster.dir().join("files");
    write(&dir.join("x.csv"), "k,v\n1,5\n");
    let create = |columns: &str| {
        format!(
            "CREATE EXTERNAL TABLE x ({columns}) STORED AS CSV LOCATION '{{d}}/x.csv' \
             OPTIONS ('format.has_header' 'true');"
        )
    };
    let twice = |sql: &str| format!("{sql}; {sql};");
    let (whole, text) = (create("k BIGINT, v BIGINT"), create("k VARCHAR, v DOUBLE"));
    let select = "SELECT * FROM x";
    let script = format!("{whole} {} DROP TABLE x; {text} {select};", twice(select));
    let number = json!({"k": 1, "v": 5});
    let expected = [number.clone(), number, json!({"k": "1", "v": 5.0})];
    assert_eq!(ask(&cluster, &dir, &script), expected);

    let select = "SELECT n FROM w";
    let script = format!(
        "CREATE VIEW w AS SELECT 1 AS n; {} CREATE OR REPLACE VIEW w AS SELECT 2 AS n; {select};",
        twice(select)
    );
    let expected = [1, 1, 2].map(|n| json!({"n": n}));
    assert_eq!(ask(&cluster, &dir, &script), expected);

    let select = "SELECT count(*) AS n FROM m";
    let script = format!(
        "CREATE TABLE m AS VALUES (1); {} INSERT INTO m VALUES (2); {select};",
        twice(select)
    );
    let rows = ask(&cluster, &dir, &script);
    assert_eq!((&rows[..2], rows.last()), (&expected[..2], expected.last()));

    let select = "SELECT arrow_typeof(1.5) AS t";
    let script = format!(
        "{} SET datafusion.sql_parser.parse_float_as_decimal = true; {select};",
        twice(select)
    );
    let rows = ask(&cluster, &dir, &script);
    assert_eq!(rows[0], rows[1]);
    assert_ne!(rows[1], rows[2]);
}

#[test]
fn equal_queries_see_new_versions_of_models() {
    let mut cluster = start();
    let table = write_table(cluster.dir(), 300);
    let train = |cluster: &Cluster, options: &str| {
        let create = create_model("m", &format!(", ranks = 1, {options}"));
        let create = create.replace("CREATE MODEL", "CREATE OR REPLACE MODEL");
        cluster.query(&format!("{table} {create}"));
    };
    // Returns the mean prediction, and how often a kept plan was taken for it.
    let mean = |cluster: &mut Cluster| {
        let before = taken(cluster);
        let predict =
            "SELECT avg(predicted_y) AS mean FROM ML.PREDICT(MODEL m, (SELECT k, x FROM t))";
        let rows = cluster.query(&format!("{table} {predict}"));
        (rows[0]["mean"].as_f64().unwrap(), taken(cluster) - before)
    };
    train(&cluster, "epochs = 1");
    let (first, none) = mean(&mut cluster);
    let (again, once) = mean(&mut cluster);
    assert_eq!((none, once), (0, 1));
    let difference = (first - again).abs();
    assert!(difference < 1e-6 * first.abs(), "{first} {again}");
    train(&cluster, "epochs = 6, learn_rate = 0.02");
    let (newer, none) = mean(&mut cluster);
    let difference = (first - newer).abs();
    assert!(difference > 1e-3 * first.abs(), "{first} {newer}");
    assert_eq!(none, 0);
}
