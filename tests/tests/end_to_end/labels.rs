//! Several labels of one model: the predictions and the evaluation of each.

use std::fs;

use serde_json::Value;
use volley_tests::Cluster;

use crate::write_table;

fn number(row: &Value, column: &str) -> f64 {
    row[column].as_f64().unwrap()
}

#[test]
fn several_labels_are_predicted_and_judged_each() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    // One label from the query, and one computed from it.
    query(
        "CREATE MODEL m TRANSFORM (k, x, y, 1000 * ln(y) AS z)
         OPTIONS (input_label_cols = ['y', 'z'], loss_weights = [1, 0.5], categorical = ['k'], continuous = ['x'],
           hidden_units = [16], epochs = 10, device = 'cpu', data_split_method = 'custom', data_split_col = 'split')
         AS SELECT id, k, x, y, split FROM t",
    );
    let predicted = query(
        "SELECT k, y, 1000 * ln(y) AS z, CAST(predicted_y AS DOUBLE) AS of_y, CAST(predicted_z AS DOUBLE) AS of_z \
         FROM ML.PREDICT(MODEL m, TABLE t)",
    );
    assert_eq!(predicted.len(), 700);
    let error = |label: &str, of: &str, wanted: &dyn Fn(&Value) -> bool| {
        let rows = predicted.iter().filter(|row| wanted(row));
        let errors = rows.map(|row| (number(row, label) - number(row, of)).abs());
        let errors: Vec<f64> = errors.collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let judged = query("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t) ORDER BY label");
    assert_eq!(judged.len(), 2);
    for (row, (label, of)) in judged.iter().zip([("y", "of_y"), ("z", "of_z")]) {
        assert_eq!((&row["label"], &row["rows"]), (&label.into(), &700.into()));
        let (told, due) = (
            number(row, "mean_absolute_error"),
            error(label, of, &|_| true),
        );
        assert!((told / due - 1.0).abs() < 1e-6, "{due} {row}");
    }
    let groups = query(
        "SELECT label, k, mean_absolute_error AS mae FROM ML.EVALUATE(MODEL m, TABLE t, BY k) ORDER BY label, k",
    );
    assert_eq!(groups.len(), 14);
    let (told, due) = (
        number(&groups[10], "mae"),
        error("z", "of_z", &|row| row["k"] == 3),
    );
    assert!((told / due - 1.0).abs() < 1e-6, "{due} {groups:?}");

    let trained = query("SELECT * FROM ML.TRAINING_INFO(MODEL m) ORDER BY iteration, label");
    assert_eq!(trained.len(), 10 * 3);
    let judged = query(
        "SELECT label, mean_absolute_error, r2_score
         FROM ML.EVALUATE(MODEL m, (SELECT * FROM t WHERE split = 'EVAL')) ORDER BY label",
    );
    let of_label = |row: &&Value| row["published"] == true && !row["label"].is_null();
    let published: Vec<_> = trained.iter().filter(of_label).collect();
    assert_eq!(published.len(), 2, "{trained:?}");
    for (told, due) in published.into_iter().zip(&judged) {
        assert_eq!(told["label"], due["label"]);
        for (metric, name) in [("eval_mae", "mean_absolute_error"), ("eval_r2", "r2_score")] {
            let (told, due) = (number(told, metric), number(due, name));
            assert!((told - due).abs() < 1e-3 * due.abs(), "{told} {due}");
        }
    }
    let whole = trained.iter().filter(|row| row["label"].is_null());
    assert!(whole.clone().all(|row| row["loss"].is_number()));
    assert_eq!(whole.count(), 10);

    let run = cluster.report(&["m"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let html = fs::read_to_string(cluster.dir().join("m.html")).unwrap();
    for label in ["y", "z"] {
        assert!(html.contains(&format!("Validation errors of {label}")));
        assert!(html.contains(&format!("R² of {label}")));
    }

    let described = query("DESCRIBE MODEL m");
    let of = |property: &str| {
        let found = described.iter().find(|row| row["property"] == property);
        found.unwrap_or_else(|| panic!("{property}: {described:?}"))["value"].clone()
    };
    assert_eq!(of("label"), "y, z");
    assert_eq!(of("prediction"), "predicted_y, predicted_z");
    assert!(of("kept_epoch eval_mae of z").is_string());
    let said = cluster.fail(&format!(
        "{table} SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, TABLE t)"
    ));
    assert!(said.contains("several labels"), "{said}");
}
