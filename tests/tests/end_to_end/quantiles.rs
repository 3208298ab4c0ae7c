//! Several quantiles of one model: their predictions and evaluation.

use serde_json::Value;
use volley_tests::Cluster;

use crate::write_table;

fn number(row: &Value, column: &str) -> f64 {
    row[column].as_f64().unwrap()
}

#[test]
fn an_interval_is_predicted_and_judged_in_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    let options = "loss = 'quantile', input_label_cols = ['y'], categorical = ['k'], device = 'cpu', epochs = 5, \
                   data_split_method = 'custom', data_split_col = 'split'";
    query(&format!(
        "CREATE MODEL m OPTIONS ({options}, quantile = [0.1, 0.5, 0.9], hidden_units = [16]) \
         AS SELECT id, k, y, split FROM t"
    ));
    let value = |at: usize| format!("CAST(predicted_y_quantiles[{at}]['value'] AS DOUBLE)");
    let predicted = query(&format!(
        "SELECT y, CAST(predicted_y AS DOUBLE) AS predicted, {} AS low, {} AS middle, {} AS high,
           predicted_y_quantiles[3]['quantile'] AS share FROM ML.PREDICT(MODEL m, TABLE t)",
        value(1),
        value(2),
        value(3)
    ));
    assert_eq!(predicted.len(), 700);
    let (mut loss, mut inside, mut width) = (0.0, 0.0, 0.0);
    for row in &predicted {
        let [y, predicted, low, middle, high] =
            ["y", "predicted", "low", "middle", "high"].map(|column| number(row, column));
        assert!(low <= middle && middle <= high, "{row}");
        assert_eq!((predicted, number(row, "share")), (middle, 0.9), "{row}");
        for (share, quantile) in [(0.1, low), (0.5, middle), (0.9, high)] {
            let error = y - quantile;
            loss += (share * error).max((share - 1.0) * error) / 3.0 / 700.0;
        }
        inside += f64::from(u8::from(low <= y && y <= high)) / 700.0;
        width += (high - low) / 700.0;
    }
    let judged = &query("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t)")[0];
    for (metric, due) in [
        ("mean_pinball_loss", loss),
        ("interval_coverage", inside),
        ("mean_interval_width", width),
    ] {
        let told = number(judged, metric);
        assert!((told - due).abs() < 1e-9 * due.max(1.0), "{due} {judged}");
    }
    let groups = query("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t, BY k)");
    let coverage: f64 = groups
        .iter()
        .map(|group| number(group, "interval_coverage") * number(group, "rows") / 700.0)
        .sum();
    assert!((coverage - inside).abs() < 1e-9, "{groups:?}");
    // The coverage that training recorded for its evaluation rows, with the published weights.
    let trained = query(
        "SELECT eval_interval_coverage AS told, coverage AS due FROM ML.TRAINING_INFO(MODEL m) CROSS JOIN
           (SELECT interval_coverage AS coverage FROM ML.EVALUATE(MODEL m, (SELECT * FROM t WHERE split = 'EVAL'))) AS e
         WHERE published",
    );
    assert_eq!(trained.len(), 1);
    let [told, due] = ["told", "due"].map(|column| number(&trained[0], column));
    assert!((told - due).abs() < 0.02, "{trained:?}");
    let explained = query(
        "SELECT predicted_y, prediction_value FROM ML.EXPLAIN_PREDICT(MODEL m, (SELECT * FROM t WHERE id < 5))",
    );
    for row in &explained {
        let [told, value] = ["predicted_y", "prediction_value"].map(|column| number(row, column));
        assert!((told - value).abs() < 1e-3 * told.abs().max(1.0), "{row}");
    }

    // Of two quantiles equally near to the median, the lower is the prediction; logarithms are undone.
    query(&format!(
        "CREATE MODEL n OPTIONS ({options}, model_type = 'linear_reg', label_transform = 'ln', quantile = [0.25, 0.75]) \
         AS SELECT id, k, y, split FROM t"
    ));
    let predicted = query(&format!(
        "SELECT CAST(predicted_y AS DOUBLE) AS predicted, {} AS low, {} AS high FROM ML.PREDICT(MODEL n, TABLE t)",
        value(1),
        value(2)
    ));
    for row in &predicted {
        let [predicted, low, high] = ["predicted", "low", "high"].map(|column| number(row, column));
        assert!(predicted == low && 0.0 < low && low <= high, "{row}");
    }
}
