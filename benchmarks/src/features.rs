//! The Rossmann features, from seven CSV files to two Parquet files, computed by Volley and by systems in wide use.
//! The time from reading the first byte to writing the last one counts.
//!
//! The output of every round is compared with Volley's, in any order of rows: a system that writes different rows
//! ends the comparison.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Ran, embedded, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::example::export;
use crate::peers::{Peer, Peers};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Rounds of each system, both with its processes running and as one command
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Systems to compare Volley with
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::value_variants())]
    systems: Vec<System>,
}

/// Systems that Volley is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    /// Spark SQL, tuned
    Spark,
    /// Spark with elapsed days over an RDD, as published
    Published,
    /// `DuckDB`
    Duckdb,
    /// Polars, lazy: one query to both data sets
    Polars,
    /// Polars, with the features in memory before they are written
    PolarsCollected,
}

/// Warm-up rounds: the JVM compiles code that it runs often, and is faster in the third round.
const WARM_UP: usize = 2;

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Spark => "Spark",
            Self::Published => "Spark, published method",
            Self::Duckdb => "DuckDB",
            Self::Polars => "Polars",
            Self::PolarsCollected => "Polars, collected",
        }
    }

    fn script(self) -> &'static str {
        match self {
            Self::Spark => "features_spark.py",
            Self::Published => "features_spark_published.py",
            Self::Duckdb => "features_duckdb.py",
            Self::Polars | Self::PolarsCollected => "features_polars.py",
        }
    }

    fn args(self) -> &'static [&'static str] {
        match self {
            Self::PolarsCollected => &["--collect"],
            _ => &[],
        }
    }

    /// Returns the location of a data set that the system wrote, as a request to `summary_duckdb.py`.
    fn rows(self, out: &Path, dataset: &str) -> Value {
        match self {
            Self::Spark => partition(out, dataset),
            Self::Published | Self::Duckdb | Self::Polars | Self::PolarsCollected => {
                json!({"path": out.join(format!("{dataset}.parquet"))})
            }
        }
    }

    /// Returns the required speedup of Volley over a system whose processes already run.
    fn bar(self) -> Option<f64> {
        match self {
            Self::Spark => Some(6.0),
            Self::Published => Some(35.0),
            Self::Duckdb => Some(2.0),
            Self::Polars | Self::PolarsCollected => None,
        }
    }

    /// Returns the required speedup when each system is started as one command.
    fn bar_of_commands(self) -> Option<f64> {
        match self {
            Self::Polars => Some(1.5),
            other => other.bar(),
        }
    }
}

const METHOD: &str = "The Rossmann features, from seven CSV files to Parquet files of the training and \
    the test rows, everything included. Volley: a scheduler and two executors of one slot as processes, \
    and one `volley` command for each round, whose start counts. The others: a process that was started \
    before, with two threads. The systems take turns, whoever is first in a round is last in the next. Two rounds of each system before those that count warm \
    them up; the very first, of a session whose JVM runs but has compiled nothing, and of executors that \
    have run nothing, has a row of its own. As one command: a process from its start to its end, of which no other runs \
    before: `volley`, which has the scheduler and an executor inside, and Python with the others. Every round's rows were \
    compared with Volley's: the same number, the same rows.";

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let peers = Peers::install("sql")?;
    let dir = scratch_folder()?;
    let data = std::path::absolute(&args.data)?;
    let mut comparison = Comparison::new("features", "Rossmann features", METHOD);
    let dir = dir.path();
    let mut contest = Contest::new(&peers, &dir.join("processes"), &data, &args.systems)?;
    contest.start()?;
    for peer in contest.running.iter_mut().flatten() {
        comparison.report.versions.extend(peer.versions()?);
    }
    let mut seconds = Case::new("features, CSV to Parquet", Unit::Seconds);
    let mut first = Case::new("the same, the first time after a start", Unit::Seconds);
    let mut command = Case::new("the same, as one command", Unit::Seconds);
    let mut memory = Case::new("peak memory, all processes together", Unit::MiB);
    for system in &args.systems {
        if let Some(bar) = system.bar() {
            seconds = seconds.at_least(bar, system.name());
        }
        if let Some(bar) = system.bar_of_commands() {
            command = command.at_least(bar, system.name());
        }
    }
    if args.systems.contains(&System::Spark) {
        first = first.at_least(12.0, System::Spark.name());
        memory = memory.at_least(4.0, System::Spark.name());
    }
    for round in 1..=WARM_UP + args.rounds {
        for (system, figure) in contest.round(round)? {
            if round == 1 {
                first.push(system, figure);
            }
            if round > WARM_UP {
                seconds.push(system, figure);
            }
        }
    }
    memory.push(VOLLEY, contest.volley_peak_mib());
    for (system, peer) in args.systems.iter().zip(contest.running.iter().flatten()) {
        memory.push(system.name(), peer.peak_mib());
    }
    let rows = std::mem::take(&mut contest.rows);
    drop(contest);
    let mut contest = Contest::new(&peers, &dir.join("commands"), &data, &args.systems)?;
    for round in 1..=args.rounds {
        for (system, figure) in contest.round(round)? {
            command.push(system, figure);
        }
    }
    comparison.cases = vec![seconds, first, command, memory];
    comparison.report.remarks = vec![
        format!(
            "{} training rows and {} test rows, of which every system wrote the same.",
            rows["train"], rows["test"]
        ),
        "Memory is the sum of the processes' high-water marks (`VmHWM`) after the last round; a \
         system's processes need not have been at theirs at the same time. Volley's are the scheduler, \
         the executors and the largest client; Spark's are Python and the JVM, whose heap may grow to \
         4 GiB. Compression of the Parquet files is each system's default."
            .to_owned(),
    ];
    comparison.write(results)
}

