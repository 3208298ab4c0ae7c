//! TPC-H: the 22 queries over Parquet files, by Volley, Spark, and DataFusion and `DuckDB` on their own.
//!
//! Every answer of every round is held against that of DataFusion alone. What fails or is wrong has no
//! figure and is told in the report; there is no mean of what is left. It is not an audited TPC-H
//! result: neither refreshes nor concurrent streams are run.

mod answer;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;

use self::answer::Answer;
use crate::cluster::Cluster;
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::peers::{Peer, Peers, run as run_command};
use crate::session::Session;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scale factor: about so many GB as text
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// How often each query is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory of the tables, made where they are not there yet [default: a temporary one]
    #[arg(long)]
    data: Option<PathBuf>,
    /// What Volley is compared with, besides `DataFusion` alone
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::ALL)]
    systems: Vec<System>,
}

/// What Volley is compared with, besides what its answers are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    /// Spark SQL
    Spark,
    /// `DuckDB`
    Duckdb,
}

impl System {
    const ALL: [Self; 2] = [Self::Spark, Self::Duckdb];

    fn name(self) -> &'static str {
        match self {
            Self::Spark => SPARK,
            Self::Duckdb => "DuckDB",
        }
    }

    fn script(self) -> &'static str {
        match self {
            Self::Spark => "tpch_spark.py",
            Self::Duckdb => "tpch_duckdb.py",
        }
    }
}

const TABLES: [&str; 8] = [
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
];
/// Rounds before those that count: the JVM compiles what it runs often.
const WARM_UP: usize = 2;
const SPARK: &str = "Spark";
/// What every answer is held against.
const REFERENCE: &str = "DataFusion alone";

const METHOD: &str = "The 22 queries of TPC-H with the validation parameters, the same text for every \
    system, over the same Parquet files, one file a table. Volley: a scheduler and two executors of one \
    slot as processes; all queries in one session of one `volley` command, each timed by the session \
    (`--timing`) from the parsed statement to the last row printed as JSON. The others: a process of two \
    threads, timed from the text to the rows as Arrow. A round is one pass over \
    all queries; the systems take turns, whoever is first in a round is last in the next, and two rounds of \
    each before those that count warm them up. Every answer of every round was held against that of DataFusion alone, row by row in order, numbers \
    within 10⁻⁴ + 10⁻⁶ of their size.";

/// Runs the comparison and writes it into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(args.scale > 0.0, "--scale {}: expected more", args.scale);
    let peers = Peers::install("sql")?;
    let dir = tempfile::Builder::new()
        .prefix("volley-benchmark-")
        .tempdir()?;
    let data = match &args.data {
        Some(data) => std::path::absolute(data)?.join(format!("tpch-{}", args.scale)),
        None => dir.path().join("tables"),
    };
    let tables = tables(&peers, &data, args.scale)?;
    let title = "TPC-H, 22 queries";
    let method = format!("{METHOD} Scale factor {}.", args.scale);
    let mut comparison = Comparison::new("tpch", title, method);

    let queries = queries(args.scale)?;
    let cluster = Cluster::start(dir.path(), 2)?;
    let mut others = Vec::new();
    let systems = args.systems.iter();
    let systems = systems.map(|system| (system.name(), system.script()));
    for (system, script) in std::iter::once((REFERENCE, "tpch_datafusion.py")).chain(systems) {
        let mut peer = peers.start(script, &[], dir.path())?;
        comparison.versions.extend(peer.versions()?);
        peer.ask(&json!({"tables": tables}))?;
        others.push((system, peer));
    }
    let mut board = Board::default();
    for round in 0..WARM_UP + args.rounds {
        let mut answers = Vec::new();
        for turn in 0..=others.len() {
            // Whoever is first in a round is last in the next.
            let turn = (turn + round) % (others.len() + 1);
            answers.push(match others.get_mut(turn) {
                Some((system, peer)) => (*system, ask_all(peer, &queries)),
                None => (VOLLEY, volley(&cluster, &tables, &queries, dir.path())?),
            });
        }
        eprintln!("round {}", round + 1);
        board.enter(answers, round >= WARM_UP);
    }
    let names: Vec<_> = queries.iter().map(|(name, _)| name.as_str()).collect();
    comparison.cases = board.cases(&names);
    comparison.remarks = board.remarks();
    comparison.write(results)
}

/// The tables' files by name, made where they are not there yet.
fn tables(peers: &Peers, data: &Path, scale: f64) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let file = |table: &str| data.join(format!("{table}.parquet"));
    if !TABLES.iter().all(|table| file(table).exists()) {
        fs::create_dir_all(data)?;
        eprintln!("generating the tables at scale factor {scale}");
        let mut generate = peers.program("tpchgen-cli");
        generate
            .args(["parquet", "--scale-factor"])
            .arg(scale.to_string())
            .arg("--output-dir")
            .arg(data);
        run_command(&mut generate)?;
    }
    Ok(TABLES
        .iter()
        .map(|table| ((*table).to_owned(), file(table)))
        .collect())
}

/// The queries by name, in order.
fn queries(scale: f64) -> anyhow::Result<Vec<(String, String)>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tpch");
    let fraction = format!("{:.10}", 0.0001 / scale);
    let query = |number| {
        let name = format!("q{number:02}");
        let path = folder.join(format!("{name}.sql"));
        let sql =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((name, sql.replace("${fraction}", &fraction)))
    };
    (1..=22).map(query).collect()
}

/// By query, in order: the seconds and the answer, or why there is none.
type Answers = Vec<Result<(f64, Answer), String>>;

