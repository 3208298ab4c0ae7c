//! A long query while executors go: the time that a loss costs, and that a planned departure costs.
//!
//! ```text
//!   undisturbed      the query alone
//!   killed           one executor is killed when three quarters of that time have passed
//!   replaced         all executors are told to go, one after the other while the query runs, each once another one has come
//! ```
//!
//! Each run has a cluster of its own. The answer has to be that of the undisturbed run. It compares with no other system.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::cluster::{Cluster, Layout, Ran, binary, embedded, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, median};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of executors, each of one slot
    #[arg(long, value_delimiter = ',', default_value = "4")]
    executors: Vec<usize>,
    /// Rows of the larger table
    #[arg(long, default_value_t = 20_000_000)]
    rows: u64,
    /// Rounds of each run
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Longest run, as a multiple of the undisturbed one's time.
const MOST: f64 = 20.0;

/// Share of the undisturbed time after which an executor is killed.
const LATE: f64 = 0.75;

/// Departure of executors while the query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Departure {
    None,
    Killed,
    Replaced,
}

/// Runs the query and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(
        args.rows > 0 && args.rounds > 0 && args.executors.iter().all(|count| *count > 1),
        "--rows and --rounds: expected at least 1; --executors: expected at least 2"
    );
    let dir = scratch_folder()?;
    let dir = dir.path();
    let tables = tables(args.rows, dir)?;
    let mut comparison = Comparison::new("losses", "Executors that go under a query", METHOD);
    comparison.remark(format!(
        "{} rows joined with a tenth of them, in 32 partitions; executors of one slot each.",
        args.rows
    ));
    for executors in &args.executors {
        let name = |what: &str| format!("{executors} executors, {what}");
        let mut cases = [
            Case::new(name("undisturbed"), Unit::Seconds),
            Case::new(name("one is killed late"), Unit::Seconds),
            Case::new(name("all are replaced"), Unit::Seconds),
        ];
        let mut answer = None;
        let mut attempts = [Vec::new(), Vec::new()];
        for _ in 0..args.rounds {
            let alone = once(dir, (*executors, &tables), Departure::None, 0.0)?;
            cases[0].push(VOLLEY, alone.seconds);
            let known = answer.get_or_insert(alone.answer);
            for (at, departure) in [Departure::Killed, Departure::Replaced]
                .into_iter()
                .enumerate()
            {
                let ran = once(dir, (*executors, &tables), departure, alone.seconds)?;
                ensure!(
                    ran.answer == *known,
                    "another answer after {departure:?}: {} instead of {known}",
                    ran.answer
                );
                cases[at + 1].push(VOLLEY, ran.seconds);
                attempts[at].push(ran.attempts.to_string());
            }
        }
        let [alone, killed, replaced] =
            [0, 1, 2].map(|case: usize| median(&cases[case].samples[VOLLEY]));
        comparison.remark(format!(
            "{executors} executors: a kill costs {:.0} % of the undisturbed time (attempts: {}), replacing all {:.0} % \
             (attempts: {}).",
            (killed / alone - 1.0) * 100.0,
            attempts[0].join(", "),
            (replaced / alone - 1.0) * 100.0,
            attempts[1].join(", "),
        ));
        let [undisturbed, killed, replaced] = cases;
        comparison.cases.push(undisturbed);
        let bar = |times: f64| (times * alone * 10.0).round() / 10.0;
        comparison.cases.push(killed.at_most(bar(1.4)));
        comparison.cases.push(replaced.at_most(bar(1.2)));
    }
    comparison.write(results)
}

const METHOD: &str = "A scheduler and executors as processes on one machine, a cluster for each run; `volley` runs a \
    join of two Parquet tables that both are exchanged, and groups its rows in two more exchanges. An executor is killed \
    by SIGKILL when three quarters of the time of the undisturbed run before have passed, and none takes its place. \
    For the replacement, from a tenth of the time on and until seven tenths, one executor after the other starts, and \
    `volley executors drain` tells one of the old ones to go. Answers are compared. Bars: 1.4 and 1.2 times the \
    undisturbed time.";

/// Result of a run.
struct Outcome {
    seconds: f64,
    answer: String,
    attempts: usize,
}

