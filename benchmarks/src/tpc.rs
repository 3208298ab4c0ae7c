//! TPC-H and TPC-DS: their queries over Parquet files, run by Volley, Spark, and DataFusion and `DuckDB` alone.
//!
//! Every answer of every round is compared with that of DataFusion alone. A query that fails or is wrong has no
//! figure and is listed in the report; then there is no mean of the remaining ones. The result is not an audited
//! result of either benchmark: neither refreshes nor concurrent streams are run.

mod answer;
mod board;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;

use self::answer::Answer;
use self::board::{Answers, Board};
use crate::cluster::{Cluster, scratch_folder};
use crate::comparison::{Comparison, VOLLEY};
use crate::peers::{Peer, Peers, run as run_command};
use crate::session::Session;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scale factor: about so many GB as text
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Rounds of each query
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory of the tables; missing ones are generated [default: a temporary one]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Systems to compare Volley with, besides `DataFusion` alone
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::value_variants())]
    systems: Vec<System>,
}

/// Systems that Volley is compared with, besides the one whose answers are the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    /// Spark SQL
    Spark,
    /// `DuckDB`
    Duckdb,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Spark => SPARK,
            Self::Duckdb => DUCKDB,
        }
    }

    fn script(self) -> &'static str {
        match self {
            Self::Spark => "sql_spark.py",
            Self::Duckdb => "sql_duckdb.py",
        }
    }
}

/// Tables, their queries, and the targets for Volley.
#[derive(Debug)]
pub(crate) struct Suite {
    /// Name of its folder of queries, and of the suite in `tpcgen-cli`.
    name: &'static str,
    title: &'static str,
    /// Names of the tables, with spaces between them.
    tables: &'static str,
    queries: usize,
    /// Required speedup over a system, by the geometric mean over all queries.
    mean: &'static [(f64, &'static str)],
    /// Required speedup over a system in every single query.
    each: &'static [(f64, &'static str)],
}

pub(crate) const TPCH: Suite = Suite {
    name: "tpch",
    title: "TPC-H",
    tables: "customer lineitem nation orders part partsupp region supplier",
    queries: 22,
    // At most 1.15 times DataFusion's time.
    mean: &[(3.0, SPARK), (0.87, REFERENCE)],
    each: &[],
};

pub(crate) const TPCDS: Suite = Suite {
    name: "tpcds",
    title: "TPC-DS",
    tables: "
        call_center catalog_page catalog_returns catalog_sales customer customer_address customer_demographics
        date_dim household_demographics income_band inventory item promotion reason ship_mode store store_returns
        store_sales time_dim warehouse web_page web_returns web_sales web_site",
    queries: 99,
    // At most 1.2 times DataFusion's time overall, and five times DuckDB's in every query.
    mean: &[(0.83, REFERENCE)],
    each: &[(0.2, DUCKDB)],
};

/// Warm-up rounds: the JVM compiles code that it runs often.
const WARM_UP: usize = 2;
const SPARK: &str = "Spark";
const DUCKDB: &str = "DuckDB";
/// System whose answers all others are compared with.
const REFERENCE: &str = "DataFusion alone";

const METHOD: &str = "The queries with the parameters that answers are validated with, the same text for every \
    system, over the same Parquet files, one file a table. Volley: a scheduler and two executors of one \
    slot as processes; all queries in one session of one `volley` command, each timed by the session \
    (`--timing`) from the parsed statement to the last row printed as JSON. The others: a process of two \
    threads, timed from the text to the rows as Arrow. A round is one pass over \
    all queries; the systems take turns, whoever is first in a round is last in the next, and two rounds of \
    each before those that count warm them up. Every answer of every round was held against that of DataFusion alone, row by row in order, numbers \
    within 10⁻⁴ + 10⁻⁶ of their size.";

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(suite: &'static Suite, args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(args.scale > 0.0, "--scale {}: expected more", args.scale);
    let peers = Peers::install("sql")?;
    let dir = scratch_folder()?;
    let data = match &args.data {
        Some(data) => std::path::absolute(data)?.join(format!("{}-{}", suite.name, args.scale)),
        None => dir.path().join("tables"),
    };
    let tables = suite.tables(&peers, &data, args.scale)?;
    let method = format!("{METHOD} Scale factor {}.", args.scale);
    let mut comparison = Comparison::new(suite.name, suite.title, method);

    let queries = suite.queries(args.scale)?;
    let cluster = Cluster::start(dir.path(), 2)?;
    let mut others = Vec::new();
    let systems = args.systems.iter();
    let systems = systems.map(|system| (system.name(), system.script()));
    for (system, script) in std::iter::once((REFERENCE, "sql_datafusion.py")).chain(systems) {
        let mut peer = peers.start(script, &[], dir.path())?;
        comparison.report.versions.extend(peer.versions()?);
        peer.ask(&json!({"tables": tables}))?;
        others.push((system, peer));
    }
    let mut board = Board::new(REFERENCE);
    for round in 0..WARM_UP + args.rounds {
        let mut answers = Vec::new();
        for turn in 0..=others.len() {
            // The order of the systems rotates by round.
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
    comparison.cases = board.cases(&names, suite.mean, suite.each);
    comparison.report.remarks = board.remarks(&names);
    comparison.write(results)
}

impl Suite {
    /// Returns the tables' files by name; generates them if any is missing.
    fn tables(
        &self,
        peers: &Peers,
        data: &Path,
        scale: f64,
    ) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let file = |table: &str| data.join(format!("{table}.parquet"));
        let mut tables = self.tables.split_whitespace();
        if !tables.all(|table| file(table).exists()) {
            fs::create_dir_all(data)?;
            eprintln!("generating the tables at scale factor {scale}");
            let mut generate = peers.program("tpcgen-cli");
            generate
                .args([self.name, "parquet", "--scale-factor"])
                .arg(scale.to_string())
                .arg("--output-dir")
                .arg(data);
            run_command(&mut generate)?;
        }
        let tables = self.tables.split_whitespace();
        Ok(tables
            .map(|table| (table.to_owned(), file(table)))
            .collect())
    }

    /// Returns the queries by name, in order.
    fn queries(&self, scale: f64) -> anyhow::Result<Vec<(String, String)>> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(self.name);
        // Parameter of TPC-H's query 11.
        let fraction = format!("{:.10}", 0.0001 / scale);
        let query = |number| {
            let name = format!("q{number:02}");
            let path = folder.join(format!("{name}.sql"));
            let sql = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok((name, sql.replace("${fraction}", &fraction)))
        };
        (1..=self.queries).map(query).collect()
    }
}

fn ask_all(peer: &mut Peer, queries: &[(String, String)]) -> Answers {
    let ask = |(_, sql): &(String, String)| {
        let said = peer.ask(&json!({"sql": sql}));
        let said = said.map_err(|error| format!("{error:#}"))?;
        let seconds = said["seconds"].as_f64().unwrap_or(f64::NAN);
        Ok((seconds, Answer::of_peer(&said)))
    };
    queries.iter().map(ask).collect()
}

/// Runs the queries in one session; after a failed query, runs the remaining ones in a new session.
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
