//! Executors lost under queries whose rows have copies in a shared folder or a bucket (`volley.shuffle_store`): what
//! finished stages have computed is not computed again, and no copy is left when the job has ended.

use std::fs;
use std::path::{Path, PathBuf};

use url::Url;
use volley_engine::object_stores::{ShuffleStore, Stores};
use volley_proto::object_stores::StoreOptions;
use volley_tests::{Cluster, FaultPlan, FaultyProxy, Numbers, RemoteStore, S3Server, eventually};

use crate::asking::{Phase, Question, question_by};
use crate::fault::{Fault, missed, seed};
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("a holder is killed, with copies in a shared folder", || {
        let cluster = scene::cluster(3);
        let shared = cluster.dir().join("shared");
        fs::create_dir(&shared).unwrap();
        let store = format!("file://{}", shared.display());
        outlive_a_holder(cluster, &store, &shared);
    }),
    ("a holder is killed, with copies in a bucket", || {
        let server = S3Server::start();
        let cluster = Cluster::start_with(volley_tests::Setup {
            remote_store: Some(RemoteStore {
                url: format!("s3://{}/models", S3Server::BUCKET),
                dir: server.bucket_dir().join("models"),
                environment: S3Server::environment(&server.endpoint()),
            }),
            ..scene::setup(3)
        });
        let store = format!("s3://{}/copies", S3Server::BUCKET);
        outlive_a_holder(cluster, &store, &server.bucket_dir().join("copies"));
        assert_eq!(server.open_uploads(), 0);
    }),
    ("the shared folder takes no files", takes_no_files),
    ("requests to the bucket fail", requests_fail),
];

const FACTS: u64 = 6_000;
/// Share of requests that fail.
const SHARE: f64 = 0.2;

/// Asks a question whose rows have copies in a store, and waits until its exchanges hold data.
fn question(cluster: &Cluster, store: &str) -> Question {
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let set = format!("volley.shuffle_store={store}");
    question_by(Phase::Shuffle, cluster, &numbers, || {
        let mut command = cluster.command();
        command.args(["--set", &set]);
        command
    })
}

/// Kills an executor that holds rows of stages that are done.
fn outlive_a_holder(mut cluster: Cluster, store: &str, folder: &Path) {
    let question = question(&cluster, store);
    let attempt = question.asked.attempt.clone();
    let stages = cluster.stages(&attempt).unwrap_or_default();
    let done = stages.iter().filter(|stage| stage.done);
    let done: Vec<_> = done.map(|stage| stage.id).collect();
    let holds = |executor: &usize| {
        let mut done = done.iter();
        done.any(|stage| cluster.holds_data(*executor, &format!("{attempt}/{stage}")))
    };
    let Some(victim) = (0..3).find(holds) else {
        missed("the stages that are done have no rows");
    };
    Loss::Kill.strike(&mut cluster, victim);
    let job = question.answered_again(&cluster);
    let log = cluster.manage_jobs(&["logs", &job.id]).stdout;
    for stage in done {
        let all = format!("stage {stage}: all partitions are still there");
        assert!(log.contains(&all), "{log}");
    }
    // Cancelled tasks may have copied files after the job's end, until the second removal.
    eventually("the copies to be removed", SOON, || {
        files(folder).is_empty().then_some(())
    });
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

/// Checks that a question is answered without copies, and that an executor says that there are none.
fn takes_no_files() {
    let mut cluster = scene::cluster(3);
    let none = cluster.dir().join("none");
    fs::write(&none, "").unwrap();
    let question = question(&cluster, &format!("file://{}", none.display()));
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    let mut executors = cluster.executors().iter();
    let told = "a task's rows are on its executor alone";
    assert!(executors.any(|executor| executor.output().contains(told)));
    scene::is_well(&cluster, 3);
}

/// Copies files to a bucket whose requests fail. What counts as copied is there as a whole.
fn requests_fail() {
    let server = S3Server::start();
    let plan = FaultPlan::even(seed("copies in a bucket"), SHARE);
    let proxy = FaultyProxy::to(&server.address(), plan);
    let (stores, mut options) = (Stores::default(), StoreOptions::default());
    for (option, value) in S3Server::options(&proxy.endpoint()) {
        options.set(&option, value).unwrap();
    }
    let url = format!("s3://{}/copies", S3Server::BUCKET);
    let url: Url = url.parse().unwrap();
    let store = ShuffleStore::new(&stores, &stores.declare(&url, options).unwrap(), "j");
    let here = tempfile::tempdir().unwrap();
    let [small, large, back] = ["small", "large", "back"].map(|name| here.path().join(name));
    fs::write(&small, "rows").unwrap();
    let rows: Vec<_> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&large, rows).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut copied, mut failed) = (0, 0);
    runtime.block_on(async {
        for number in 0..8 {
            for file in [&small, &large] {
                let name = file.file_name().unwrap().to_str().unwrap();
                let name = format!("j/1/{number}/{name}");
                if store.upload(file, Path::new(&name)).await.is_err() {
                    failed += 1;
                    continue;
                }
                copied += 1;
                if store.download(Path::new(&name), &back).await.is_ok() {
                    assert!(
                        fs::read(&back).unwrap() == fs::read(file).unwrap(),
                        "{name}"
                    );
                }
                let there = server
                    .bucket_dir()
                    .join("copies/volley-shuffle/j")
                    .join(&name);
                assert!(
                    fs::read(&there).unwrap() == fs::read(file).unwrap(),
                    "{name}"
                );
            }
        }
        assert!(copied > failed, "{copied} of {}", copied + failed);
        proxy.switch(false);
        store.remove().await.unwrap();
    });
    let left = files(&server.bucket_dir().join("copies"));
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let (folders, mut found): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    found.extend(folders.iter().flat_map(|folder| files(folder)));
    found
}
