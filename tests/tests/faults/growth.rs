//! The traces of many small queries: nothing grows with their number. Resident memory, open descriptors and files of
//! the scheduler and the executors are measured when caches are full, and again at the end.
//!
//! The test measures no time, and nothing of the client, which lives in the test's own process.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::runtime::Handle;
use volley::{Session, SessionConfig};
use volley_proto::store::ModelStore;
use volley_tests::{Cluster, Process, eventually};

use crate::fault::say;

/// Number of clients that ask at the same time.
const CLIENTS: usize = 8;
/// Queries of a session, after which a new one connects.
const OF_A_SESSION: usize = 50;
/// Timeout of a query of a few rows, which takes longer only if it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time within which files are removed and connections given up after the last query.
const SOON: Duration = Duration::from_secs(60);
/// Memory growth in bytes above which there is a leak: a jemalloc arena that has grown stays large.
const MEMORY: u64 = 96 << 20;
/// Number of descriptors that come and go with connections.
const DESCRIPTORS: usize = 48;
/// Number of files that belong to no query.
pub(crate) const FILES: usize = 16;

/// Resources that a process holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Resident memory, in bytes.
    resident: u64,
    descriptors: usize,
}

impl Held {
    /// Returns the smaller of each resource.
    pub(crate) fn least(self, other: Self) -> Self {
        Self {
            resident: self.resident.min(other.resident),
            descriptors: self.descriptors.min(other.descriptors),
        }
    }

    /// Requires that a process holds about what it held before; the names of both times are for the error.
    pub(crate) fn is_flat(self, name: &str, now: &str, before: Self, then: &str) {
        assert!(
            self.resident <= before.resident + before.resident / 4 + MEMORY,
            "{name} holds {} MiB after {now}, and held {} MiB after {then}",
            self.resident >> 20,
            before.resident >> 20,
        );
        assert!(
            self.descriptors <= before.descriptors + DESCRIPTORS,
            "{name} has {} open descriptors after {now}, and had {} after {then}",
            self.descriptors,
            before.descriptors,
        );
    }
}

/// Asks this many queries on two executors.
pub(crate) fn run(queries: usize) {
    let mut cluster = Cluster::start(2);
    for (name, rows) in [("a", "1,x\n2,y\n3,z\n"), ("b", "1,10\n1,11\n3,30\n")] {
        let dir = cluster.dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("rows.csv"), format!("id,v\n{rows}")).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // By then, the caches of the newest jobs and tasks are full.
    let first = (queries / 4).max(CLIENTS);
    ask(runtime.handle(), &cluster, first).unwrap();
    let before = settled(&mut cluster);
    ask(runtime.handle(), &cluster, queries - first).unwrap();
    let after = settled(&mut cluster);
    say(&format!(
        "growth: {first} queries: {before:?}; {queries}: {after:?}"
    ));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        let [now, then] = [queries, first].map(|count| format!("{count} queries"));
        after.is_flat(name, &now, *before, &then);
    }
    // Rows that have been read are kept for some seconds, and their jobs with them; then the oldest are evicted.
    eventually("the scheduler to keep fewer than 1,024 jobs", SOON, || {
        let counted = cluster.query("SELECT count(*) AS n FROM volley.jobs");
        let kept = counted[0]["n"].as_u64().unwrap();
        say(&format!("growth: the scheduler keeps {kept} jobs"));
        (kept < 1024).then_some(())
    });
}

/// Asks `queries` queries from several clients at a time, and checks each answer.
fn ask(runtime: &Handle, cluster: &Cluster, queries: usize) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let (next, dir) = (&next, cluster.dir());
    std::thread::scope(|scope| {
        let client = || {
            scope.spawn(move || -> anyhow::Result<()> {
                while next.load(Ordering::Relaxed) < queries {
                    let address = cluster.address().to_owned();
                    let store = ModelStore::directory_url(&cluster.store())?;
                    runtime.block_on(async {
                        let mut config = SessionConfig::new(address, store);
                        let stages = ("volley.single_task_bytes".to_owned(), "0".to_owned());
                        config.settings.push(stages);
                        let session = Session::connect(config).await?;
                        for _ in 0..OF_A_SESSION {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= queries {
                                break;
                            }
                            let asked = ask_one(&session, number, dir);
                            let answered = tokio::time::timeout(PATIENCE, asked).await;
                            answered.with_context(|| format!("query {number} hangs"))??;
                        }
                        session.settle(PATIENCE).await;
                        anyhow::Ok(())
                    })?;
                }
                Ok(())
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| client()).collect();
        for client in clients {
            client.join().expect("a client panicked")?;
        }
        Ok(())
    })
}

/// Asks one of a few small queries; some fail on an executor, some are given up.
async fn ask_one(session: &Session, number: usize, dir: &Path) -> anyhow::Result<()> {
    let (a, b) = (dir.join("a"), dir.join("b"));
    let (a, b) = (a.display(), b.display());
    let count = |rows: Vec<datafusion::arrow::record_batch::RecordBatch>| {
        rows.iter().map(|batch| batch.num_rows()).sum::<usize>()
    };
    let join = format!("FROM '{a}/' AS a JOIN '{b}/' AS b ON a.id = b.id");
    match number % 8 {
        // The query fails where it runs.
        3 => {
            let failing = format!("SELECT 1 / (a.id - a.id) {join}");
            let answered = session.sql(&failing).await?.collect().await;
            ensure!(answered.is_err(), "{failing} gives rows");
        }
        // The reader goes away.
        5 => {
            let given_up = format!("SELECT a.id, b.v {join} ORDER BY b.v");
            drop(session.sql(&given_up).await?.execute_stream().await?);
        }
        1 | 4 => {
            let grouped = format!("SELECT a.id, sum(b.v) {join} GROUP BY a.id");
            let rows = count(session.sql(&grouped).await?.collect().await?);
            ensure!(rows == 2, "{grouped}: {rows} rows");
        }
        _ => {
            let rows = count(session.sql("SELECT 1").await?.collect().await?);
            ensure!(rows == 1, "SELECT 1: {rows} rows");
        }
    }
    Ok(())
}

/// Returns the resources of the cluster's processes once the files of queries are removed.
fn settled(cluster: &mut Cluster) -> Vec<(String, Held)> {
    let dirs = [0, 1].map(|number| cluster.work_dir(number));
    eventually("the files of queries to be removed", SOON, || {
        let files = dirs.iter().map(|dir| files(dir)).sum::<usize>();
        (files <= FILES).then_some(())
    });
    let mut held = vec![("the scheduler".to_owned(), held(cluster.scheduler()))];
    for (number, executor) in cluster.executors().iter().enumerate() {
        held.push((format!("executor-{number}"), self::held(executor)));
    }
    held
}

/// Returns the resources that a process holds now.
pub(crate) fn held(process: &Process) -> Held {
    let proc = Path::new("/proc").join(process.id().to_string());
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|line| line.trim().strip_suffix(" kB"));
    Held {
        resident: resident.unwrap().trim().parse::<u64>().unwrap() << 10,
        descriptors: std::fs::read_dir(proc.join("fd")).unwrap().count(),
    }
}

/// Counts the files below a folder, which may change meanwhile.
pub(crate) fn files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let below = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files(&entry.path()),
        _ => 1,
    };
    entries.flatten().map(below).sum()
}
