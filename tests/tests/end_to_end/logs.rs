//! The log: a cluster inside a client is silent unless asked. With `--log-format json` each line is an object, and lines about a
//! job have its id, on the scheduler and on executors.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use volley_tests::{Cluster, Process, Setup, binary, eventually};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);

/// Returns a field of a line, or of a span that it is in.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a str> {
    let own = line.get(name);
    let of_span = || {
        let mut spans = line["spans"].as_array()?.iter();
        spans.find_map(|span| span.get(name))
    };
    own.or_else(of_span)?.as_str()
}

#[test]
fn lines_are_json_and_have_the_id_of_their_job() {
    let json = || vec!["--log-format".to_owned(), "json".to_owned()];
    let mut cluster = Cluster::start_with(Setup {
        executors: 2,
        scheduler_args: json(),
        executor_args: json(),
        always_in_stages: true,
        ..Setup::default()
    });
    let table = write_table(cluster.dir(), 400);
    let train = create_model("m", ", ranks = 2, epochs = 2");
    let run = cluster.run(&["-c", &table, "-c", &train]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let jobs = eventually("the jobs", SOON, || cluster.jobs());
    let jobs: BTreeSet<_> = jobs.into_iter().map(|job| job.id).collect();
    assert!(!jobs.is_empty());
    let parsed = |output: String| {
        let lines = output.lines().map(|line| {
            let parsed = serde_json::from_str::<Value>(line);
            let parsed = parsed.unwrap_or_else(|error| panic!("{error}: {line}"));
            for name in ["timestamp", "level", "target"] {
                assert!(parsed[name].is_string(), "{line}");
            }
            parsed
        });
        lines.collect::<Vec<_>>()
    };
    let of_scheduler = parsed(cluster.scheduler().output());
    let of_executors = (0..2).flat_map(|number| parsed(cluster.executors()[number].output()));
    let of_executors: Vec<_> = of_executors.collect();
    let about = |lines: &[Value], message: &str| {
        let lines = lines.iter().filter(|line| line["message"] == message);
        let found: Vec<_> = lines.cloned().collect();
        assert!(!found.is_empty(), "no line says {message:?}");
        for line in found {
            let job = field(&line, "job");
            assert!(job.is_some_and(|job| jobs.contains(job)), "{line}");
            assert!(field(&line, "attempt").is_some(), "{line}");
        }
    };
    about(&of_scheduler, "gang bound");
    for message in [
        "task begins",
        "task has ended",
        "rank joined",
        "model published",
    ] {
        about(&of_executors, message);
    }
}

/// Returns a client with a cluster inside it.
fn embedded(dir: &Path) -> Command {
    let mut command = Command::new(binary("volley"));
    command
        .args(["--executors", "1", "--format", "csv"])
        .current_dir(dir)
        .env("VOLLEY_CLUSTER_DIR", dir)
        .env_remove("RUST_LOG")
        .env_remove("VOLLEY_LOG");
    command
}

#[test]
fn a_cluster_inside_a_client_logs_nothing_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let fails = || {
        let mut command = embedded(dir.path());
        command.args(["--quiet", "-c", "SELECT 1 / (value - 5) FROM range(0, 10)"]);
        command
    };
    let stderr = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = stderr(&mut fails());
    assert!(said.starts_with("error: -c:1: "), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    let logged = stderr(fails().env("VOLLEY_LOG", "warn"));
    assert!(logged.contains("volley_executor"), "{logged}");
}

#[test]
fn an_interrupted_statement_says_that_it_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let endless = "SELECT count(*) FROM range(0, 1000000) a, range(0, 1000000) b WHERE (a.value * b.value) % 7 = 3";
    let mut command = embedded(dir.path());
    command.args(["-c", "SELECT 1 AS one", "-c", endless]);
    let mut process = Process::start_apart(&mut command, None, &dir.path().join("log"));
    // The first statement's row: the second one begins.
    let mut rows = BufReader::new(process.take_stdout().unwrap()).lines();
    assert_eq!(rows.nth(1).unwrap().unwrap(), "1");
    process.interrupt();
    let ended = eventually("the client's end", SOON, || process.ended());
    assert_eq!(ended.code(), Some(130));
    let said = process.output();
    assert!(said.ends_with("cancelled\n"), "{said}");
}
