//! The main job and its failures, on real processes, through the command line.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use volley_tests::{Cluster, Numbers, binary};

mod addresses;
mod errors;
mod examples;
mod files;
mod labels;
mod page;
mod quantiles;
/// An example's layer, whose test runs here.
#[path = "../../../examples/custom-layer/src/rbf.rs"]
mod rbf;
mod report;
mod tables;
mod transform;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/rossmann");

/// A small training set with something to learn: `y = e^(k/4 + x/10)`, no noise.
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

#[test]
fn from_seven_tables_to_a_submission() {
    let cluster = Cluster::start(2);
    let data = cluster.dir().join("data");
    let out = cluster.dir().join("out");
    fs::create_dir(&out).unwrap();
    let generated = Command::new(binary("volley"))
        .args(["generate", "rossmann", "--stores", "6", "--out"])
        .arg(&data)
        .status();
    assert!(generated.unwrap().success());

    let defines: Vec<String> = [
        ("data", data.to_str().unwrap()),
        ("out", out.to_str().unwrap()),
        ("epochs", "1"),
        ("ranks", "2"),
        ("batch_size", "64"),
        ("seed", "7"),
    ]
    .iter()
    .map(|(name, value)| format!("--define={name}={value}"))
    .collect();
    let run_files = |files: &[&str]| {
        let mut command = cluster.command();
        command.args(&defines).args(["--format", "json", "--quiet"]);
        for file in files {
            command.arg("-f").arg(Path::new(EXAMPLES).join(file));
        }
        let output = command.output().unwrap();
        let (stdout, stderr) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(output.status.success(), "{files:?}\n{stderr}");
        stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<serde_json::Value>>()
    };

    let checks = run_files(&["tables.sql", "features.sql", "checks.sql"]);
    assert!(!checks.is_empty());

    let ranks = run_files(&["tables.sql", "features.sql", "train.sql"]);
    assert_eq!(ranks.len(), 2, "one row a rank: {ranks:?}");
    assert_eq!(
        (ranks[0]["rank"].as_u64(), ranks[1]["rank"].as_u64()),
        (Some(0), Some(1))
    );
    assert_ne!(
        ranks[0]["executor"], ranks[1]["executor"],
        "one rank an executor"
    );
    let rows = |column: &str| {
        ranks
            .iter()
            .map(|rank| rank[column].as_u64().unwrap())
            .sum::<u64>()
    };

    run_files(&["tables.sql", "features.sql", "predict.sql"]);
    let submission = fs::read_to_string(out.join("submission.csv")).unwrap();
    let mut lines = submission.lines();
    assert_eq!(lines.next(), Some("Id,Sales"));
    let ids: Vec<u64> = lines
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    let tests = fs::read_to_string(data.join("test.csv"))
        .unwrap()
        .lines()
        .count()
        - 1;
    assert_eq!(
        ids,
        (1..=tests as u64).collect::<Vec<_>>(),
        "every row once, sorted"
    );

    // Every row was trained or evaluated exactly once an epoch.
    let manifest = cluster.store().join("models/rossmann/1/manifest.json");
    let manifest: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(manifest).unwrap()).unwrap();
    assert_eq!(manifest["train_rows"].as_u64(), Some(rows("train_rows")));
    assert_eq!(
        manifest["history"][0]["rows"].as_u64(),
        Some(rows("train_rows"))
    );
    let sold = fs::read_to_string(data.join("train.csv")).unwrap();
    let sold = sold
        .lines()
        .skip(1)
        .filter(|line| line.split(',').nth(3) != Some("0"))
        .count();
    assert_eq!(rows("train_rows") + rows("eval_rows"), sold as u64);
}

