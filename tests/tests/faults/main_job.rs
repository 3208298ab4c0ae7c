//! The main job with everything in a bucket whose requests fail: tables, features, model and predictions. It runs on two
//! hosts, over TLS and with tokens, and in each of its parts an executor is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use volley_tests::{
    Client, Cluster, Dialled, Fault, FaultPlan, FaultyProxy, Hosts, RemoteStore, Run, S3Server,
    Setup, Spread, binary, eventually,
};

use crate::fault::{effort, missed, seed};
use crate::scene::{self, Loss};

/// Of all requests to the bucket, so many fail.
const SHARE: f64 = 0.06;
const EXECUTORS: usize = 4;
/// The folder of models. The server keeps an upload in a file whose name has the whole key in it, and those are limited.
const STORE: &str = "m";
/// Each part of the job is done by then, in a debug build whose requests fail.
const SOON: Duration = Duration::from_secs(240);

/// The job, in a bucket.
struct Job {
    cluster: Cluster,
    /// The executor that is killed next.
    next: usize,
}

pub(crate) fn in_a_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = Arc::new(Hosts::start(&Spread::NAMES).expect("there were some before"));
    let server = S3Server::start();
    let mut plan = FaultPlan::even(seed("the main job in a bucket"), SHARE);
    // A listing that is cut off is an error to a query: object_store repeats no listing whose body fails.
    plan.shares.retain(|(fault, _)| *fault != Fault::Truncate);
    let proxy = FaultyProxy::on(hosts.own_ipv4(), &server.address(), plan);
    let bucket = server.bucket_dir();
    let generated = Command::new(binary("volley"))
        .args(["generate", "rossmann", "--stores"])
        .arg((4 * effort()).to_string())
        .arg("--out")
        .arg(bucket.join("data"))
        .output();
    assert!(generated.unwrap().status.success());
    let setup = Setup {
        spread: Some(Spread {
            hosts,
            dialled: Dialled::Ipv4,
        }),
        remote_store: Some(RemoteStore {
            url: url(STORE),
            dir: bucket.join(STORE),
            environment: S3Server::environment(&proxy.endpoint()),
        }),
        ..scene::setup(EXECUTORS)
    };
    let cluster = Cluster::start_with(setup.secured(dir.path()));
    let mut job = Job { cluster, next: 0 };

    // What is due, while nothing fails.
    proxy.switch(false);
    job.start(&["tables.sql", "features.sql", "export.sql"], "calm")
        .wait(SOON)
        .rows();
    proxy.switch(true);

    let watcher = Watcher::over(bucket.join("out"));
    let run = job.loses_an_executor(&["tables.sql", "features.sql", "export.sql"], works);
    run.rows();
    job.has_the_same_features();
    let trains =
        |job: &Job, client: &Client| works(job, client) && client.said().contains("epoch 1: ");
    let run = job.loses_an_executor(&["tables.sql", "features.sql", "train.sql"], trains);
    assert_eq!(run.rows().len(), 2, "one row a rank");
    let run = job.loses_an_executor(&["tables.sql", "features.sql", "predict.sql"], works);
    run.rows();
    let submission = fs::read_to_string(bucket.join("out/submission.csv")).unwrap();
    let tests = fs::read_to_string(bucket.join("data/test.csv")).unwrap();
    assert_eq!(submission.lines().count(), tests.lines().count());
    for line in submission.lines().skip(1) {
        let (_, sales) = line.split_once(',').unwrap();
        assert!(sales.parse::<f64>().unwrap() > 0.0, "{line}");
    }
    assert!(watcher.ended() > 0);

    let models = job.cluster.query("SHOW MODELS");
    assert_eq!(models.len(), 1, "{models:?}");
    let met = Fault::ALL.map(|fault| (fault, proxy.injected(fault)));
    let is_met = |(fault, times): &(Fault, u64)| *times > 0 || *fault == Fault::Truncate;
    assert!(met.iter().all(is_met), "{met:?}");
    scene::is_well(&job.cluster, EXECUTORS);
}

