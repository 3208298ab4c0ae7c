//! `volley report`: its figures show the same numbers as the functions in SQL.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use volley_tests::Cluster;

use crate::{create_model, write_table};

/// Writes a report with these arguments, in a session that has the table.
fn report(cluster: &Cluster, table: &str, model: &str, more: &[&str]) -> String {
    fs::write(cluster.dir().join("table.sql"), table).unwrap();
    let run = cluster.report(&[&[model, "-f", "table.sql"][..], more].concat());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stdout.ends_with(&format!("{model}.html\n")),
        "{}",
        run.stdout
    );
    fs::read_to_string(cluster.dir().join(format!("{model}.html"))).unwrap()
}

/// Returns the tooltips of the figures' marks.
fn tips(html: &str) -> Vec<String> {
    let tips = html.split("<title>").skip(2);
    let tip = |rest: &str| {
        let (tip, _) = rest.split_once("</title>").unwrap();
        let plain = tip.replace("&lt;", "<").replace("&gt;", ">");
        plain.replace("&quot;", "\"").replace("&amp;", "&")
    };
    tips.map(tip).collect()
}

/// Returns the text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("{before:?} in {text}"));
    rest.split_once(after)
        .unwrap_or_else(|| panic!("{after:?} in {rest}"))
        .0
}

/// Returns a figure of the page, from its title on.
fn figure<'a>(html: &'a str, title: &str) -> &'a str {
    between(html, &format!("<figcaption>{title}"), "</figure>")
}

fn number(row: &Value, column: &str) -> f64 {
    row[column].as_f64().unwrap()
}

