//! Ranks whose rows do not fit into their memory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use volley_tests::{Cluster, Setup, eventually};

use crate::write_table;

const ROWS: usize = 30_000;
const SOON: Duration = Duration::from_secs(60);

/// Starts executors that offer a rank this much memory.
fn offering(memory: &str) -> Cluster {
    Cluster::start_with(Setup {
        executors: 2,
        executor_args: ["--rank-memory", memory].map(str::to_owned).into(),
        ..Setup::default()
    })
}

/// Returns the bytes of the files below a folder.
fn bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[test]
fn rows_that_do_not_fit_into_memory_are_trained_on_as_if_they_did() {
    // A rank's rows take about a megabyte before their numbers are scaled.
    let trained = ["1GiB", "512KiB"].map(|memory| {
        let mut cluster = offering(memory);
        let table = write_table(cluster.dir(), ROWS);
        let rows = cluster.query(&format!(
            "{table} CREATE MODEL m OPTIONS (input_label_cols = ['y'], categorical = ['k', 'text'],
               continuous = ['x', 'id'], hidden_units = [16], dropout = 0.1, epochs = 2, batch_size = 250, seed = 3,
               data_split_method = 'custom', data_split_col = 'split', threads = 2, ranks = 2, device = 'cpu')
             AS SELECT id, k, text, x, y, split FROM t;"
        ));
        let spilled = cluster.executors().iter().all(|executor| {
            let said = executor.output();
            assert!(said.contains("stay in files"), "{said}");
            !said.contains("; 0 stay in files")
        });
        assert_eq!(spilled, memory != "1GiB");
        // All files of a rank are removed with its job, but those of prepared rows.
        cluster.query("DROP PREPARED ALL");
        let work: Vec<_> = (0..2).map(|executor| cluster.work_dir(executor)).collect();
        eventually("files of ranks to go", SOON, || {
            let left: u64 = work.iter().map(|folder| bytes(folder)).sum();
            (left < 100_000).then_some(())
        });
        let number = |column: &str| rows[0][column].as_f64().unwrap();
        ["loss", "eval_loss", "eval_r2"].map(number)
    });
    let [in_memory, in_files] = trained;
    for (due, found) in in_memory.iter().zip(in_files) {
        assert!((due - found).abs() <= 1e-5 * due.abs(), "{trained:?}");
    }
    assert!(in_memory[2] > 0.5, "{in_memory:?}");
}

#[test]
fn ranks_that_have_no_memory_for_a_shard_are_refused_with_what_helps() {
    let cluster = offering("512KiB");
    let table = write_table(cluster.dir(), ROWS);
    let train = |shards: usize| {
        format!(
            "{table} CREATE MODEL m OPTIONS (input_label_cols = ['y'], continuous = ['x'], hidden_units = [4],
               epochs = 1, shards = {shards}, ranks = 2, device = 'cpu') AS SELECT x, y FROM t;"
        )
    };
    let refused = cluster.fail(&train(2));
    for part in [
        "training does not fit into memory: each of 2 ranks takes",
        "raise shards",
        "raise --rank-memory of volley-executor",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    cluster.query(&train(60));
}