/// A folder of the bucket.
fn url(folder: &str) -> String {
    format!("s3://{}/{folder}", S3Server::BUCKET)
}

/// Whether a task runs.
fn works(job: &Job, _: &Client) -> bool {
    let slots = job.cluster.slots();
    slots.is_some_and(|slots| slots.free < slots.all)
}

impl Job {
    /// Starts files of the example, which write into a folder of the bucket.
    fn start(&self, files: &[&str], out: &str) -> Client {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rossmann");
        let (data, out, epochs) = (url("data"), url(out), (3 * effort()).to_string());
        let defines = [
            ("data", data.as_str()),
            ("out", &out),
            ("epochs", &epochs),
            ("ranks", "2"),
            ("batch_size", "64"),
            ("seed", "7"),
        ];
        let mut command = self.cluster.command();
        command.args(["--format", "json"]);
        command.args(defines.map(|(name, value)| format!("--define={name}={value}")));
        for file in files {
            command.arg("-f").arg(example.join(file));
        }
        self.cluster.spawn(&mut command)
    }

    /// Runs files to their end; an executor is killed when something `is_due`, and is replaced.
    fn loses_an_executor(&mut self, files: &[&str], is_due: fn(&Self, &Client) -> bool) -> Run {
        let mut client = self.start(files, "out");
        let is_over = eventually("the job to come so far", SOON, || {
            let is_over = client.process().ended().is_some();
            (is_over || is_due(self, &client)).then_some(is_over)
        });
        if is_over {
            let run = client.wait(SOON);
            assert_eq!(run.code, Some(0), "{files:?}\n{}", run.stderr);
            missed("it ended before an executor was killed");
        }
        Loss::Kill.strike(&mut self.cluster, self.next);
        self.next += 1;
        Loss::Kill.make_up(&mut self.cluster, self.next);
        client.wait(SOON)
    }

    /// Checks the features that were written against those that were while nothing failed.
    fn has_the_same_features(&self) {
        let [calm, out] = ["calm", "out"].map(|folder| url(&format!("{folder}/features/")));
        let except = |one: &str, other: &str| {
            format!(
                "(SELECT count(*) FROM (SELECT * FROM '{one}' EXCEPT ALL SELECT * FROM '{other}'))"
            )
        };
        let sql = format!(
            "SELECT {} AS lost, {} AS new, (SELECT count(*) > 0 FROM '{out}') AS any",
            except(&calm, &out),
            except(&out, &calm)
        );
        let expected = json!({"lost": 0, "new": 0, "any": true});
        assert_eq!(self.cluster.query(&sql), [expected]);
    }
}

/// Looks at a folder of the bucket all the while: what is listed there must be whole.
struct Watcher {
    stop: Arc<AtomicBool>,
    watching: std::thread::JoinHandle<usize>,
}

impl Watcher {
    fn over(dir: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let watching = std::thread::spawn(move || {
            let mut seen = 0;
            while !is_over.load(Ordering::Relaxed) {
                seen = seen.max(whole(&dir));
                std::thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Self { stop, watching }
    }

    /// Ends it. Returns the most files that it has seen at a time.
    fn ended(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let watched = self.watching.join();
        watched.expect("it has seen a file that is not whole")
    }
}

/// Checks that the Parquet files in a folder begin and end as such files do; counts them.
fn whole(dir: &Path) -> usize {
    const MAGIC: &[u8] = b"PAR1";
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = entries.map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return whole(&path);
        }
        if path
            .extension()
            .is_none_or(|extension| extension != "parquet")
        {
            return 0;
        }
        let bytes = fs::read(&path).unwrap();
        let is_whole = bytes.starts_with(MAGIC) && bytes.ends_with(MAGIC) && bytes.len() > 12;
        assert!(is_whole, "{} has {} bytes", path.display(), bytes.len());
        1
    });
    files.sum()
}
