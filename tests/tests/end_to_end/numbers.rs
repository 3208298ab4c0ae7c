//! Numbers far from 0, and weights of rows: training and evaluation with them; and numbers that overflow.

use std::fs;

use serde_json::{Value, json};
use volley_tests::Cluster;

use crate::write_table;

fn number(row: &Value, column: &str) -> f64 {
    row[column].as_f64().unwrap()
}

#[test]
fn numbers_far_from_zero_keep_their_digits() {
    let cluster = Cluster::start(2);
    let rows = "SELECT 1700000000 + value AS seconds, 1e9 + value AS y FROM range(100)";
    cluster.query(&format!(
        "CREATE MODEL m OPTIONS (model_type = 'linear_reg', input_label_cols = ['y'], continuous = ['seconds'],
           data_split_method = 'no_split', device = 'cpu') AS {rows}"
    ));
    let predicted = cluster.query(&format!(
        "SELECT max(abs(predicted_y - y)) AS error, arrow_typeof(min(predicted_y)) AS kind
         FROM ML.PREDICT(MODEL m, ({rows}))"
    ));
    assert!(number(&predicted[0], "error") < 1.0, "{predicted:?}");
    assert_eq!(predicted[0]["kind"], "Float64");
    let judged = cluster.query(&format!("SELECT * FROM ML.EVALUATE(MODEL m, ({rows}))"));
    assert!(number(&judged[0], "r2_score") > 0.9999, "{judged:?}");
}

#[test]
fn rows_count_by_their_weights() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    // A third of the rows have weight 0, and wrong values.
    let rows = "SELECT id, k, x, CASE WHEN id % 3 = 0 THEN 1e6 ELSE y END AS y,
                  CASE WHEN id % 3 = 0 THEN 'wrong' WHEN y > 4 THEN 'much' ELSE 'little' END AS c,
                  CAST(id % 3 AS DOUBLE) AS w, split FROM t";
    let once = format!("SELECT id, k, x, y, c, split FROM ({rows}) AS once WHERE w > 0");
    let again = format!("SELECT id, k, x, y, c, split FROM ({rows}) AS again WHERE w > 1");
    let twice = format!("{once} UNION ALL {again}");
    for (label, model_type) in [("y", "dnn_regressor"), ("c", "dnn_classifier")] {
        query(&format!(
            "CREATE MODEL m_{label} OPTIONS (model_type = '{model_type}', input_label_cols = ['{label}'],
               categorical = ['k'], continuous = ['x'], sample_weight_col = 'w', hidden_units = [16], epochs = 10,
               data_split_method = 'custom', data_split_col = 'split', device = 'cpu') AS {rows}"
        ));
        let judged = |of: &str| {
            let judged = query(&format!(
                "SELECT * FROM ML.EVALUATE(MODEL m_{label}, ({of}))"
            ));
            judged[0].as_object().unwrap().clone()
        };
        let (weighed, due) = (judged(rows), judged(&twice));
        assert_eq!((&weighed["rows"], &due["rows"]), (&466.into(), &699.into()));
        for (metric, due) in due.iter().filter(|(metric, _)| *metric != "rows") {
            let (told, due) = (weighed[metric].as_f64().unwrap(), due.as_f64().unwrap());
            let error = (told - due).abs();
            assert!(error < 1e-9 * due.abs().max(1.0), "{metric}: {told} {due}");
        }
        let (metric, name) = match label {
            "y" => ("eval_mae", "mean_absolute_error"),
            _ => ("eval_accuracy", "accuracy"),
        };
        let trained = query(&format!(
            "SELECT {metric} AS told FROM ML.TRAINING_INFO(MODEL m_{label}) WHERE published"
        ));
        let due = judged(&format!(
            "SELECT * FROM ({rows}) AS evaluated WHERE split = 'EVAL'"
        ));
        let (told, due) = (number(&trained[0], "told"), due[name].as_f64().unwrap());
        assert!(
            (told - due).abs() < 1e-3 * due.abs(),
            "{metric}: {told} {due}"
        );
    }
    let classes = query(
        "SELECT DISTINCT cardinality(predicted_c_probs) AS classes FROM ML.PREDICT(MODEL m_c, TABLE t)",
    );
    assert_eq!(number(&classes[0], "classes"), 2.0);

    let said = cluster.fail(&format!(
        "{table} CREATE MODEL none OPTIONS (input_label_cols = ['y'], sample_weight_col = 'w', device = 'cpu')
         AS SELECT x, y, 0.0 AS w FROM t"
    ));
    assert!(said.contains("\"w\" (sample_weight_col) is 0"), "{said}");
}

