//! `volley doctor` on clusters of this host: the links between their processes, and processes that do not answer.

use volley_tests::{Cluster, Setup};

#[test]
fn all_ways_are_measured_and_told() {
    let cluster = Cluster::start(2);
    // Twice: a run leaves nothing behind that would disturb the next one.
    for _ in 0..2 {
        let run = cluster.examine();
        let said = &run.stdout;
        assert_eq!(run.code, Some(0), "{said}\n{}", run.stderr);
        let cells = said.lines().filter(|line| line.starts_with("| "));
        let cells = cells.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
        let cells: Vec<Vec<&str>> = cells.collect();
        let ends: Vec<_> = cells.iter().map(|row| (row[0], row[1])).collect();
        assert_eq!(
            ends,
            [
                ("from", "to"),
                ("scheduler", "executor-0"),
                ("executor-0", "scheduler"),
                ("scheduler", "executor-1"),
                ("executor-1", "scheduler"),
                ("executor-0", "executor-1"),
                ("executor-1", "executor-0"),
            ],
            "{said}"
        );
        for row in &cells[1..] {
            assert!(
                row[4].ends_with(" ms") && row[5].ends_with(" MB/s"),
                "{row:?}"
            );
        }
        assert!(
            cells[5][3].contains("Flight ") && cells[5][3].contains("ranks "),
            "{said}"
        );
        assert!(said.contains("6 links, all reached"), "{said}");
        assert!(said.lines().any(|line| line.contains("exchange")), "{said}");
    }
}

#[test]
fn an_executor_that_does_not_answer_is_named() {
    let mut cluster = Cluster::start_with(Setup {
        executors: 2,
        scheduler_args: ["--executor-timeout", "10min"].map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    cluster.executors()[1].freeze();
    let run = cluster.examine();
    let said = &run.stdout;
    assert_eq!(run.code, Some(1), "{said}\n{}", run.stderr);
    let silent = "executor-1 does not answer the scheduler";
    for link in ["executor-0 to executor-1", "executor-1 to executor-0"] {
        let told =
            |line: &str| line.starts_with("FAILED") && line.contains(link) && line.contains(silent);
        assert!(said.lines().any(told), "{link}:\n{said}");
    }
    assert!(said.contains("no query was tried"), "{said}");
    cluster.executors()[1].thaw();
    cluster.await_executors(2);
    let run = cluster.examine();
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
}
