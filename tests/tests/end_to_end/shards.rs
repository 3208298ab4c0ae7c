//! Shards of different sizes: ranks have about as many rows, or users are told why not.

use serde_json::Value;
use volley_tests::Cluster;

/// Keys from 1 to 60, each in as many rows as its value.
const ROWS: u64 = 1830;
const TABLE: &str =
    "SELECT a.value AS k, CAST(b.value AS DOUBLE) AS x, a.value * 0.5 + b.value AS y, 1 AS one
                     FROM range(1, 61) a JOIN range(60) b ON b.value < a.value";

fn create_model(name: &str, options: &str) -> String {
    format!(
        "CREATE MODEL {name} OPTIONS (input_label_cols = ['y'], continuous = ['x'], hidden_units = [4], epochs = 2,
           batch_size = 50, data_split_method = 'no_split', device = 'cpu', {options}) AS {TABLE};"
    )
}

/// Returns the training rows of each rank.
fn train_rows(ranks: &[Value]) -> Vec<u64> {
    let rows = ranks.iter().map(|rank| rank["train_rows"].as_u64());
    rows.map(Option::unwrap).collect()
}

#[test]
fn ranks_have_about_as_many_rows_of_uneven_shards() {
    let cluster = Cluster::start(3);
    // With three ranks, all executors; 64 shards are no multiple of three.
    for (name, options, ranks) in [
        ("a", "shard_by = ['k'], ranks = 3", 3),
        ("b", "shard_by = ['k'], ranks = 'all', shards = 64", 3),
        ("c", "shard_by = ['k'], ranks = 2, shards = 50", 2),
    ] {
        let rows = train_rows(&cluster.query(&create_model(name, options)));
        assert_eq!(rows.len(), ranks);
        assert_eq!(rows.iter().sum::<u64>(), ROWS, "every row once: {rows:?}");
        let share = ROWS / ranks as u64;
        let is_even = |rows: &u64| rows.abs_diff(share) < share / 16;
        assert!(rows.iter().all(is_even), "{options}: {rows:?}");
    }
}

#[test]
fn ranks_without_rows_are_told() {
    let cluster = Cluster::start(3);
    let sql = create_model("m", "shard_by = ['one'], ranks = 3");
    let run = cluster.run(&["--format", "json", "-c", &sql]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    for part in [
        "shards are uneven",
        "1830 of 1830 rows",
        "have none",
        "more columns in shard_by",
    ] {
        assert!(run.stderr.contains(part), "{part} in {}", run.stderr);
    }
    let said = cluster.fail(&create_model("n", "shards = 2, ranks = 3"));
    assert!(
        said.contains("more ranks than shards (2): raise shards"),
        "{said}"
    );
}