/// The systems being compared.
struct Contest<'a> {
    peers: &'a Peers,
    systems: &'a [System],
    /// Volley's cluster, if its processes already run.
    cluster: Option<Cluster>,
    /// Running peers by system; `None` if they are started for each measurement.
    running: Vec<Option<Peer>>,
    /// Peer that summarizes Parquet files.
    summary: Peer,
    client_peak_mib: f64,
    /// Number of rows that Volley wrote, by data set.
    rows: BTreeMap<&'static str, u64>,
    data: &'a Path,
    dir: PathBuf,
}

impl<'a> Contest<'a> {
    /// Creates a contest in a new folder, in which each system is started when it is measured.
    fn new(
        peers: &'a Peers,
        dir: &Path,
        data: &'a Path,
        systems: &'a [System],
    ) -> anyhow::Result<Self> {
        fs::create_dir(dir)?;
        for system in systems {
            fs::create_dir(own(dir, *system))?;
        }
        Ok(Self {
            peers,
            systems,
            cluster: None,
            running: systems.iter().map(|_| None).collect(),
            summary: peers.start("summary_duckdb.py", &[], dir)?,
            client_peak_mib: 0.0,
            rows: BTreeMap::new(),
            data,
            dir: dir.to_owned(),
        })
    }

    /// Starts the systems' processes; from now on they are measured while running.
    fn start(&mut self) -> anyhow::Result<()> {
        self.cluster = Some(Cluster::start(&self.dir, 2)?);
        for (running, system) in self.running.iter_mut().zip(self.systems) {
            let own = own(&self.dir, *system);
            *running = Some(self.peers.start(system.script(), system.args(), &own)?);
        }
        Ok(())
    }