#[test]
fn a_classifier_is_judged_in_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    // The middle of the labels, as both classes.
    let rows = "SELECT id, k, x, CASE WHEN y > (SELECT median(y) FROM t) THEN 'much' ELSE 'little' END AS c FROM t";
    query(&format!(
        "CREATE MODEL m OPTIONS (model_type = 'dnn_classifier', input_label_cols = ['c'], categorical = ['k'], \
         continuous = ['x'], hidden_units = [16], epochs = 15, split_key = ['id'], device = 'cpu') AS {rows}"
    ));
    let predicted = query(&format!(
        "SELECT c, predicted_c, CAST(predicted_c_probs[2]['prob'] AS DOUBLE) AS p, predicted_c_probs[2]['label'] AS second \
         FROM ML.PREDICT(MODEL m, ({rows}))"
    ));
    assert_eq!(predicted.len(), 700);
    let is_much = |row: &serde_json::Value, column: &str| row[column] == "much";
    let share = |row: &serde_json::Value| row["p"].as_f64().unwrap();
    assert!(predicted.iter().all(|row| is_much(row, "second")));
    let count = |expected: bool, taken: bool| {
        let rows = predicted.iter();
        let rows = rows
            .filter(|row| is_much(row, "c") == expected && is_much(row, "predicted_c") == taken);
        rows.count() as f64
    };
    let [tp, fp, tn, fneg] = [(true, true), (false, true), (false, false), (true, false)]
        .map(|(expected, taken)| count(expected, taken));
    let accuracy = (tp + tn) / 700.0;
    assert!(accuracy > 0.8, "it learns: {accuracy}");
    let losses = predicted.iter().map(|row| {
        let p = share(row);
        -(if is_much(row, "c") { p } else { 1.0 - p }).ln()
    });
    let (mut pairs, mut won) = (0.0, 0.0);
    for positive in predicted.iter().filter(|row| is_much(row, "c")) {
        for negative in predicted.iter().filter(|row| !is_much(row, "c")) {
            let (p, n) = (share(positive), share(negative));
            pairs += 1.0;
            won += if p > n {
                1.0
            } else if p == n {
                0.5
            } else {
                0.0
            };
        }
    }
    let due = [
        ("rows", 700.0),
        ("accuracy", accuracy),
        ("precision", (tp / (tp + fp) + tn / (tn + fneg)) / 2.0),
        ("recall", (tp / (tp + fneg) + tn / (tn + fp)) / 2.0),
        (
            "f1_score",
            (2.0 * tp / (2.0 * tp + fp + fneg) + 2.0 * tn / (2.0 * tn + fp + fneg)) / 2.0,
        ),
        ("log_loss", losses.sum::<f64>() / 700.0),
        ("roc_auc", won / pairs),
    ];
    let evaluated = query(&format!("SELECT * FROM ML.EVALUATE(MODEL m, ({rows}))"));
    for (metric, due) in due {
        let told = evaluated[0][metric].as_f64().unwrap();
        assert!(
            (told - due).abs() < 1e-5,
            "{metric}: {told}, and by hand {due}"
        );
    }
    let bins = query(&format!(
        "SELECT * FROM ML.CALIBRATION(MODEL m, ({rows})) ORDER BY above"
    ));
    for bin in &bins {
        let number = |name: &str| bin[name].as_f64().unwrap();
        let above = number("above");
        let inside = |row: &&serde_json::Value| {
            let p = share(row);
            p >= above && (p < above + 0.1 || above > 0.85)
        };
        let inside: Vec<_> = predicted.iter().filter(inside).collect();
        let count = inside.len() as f64;
        let positives = inside.iter().filter(|row| is_much(row, "c")).count() as f64;
        assert_eq!(number("rows"), count, "{bin}");
        assert!(
            (number("true_share") - positives / count).abs() < 1e-9,
            "{bin}"
        );
        let mean = inside.iter().map(|row| share(row)).sum::<f64>() / count;
        assert!((number("mean_probability") - mean).abs() < 1e-9, "{bin}");
    }
    assert!(bins.len() > 2, "{bins:?}");
    let explained = query(&format!(
        "SELECT * FROM ML.GLOBAL_EXPLAIN(MODEL m, ({rows})) ORDER BY attribution DESC"
    ));
    let attribution = |row: &serde_json::Value| row["attribution"].as_f64().unwrap();
    let names: Vec<_> = explained.iter().map(|row| row["feature"].clone()).collect();
    assert_eq!(names.len(), 2, "{explained:?}");
    assert!(
        explained.iter().all(|row| attribution(row) > 0.01),
        "{explained:?}"
    );
    assert!(attribution(&explained[0]) < accuracy, "{explained:?}");
    let explained = query(&format!(
        "SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, ({rows}), top_k_features => 7)"
    ));
    assert_eq!(explained.len(), 700);
    for row in &explained {
        let number = |name: &str| row[name].as_f64().unwrap();
        let odds = number("prediction_value").exp();
        let of_class = row["predicted_c_probs"].as_array().unwrap().iter();
        let mut of_class = of_class.filter(|class| class["label"] == row["predicted_c"]);
        let due = of_class.next().unwrap()["prob"].as_f64().unwrap();
        assert!((odds / (1.0 + odds) - due).abs() < 1e-4, "{row}");
        let attributions = row["top_feature_attributions"].as_array().unwrap();
        let of = |at: &serde_json::Value| at["attribution"].as_f64().unwrap();
        let sum: f64 = attributions.iter().map(of).sum();
        let difference = number("prediction_value") - number("baseline_prediction_value");
        let error = ((sum - difference) / difference).abs();
        assert!(
            (error - number("approximation_error")).abs() < 1e-6,
            "{row}"
        );
        assert!((sum - difference).abs() < 0.2, "{row}");
        assert_eq!(attributions.len(), 2, "{row}");
        assert!(
            of(&attributions[0]).abs() >= of(&attributions[1]).abs(),
            "{row}"
        );
    }
    let grouped = query(&format!(
        "SELECT * FROM ML.EVALUATE(MODEL m, ({rows}), BY k) ORDER BY k"
    ));
    let of_first = query(&format!(
        "SELECT * FROM ML.EVALUATE(MODEL m, (SELECT * FROM ({rows}) WHERE k = {}))",
        grouped[3]["k"]
    ));
    for (metric, due) in of_first[0].as_object().unwrap() {
        let told = &grouped[3][metric];
        let close = |(told, due): (f64, f64)| (told - due).abs() < 1e-9;
        let numbers = told.as_f64().zip(due.as_f64());
        assert!(
            told == due || numbers.is_some_and(close),
            "{metric}: {told}, {due}"
        );
    }
    let counts = grouped.iter().map(|group| group["rows"].as_u64().unwrap());
    assert!(
        grouped.len() > 1 && counts.sum::<u64>() == 700,
        "{grouped:?}"
    );
    let matrix = query(&format!(
        "SELECT * FROM ML.CONFUSION_MATRIX(MODEL m, ({rows})) ORDER BY expected_label"
    ));
    let cells: Vec<_> = matrix
        .iter()
        .flat_map(|row| ["little", "much"].map(|class| row[class].as_f64().unwrap()))
        .collect();
    assert_eq!(cells, [tn, fp, fneg, tp]);
    let curve = query(&format!(
        "SELECT * FROM ML.ROC_CURVE(MODEL m, ({rows})) ORDER BY threshold"
    ));
    assert!((50..=110).contains(&curve.len()), "{}", curve.len());
    for point in &curve {
        let threshold = point["threshold"].as_f64().unwrap();
        let taken = predicted
            .iter()
            .filter(|row| share(row) >= threshold - 1e-9);
        let right = taken.filter(|row| is_much(row, "c")).count() as f64;
        assert_eq!(point["true_positives"].as_f64().unwrap(), right, "{point}");
        let recall = point["recall"].as_f64().unwrap();
        assert!((recall - right / (tp + fneg)).abs() < 1e-9, "{point}");
    }
}