/// Runs the query once, in a cluster of its own.
fn once(
    dir: &Path,
    (executors, tables): (usize, &str),
    departure: Departure,
    alone: f64,
) -> anyhow::Result<Outcome> {
    let run = tempfile::tempdir_in(dir)?;
    let mut cluster = Cluster::start_with(run.path(), Layout::of(executors))?;
    let output = run.path().join("answer");
    let mut client = cluster.client()?;
    client
        .args(["--quiet", "-c", &format!("{tables} {QUERY}")])
        .stdout(std::fs::File::create(&output)?);
    let begun = Instant::now();
    let mut client = client.spawn()?;
    let deadline = match departure {
        Departure::None => begun + Duration::from_secs(3600),
        _ => begun + Duration::from_secs_f64(MOST * alone),
    };
    let mut drains = Vec::new();
    match departure {
        Departure::None => {}
        Departure::Killed => {
            sleep_until(begun + Duration::from_secs_f64(LATE * alone), &mut client)?;
            cluster.kill(&format!("executor-{}", executors - 1))?;
        }
        Departure::Replaced => {
            for number in 0..executors {
                let share = 0.1 + 0.6 * number as f64 / executors as f64;
                sleep_until(begun + Duration::from_secs_f64(share * alone), &mut client)?;
                cluster.add_executor(executors + number, &Layout::of(executors))?;
                let mut drain = Command::new(binary("volley")?);
                drain
                    .args(["executors", "drain", &format!("executor-{number}")])
                    .args(["--scheduler", cluster.address()])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                drains.push(drain.spawn()?);
            }
        }
    }
    let status = loop {
        if let Some(status) = client.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            client.kill()?;
            bail!("the query did not end within {MOST} times its undisturbed time");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "the query failed: {status}");
    for mut drain in drains {
        // It waits until the executor has gone, which it has the grace period for.
        ensure!(drain.wait()?.success(), "an executor could not be drained");
    }
    let jobs = cluster.run(&["-c".to_owned(), ATTEMPTS.to_owned()])?.stdout;
    let attempts = serde_json::from_str::<serde_json::Value>(jobs.trim())?["attempts"].as_u64();
    Ok(Outcome {
        seconds,
        answer: std::fs::read_to_string(output)?,
        attempts: usize::try_from(attempts.unwrap_or_default())?,
    })
}

/// Attempts of the query.
const ATTEMPTS: &str =
    "SELECT attempts FROM volley.jobs WHERE state <> 'running' ORDER BY submitted DESC LIMIT 1";

/// Waits, but not for longer than the client runs.
fn sleep_until(time: Instant, client: &mut Child) -> anyhow::Result<()> {
    while Instant::now() < time {
        ensure!(
            client.try_wait()?.is_none(),
            "the query ended before an executor went"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Joins, and two levels of groups, all of whole numbers.
const QUERY: &str = "SELECT n % 10 AS digit, count(*) AS groups, sum(s) AS sum FROM (\
    SELECT a.k % 1000000 AS g, count(*) AS n, sum(a.v * b.v % 1009) AS s \
    FROM facts a JOIN parts b ON a.k = b.k GROUP BY a.k % 1000000) GROUP BY n % 10 ORDER BY digit";

/// Writes the tables, and returns the statements that register them.
fn tables(rows: u64, dir: &Path) -> anyhow::Result<String> {
    let mut statements = "SET datafusion.execution.target_partitions = 32;".to_owned();
    for (name, rows, columns) in [
        (
            "facts",
            rows,
            "value * 7919 % 2000003 AS k, value % 1000 AS v",
        ),
        ("parts", rows / 10, "value AS k, value % 97 AS v"),
    ] {
        let folder = dir.join(name);
        let copy = format!(
            "COPY (SELECT {columns} FROM generate_series(1, {rows})) TO '{}/' STORED AS PARQUET",
            folder.display()
        );
        let args = ["-c".to_owned(), copy];
        Ran::of(embedded(dir)?, &args, dir)?;
        statements += &format!(
            "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}/';",
            folder.display()
        );
    }
    Ok(statements)
}
