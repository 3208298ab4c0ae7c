//! Many clients at once on a cluster of real processes: counts lost queries and wrong answers, and measures the
//! latency of the smallest query meanwhile.
//!
//! ```text
//!   clients 0, 1     train, again and again: two gangs         queue training
//!   client 2         a query like the Rossmann features        queue etl
//!   the others       SELECT 1, and small queries, in turn      queue default
//! ```
//!
//! Each client is a session on a thread of this process: 32 `volley` commands on two cores would measure their own
//! start. Every answer is compared with the answer given before there was load. It compares with no other system.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use tokio::runtime::Runtime;
use tokio::time::sleep;
use url::Url;
use volley::datafusion::arrow::util::pretty::pretty_format_batches;
use volley::{Session, SessionConfig};

use crate::cluster::{Cluster, Layout, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, percentile};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients: two train, one computes features, and the others ask small questions
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Seconds for which they ask
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Milliseconds that a client of small queries waits after an answer
    #[arg(long, default_value_t = 1000)]
    pause: u64,
}

/// Number of clients that train.
const GANGS: usize = 2;

/// Rows of the table used for sums, training and features.
const ROWS: usize = 100_000;

/// Options of the scheduler: queues for the clients that keep the cluster busy.
const QUEUES: &[&str] = &[
    "--queue",
    "default=4",
    "--queue",
    "etl=1",
    "--queue",
    "training=1",
];

const SELECT_1: &str = "SELECT 1";

/// Small queries, asked in turn.
const SMALL: [&str; 4] = [
    SELECT_1,
    "SELECT count(*), sum(a.id) FROM a JOIN b ON a.id = b.id",
    SELECT_1,
    "SELECT kind, count(*) AS n, sum(amount) AS total FROM sales GROUP BY kind ORDER BY kind",
];

/// Query with a moving mean per store, like the Rossmann features.
const FEATURES: &str = "SELECT store, count(*) AS days, max(mean) AS most, min(mean) AS least FROM (\
    SELECT store, avg(amount) OVER (PARTITION BY store ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS mean \
    FROM sales) GROUP BY store ORDER BY store";

/// Runs the clients and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(
        args.clients > GANGS + 1 && args.seconds > 0,
        "--clients and --seconds: expected at least {} and 1",
        GANGS + 2
    );
    let dir = scratch_folder()?;
    let dir = dir.path();
    let tables = tables(dir)?;
    let layout = Layout {
        slots: 4,
        scheduler_options: QUEUES,
        ..Layout::of(2)
    };
    let cluster = Cluster::start_with(dir, layout)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let scene = Arc::new(Scene::new(&cluster, tables, &runtime)?);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let seen = (0..args.clients).map(|number| {
        let (scene, handle) = (Arc::clone(&scene), runtime.handle().clone());
        let client = Client {
            number,
            // Starts are spread over time.
            delay: Duration::from_millis(args.pause * number as u64 / args.clients as u64),
            pause: Duration::from_millis(args.pause),
            deadline,
        };
        std::thread::spawn(move || handle.block_on(client.work(&scene)))
    });
    let seen: Vec<_> = seen.collect();
    let mut all = Seen::default();
    for thread in seen {
        let seen = thread.join();
        all.add(seen.map_err(|_| anyhow!("a client panicked"))??);
    }
    report(args, all, results)
}

const METHOD: &str = "A scheduler and two executors of four slots as processes; a client is a session of one process \
    beside them. Two clients train a model with two ranks again and again, one asks for moving means of all rows again \
    and again, and the others ask `SELECT 1`, a join of ten rows, and a sum of 100,000 rows from a CSV file, in turn, \
    with a pause after each answer. Before that, each query was asked once on the idle cluster: that answer is what all \
    later ones have to be. A query is lost whose answer is an error. Times are those of the client, planning included.";

fn report(args: &Args, seen: Seen, results: &Path) -> anyhow::Result<()> {
    let mut comparison = Comparison::new("load", "Many clients at once", METHOD);
    let case = |name: &str, unit, figure| {
        let mut case = Case::new(name, unit);
        case.push(VOLLEY, figure);
        case
    };
    let count = |name: &str, count: usize| case(name, Unit::Queries, count as f64);
    let time =
        |name: &str, share, of: &[f64]| case(name, Unit::Milliseconds, percentile(of, share));
    comparison.cases = vec![
        count("lost", seen.lost.len()).at_most(0.0),
        count("answered wrongly", seen.wrong.len()).at_most(0.0),
        count("answered", seen.answered),
        time("SELECT 1, p50", 0.5, &seen.select_1),
        time("SELECT 1, p99", 0.99, &seen.select_1).at_most(100.0),
        time("other small queries, p50", 0.5, &seen.small),
        time("other small queries, p99", 0.99, &seen.small),
        time("features, p50", 0.5, &seen.features),
        time("training, p50", 0.5, &seen.training),
        count("trained", seen.training.len()),
    ];
    comparison.remark(format!(
        "{} clients for {} s, those of small queries with pauses of {} ms.",
        args.clients, args.seconds, args.pause
    ));
    for said in seen.lost.iter().chain(&seen.wrong).take(10) {
        comparison.remark(format!("- {said}"));
    }
    comparison.write(results)
}