#[test]
fn pictures_of_a_classifier_are_its_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    let rows = "SELECT k, x, id, CASE WHEN y > (SELECT median(y) FROM t) THEN '<much> & \"more\"' ELSE 'a bit' END AS c \
                FROM t";
    query(&format!(
        "CREATE MODEL m OPTIONS (model_type = 'dnn_classifier', input_label_cols = ['c'], categorical = ['k'], \
         continuous = ['x'], hidden_units = [16], epochs = 5, split_key = ['id'], device = 'cpu') AS {rows}"
    ));
    let html = report(
        &cluster,
        &table,
        "m",
        &["--rows", rows, "--by", "k", "--publish"],
    );
    assert!(!html.contains("<much>") && !html.contains("http"), "{html}");
    assert!(html.contains("Evaluated on 700 labelled rows"));
    let tips = tips(&html);
    let has = |tip: &str| {
        let found = tips.iter().any(|found| found.starts_with(tip));
        assert!(found, "{tip:?} in {tips:#?}");
    };

    let matrix = query(&format!(
        "SELECT * FROM ML.CONFUSION_MATRIX(MODEL m, ({rows}))"
    ));
    for row in &matrix {
        let label = row["expected_label"].as_str().unwrap();
        for class in ["<much> & \"more\"", "a bit"] {
            has(&format!("{label} taken for {class}: {} rows", row[class]));
        }
    }
    assert_eq!(matrix.len(), 2);

    let metrics = &query(&format!("SELECT * FROM ML.EVALUATE(MODEL m, ({rows}))"))[0];
    let curve = query(&format!("SELECT * FROM ML.ROC_CURVE(MODEL m, ({rows}))"));
    let roc = figure(&html, "ROC curve, area ");
    let area: f64 = roc.split_once(' ').unwrap().0.parse().unwrap();
    assert!(
        (area - number(metrics, "roc_auc")).abs() < 1e-4,
        "{area}, {metrics}"
    );
    assert_eq!(roc.matches("<circle").count(), curve.len());

    let bins = query(&format!("SELECT * FROM ML.CALIBRATION(MODEL m, ({rows}))"));
    let calibration = figure(&html, "Calibration ");
    assert_eq!(calibration.matches("<circle").count(), bins.len());
    for bin in &bins {
        let count = number(bin, "rows");
        let share = 100.0 * count / 700.0;
        has(&format!(
            "{count} rows ({share:.1} %) from {:.1} on: mean probability {:.2}",
            number(bin, "above"),
            // Truncated, not rounded, as the tooltip has further digits.
            (number(bin, "mean_probability") * 100.0).floor() / 100.0,
        ));
    }

    // All rows are in the sample.
    let important = query(&format!(
        "SELECT * FROM ML.GLOBAL_EXPLAIN(MODEL m, ({rows}))"
    ));
    for feature in &important {
        let name = feature["feature"].as_str().unwrap();
        let tip = tips
            .iter()
            .find(|tip| tip.starts_with(&format!("{name}: ")));
        let told = between(tip.unwrap(), ": ", ",").parse::<f64>().unwrap();
        assert!(
            (told - number(feature, "attribution")).abs() < 1e-4,
            "{feature}, {told}"
        );
    }
    assert_eq!(important.len(), 2);
    assert!(html.contains("fall of accuracy when its values change places"));
    let explained = query(&format!(
        "SELECT top_feature_attributions AS of_row FROM ML.EXPLAIN_PREDICT(MODEL m, ({rows}), top_k_features => 2)"
    ));
    let pictured = figure(&html, "Integrated gradients");
    for name in ["k", "x"] {
        let attribution = |row: &Value| {
            let mut of_row = row["of_row"].as_array().unwrap().iter();
            number(
                of_row.find(|of| of["feature"] == name).unwrap(),
                "attribution",
            )
        };
        let mean = explained.iter().map(|row| attribution(row).abs());
        let due = mean.sum::<f64>() / 700.0;
        let tip = between(pictured, &format!("<title>{name}: "), "</title>");
        let told = between(tip, "mean |attribution| ", ",").parse::<f64>();
        assert!((told.unwrap() - due).abs() < 1e-3, "{tip}: {due}");
        let (low, high) = between(&format!("{tip}<"), "are ", "<")
            .split_once(" to ")
            .map(|(low, high)| (low.parse::<f64>().unwrap(), high.parse::<f64>().unwrap()))
            .unwrap();
        let within = explained.iter().map(attribution);
        let within = within.filter(|attribution| (low..=high).contains(attribution));
        let within = within.count() as f64 / 700.0;
        assert!((within - 0.9).abs() < 0.15, "{tip}: {within}");
    }
    assert!(pictured.contains("the log-odds of the predicted class"));

    let groups = query(&format!(
        "SELECT k FROM ML.EVALUATE(MODEL m, ({rows}), BY k) ORDER BY log_loss DESC"
    ));
    let by = between(&html, "<h2>By k</h2>", "</table>");
    let shown: Vec<_> = by.split("<tr><td>").skip(1).collect();
    let shown: Vec<_> = shown
        .iter()
        .map(|row| row.split_once('<').unwrap().0)
        .collect();
    let due: Vec<_> = groups.iter().map(|group| group["k"].to_string()).collect();
    assert_eq!(shown, due);

    // The report is stored where the page links to it.
    let kept = cluster.store().join("models/m/1/report.html");
    assert_eq!(fs::read_to_string(kept).unwrap(), html);
    let model = &query("SELECT train_id, report FROM volley.models WHERE model = 'm'")[0];
    assert_eq!(model["report"], true);
    let train = model["train_id"].as_str().unwrap();
    let served = get(&cluster, &format!("/reports/m/1/{train}"));
    let (head, body) = served.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let head = head.to_lowercase();
    assert!(
        head.contains("default-src 'none'") && head.contains("; sandbox"),
        "{head}"
    );
    assert_eq!(body, html);
    for missing in [
        format!("/reports/m/2/{train}"),
        "/reports/m/1/018f0000-0000-7000-8000-000000000000".to_owned(),
        format!("/reports/..%2Fm/1/{train}"),
    ] {
        let answer = get(&cluster, &missing);
        assert!(answer.starts_with("HTTP/1.1 404"), "{missing}: {answer}");
    }
}

