//! Memory of ranks: what they take, and what they do if their rows do not fit into it.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use volley_tests::hostile::most_memory;
use volley_tests::{Cluster, ExecutorSetup, Setup, eventually};

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

const MIB: f64 = 1_048_576.0;

/// Returns a number of `/proc/PID/status`, in MiB.
fn status(process: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<f64>().unwrap() / 1024.0
}

/// Returns the number of MiB that `EXPLAIN CREATE MODEL` says before these words.
fn said(plan: &str, words: &str) -> f64 {
    let (before, _) = plan
        .split_once(words)
        .unwrap_or_else(|| panic!("{words} in\n{plan}"));
    let (_, size) = before.rsplit_once('~').unwrap();
    let size = size
        .trim()
        .strip_suffix("MiB")
        .unwrap_or_else(|| panic!("MiB in\n{plan}"));
    size.trim().parse().unwrap()
}

/// Returns the greatest own memory of a process while `run` runs, as far as it was seen, in MiB.
fn most_own_memory(process: u32, run: impl FnOnce() + Send) -> f64 {
    thread::scope(|scope| {
        let running = scope.spawn(run);
        let mut most = 0.0_f64;
        while !running.is_finished() {
            most = most.max(status(process, "RssAnon:"));
            thread::sleep(Duration::from_millis(5));
        }
        running.join().unwrap();
        most
    })
}

/// Rows in memory take 270 MiB before their numbers are scaled, those of a process that has trained before besides. The
/// bounds are wide, since a process takes some memory for its own; the exact figures are in the benchmarks' records.
#[test]
fn a_rank_takes_the_memory_that_explain_says() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("wide.parquet");
    let table = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}';",
        path.display()
    );
    let create = |model: &str, rows: &str| {
        format!(
            "CREATE MODEL {model} OPTIONS (input_label_cols = ['y'], hidden_units = [16], ensemble_size = 1,
               numeric_embedding = 'none', batch_size = 4096, epochs = 1, threads = 1, ranks = 1, device = 'cpu')
             AS SELECT * FROM t {rows};"
        )
    };
    for offered in [None, Some(96.0)] {
        let mut cluster = Cluster::start_with(Setup::default());
        let args = |role: &str| vec!["--role".to_owned(), role.to_owned()];
        cluster.add_executor_with(ExecutorSetup {
            args: args("query"),
            ..ExecutorSetup::default()
        });
        let offer = offered.map(|mib: f64| ["--rank-memory".to_owned(), format!("{mib}MiB")]);
        let trains = cluster.add_executor_with(ExecutorSetup {
            args: [args("train"), offer.into_iter().flatten().collect()].concat(),
            ..ExecutorSetup::default()
        });
        cluster.await_executors(2);
        if !path.exists() {
            let numbers: Vec<_> = (0..40)
                .map(|at| format!("(k * {} % 1000) / 8.0 AS x{at}", 2 * at + 1))
                .collect();
            cluster.query(&format!(
                "COPY (SELECT {}, (k % 97) / 4.0 AS y FROM range(800000) AS r(k)) TO '{}' STORED AS PARQUET;",
                numbers.join(", "),
                path.display()
            ));
        }
        cluster.query(&format!("{table}{}", create("warm", "WHERE x0 < 1")));
        let rank = cluster.executors()[trains].id();
        let [resident, own] = ["VmRSS:", "RssAnon:"].map(|name| status(rank, name));
        let create = create("m", "");
        let explained = cluster.query(&format!("{table}EXPLAIN {create}"));
        let plan = explained[0]["plan"].as_str().unwrap();
        let most = most_own_memory(rank, || {
            cluster.query(&format!("{table}{create}"));
        });
        let (due, taken) = match offered {
            None => (
                said(plan, " with its rows"),
                most_memory(rank) as f64 / MIB - resident,
            ),
            Some(offered) => {
                assert!(said(plan, " up to --rank-memory") < offered, "{plan}");
                (offered, most - own)
            }
        };
        assert!(taken < 1.3 * due, "{taken} MiB instead of {due}:\n{plan}");
        let log = cluster.executors()[trains].output();
        let mut loads = log.lines().filter(|line| line.contains("stay in files"));
        let spilled = loads.any(|line| !line.contains("; 0 stay in files"));
        assert_eq!(spilled, offered.is_some(), "{log}");
        if offered.is_none() {
            assert!(taken > 0.7 * due, "{taken} MiB instead of {due}:\n{plan}");
        }
    }
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