/// Setup shared by all clients.
struct Scene {
    scheduler: String,
    store: Url,
    tables: String,
    /// Expected answers of the small queries and of the features, by query text.
    answers: Vec<(&'static str, String)>,
}

impl Scene {
    /// Connects and asks each query once, to know the answers.
    fn new(cluster: &Cluster, tables: String, runtime: &Runtime) -> anyhow::Result<Self> {
        let store = std::path::absolute(cluster.store())?;
        fs::create_dir_all(&store)?;
        let store = Url::from_directory_path(&store);
        let store = store.map_err(|()| anyhow!("the store has no absolute path"))?;
        let mut scene = Self {
            scheduler: cluster.address().to_owned(),
            store,
            tables,
            answers: Vec::new(),
        };
        let answers = async {
            let session = scene.session("default").await?;
            let mut answers = Vec::new();
            for query in [SMALL[0], SMALL[1], SMALL[3], FEATURES] {
                let answer = answer(&session, query).await;
                answers.push((query, answer.with_context(|| query.to_owned())?));
            }
            anyhow::Ok(answers)
        };
        let answers = runtime.block_on(answers)?;
        scene.answers = answers;
        Ok(scene)
    }

    /// Opens a session with the tables, whose jobs go to a queue.
    async fn session(&self, queue: &str) -> anyhow::Result<Session> {
        let mut config = SessionConfig::new(&self.scheduler, self.store.clone());
        config.settings = vec![("volley.queue".to_owned(), queue.to_owned())];
        let session = Session::connect(config).await?;
        answer(&session, &self.tables).await?;
        Ok(session)
    }

    fn is_right(&self, query: &str, answer: &str) -> bool {
        let known = self.answers.iter().find(|(known, _)| *known == query);
        known.is_some_and(|(_, known)| known == answer)
    }
}

/// Runs a script and returns the rows of its last statement, as a text table.
async fn answer(session: &Session, script: &str) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for statement in session.parse(script)? {
        rows = session.run(statement).await?.collect().await?;
    }
    Ok(pretty_format_batches(&rows)?.to_string())
}

/// One client.
struct Client {
    number: usize,
    delay: Duration,
    pause: Duration,
    deadline: Instant,
}

/// Results of the clients.
#[derive(Debug, Default)]
struct Seen {
    answered: usize,
    lost: Vec<String>,
    wrong: Vec<String>,
    /// Milliseconds of each query; so too in the other fields.
    select_1: Vec<f64>,
    small: Vec<f64>,
    features: Vec<f64>,
    training: Vec<f64>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.lost.extend(other.lost);
        self.wrong.extend(other.wrong);
        self.select_1.extend(other.select_1);
        self.small.extend(other.small);
        self.features.extend(other.features);
        self.training.extend(other.training);
    }
}

impl Client {
    async fn work(self, scene: &Scene) -> anyhow::Result<Seen> {
        let Self { number, pause, .. } = self;
        let queue = match number {
            _ if number < GANGS => "training",
            GANGS => "etl",
            _ => "default",
        };
        let train = format!(
            "CREATE OR REPLACE MODEL gang_{number} OPTIONS (input_label_cols = ['amount'], ranks = 2, epochs = 2, \
             device = 'cpu') AS SELECT store, day, amount FROM sales"
        );
        sleep(self.delay).await;
        let session = scene.session(queue).await?;
        let mut seen = Seen::default();
        let mut turn = 0;
        while Instant::now() < self.deadline {
            let (query, pause) = match queue {
                "training" => (train.as_str(), Duration::ZERO),
                "etl" => (FEATURES, Duration::ZERO),
                _ => (SMALL[turn % SMALL.len()], pause),
            };
            turn += 1;
            let begun = Instant::now();
            let answered = answer(&session, query).await;
            let took = begun.elapsed().as_secs_f64() * 1e3;
            match answered {
                Ok(answer) => {
                    seen.answered += 1;
                    // Training answers with its ranks and their times, which vary.
                    if queue != "training" && !scene.is_right(query, &answer) {
                        seen.wrong
                            .push(format!("client {number}, {query}: {answer}"));
                    }
                    let times = match (queue, query) {
                        ("training", _) => &mut seen.training,
                        ("etl", _) => &mut seen.features,
                        (_, SELECT_1) => &mut seen.select_1,
                        _ => &mut seen.small,
                    };
                    times.push(took);
                }
                Err(error) => seen
                    .lost
                    .push(format!("client {number}, {query}: {error:#}")),
            }
            sleep(pause).await;
        }
        Ok(seen)
    }
}

/// Writes the tables, and returns the statements that register them.
fn tables(dir: &Path) -> anyhow::Result<String> {
    let table = |name: &str, columns: &str, rows: &mut dyn Iterator<Item = String>| {
        let path = dir.join(format!("{name}.csv"));
        let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
        let header = columns.split(", ").map(|column| column.split(' ').next());
        let header: Vec<_> = header.map(Option::unwrap_or_default).collect();
        writeln!(file, "{}", header.join(","))?;
        for row in rows {
            writeln!(file, "{row}")?;
        }
        file.flush()?;
        anyhow::Ok(format!(
            "CREATE EXTERNAL TABLE {name} ({columns}) STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true');\n",
            path.display()
        ))
    };
    let stores = 100;
    let small = || (0..10).map(|id| format!("{id},{id}"));
    let sale = |row: usize| {
        let (store, day) = (row % stores, row / stores);
        format!("{store},{day},kind-{},{}", row % 7, (row * 7919) % 1000)
    };
    Ok(table("a", "id INT, size INT", &mut small())?
        + &table("b", "id INT, name VARCHAR", &mut small())?
        + &table(
            "sales",
            "store INT, day INT, kind VARCHAR, amount INT",
            &mut (0..ROWS).map(sale),
        )?)
}