#[test]
fn a_model_lives_in_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));

    let ranks = query(&create_model(
        "m",
        ", epochs = 12, ranks = 2, learn_rate = 0.02, seed = 3",
    ));
    assert_eq!(ranks.len(), 2);
    let info = query("SELECT * FROM ML.TRAINING_INFO(MODEL m) ORDER BY iteration");
    assert_eq!(info.len(), 12);
    let loss = |row: &serde_json::Value| row["eval_loss"].as_f64().unwrap();
    assert!(
        loss(&info[11]) < loss(&info[0]) / 2.0,
        "it learns: {info:?}"
    );

    let predicted =
        query("SELECT id, y, predicted_y FROM ML.PREDICT(MODEL m, (SELECT * FROM t)) ORDER BY id");
    assert_eq!(predicted.len(), 700);
    let evaluated = query("SELECT * FROM ML.EVALUATE(MODEL m, (SELECT * FROM t))");
    let trained = "SELECT avg(x) AS mean, stddev_pop(x) AS stddev, min(x) AS min, max(x) AS max FROM t WHERE split = 'TRAIN'";
    let due = &query(trained)[0];
    let info = query("SELECT * FROM ML.FEATURE_INFO(MODEL m) ORDER BY input");
    assert_eq!(
        (&info[0]["input"], &info[0]["category_count"]),
        (&"k".into(), &7.into())
    );
    let drifted =
        "SELECT k, CASE WHEN id > 0 THEN x + 2 END AS x FROM t WHERE split = 'TRAIN' OR id = 0";
    let drifted = query(&format!(
        "SELECT * FROM ML.FEATURE_INFO(MODEL m, ({drifted})) ORDER BY input"
    ));
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap();
    for (name, moved) in [("mean", 2.0), ("stddev", 0.0), ("min", 2.0), ("max", 2.0)] {
        let [told, due, then] = [&info[1], due, &drifted[1]].map(|row| number(row, name));
        assert!((told - due).abs() < 1e-5, "{name}: {told}, {due}");
        assert!((then - due - moved).abs() < 1e-5, "{name}: {then}, {due}");
    }
    assert_eq!(
        (&info[1]["null_count"], &drifted[1]["null_count"]),
        (&0.into(), &1.into())
    );
    let due = 2.0 / number(&info[1], "stddev");
    assert!(
        (number(&drifted[1], "drift") - due).abs() < 1e-5,
        "{drifted:?}"
    );
    assert_eq!(drifted[0]["category_count"], 7);
    let grouped = query("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t, BY k, BY id) ORDER BY id");
    assert_eq!(grouped.len(), 700);
    for (group, row) in grouped.iter().zip(&predicted) {
        let difference = row["y"].as_f64().unwrap() - row["predicted_y"].as_f64().unwrap();
        let told = group["mean_absolute_error"].as_f64().unwrap();
        assert!((told - difference.abs()).abs() < 1e-4, "{group} {row}");
    }
    let error: f64 = predicted
        .iter()
        .map(|row| (row["y"].as_f64().unwrap() - row["predicted_y"].as_f64().unwrap()).abs())
        .sum::<f64>()
        / 700.0;
    let told = evaluated[0]["mean_absolute_error"].as_f64().unwrap();
    assert!(
        (error - told).abs() < 1e-4 * error.max(1.0),
        "{error} {told}"
    );

    let traced = create_model("traced", ", epochs = 1, ranks = 2");
    let traced = cluster.run(&["--trace", "-c", &table, "-c", &traced]);
    let trace = cluster.store().join("models/traced/1/trace.json");
    let said = traced.stdout.contains(trace.to_str().unwrap());
    assert!(said, "{}\n{}", traced.stdout, traced.stderr);
    let trace: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    query("DROP MODEL traced");

    query(&create_model(
        "binned",
        ", epochs = 12, ranks = 2, learn_rate = 0.02, seed = 3, numeric_transform = 'quantile', \
         numeric_embedding = 'piecewise_linear'",
    ));
    let evaluated = query("SELECT * FROM ML.EVALUATE(MODEL binned, (SELECT * FROM t))");
    let of_mean = query(
        "SELECT avg(abs(y - mean)) AS error FROM t, (SELECT avg(y) AS mean FROM t) AS of_all",
    );
    let [told, due] = [
        number(&evaluated[0], "mean_absolute_error"),
        number(&of_mean[0], "error"),
    ];
    assert!(told < due / 2.0, "{told} {due}");
    query("DROP MODEL binned");

    assert_eq!(query("SHOW MODELS").len(), 1);
    assert!(!query("DESCRIBE MODEL m").is_empty());
    assert!(
        cluster
            .fail(&format!("{table} {}", create_model("m", "")))
            .contains("exists")
    );
    query("DROP MODEL m");
    assert!(query("SHOW MODELS").is_empty());
    let said = cluster.fail(&format!(
        "{table} SELECT * FROM ML.PREDICT(MODEL m, (SELECT * FROM t))"
    ));
    assert!(said.contains("\"m\""), "{said}");
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

    // Two gangs that each need all executors: one after the other, and no deadlock.
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
fn bad_input_is_named_and_the_cluster_lives_on() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 100);
    let dir = cluster.dir().display();
    fs::write(cluster.dir().join("ragged.csv"), "a,b\n1,2\n3\n").unwrap();
    let ragged = format!(
        "CREATE EXTERNAL TABLE r (a BIGINT, b BIGINT) STORED AS CSV LOCATION '{dir}/ragged.csv' \
         OPTIONS ('format.has_header' 'true');"
    );
    let model = |options: &str| create_model("bad", options);
    let select =
        |select: &str| model(", epochs = 1").replace("SELECT k, x, y, split, id FROM t", select);
    cluster.query(&format!(
        "{table} {}",
        create_model("good", ", epochs = 1, ranks = 1")
    ));

    // What is typed, and what the message must name.
    let mistakes: &[(String, &[&str])] = &[
        (format!("{table} SELECT nope FROM t"), &["nope"]),
        (
            format!(
                "CREATE EXTERNAL TABLE m STORED AS CSV LOCATION '{dir}/no.csv'; SELECT * FROM m"
            ),
            &["no.csv"],
        ),
        (format!("{ragged} SELECT sum(a + b) FROM r"), &["line"]),
        (
            format!("{table} {}", model(", epocs = 1")),
            &["epocs", "epochs"],
        ),
        (
            format!("{table} {}", model(", epochs = 0")),
            &["epochs", "0"],
        ),
        (
            format!("{table} {}", model(", epochs = 'many'")),
            &["epochs", "many"],
        ),
        (format!("{table} {}", model(", ranks = 0")), &["ranks", "0"]),
        (
            format!("{table} {}", model(", loss = 'made_up'")),
            &["loss", "made_up"],
        ),
        (
            format!("{table} {}", select("SELECT k, y, split FROM t")),
            &["\"x\""],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, empty AS y, split FROM t")
            ),
            &["\"y\"", "null"],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, y - 100 AS y, split FROM t")
                    .replace("epochs = 1", "epochs = 1, label_transform = 'ln'")
            ),
            &["\"y\""],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, y, 'MAYBE' AS split FROM t")
            ),
            &["MAYBE"],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL goood, (SELECT * FROM t))"),
            &["goood", "good"],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL good, (SELECT k FROM t))"),
            &["\"x\""],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL good, (SELECT 'a' AS k, x FROM t))"),
            &["\"k\"", "Utf8"],
        ),
        ("DROP MODEL nothing".into(), &["nothing"]),
        ("SELEC 1".into(), &["SELEC"]),
    ];
    for (sql, names) in mistakes {
        let said = cluster.fail(sql);
        for name in *names {
            assert!(said.contains(name), "{sql}\n{said}\nshould name {name}");
        }
    }

    let file = cluster.dir().join("file");
    fs::write(&file, "").unwrap();
    let sql = format!("{table} {}", create_model("s", ", epochs = 1"));
    let output = Command::new(binary("volley"))
        .args(["--scheduler", cluster.address(), "--store"])
        .arg(file.join("store"))
        .args(["-c", &sql])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("store"));
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

/// With columns for arguments: what is constant is computed by the scheduler.
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

#[test]
fn a_scheduler_that_is_not_there_and_a_port_in_use_are_named() {
    let cluster = Cluster::start(0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = Command::new(binary("volley"))
        .args([
            "--scheduler",
            &closed,
            "--connect-timeout",
            "1s",
            "-c",
            "SELECT 1",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&closed));

    let output = Command::new(binary("volley-scheduler"))
        .args(["--bind", cluster.address()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(cluster.address()));
}