/// Returns the scheduler's response to a browser.
fn get(cluster: &Cluster, path: &str) -> String {
    let mut stream = TcpStream::connect(cluster.address()).unwrap();
    let host = cluster.address();
    let token = cluster.token().unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token.reveal()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn pictures_of_a_regressor_are_its_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));
    query(&create_model("r", ", epochs = 3"));
    let plain = report(&cluster, &table, "r", &[]);
    assert!(
        plain.contains("Loss") && !plain.contains("Evaluated on"),
        "{plain}"
    );
    assert!(!cluster.store().join("models/r/1/report.html").exists());

    // Some rows have no label, and one has no x.
    let rows =
        "SELECT k, CASE WHEN id > 0 THEN x END AS x, CASE WHEN id >= 10 THEN y END AS y FROM t";
    let html = report(&cluster, &table, "r", &["--rows", rows, "--by", "k"]);
    let (_, judged) = html.split_once("Evaluated on 690 labelled rows").unwrap();
    let metrics = &query(&format!("SELECT * FROM ML.EVALUATE(MODEL r, ({rows}))"))[0];
    for (name, metric) in [
        ("R²", "r2_score"),
        ("mean absolute error", "mean_absolute_error"),
    ] {
        let told = between(judged, &format!("<dt>{name}</dt><dd>"), "<");
        let told: f64 = told.parse().unwrap();
        let due = number(metrics, metric);
        assert!(
            (told - due).abs() < 1e-3 * due.abs().max(1.0),
            "{name}: {told}, {due}"
        );
    }

    // Each row is in a square, whose distance from the line is about its error.
    let grid = figure(&html, "Predicted vs. actual ");
    let squares: Vec<_> = grid.split("<rect ").skip(1).collect();
    let counts = squares.iter().map(|square| {
        let tip = between(square, "<title>", "</title>");
        let (_, count) = tip.rsplit_once(": ").unwrap();
        let count = count.split_once(' ').unwrap().0;
        count.parse::<u64>().unwrap()
    });
    assert_eq!(counts.sum::<u64>(), 690);
    assert!(squares.len() > 5, "{grid}");
    let boxes = figure(&html, "Errors </figcaption>");
    let median = query(&format!(
        "SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY y - predicted_y) AS e
         FROM ML.PREDICT(MODEL r, ({rows})) WHERE y IS NOT NULL"
    ));
    let told = between(boxes, "<title>50 % of rows are below ", "<");
    let (told, due) = (told.parse::<f64>().unwrap(), number(&median[0], "e"));
    assert!(
        (told - due).abs() < 0.05 * due.abs().max(1.0),
        "{told}, {due}"
    );

    // All rows count for features; the one without x is one of 700.
    let features = between(&html, "<h2>Features</h2>", "</section>");
    let x = between(features, "<td>x<td>continuous", "</tr>");
    assert!(x.contains("0.0 %; 0.1 %"), "{x}");
    assert!(x.contains("rect class=\"fill two\""), "{x}");
    let by = between(&html, "<h2>By k</h2>", "</table>");
    assert_eq!(by.matches("<tr><td>").count(), 7);
    assert!(html.contains("fall of R² when its values change places"));
    assert!(
        html.contains("Of 690 rows: what each feature adds"),
        "{html}"
    );
    let attributions = figure(&html, "Integrated gradients");
    assert_eq!(attributions.matches("<rect ").count(), 2);
    assert!(attributions.contains("mean |attribution| to predicted y"));

    let mistakes: [(&[&str], &str); 5] = [
        (&["--by", "k"], "--by needs --rows"),
        (&["--rows", "SELECT x, k FROM t"], "\"y\""),
        (
            &["--rows", "SELECT x, k, y FROM t WHERE y < 0"],
            "none of the rows has a label",
        ),
        (&["--rows", "SELECT * FROM t", "--by", "kk"], "\"kk\""),
        (&["--rows", "DROP TABLE t"], "--rows"),
    ];
    for (more, said) in mistakes {
        let run = cluster.report(&[&["r", "-f", "table.sql"][..], more].concat());
        assert!(run.error().contains(said), "{more:?}: {}", run.stderr);
    }
}

#[test]
fn a_label_that_is_computed_is_drawn() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 300);
    cluster.query(&format!(
        "{table} CREATE MODEL l TRANSFORM (x, k, ln(y) AS y) OPTIONS (input_label_cols = ['y'], categorical = ['k'], \
         continuous = ['x'], hidden_units = [4], epochs = 1, device = 'cpu') AS SELECT k, x, y FROM t"
    ));
    let rows = "SELECT k, x, y FROM t";
    let html = report(&cluster, &table, "l", &["--rows", rows]);
    let grid = figure(&html, "Predicted vs. actual ");
    // e^2.5 is the largest label; the axes have its logarithm.
    let squares = grid.split("<title>").skip(1);
    let words = squares.flat_map(|tip| tip.split_once(':').unwrap().0.split([' ', ',']));
    let bounds = words.filter_map(|word| word.parse::<f64>().ok());
    let greatest = bounds.fold(0.0, f64::max);
    assert!(greatest > 1.0 && greatest < 6.0, "{greatest}: {grid}");
}