    /// Runs each system once, in an order that rotates by round, and returns their seconds after checking that their
    /// rows equal Volley's.
    fn round(&mut self, round: usize) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let mut figures = Vec::new();
        for turn in 0..=self.systems.len() {
            let turn = (turn + round) % (self.systems.len() + 1);
            let (system, seconds) = match self.systems.get(turn) {
                None => (VOLLEY, self.run_volley()?),
                Some(system) => (system.name(), self.run_peer(turn)?),
            };
            eprintln!("round {round}: {system}: {seconds:.2} s");
            figures.push((system, seconds));
        }
        let out = self.dir.join(self.systems.len().to_string());
        let expected = summaries(|dataset| self.summary.ask(&partition(&out, dataset)))?;
        fs::remove_dir_all(&out)?;
        for (dataset, summary) in &expected {
            let rows = summary["rows"].as_u64().unwrap_or_default();
            ensure!(rows > 0, "Volley wrote no {dataset} rows");
            self.rows.insert(dataset, rows);
        }
        for (at, system) in self.systems.iter().enumerate() {
            let out = self.dir.join(at.to_string());
            let summaries = summaries(|dataset| self.summary.ask(&system.rows(&out, dataset)))?;
            for (dataset, summary) in summaries {
                same(&expected[dataset], &summary).with_context(|| {
                    format!("{dataset} rows of {} in round {round}", system.name())
                })?;
            }
            fs::remove_dir_all(&out)?;
        }
        Ok(figures)
    }

    fn run_volley(&mut self) -> anyhow::Result<f64> {
        let out = self.folder(self.systems.len())?;
        let args = export(self.data, &out);
        let ran = match &self.cluster {
            Some(cluster) => cluster.run(&args)?,
            None => Ran::of(embedded(&self.dir)?, &args, &self.dir)?,
        };
        self.client_peak_mib = self.client_peak_mib.max(ran.peak_mib);
        Ok(ran.seconds)
    }

    fn run_peer(&mut self, at: usize) -> anyhow::Result<f64> {
        let out = self.folder(at)?;
        let question = json!({"data": self.data, "out": out});
        if let Some(peer) = &mut self.running[at] {
            return peer.seconds(&question);
        }
        let system = self.systems[at];
        let started = Instant::now();
        let mut peer =
            (self.peers).start(system.script(), system.args(), &own(&self.dir, system))?;
        peer.ask(&question)?;
        peer.end()?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Creates the output folder of a turn: a peer's turn is the index of its system, Volley's the next one.
    fn folder(&self, turn: usize) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(turn.to_string());
        fs::create_dir(&path)?;
        Ok(path)
    }

    fn volley_peak_mib(&self) -> f64 {
        let cluster = self.cluster.iter().flat_map(Cluster::peaks);
        cluster.map(|(_, peak)| peak).sum::<f64>() + self.client_peak_mib
    }
}

/// Returns the working folder of a system: Spark leaves files there.
fn own(dir: &Path, system: System) -> PathBuf {
    dir.join(format!("{system:?}"))
}

/// Asks for summaries of the two data sets.
fn summaries(
    mut ask: impl FnMut(&'static str) -> anyhow::Result<Value>,
) -> anyhow::Result<BTreeMap<&'static str, Value>> {
    let mut summary = |dataset| Ok((dataset, ask(dataset)?));
    ["train", "test"].into_iter().map(&mut summary).collect()
}

/// Returns the location of a data set written in one pass with the other, and the columns that belong only to the
/// other.
fn partition(out: &Path, dataset: &str) -> Value {
    let without: &[&str] = match dataset {
        "train" => &["Id", "Open"],
        _ => &["Sales"],
    };
    json!({"path": out.join(format!("features/dataset={dataset}")), "without": without})
}

/// Fails on the first difference between Volley's rows and another system's.
fn same(volley: &Value, other: &Value) -> anyhow::Result<()> {
    let rows = |of: &Value| of["rows"].clone();
    let (ours, theirs) = (rows(volley), rows(other));
    ensure!(ours == theirs, "{theirs} rows, but Volley's are {ours}");
    let columns = |of: &Value| of["columns"].as_object().cloned().unwrap_or_default();
    let (ours, theirs) = (columns(volley), columns(other));
    let names = |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    let (our_names, their_names) = (names(&ours), names(&theirs));
    ensure!(
        our_names == their_names,
        "columns {their_names:?}, but Volley's are {our_names:?}"
    );
    for (name, expected) in &ours {
        let found = &theirs[name];
        ensure!(
            expected == found,
            "column {name}: nulls, least, greatest, and sum or distinct values are {found}, \
             but Volley's are {expected}"
        );
    }
    ensure!(
        volley["hashes"] == other["hashes"],
        "every column has Volley's values, but not in the same rows"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let summary = |rows: u64, least: f64, hashes: &str| json!({"rows": rows, "hashes": hashes, "columns": {"Store": [0, least, 9.0, 45.0]}});
        let volley = summary(9, 1.0, "7");
        let difference = |other: &Value| same(&volley, other).map_err(|error| error.to_string());
        assert_eq!(difference(&volley), Ok(()));
        assert_eq!(
            difference(&summary(8, 1.0, "7")).unwrap_err(),
            "8 rows, but Volley's are 9"
        );
        let column = difference(&summary(9, 2.0, "7")).unwrap_err();
        assert!(column.starts_with("column Store: "), "{column}");
        let hashes = difference(&summary(9, 1.0, "8")).unwrap_err();
        assert!(hashes.ends_with("not in the same rows"), "{hashes}");
        let other = json!({"rows": 9, "hashes": "7", "columns": {}});
        assert!(difference(&other).is_err());
    }
}
