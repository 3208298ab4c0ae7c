//! Models in a bucket whose requests fail: refused, reset before and after they were carried out, answered by halves.
//! Executors are lost meanwhile. A model is published once and whole, and every listed model can be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;
use url::Url;
use volley_proto::object_stores::StoreOptions;
use volley_proto::spec::IfExists;
use volley_proto::store::{KeptOptions, Manifest, ModelStore, Position, Writer};
use volley_proto::{Error, ModelName, ModelRef, TrainId};
use volley_tests::{
    Cluster, Fault as RequestFault, FaultPlan, FaultyProxy, RemoteStore, S3Server, Samples,
};

use crate::fault::{Fault, seed};
use crate::fitting::{published, setup, versions};
use crate::scene::{self, Loss};
use crate::watcher::Watcher;

pub(crate) const FAULTS: &[Fault] = &[
    ("a rank is killed", killed),
    ("training ends and is resumed", resumed),
    (
        "runs and their generations publish at once",
        publish_at_once,
    ),
];

/// Share of requests that fail.
const SHARE: f64 = 0.25;
const PREFIX: &str = "kept/here";

/// Bucket behind a proxy.
struct Bucket {
    // Before the server, so that it is dropped first.
    proxy: FaultyProxy,
    server: S3Server,
}

impl Bucket {
    fn new(what: &str) -> Self {
        let server = S3Server::start();
        let plan = FaultPlan::even(seed(what), SHARE);
        let proxy = FaultyProxy::to(&server.address(), plan);
        Self { proxy, server }
    }

    fn url() -> Url {
        let url = format!("s3://{}/{PREFIX}", S3Server::BUCKET);
        url.parse().unwrap()
    }

    fn dir(&self) -> PathBuf {
        self.server.bucket_dir().join(PREFIX)
    }

    fn cluster(&self, queries: usize, trainers: usize) -> Cluster {
        let cluster = Cluster::start_with(volley_tests::Setup {
            remote_store: Some(RemoteStore {
                url: Self::url().to_string(),
                dir: self.dir(),
                environment: S3Server::environment(&self.proxy.endpoint()),
            }),
            ..scene::setup(0)
        });
        scene::populate(cluster, queries, trainers)
    }

    /// Opens the store as this process reaches it.
    fn store(endpoint: &str) -> ModelStore {
        let mut options = StoreOptions::default();
        for (option, value) in S3Server::options(endpoint) {
            options.set(&option, value).unwrap();
        }
        ModelStore::open_with(&Self::url(), &options).unwrap()
    }

    /// Watches the bucket, and counts the versions that can be read: a listed version must be whole.
    fn watch(&self) -> Watcher {
        let (dir, store) = (self.dir(), Self::store(&self.server.endpoint()));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Watcher::over(move || {
            let seen = runtime.block_on(readable(&store));
            for _ in 0..20 {
                whole(&dir);
                std::thread::sleep(Duration::from_millis(5));
            }
            seen
        })
    }

    /// Checks that requests have failed, and in most ways.
    fn has_failed(&self) {
        let met = RequestFault::ALL.map(|fault| (fault, self.proxy.injected(fault)));
        let ways = met.iter().filter(|(_, times)| *times > 0).count();
        assert!(ways > 3, "{met:?} of {} requests", self.proxy.requests());
    }
}

/// Reads all listed versions. Returns their number.
async fn readable(store: &ModelStore) -> usize {
    let rows = store.rows().await.unwrap();
    for row in &rows {
        let name: ModelName = row.model.parse().unwrap();
        let version = u32::try_from(row.version).unwrap();
        let manifest = store.manifest(&name, Some(version)).await.unwrap();
        let model = ModelRef {
            store: store.url().clone(),
            name,
            version,
        };
        for file in &manifest.files {
            store.read(&model, &manifest, &file.name).await.unwrap();
        }
    }
    rows.len()
}

