//! Cost of TLS: a query that does little but shuffle its rows, and sums of ranks, each with and without TLS.
//!
//! It says nothing about a network: both ends are on one host and share its cores, so the full cost of encryption
//! shows.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::cluster::{Certificates, Cluster, Layout, Ran, scratch_folder};
use crate::collective::{MESSAGES, Transport, World};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rows to shuffle, of 200 bytes each
    #[arg(long, default_value_t = 2_000_000)]
    rows: usize,
}

/// Name of the system without encryption.
const PLAIN: &str = "Volley without TLS";

/// Number of ranks in the sums.
const RANKS: usize = 2;

const METHOD: &str = "The shuffle is a query that groups rows by a key of which each row has its own, and takes the greatest of a text of 200 \
    hexadecimal digits in each group: all rows go through a shuffle. Executors are told to fetch all of it over Flight, as \
    from another host, where otherwise they read each other's files on one host. The table is Parquet, written before by the same \
    cluster. Two clusters run side by side, each a scheduler and two executors of one slot as processes: one whose processes \
    speak TLS to each other and to the client, and one that encrypts nothing. They take turns, and a sample is one `volley` \
    command, its start included. Sums are those of `all-reduce`: of two ranks, over TCP, with and without TLS, by turns. One round \
    of each warms up.";

/// Cluster, with the options of its clients.
struct Side {
    name: &'static str,
    cluster: Cluster,
    options: Vec<String>,
}

/// Runs the measurements and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let Args { rounds, rows } = args;
    ensure!(*rounds > 0, "--rounds 0: expected at least 1");
    let dir = scratch_folder()?;
    let certificates = Certificates::make(&dir.path().join("certificates"))?;
    let sides = [(PLAIN, None), (VOLLEY, Some(&certificates))];
    let start = |(name, certificates)| Side::start(name, certificates, &dir.path().join(name));
    let sides: Vec<_> = sides
        .into_iter()
        .map(start)
        .collect::<anyhow::Result<_>>()?;
    for side in &sides {
        side.run(&side.table(*rows))?;
    }
    let mut case = Case::new("a shuffle over TLS", Unit::Seconds);
    for round in 0..=*rounds {
        for turn in 0..sides.len() {
            let side = &sides[(turn + round) % sides.len()];
            let seconds = side.ask(*rows)?;
            if round > 0 {
                case.push(side.name, seconds);
            }
            eprintln!("round {round}, {}: {seconds:.3} s", side.name);
        }
    }
    drop(sides);
    let mut comparison = Comparison::new("tls", "What TLS costs", METHOD);
    comparison.remark(format!(
        "{rows} rows, {} MB of text; half of them leave the executor that has read them.",
        rows * 200 / 1_000_000
    ));
    comparison.cases = vec![case];
    comparison
        .cases
        .extend(sums(*rounds, &certificates, dir.path())?);
    comparison.write(results)
}

/// Measures sums of ranks with and without TLS.
fn sums(rounds: usize, certificates: &Certificates, dir: &Path) -> anyhow::Result<Vec<Case>> {
    let transports = [
        (PLAIN, Transport::Tcp),
        (VOLLEY, Transport::Tls(certificates)),
    ];
    let start = |(name, transport)| anyhow::Ok((name, World::start(RANKS, transport, dir)?));
    let mut worlds: Vec<_> = transports
        .into_iter()
        .map(start)
        .collect::<anyhow::Result<_>>()?;
    let mut cases = Vec::new();
    for message in MESSAGES {
        let name = format!("a sum of {} over TLS", message.name);
        let mut case = Case::new(name, Unit::Microseconds);
        for round in 0..=rounds {
            for turn in 0..worlds.len() {
                let at = (turn + round) % worlds.len();
                let (name, world) = &mut worlds[at];
                let median = world.measure(message)?;
                if round > 0 {
                    case.push(name, median);
                }
            }
        }
        cases.push(case);
    }
    Ok(cases)
}

impl Side {
    fn start(
        name: &'static str,
        certificates: Option<&Certificates>,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir(dir)?;
        let of = |options: fn(&Certificates) -> Vec<String>| certificates.map(options);
        let tls = of(Certificates::of_process).unwrap_or_default();
        let tls: Vec<_> = tls.iter().map(String::as_str).collect();
        let cluster = Cluster::start_with(
            dir,
            Layout {
                options: &tls,
                scheduler_options: &tls,
                ..Layout::of(2)
            },
        )?;
        let options = of(Certificates::of_client).unwrap_or_default();
        Ok(Self {
            name,
            cluster,
            options,
        })
    }

    /// Returns the statement that writes the rows.
    fn table(&self, rows: usize) -> String {
        let digits: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"]
            .iter()
            .map(|letter| format!("md5('{letter}' || value)"))
            .collect();
        format!(
            "COPY (SELECT value AS k, left({}, 200) AS t FROM range({rows})) TO '{}' STORED AS PARQUET",
            digits.join(" || "),
            self.rows().display()
        )
    }

    /// Returns the folder of the rows.
    fn rows(&self) -> PathBuf {
        self.cluster.store().with_file_name("rows/")
    }

    /// Runs the query, checks its answer and returns its seconds.
    fn ask(&self, rows: usize) -> anyhow::Result<f64> {
        let sql = format!(
            "SELECT count(*) AS n, sum(length(t)) AS digits FROM (SELECT k, max(t) AS t FROM '{}' GROUP BY k)",
            self.rows().display()
        );
        let ran = self.run(&sql)?;
        let answer: Value = serde_json::from_str(ran.stdout.trim())
            .with_context(|| format!("{} answered {}", self.name, ran.stdout))?;
        let due = serde_json::json!({ "n": rows, "digits": 200 * rows });
        ensure!(answer == due, "{} answered {answer}, not {due}", self.name);
        Ok(ran.seconds)
    }

    fn run(&self, sql: &str) -> anyhow::Result<Ran> {
        let fixed = [
            "--set",
            "ballista.shuffle.force_remote_read=true",
            "-c",
            sql,
        ];
        let arguments = self.options.iter().cloned();
        let arguments = arguments.chain(fixed.map(str::to_owned));
        self.cluster.run(&arguments.collect::<Vec<_>>())
    }
}
