//! `TRANSFORM (…)`: fitted in training, and applied by all functions that take the model's rows.

use std::fs;

use serde_json::Value;
use volley_tests::Cluster;

use crate::write_table;

/// Rows without a value in some, and with outliers among the evaluation rows.
const ROWS: &str = "SELECT id, CASE WHEN id % 11 <> 3 THEN x END AS x, \
                    CASE WHEN split = 'EVAL' THEN k + 100 ELSE k END AS z, text, y, split FROM t";

fn manifest(cluster: &Cluster, name: &str) -> Value {
    let file = cluster
        .store()
        .join(format!("models/{name}/1/manifest.json"));
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Returns the saved expression of a column.
fn saved<'a>(manifest: &'a Value, column: &str) -> &'a str {
    let columns = manifest["spec"]["transform"]["columns"].as_array().unwrap();
    let found = columns.iter().find(|of| of["column"] == column);
    found.unwrap()["sql"].as_str().unwrap()
}

/// Returns a number of a feature, recorded in training.
fn numbers(manifest: &Value, column: &str, of: &str) -> f64 {
    let features = manifest["features"].as_array().unwrap();
    let found = features.iter().find(|feature| feature["column"] == column);
    found.unwrap()["numbers"][of].as_f64().unwrap()
}

#[test]
fn fitted_to_training_rows_and_applied_by_prediction() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    let options = "model_type = 'dnn_regressor', input_label_cols = ['ly'], hidden_units = [16], epochs = 3, \
                   global_batch_size = 32, device = 'cpu', data_split_method = 'custom', data_split_col = 'split'";
    query(&format!(
        "CREATE MODEL m TRANSFORM (
           ML.STANDARD_SCALER(x) OVER () AS xs, ML.MIN_MAX_SCALER(z) OVER () AS z, ML.ROBUST_SCALER(x) OVER () AS xr,
           ML.IMPUTER(x, 'mean') OVER () AS xi, ML.QUANTILE_BUCKETIZE(x, 4) OVER () AS xb,
           ML.BUCKETIZE(z, [2, 5]) AS zb, text || '!' AS t, ln(y) AS ly)
         OPTIONS ({options}) AS {ROWS}"
    ));
    let (number, text) = (
        |row: &Value, of: &str| row[of].as_f64().unwrap(),
        |row: &Value, of: &str| row[of].as_str().unwrap().to_owned(),
    );

    // The numbers are those of the training rows: those of the evaluation rows start at 100.
    let trained = &query(&format!(
        "SELECT avg(x) AS mean, stddev(x) AS deviation, min(z) AS least, max(z) AS greatest
         FROM ({ROWS}) WHERE split = 'TRAIN'"
    ))[0];
    let quantiles = query(&format!(
        "SELECT x FROM ({ROWS}) WHERE split = 'TRAIN' AND x IS NOT NULL ORDER BY x"
    ));
    let quantile = |share: f64| {
        let at = (share * quantiles.len() as f64).ceil() as usize - 1;
        number(&quantiles[at], "x")
    };
    let rounded = |of: f64| format!("{of:.11e}").parse::<f64>().unwrap();
    let (mean, deviation) = (
        rounded(number(trained, "mean")),
        rounded(number(trained, "deviation")),
    );
    let [low, middle, high] = [0.25, 0.5, 0.75].map(quantile);
    let x = "CAST(\"x\" AS DOUBLE)";
    let of_m = manifest(&cluster, "m");
    assert_eq!(of_m["format"], 12);
    assert_eq!(
        (number(trained, "least"), number(trained, "greatest")),
        (0.0, 6.0)
    );
    assert!(saved(&of_m, "xs").contains(&format!("({x} - {mean:?}) / {deviation:?}")));
    assert!(saved(&of_m, "xr").contains(&format!("({x} - {middle:?}) / {:?}", high - low)));
    for point in [low, middle, high] {
        assert!(saved(&of_m, "xb").contains(&format!("{x} < {point:?}")));
    }

    // The same transformation written by hand.
    let written = format!(
        "SELECT id, (CAST(x AS DOUBLE) - {mean:?}) / {deviation:?} AS xs,
           CASE WHEN z < 0 THEN 0.0 WHEN z > 6 THEN 1.0 ELSE (CAST(z AS DOUBLE) - 0.0) / 6.0 END AS z,
           (CAST(x AS DOUBLE) - {middle:?}) / {:?} AS xr, coalesce(CAST(x AS DOUBLE), {mean:?}) AS xi,
           CASE WHEN x IS NULL THEN NULL WHEN x < {low:?} THEN 'bin_1' WHEN x < {middle:?} THEN 'bin_2'
             WHEN x < {high:?} THEN 'bin_3' ELSE 'bin_4' END AS xb,
           CASE WHEN z < 2 THEN 'bin_1' WHEN z < 5 THEN 'bin_2' ELSE 'bin_3' END AS zb,
           text || '!' AS t, ln(y) AS ly, split FROM ({ROWS})",
        high - low
    );
    query(&format!(
        "CREATE MODEL n OPTIONS ({options}) AS SELECT * EXCEPT (id) FROM ({written})"
    ));
    // The label may be missing, and computed columns do not clash with columns of the same name.
    let by_m = query(&format!(
        "SELECT id, z, predicted_ly AS p FROM ML.PREDICT(MODEL m, (SELECT * EXCEPT (y, split) FROM ({ROWS}))) ORDER BY id"
    ));
    let by_n = query(&format!(
        "SELECT id, predicted_ly AS p FROM ML.PREDICT(MODEL n, (SELECT * FROM ({written}))) ORDER BY id"
    ));
    assert_eq!((by_m.len(), by_n.len()), (700, 700));
    for (m, n) in by_m.iter().zip(&by_n) {
        assert_eq!(m["id"], n["id"]);
        assert!((number(m, "p") - number(n, "p")).abs() < 1e-5, "{m} {n}");
    }
    assert!(by_m.iter().any(|row| number(row, "z") > 99.0));
    let prepared = query(&format!(
        "SELECT * FROM ML.TRANSFORM(MODEL m, (SELECT * FROM ({ROWS}) WHERE id = 7))"
    ));
    let by_hand = query(&format!(
        "SELECT * EXCEPT (id, split) FROM ({written}) WHERE id = 7"
    ));
    assert_eq!(prepared, by_hand);

    // All other functions that take rows take those of the query.
    let judged = |model: &str, rows: &str| {
        let metrics = "r2_score, mean_absolute_error, rows";
        query(&format!(
            "SELECT {metrics} FROM ML.EVALUATE(MODEL {model}, ({rows}))"
        ))
    };
    let (m, n) = (&judged("m", ROWS)[0], &judged("n", &written)[0]);
    for metric in ["r2_score", "mean_absolute_error", "rows"] {
        assert!(
            (number(m, metric) - number(n, metric)).abs() < 1e-5,
            "{m} {n}"
        );
    }
    let groups = query(&format!(
        "SELECT split, rows FROM ML.EVALUATE(MODEL m, ({ROWS}), BY split) ORDER BY split"
    ));
    assert_eq!((groups.len(), number(&groups[0], "rows")), (2, 140.0));
    let explained = query(&format!(
        "SELECT top_feature_attributions[1]['feature'] AS feature
         FROM ML.EXPLAIN_PREDICT(MODEL m, (SELECT * FROM ({ROWS}) LIMIT 1))"
    ));
    assert!(["xs", "z", "xr", "xi", "xb", "zb", "t"].contains(&&*text(&explained[0], "feature")));
    let mut important = query(&format!(
        "SELECT feature FROM ML.GLOBAL_EXPLAIN(MODEL m, ({ROWS})) ORDER BY feature"
    ));
    let important: Vec<_> = important
        .drain(..)
        .map(|row| text(&row, "feature"))
        .collect();
    assert_eq!(important, ["text", "x", "z"]);
    let drifted = query(&format!(
        "SELECT input, mean, drift FROM ML.FEATURE_INFO(MODEL m, (SELECT * FROM ({ROWS}) WHERE split = 'TRAIN'))
         WHERE input IN ('xs', 'z') ORDER BY input"
    ));
    assert!(number(&drifted[0], "mean").abs() < 1e-9 && number(&drifted[1], "drift") < 1e-5);
    let described = query("DESCRIBE MODEL m");
    let of_xs = described
        .iter()
        .find(|row| row["property"] == "transform xs");
    let of_xs = text(of_xs.unwrap(), "value");
    assert!(
        of_xs.starts_with("ML.STANDARD_SCALER(x) OVER () = "),
        "{of_xs}"
    );
    let plan = query(&format!(
        "EXPLAIN CREATE MODEL e TRANSFORM (ML.STANDARD_SCALER(x) OVER () AS xs, y) \
         OPTIONS (input_label_cols = ['y']) AS {ROWS}"
    ));
    assert!(text(&plan[0], "plan").contains("fitted before         ML.STANDARD_SCALER(x) OVER ()"));

    // Another version may start from the model, with newly fitted numbers.
    query(&format!(
        "CREATE OR REPLACE MODEL m TRANSFORM (
           ML.STANDARD_SCALER(x) OVER () AS xs, ML.MIN_MAX_SCALER(z) OVER () AS z, ML.ROBUST_SCALER(x) OVER () AS xr,
           ML.IMPUTER(x, 'mean') OVER () AS xi, ML.QUANTILE_BUCKETIZE(x, 4) OVER () AS xb,
           ML.BUCKETIZE(z, [2, 5]) AS zb, text || '!' AS t, ln(y) AS ly)
         OPTIONS ({options}, warm_start = true) AS {ROWS}"
    ));

    for (sql, said) in [
        (
            "SELECT * FROM ML.PREDICT(MODEL m, (SELECT z, text FROM rows))",
            "unknown column \"x\" in the rows (the model's TRANSFORM reads it)",
        ),
        (
            "SELECT * FROM ML.PREDICT(MODEL m, (SELECT x AS \"X\", z, text FROM rows))",
            "did you mean \"X\"?",
        ),
        (
            "SELECT * FROM ML.PREDICT(MODEL m, (SELECT text AS x, z, text FROM rows))",
            "expected Float64 as in training",
        ),
        (
            "SELECT * FROM ML.EVALUATE(MODEL m, (SELECT x, z, text FROM rows))",
            "unknown column \"y\" in the rows (the model's TRANSFORM reads it)",
        ),
        (
            "SELECT * FROM ML.TRANSFORM(MODEL n, TABLE rows)",
            "this one was not",
        ),
        (
            "CREATE MODEL q TRANSFORM (avg(x) AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM rows",
            "an aggregate needs many rows",
        ),
        (
            "CREATE MODEL q TRANSFORM (random() AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM rows",
            "changes with every call",
        ),
        (
            "CREATE MODEL q TRANSFORM (ln(text) AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM rows",
            "TRANSFORM: ln(text)",
        ),
        (
            "CREATE MODEL q TRANSFORM (x, y) OPTIONS (input_label_cols = ['y'], continuous = ['z']) AS SELECT * FROM rows",
            "the query has it, and TRANSFORM (…) leaves it out",
        ),
        (
            "CREATE MODEL q TRANSFORM (ML.MAX_ABS_SCALER(x) OVER () AS a, y) OPTIONS (input_label_cols = ['y']) \
             AS SELECT CAST(NULL AS DOUBLE) AS x, y FROM rows",
            "it is NULL in every training row",
        ),
    ] {
        let error = cluster.fail(&format!("{table} CREATE VIEW rows AS {ROWS}; {sql}"));
        assert!(error.contains(said), "{sql}: {error}");
    }
}

