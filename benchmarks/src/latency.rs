//! Latency of the smallest statements, run one after the other in one session, as the reader of the output sees it:
//! from the last row of one statement to the last row of the next.
//!
//! It measures a statement's overhead before any work: planning, the requests to the scheduler and the executors,
//! and the return of the rows; and the processor time of the scheduler and the executors in it. It compares with no
//! other system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::cluster::{Certificates, Cluster, Layout, embedded, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, percentile};
use crate::session::Session;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Statements measured in a session
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Sessions, each a `volley` command
    #[arg(long, default_value_t = 3)]
    sessions: usize,
}

/// Warm-up statements.
const WARM_UP: usize = 20;

const METHOD: &str = "One `volley` command runs a statement again and again; its standard output is \
    read as it comes, and a statement took from the last row of the one before it to its own last row. \
    That holds planning, running, formatting and the pipe, but not the parsing of the script, which \
    comes first. The cluster: a scheduler and two executors of one slot as processes, as they start on \
    loopback by themselves: with tokens, and without TLS. Another asks nobody for a token (`--insecure`), and a third one \
    speaks TLS. Embedded: both inside the `volley` command, as it starts them by itself. The join is of two CSV files of ten rows. \
    Twenty statements of each session come first and do not count. A sample is a session's p50 or p99, or the processor time \
    of the scheduler or of both executors for each statement, which other work on the machine changes less.";

/// Statement to measure.
struct Smallest {
    name: &'static str,
    rows: usize,
    sql: &'static str,
}

const STATEMENTS: [Smallest; 2] = [
    Smallest {
        name: "SELECT 1",
        rows: 1,
        sql: "SELECT 1;\n",
    },
    Smallest {
        name: "join of ten rows",
        rows: 10,
        sql: "SELECT a.id, b.name FROM a JOIN b ON a.id = b.id;\n",
    },
];

/// Runs the measurements and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "--rounds 0: expected at least 1");
    let dir = scratch_folder()?;
    let dir = dir.path();
    let tables = tables(dir)?;
    let certificates = Certificates::make(&dir.join("certificates"))?;
    let of_process = certificates.of_process();
    let of_process: Vec<_> = of_process.iter().map(String::as_str).collect();
    let tls = Layout {
        options: &of_process,
        scheduler_options: &of_process,
        ..Layout::of(2)
    };
    let without_tokens = Layout {
        scheduler_options: &["--insecure"],
        ..Layout::of(2)
    };
    let engines = [
        Engine {
            at_most: [Some(20.0), Some(60.0)],
            ..Engine::cluster("cluster", dir, Layout::of(2))?
        },
        Engine {
            at_most: [Some(10.0), None],
            ..Engine::embedded(dir)?
        },
        Engine::cluster("cluster without tokens", dir, without_tokens)?,
        Engine {
            options: certificates.of_client(),
            ..Engine::cluster("cluster over TLS", dir, tls)?
        },
    ];
    let mut comparison = Comparison::new("latency", "The smallest statements", METHOD);
    for Smallest { name, rows, sql } in STATEMENTS {
        let cases_of = |engine: &Engine| {
            let cases = ["p50", "p99"].into_iter().zip(engine.at_most);
            let cases = cases.map(|(of, at_most)| {
                let case = Case::new(format!("{name}, {}, {of}", engine.name), Unit::Milliseconds);
                match at_most {
                    Some(at_most) => case.at_most(at_most),
                    None => case,
                }
            });
            let processor = PROCESSES.map(|of| {
                let name = format!("{name}, {}, processor of the {of}", engine.name);
                Case::new(name, Unit::Milliseconds)
            });
            let processor = processor.into_iter().filter(|_| engine.cluster.is_some());
            cases.chain(processor).collect::<Vec<_>>()
        };
        let mut cases: Vec<_> = engines.iter().map(cases_of).collect();
        let script = tables.clone() + &sql.repeat(WARM_UP + args.rounds);
        for _ in 0..args.sessions {
            for (engine, cases) in engines.iter().zip(&mut cases) {
                let before = engine.processor_millis();
                let session = Session::run(engine.client()?, &script, dir)?;
                session.check()?;
                let after = engine.processor_millis();
                let ends: Vec<_> = session.lines.iter().map(|(at, _)| *at).collect();
                let took = latencies(&ends, rows, args.rounds)
                    .with_context(|| format!("{name} gave {} rows", ends.len()))?;
                let (p50, p99) = (percentile(&took, 0.5), percentile(&took, 0.99));
                eprintln!("{name}, {}: p50 {p50:.1} ms, p99 {p99:.1} ms", engine.name);
                let each = (WARM_UP + args.rounds) as f64;
                let taken = before
                    .iter()
                    .zip(&after)
                    .map(|(from, to)| (to - from) / each);
                let figures = [p50, p99].into_iter().chain(taken);
                for (case, figure) in cases.iter_mut().zip(figures) {
                    case.push(VOLLEY, figure);
                }
            }
        }
        comparison.cases.extend(cases.into_iter().flatten());
    }
    comparison.write(results)
}