/// Checks each manifest in the folder against the files that it names.
fn whole(dir: &Path) {
    for model in entries(&dir.join("models")) {
        for version in entries(&model) {
            let Ok(manifest) = fs::read(version.join("manifest.json")) else {
                continue;
            };
            let manifest: Value = serde_json::from_slice(&manifest).unwrap();
            let files = manifest["files"].as_array().unwrap();
            assert!(!files.is_empty());
            for file in files {
                let path = model.join(file["path"].as_str().expect("files are elsewhere"));
                let found = fs::metadata(&path).unwrap_or_else(|error| {
                    panic!(
                        "{} is listed without {}: {error}",
                        version.display(),
                        path.display()
                    )
                });
                assert_eq!(
                    Some(found.len()),
                    file["bytes"].as_u64(),
                    "{}",
                    path.display()
                );
            }
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns the files under a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (folders, mut found): (Vec<_>, Vec<_>) =
        entries(folder).into_iter().partition(|path| path.is_dir());
    found.extend(folders.iter().flat_map(|folder| files(folder)));
    found
}

/// Checks that the model is listed once, and predicts all rows.
fn predicts(cluster: &Cluster) {
    let listed = cluster.query("SHOW MODELS");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let samples = Samples::write(cluster.dir(), 500);
    let sql = format!(
        "{} SELECT count(predicted_y) AS n, avg(abs(predicted_y - y) / y) AS off \
         FROM ML.PREDICT(MODEL m, (SELECT * FROM samples))",
        samples.table()
    );
    let rows = cluster.query(&sql);
    assert_eq!(rows[0]["n"], 500, "{rows:?}");
    assert!(
        rows[0]["off"].as_f64().is_some_and(f64::is_finite),
        "{rows:?}"
    );
}

fn killed() {
    let bucket = Bucket::new("a rank is killed");
    let watcher = bucket.watch();
    let mut cluster = bucket.cluster(1, 2);
    let options = "ranks = 2, min_ranks = 1, regroup_timeout = '2s', checkpoint_every = 20";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    assert_eq!(published(&cluster), 0);
    Loss::Kill.strike(&mut cluster, executors[0]);
    fit.trained(&cluster);
    assert_eq!(watcher.ended(), 1);
    predicts(&cluster);
    let left = files(&cluster.store().join("models/m/checkpoints"));
    assert!(left.is_empty(), "of a published run: {left:?}");
    bucket.has_failed();
    scene::is_well(&cluster, 2);
}

fn resumed() {
    let bucket = Bucket::new("training ends and is resumed");
    let watcher = bucket.watch();
    let mut cluster = bucket.cluster(1, 2);
    let options = "ranks = 2, min_ranks = 2, regroup_timeout = '100ms', checkpoint_every = 20";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(20);
    Loss::Kill.strike(&mut cluster, executors[1]);
    fit.fails();
    assert!(versions(&cluster, "m").is_empty(), "it has half a model");
    scene::add(&mut cluster, "train");
    let options = "ranks = 2, resume = true";
    let fit = setup("m", options).start(&cluster);
    let (_, run) = fit.trained(&cluster);
    assert!(!run.stderr.contains("epoch 1: "), "{}", run.stderr);
    assert_eq!(watcher.ended(), 1);
    predicts(&cluster);
    bucket.has_failed();
    scene::is_well(&cluster, 3);
}

fn publish_at_once() {
    let bucket = Bucket::new("runs and their generations publish at once");
    let cluster = bucket.cluster(1, 1);
    setup("m", "ranks = 1")
        .epochs(1)
        .start(&cluster)
        .trained(&cluster);
    let store = Bucket::store(&bucket.proxy.endpoint());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let watcher = bucket.watch();
    runtime.block_on(async {
        let m: ModelName = "m".parse().unwrap();
        let template = store.manifest(&m, None).await.unwrap();
        at_once(&store, &template).await;
        answers_are_lost(&bucket, &template).await;
        checkpoints(&store, &template).await;
    });
    assert_eq!(
        watcher.ended(),
        6,
        "four runs, one, and the one that was trained"
    );
    bucket.has_failed();
    runtime.block_on(async {
        for name in ["n", "large"] {
            let name: ModelName = name.parse().unwrap();
            let versions = store.versions(&name).await.unwrap().len();
            assert_eq!(store.drop_model(&name).await.unwrap(), versions);
            let left = files(&cluster.store().join("models").join(name.as_str()));
            assert!(left.is_empty(), "of a dropped model: {left:?}");
        }
        let kept: Vec<_> = store.list().await.unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
    });
}

/// Copies a manifest for another model and run.
fn manifest(template: &Manifest, name: &str, run: TrainId) -> Manifest {
    let mut manifest = template.clone();
    manifest.spec.model = name.parse().unwrap();
    manifest.spec.train_id = run;
    manifest.spec.if_exists = IfExists::Replace;
    manifest
}

/// Publishes four runs of two generations each, with different bytes.
async fn at_once(store: &ModelStore, template: &Manifest) {
    let runs = [(); 4].map(|()| TrainId::generate());
    let publish = |(run, generation): (TrainId, u64)| {
        let content = format!("weights of {run}, generation {generation}");
        let files = vec![("weights", content.into())];
        store.publish(generation, manifest(template, "n", run), files)
    };
    let all = runs.iter().flat_map(|run| [(*run, 1), (*run, 2)]);
    let published = join_all(all.map(publish)).await;
    let published: Vec<_> = published.into_iter().map(Result::unwrap).collect();
    let mut of_runs: Vec<_> = published
        .chunks(2)
        .map(|of_run| {
            assert_eq!(of_run[0], of_run[1], "a run publishes once");
            of_run[0]
        })
        .collect();
    of_runs.sort_unstable();
    assert_eq!(of_runs, [1, 2, 3, 4], "each run has a place of its own");
}

/// Loses the answers of exactly those requests that must not be repeated.
async fn answers_are_lost(bucket: &Bucket, template: &Manifest) {
    let proxy = &bucket.proxy;
    proxy.switch(false);
    let store = Bucket::store(&proxy.endpoint());
    proxy.plant(
        "PUT",
        "models/large/1/manifest.json",
        RequestFault::ResetAfter,
    );
    proxy.plant("POST", "uploadId=", RequestFault::ResetAfter);
    proxy.plant("PUT", "partNumber=2", RequestFault::ResetAfter);
    let (run, large) = (TrainId::generate(), vec![7_u8; 20_000_000]);
    let files = vec![("weights", large.into())];
    let published = store.publish(1, manifest(template, "large", run), files);
    assert_eq!(published.await.unwrap(), 1);
    assert_eq!(proxy.planted(), 0, "all of them were met");
    proxy.switch(true);
}

/// Saves checkpoints of two generations, of which the later one's stay.
async fn checkpoints(store: &ModelStore, template: &Manifest) {
    let name: ModelName = "n".parse().unwrap();
    let run = TrainId::generate();
    let save = async |generation: u64, steps: u64| {
        let position = Position {
            epoch: 1,
            step: steps,
            steps,
        };
        let (writer, state) = (Writer { run, generation }, format!("{generation} {steps}"));
        let kept = KeptOptions {
            transform: template.spec.transform.clone(),
            shards: Some(template.spec.shards),
        };
        let saved = store.save_checkpoint(&name, writer, position, kept, state.into());
        saved.await
    };
    for steps in 1..=8 {
        save(1, steps).await.unwrap();
    }
    for steps in [3, 4, 4] {
        save(2, steps).await.unwrap();
    }
    let late = save(1, 9).await;
    assert!(matches!(late, Err(Error::Superseded { .. })), "{late:?}");
    let found = store.newest_checkpoint(&name, Some(run)).await.unwrap();
    assert!(found.skipped.is_empty(), "{:?}", found.skipped);
    let (info, state) = found.checkpoint.unwrap();
    assert_eq!((info.generation, info.position.steps), (2, 4));
    assert_eq!(state, "2 4");
}
