//! A classifier: its predictions, and each evaluation function against the same computed by hand.

use volley_tests::Cluster;

use crate::write_table;

#[test]
fn a_classifier_is_judged_in_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    // Splits the labels at their median into two classes.
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