/// Processes of a cluster whose processor time is measured.
const PROCESSES: [&str; 2] = ["scheduler", "executors"];

/// Engine that answers the statements.
struct Engine {
    name: &'static str,
    /// Processes of the cluster; `None` if the client embeds them.
    cluster: Option<Cluster>,
    /// Folder of the engine.
    dir: PathBuf,
    /// Additional options of the client.
    options: Vec<String>,
    /// Upper limits of p50 and p99, in milliseconds.
    at_most: [Option<f64>; 2],
}

impl Engine {
    fn embedded(dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.join("embedded");
        fs::create_dir(&dir)?;
        Ok(Self {
            name: "embedded",
            cluster: None,
            dir,
            options: Vec::new(),
            at_most: [None; 2],
        })
    }

    fn cluster(name: &'static str, dir: &Path, layout: Layout<'_>) -> anyhow::Result<Self> {
        let dir = dir.join(name);
        fs::create_dir(&dir)?;
        let cluster = Cluster::start_with(&dir, layout)?;
        Ok(Self {
            name,
            cluster: Some(cluster),
            dir,
            options: Vec::new(),
            at_most: [None; 2],
        })
    }

    /// Returns the processor time of its [`PROCESSES`] so far, in milliseconds.
    fn processor_millis(&self) -> Vec<f64> {
        let cluster = self.cluster.iter();
        cluster.flat_map(Cluster::processor_millis).collect()
    }

    /// Returns a `volley` command, not started yet.
    fn client(&self) -> anyhow::Result<Command> {
        let mut volley = match &self.cluster {
            Some(cluster) => cluster.client()?,
            None => embedded(&self.dir)?,
        };
        volley.args(&self.options);
        Ok(volley)
    }
}

/// Writes the tables of the join, and returns the statements that register them.
fn tables(dir: &Path) -> anyhow::Result<String> {
    let mut statements = String::new();
    for (table, column, kind) in [("a", "size", "INT"), ("b", "name", "VARCHAR")] {
        let file = dir.join(format!("{table}.csv"));
        let rows = (0..10).map(|id| format!("{id},{id}\n"));
        fs::write(&file, format!("id,{column}\n") + &rows.collect::<String>())?;
        statements += &format!(
            "CREATE EXTERNAL TABLE {table} (id INT, {column} {kind}) STORED AS CSV LOCATION '{}' \
             OPTIONS ('format.has_header' 'true');\n",
            file.display()
        );
    }
    Ok(statements)
}

/// Returns the latencies of the last `count` statements, in milliseconds: from the previous statement's last row to
/// their own.
fn latencies(rows: &[Instant], rows_each: usize, count: usize) -> Option<Vec<f64>> {
    let ends: Vec<_> = rows
        .chunks_exact(rows_each)
        .map(|rows| rows.last())
        .collect();
    let first = ends.len().checked_sub(count + 1)?;
    let took = ends[first..].windows(2).map(|pair| {
        let (from, to) = (pair[0]?, pair[1]?);
        Some(to.duration_since(*from).as_secs_f64() * 1e3)
    });
    took.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_statement_takes_from_the_last_row_before_it() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let rows = [at(1), at(2), at(9), at(10), at(30), at(40)];
        assert_eq!(latencies(&rows, 2, 2), Some(vec![8.0, 30.0]));
        assert_eq!(latencies(&rows, 2, 3), None);
    }
}
