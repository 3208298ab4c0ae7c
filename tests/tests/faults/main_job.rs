//! The main job with everything in a bucket whose requests fail: tables, features, model and predictions. It runs on
//! two hosts, over TLS and with tokens, and an executor is killed in each of its parts.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use volley_tests::{
    Client, Cluster, Dialled, Fault, FaultPlan, FaultyProxy, Hosts, RemoteStore, Run, S3Server,
    Setup, Spread, eventually, generate_example,
};

use crate::fault::{effort, missed, seed};
use crate::scene::{self, Loss};
use crate::watcher::Watcher;

/// Share of requests to the bucket that fail.
const SHARE: f64 = 0.06;
const EXECUTORS: usize = 4;
/// Folder of models. The name is short because the server puts the whole key into the name of an upload's file, and
/// the length of names is limited.
const STORE: &str = "m";
/// Timeout of each part of the job, in a debug build whose requests fail.
const SOON: Duration = Duration::from_secs(240);

/// Main job in a bucket.
struct Job {
    cluster: Cluster,
    /// Executor that is killed next.
    next: usize,
}

pub(crate) fn in_a_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = Arc::new(Hosts::start(&Spread::NAMES).expect("there were some before"));
    let server = S3Server::start();
    let plan = FaultPlan::even(seed("the main job in a bucket"), SHARE);
    let proxy = FaultyProxy::on(hosts.own_ipv4(), &server.address(), plan);
    let bucket = server.bucket_dir();
    generate_example(4 * effort(), &bucket.join("data"));
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

    // The expected result, while nothing fails.
    proxy.switch(false);
    job.start(&["tables.sql", "features.sql", "export.sql"], "calm")
        .wait(SOON)
        .rows();
    proxy.switch(true);

    let out = bucket.join("out");
    let watcher = Watcher::over(move || {
        std::thread::sleep(Duration::from_millis(20));
        whole(&out)
    });
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
    assert!(met.iter().all(|(_, times)| *times > 0), "{met:?}");
    scene::is_well(&job.cluster, EXECUTORS);
}

/// Returns the URL of a folder in the bucket.
fn url(folder: &str) -> String {
    format!("s3://{}/{folder}", S3Server::BUCKET)
}

/// Checks whether a task runs.
fn works(job: &Job, _: &Client) -> bool {
    let slots = job.cluster.slots();
    slots.is_some_and(|slots| slots.free < slots.all)
}

impl Job {
    /// Starts files of the example, which write into a folder of the bucket.
    fn start(&self, files: &[&str], out: &str) -> Client {
        let (data, out, epochs) = (url("data"), url(out), (3 * effort()).to_string());
        let defines = [
            ("data", data.as_str()),
            ("out", &out),
            ("epochs", &epochs),
            ("ranks", "2"),
            ("batch_size", "64"),
            ("seed", "7"),
        ];
        let mut command = self.cluster.example(files, &defines);
        self.cluster.spawn(&mut command)
    }

    /// Runs files to their end; kills and replaces an executor once `is_due`.
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

    /// Checks that the written features equal those that were written while nothing failed.
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

/// Checks that the Parquet files in a folder begin and end with the magic bytes. Returns their number.
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
