//! Trainings whose first epoch begins as rows arrive.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;
use volley_tests::{Cluster, Run};

/// Writes rows whose labels can be learned, with so many values of their category.
fn write_rows(file: &Path, rows: usize, values: usize) {
    let mut text = String::from("id,k,x,y\n");
    for row in 0..rows {
        let (k, x) = (row % values, row * 37 % 101);
        writeln!(text, "{row},k{k},{x},{}", k * 3 + x).unwrap();
    }
    fs::write(file, text).unwrap();
}

fn statement(file: &Path, options: &str) -> String {
    format!(
        "CREATE OR REPLACE MODEL m OPTIONS (input_label_cols = ['y'], categorical = ['k'], continuous = ['x'], \
         data_split_method = 'random', ranks = 2, device = 'cpu', batch_size = 32, epochs = 3, {options}) \
         AS SELECT * FROM '{}';",
        file.display()
    )
}

fn train(cluster: &Cluster, file: &Path, options: &str) -> Run {
    let sql = statement(file, options);
    let run = cluster.run(&["--format", "json", "-c", &sql]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run
}

/// Returns the sums of training and evaluation rows over the ranks.
fn rows(run: &Run) -> [u64; 2] {
    let ranks = run.rows();
    ["train_rows", "eval_rows"].map(|column| {
        let of = |rank: &Value| rank[column].as_u64().unwrap();
        ranks.iter().map(of).sum()
    })
}

#[test]
fn a_warm_start_begins_before_all_rows_are_there() {
    let cluster = Cluster::start(2);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 6_000, 7);
    let network = "hidden_units = [8], refit = false";
    let said = "the first epoch begins as rows arrive";
    let first = train(&cluster, &file, network);
    assert!(!first.stderr.contains(said), "{}", first.stderr);

    // Other shards than before: their rows are streamed again.
    let early = format!("{network}, warm_start = true, begin_early = true, shards = 40");
    let second = train(&cluster, &file, &early);
    assert!(second.stderr.contains(said), "{}", second.stderr);
    assert_eq!(rows(&second), rows(&first));
    let [train_rows, eval_rows] = rows(&second);
    assert_eq!(train_rows + eval_rows, 6_000);
    let losses = cluster.query(
        "SELECT max(iteration) AS epochs, count(eval_loss) AS evaluated, bool_and(eval_loss < 1e9) AS finite
         FROM ML.TRAINING_INFO(MODEL m)",
    );
    assert_eq!(losses[0]["epochs"], 3, "{losses:?}");
    assert_eq!(losses[0]["evaluated"], 3, "{losses:?}");
    assert_eq!(losses[0]["finite"], true, "{losses:?}");

    // New values are used as unknown ones.
    let newer = cluster.dir().join("newer.csv");
    write_rows(&newer, 6_000, 9);
    let third = train(&cluster, &newer, &early);
    let [train_rows, eval_rows] = rows(&third);
    assert_eq!(train_rows + eval_rows, 6_000);
    let features =
        cluster.query("SELECT category_count FROM ML.FEATURE_INFO(MODEL m) WHERE input = 'k'");
    assert_eq!(features[0]["category_count"], 7, "{features:?}");
}

#[test]
fn what_needs_all_rows_first_is_refused() {
    let cluster = Cluster::start(1);
    let file = cluster.dir().join("rows.csv");
    write_rows(&file, 500, 3);
    let error = cluster.fail(&statement(&file, "begin_early = true"));
    assert!(error.contains("expected with warm_start"), "{error}");
}