#[test]
fn rows_are_judged_by_weights_that_a_transform_computes() {
    let cluster = Cluster::start(1);
    let rows = "SELECT CAST(value AS DOUBLE) AS x, CASE WHEN value % 5 = 0 THEN 1e6 ELSE 2.0 * value + 3 END AS y,
                  CASE WHEN value % 5 = 0 THEN 'bad' ELSE 'good' END AS kind FROM range(100)";
    cluster.query(&format!(
        "CREATE MODEL m TRANSFORM (x, y, CASE WHEN kind = 'bad' THEN 0 ELSE 3 END AS w)
         OPTIONS (model_type = 'linear_reg', input_label_cols = ['y'], sample_weight_col = 'w',
           data_split_method = 'no_split', device = 'cpu') AS {rows}"
    ));
    let judged = |of: &str| {
        let of = format!("SELECT * FROM ML.EVALUATE(MODEL m, ({of}))");
        cluster.query(&of).remove(0)
    };
    let all = judged(rows);
    assert_eq!(all["rows"], 80);
    assert!(number(&all, "mean_absolute_error") < 0.2, "{all}");
    assert!(number(&all, "r2_score") > 0.999, "{all}");
    // Without the columns that weights are computed from, all rows weigh the same.
    assert_eq!(
        judged(&format!("SELECT x, y FROM ({rows}) AS known"))["rows"],
        100
    );
    // Equal labels have no variance, and rounding errors do not count as one.
    let same = "SELECT CAST(value AS DOUBLE) AS x, 0.1 AS y, 'good' AS kind FROM range(7)";
    let none = cluster.query(&format!(
        "SELECT r2_score < -1e300 AS none FROM ML.EVALUATE(MODEL m, ({same}))"
    ));
    assert_eq!(none[0]["none"], true);
}

#[test]
fn whole_numbers_and_decimals_overflow_with_an_error() {
    let cluster = Cluster::start(2);
    let (file, greatest) = (cluster.dir().join("n.csv"), i64::MAX);
    let nines = "9".repeat(38);
    let rows = [
        ("a", greatest, nines.as_str()),
        ("a", 1, "1"),
        ("b", 2, "2"),
        ("b", -3, "-3"),
    ];
    let rows = rows.map(|(k, x, d)| format!("{k},{x},{d}\n"));
    fs::write(&file, rows.concat()).unwrap();
    for tasks in ["", "SET volley.single_task_bytes = 0;"] {
        let table = format!(
            "{tasks} CREATE EXTERNAL TABLE t (k VARCHAR, x BIGINT, d DECIMAL(38, 0)) STORED AS CSV \
             LOCATION '{}' OPTIONS ('format.has_header' 'false');",
            file.display()
        );
        for overflow in [
            "SELECT sum(x) AS s FROM t WHERE k = 'a'",
            "SELECT k, sum(x) AS s FROM t GROUP BY k",
            "SELECT sum(DISTINCT x) AS s FROM t WHERE k = 'a'",
            "SELECT sum(x) OVER (PARTITION BY k) AS s FROM t",
            "SELECT sum(x) OVER (ORDER BY x DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM t",
            "SELECT sum(x) FILTER (WHERE x > 0) OVER (ORDER BY x) AS s FROM t",
            "SELECT sum(d) AS s FROM t WHERE k = 'a'",
            "SELECT k, sum(d) AS s FROM t GROUP BY k",
            "SELECT sum(d) OVER (PARTITION BY k) AS s FROM t",
            "SELECT x + 1 AS s FROM t",
            "SELECT 2 * x AS s FROM t",
            "SELECT k FROM t WHERE -2 - x > 0",
            "SELECT 9223372036854775807 + 1 AS s",
            "SELECT abs(9223372036854775807) + 1 AS s",
            "SELECT CASE WHEN true THEN 9223372036854775807 END + 1 AS s",
            "SELECT k FROM t WHERE x < 9223372036854775807 * 2",
        ] {
            let said = cluster.fail(&format!("{table} {overflow}")).to_lowercase();
            assert!(said.contains("overflow"), "{overflow}: {said}");
        }
        let fits = "SELECT sum(x) AS x, sum(x + 1) AS y, sum(d) AS d FROM t \
                    WHERE k = 'b'";
        assert_eq!(
            cluster.query(&format!("{table} {fits}")),
            [json!({"x": -1, "y": 1, "d": -1})]
        );
        let frames = "SELECT sum(x) OVER (ORDER BY x DESC ROWS BETWEEN CURRENT ROW AND CURRENT ROW) AS a, \
                      CAST(sum(DISTINCT d) OVER (ORDER BY x DESC ROWS BETWEEN CURRENT ROW AND CURRENT ROW) AS VARCHAR) AS b \
                      FROM t \
                      ORDER BY x DESC LIMIT 2";
        assert_eq!(
            cluster.query(&format!("{table} {frames}")),
            [
                json!({"a": greatest, "b": nines}),
                json!({"a": 2, "b": "2"})
            ]
        );
        let wide =
            "SELECT CAST(sum(CAST(x AS DECIMAL(38, 0))) AS VARCHAR) AS s FROM t WHERE k = 'a'";
        assert_eq!(
            cluster.query(&format!("{table} {wide}")),
            [json!({"s": "9223372036854775808"})]
        );
    }
}