fn ask_all(peer: &mut Peer, queries: &[(String, String)]) -> Answers {
    let ask = |(_, sql): &(String, String)| {
        let said = peer.ask(&json!({"sql": sql}));
        let said = said.map_err(|error| format!("{error:#}"))?;
        let seconds = said["seconds"].as_f64().unwrap_or(f64::NAN);
        Ok((seconds, Answer::of_peer(&said)))
    };
    queries.iter().map(ask).collect()
}

/// Runs the queries in one session; where one fails, the others in another one.
fn volley(
    cluster: &Cluster,
    tables: &BTreeMap<String, PathBuf>,
    queries: &[(String, String)],
    dir: &Path,
) -> anyhow::Result<Answers> {
    let create = tables.iter().map(|(table, file)| {
        let file = file.display();
        format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{file}';\n")
    });
    let create: String = create.collect();
    let mut answers = Vec::new();
    while answers.len() < queries.len() {
        let left = queries[answers.len()..].iter();
        let script = create.clone() + &left.map(|(_, sql)| format!("{sql};\n")).collect::<String>();
        let session = Session::run(cluster.client()?, &script, dir)?;
        let ran = session.statements()?.into_iter().skip(tables.len());
        answers.extend(ran.map(|ran| Ok((ran.seconds, Answer::of_rows(ran.rows)))));
        match session.error() {
            Some(error) => answers.push(Err(error)),
            None => break,
        }
    }
    ensure!(
        answers.len() == queries.len(),
        "volley answered {} of {} queries",
        answers.len(),
        queries.len()
    );
    Ok(answers)
}

/// What each system has answered so far.
#[derive(Default)]
struct Board {
    /// By system and query: seconds by round.
    seconds: BTreeMap<&'static str, BTreeMap<usize, Vec<f64>>>,
    /// By system and query: what went wrong, the first time.
    wrong: BTreeMap<&'static str, BTreeMap<usize, String>>,
}

impl Board {
    /// Enters a round's answers; the seconds of those that are right, if they count.
    fn enter(&mut self, answers: Vec<(&'static str, Answers)>, counts: bool) {
        let reference = answers.iter().find(|(system, _)| *system == REFERENCE);
        let reference: Vec<_> = match reference {
            Some((_, answers)) => answers
                .iter()
                .map(|answer| answer.as_ref().ok().map(|(_, answer)| answer.clone()))
                .collect(),
            None => Vec::new(),
        };
        for (system, answers) in answers {
            for (query, answer) in answers.into_iter().enumerate() {
                let right = answer.and_then(|(seconds, answer)| {
                    let expected = reference.get(query).cloned().flatten();
                    let expected = expected.ok_or("there is no answer to compare with")?;
                    answer.differs(&expected).map_or(Ok(seconds), Err)
                });
                match right {
                    Ok(seconds) if counts => {
                        let of_system = self.seconds.entry(system).or_default();
                        of_system.entry(query).or_default().push(seconds);
                    }
                    Ok(_) => {}
                    Err(reason) => {
                        eprintln!("{system}, query {}: {reason}", query + 1);
                        let of_system = self.wrong.entry(system).or_default();
                        of_system.entry(query).or_insert(reason);
                    }
                }
            }
        }
    }

    /// The geometric mean, and each query.
    fn cases(&self, names: &[&str]) -> Vec<Case> {
        let mut mean = Case::new("geometric mean", Unit::Seconds).at_least(3.0, SPARK);
        let mut cases: Vec<_> = names
            .iter()
            .map(|name| Case::new(*name, Unit::Seconds))
            .collect();
        for (system, queries) in &self.seconds {
            let wrong = self.wrong.get(system);
            for (query, seconds) in queries {
                if wrong.is_some_and(|wrong| wrong.contains_key(query)) {
                    continue;
                }
                for figure in seconds {
                    cases[*query].push(system, *figure);
                }
            }
            if wrong.is_none() {
                for round in rounds(queries) {
                    mean.push(system, geometric_mean(&round));
                }
            }
        }
        cases.insert(0, mean);
        cases
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (system, queries) in &self.wrong {
            for (query, reason) in queries {
                remarks.push(format!("**{system} fails at q{:02}**: {reason}", query + 1));
            }
        }
        if remarks.is_empty() {
            remarks.push("All systems gave the same answers to all queries.".to_owned());
        } else {
            remarks.push("A system that fails at a query has no geometric mean.".to_owned());
        }
        remarks
    }
}

/// The seconds of all queries, by round.
fn rounds(queries: &BTreeMap<usize, Vec<f64>>) -> Vec<Vec<f64>> {
    let count = queries.values().map(Vec::len).min().unwrap_or_default();
    let round = |round: usize| queries.values().map(|seconds| seconds[round]).collect();
    (0..count).map(round).collect()
}

fn geometric_mean(figures: &[f64]) -> f64 {
    let logarithms: f64 = figures.iter().map(|figure| figure.ln()).sum();
    (logarithms / figures.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_has_no_figure_and_is_told() {
        let answer =
            |seconds: f64, value: f64| Ok((seconds, Answer::of_rows(vec![json!({"a": value})])));
        let mut board = Board::default();
        for counts in [false, true] {
            let answers = vec![
                (REFERENCE, vec![answer(1.0, 1.0), answer(4.0, 2.0)]),
                (SPARK, vec![answer(2.0, 1.0), answer(8.0, 2.0)]),
                (VOLLEY, vec![answer(1.0, 1.0), answer(1.0, 3.0)]),
            ];
            board.enter(answers, counts);
        }
        let cases = board.cases(&["q01", "q02"]);
        assert_eq!(cases[0].samples[SPARK], [4.0]);
        assert!(!cases[0].samples.contains_key(VOLLEY));
        assert_eq!(cases[1].samples[VOLLEY], [1.0]);
        assert!(!cases[2].samples.contains_key(VOLLEY));
        assert!(board.remarks()[0].starts_with("**Volley fails at q02**"));
    }
}