#[test]
fn rows_are_split_as_without_a_transform() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 500);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    for (name, split) in [
        ("random", "seed = 3"),
        ("keyed", "split_key = ['k']"),
        (
            "last",
            "data_split_method = 'seq', data_split_col = 'id', data_split_eval_fraction = 0.3",
        ),
        ("flagged", "data_split_col = 'flag'"),
    ] {
        let options = format!(
            "input_label_cols = ['y'], hidden_units = [4], epochs = 1, device = 'cpu', {split}"
        );
        let query_of = "SELECT id, k, x, y, flag FROM t";
        query(&format!(
            "CREATE MODEL {name} TRANSFORM (ML.STANDARD_SCALER(x) OVER () AS xs, x, y) OPTIONS ({options}) AS {query_of}"
        ));
        query(&format!(
            "CREATE MODEL {name}_plain OPTIONS ({options}, continuous = ['x']) AS {query_of}"
        ));
        let (of, plain) = (
            manifest(&cluster, name),
            manifest(&cluster, &format!("{name}_plain")),
        );
        assert_eq!(of["train_rows"], plain["train_rows"], "{name}");
        for measure in ["mean", "stddev", "min", "max"] {
            let (of, plain) = (numbers(&of, "x", measure), numbers(&plain, "x", measure));
            assert!((of - plain).abs() < 1e-9, "{name}: {measure} {of} {plain}");
        }
        // Fitted to the training rows alone.
        let rows = of["train_rows"].as_f64().unwrap();
        let (mean, deviation) = (numbers(&of, "xs", "mean"), numbers(&of, "xs", "stddev"));
        assert!(mean.abs() < 1e-6, "{name}: {mean}");
        let sample = deviation * (rows / (rows - 1.0)).sqrt();
        assert!((sample - 1.0).abs() < 1e-6, "{name}: {sample}");
    }
}

#[test]
fn a_label_that_is_computed_is_judged() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 400);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    query(
        "CREATE MODEL m TRANSFORM (x, k, CASE WHEN y > 4 THEN 'much' ELSE 'little' END AS y)
         OPTIONS (model_type = 'logistic_reg', input_label_cols = ['y'], categorical = ['k'], continuous = ['x'])
         AS SELECT k, x, y FROM t",
    );
    let matrix =
        query("SELECT * FROM ML.CONFUSION_MATRIX(MODEL m, TABLE t) ORDER BY expected_label");
    assert_eq!(matrix[0]["expected_label"], "little");
    let judged =
        &query("SELECT rows, accuracy FROM ML.EVALUATE(MODEL m, (SELECT k, x, y FROM t))")[0];
    assert_eq!(judged["rows"], 400);
    assert!(judged["accuracy"].as_f64().unwrap() > 0.9, "{judged}");
    assert!(!query("SELECT * FROM ML.ROC_CURVE(MODEL m, TABLE t)").is_empty());
    let important = query("SELECT * FROM ML.GLOBAL_EXPLAIN(MODEL m, TABLE t)");
    assert_eq!(important.len(), 2);
}
