//! Disks that are full, stores that are gone, and ranks lost while they write: a model is published whole, once, or
//! not at all, and training never starts from half a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use volley_tests::{Cluster, ExecutorSetup, eventually};

use crate::fault::Fault;
use crate::fitting::{Fit, Setup, published, setup, versions};
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    (
        "all ranks are killed while a checkpoint is written",
        killed_while_a_checkpoint_is_written,
    ),
    ("the newest checkpoint is corrupt", || {
        resumed_after("is corrupt", |state, _| {
            let mut bytes = fs::read(state).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            fs::write(state, bytes).unwrap();
        });
    }),
    ("the newest checkpoint is cut off", || {
        resumed_after("is corrupt", |state, _| {
            let bytes = fs::read(state).unwrap();
            fs::write(state, &bytes[..bytes.len() / 2]).unwrap();
        });
    }),
    ("the newest checkpoint was not written to its end", || {
        resumed_after("not written to its end", |_, info| {
            fs::remove_file(info).unwrap();
        });
    }),
    ("the publishing rank is killed", || {
        lost_while_publishing(Loss::Kill);
    }),
    ("the publishing rank freezes", || {
        lost_while_publishing(Loss::Freeze);
    }),
    ("the store's disk is full", store_is_full),
    ("the store is replaced by a file", store_is_gone),
];

/// Sets up a network whose files take a moment to write.
pub(crate) fn large(name: &str, options: &str) -> Setup {
    setup(name, &format!("embedding_dim = 2000, {options}"))
}

/// Waits until a model's training has a whole checkpoint, which may take longer than its first epochs.
pub(crate) fn await_checkpoint(cluster: &Cluster, model: &str) {
    eventually("a checkpoint", SOON, || {
        (!checkpoints(cluster, model, "json").is_empty()).then_some(())
    });
}

/// Returns a model's checkpoint files with an extension, the oldest first.
pub(crate) fn checkpoints(cluster: &Cluster, model: &str, extension: &str) -> Vec<PathBuf> {
    let folder = cluster
        .store()
        .join("models")
        .join(model)
        .join("checkpoints");
    let in_folder = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let runs = in_folder(&folder);
    let files = runs.iter().flat_map(|run| in_folder(run));
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

fn killed_while_a_checkpoint_is_written() {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, on_too_few_ranks = 'wait', regroup_timeout = '1s', \
                   checkpoint_every = 1";
    let mut fit = large("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(3);
    let started = Instant::now();
    loop {
        let (states, infos) = (
            checkpoints(&cluster, "m", "state"),
            checkpoints(&cluster, "m", "json"),
        );
        // The newest state is newer than any that was declared whole.
        if states.last().map(|path| path.file_stem()) > infos.last().map(|path| path.file_stem()) {
            break;
        }
        if started.elapsed() > Duration::from_secs(2) {
            break; // files are written one after the other, so any moment will do
        }
    }
    for executor in &executors {
        cluster.executors()[*executor].kill();
    }
    for _ in &executors {
        scene::add(&mut cluster, "train");
    }
    let (_, run) = fit.trained(&cluster);
    assert!(run.stderr.contains("checkpoint"), "{}", run.stderr);
    let left = checkpoints(&cluster, "m", "state");
    assert!(left.is_empty(), "of a published run: {left:?}");
    scene::is_well(&cluster, 3);
}

/// Ends training, harms its newest checkpoint (its state, its information) and resumes: training continues from the
/// checkpoint before, and says so.
fn resumed_after(said: &str, harm: fn(&Path, &Path)) {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, min_ranks = 2, regroup_timeout = '100ms'";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    Loss::Kill.strike(&mut cluster, executors[1]);
    fit.fails();
    let states = checkpoints(&cluster, "m", "state");
    assert!(states.len() > 1, "the newest two are kept: {states:?}");
    let newest = &states[states.len() - 1];
    harm(newest, &newest.with_extension("json"));
    scene::add(&mut cluster, "train");
    cluster.await_executors(3);
    let fit = setup("m", "ranks = 2, resume = true").start(&cluster);
    let (_, run) = fit.trained(&cluster);
    assert!(run.stderr.contains(said), "{}", run.stderr);
    assert!(!run.stderr.contains("epoch 1: "), "{}", run.stderr);
    scene::is_well(&cluster, 3);
}

fn lost_while_publishing(loss: Loss) {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, min_ranks = 1, regroup_timeout = '1s'";
    let mut fit = large("m", options).epochs(3).start(&cluster);
    let executors = fit.await_generation(1);
    let written = cluster.store().join("models/m/unpublished");
    let started = Instant::now();
    while !written.exists() && started.elapsed() < SOON {
        std::thread::yield_now();
    }
    loss.strike(&mut cluster, executors[0]);
    fit.trained(&cluster);
    match loss {
        Loss::Freeze => {
            loss.make_up(&mut cluster, executors[0]);
            scene::is_well(&cluster, 3);
        }
        Loss::Kill | Loss::Terminate => scene::is_well(&cluster, 2),
    }
    let versions = versions(&cluster, "m");
    assert_eq!(versions.len(), 1, "it was published once: {versions:?}");
    cluster.query("DESCRIBE MODEL m");
}

/// Checks that training continues without checkpoints, and fails when it cannot publish.
fn store_is_full() {
    let mut cluster = scene::pools(1, 0);
    let limited = |cluster: &mut Cluster, file_limit| {
        cluster.add_executor_with(ExecutorSetup {
            args: vec!["--role".to_owned(), "train".to_owned()],
            file_limit,
            ..ExecutorSetup::default()
        })
    };
    let full = [(); 2].map(|()| limited(&mut cluster, Some(100)));
    cluster.await_executors(3);
    let fit = large("m", "ranks = 2").epochs(3).start(&cluster);
    let said = fit.fails();
    assert!(said.contains("cannot write the checkpoint"), "{said}");
    assert!(said.contains("publish"), "{said}");
    assert!(versions(&cluster, "m").is_empty(), "it has half a model");
    assert_eq!(published(&cluster), 0);

    // The same training on disks with room succeeds.
    for executor in full {
        Loss::Kill.strike(&mut cluster, executor);
        limited(&mut cluster, None);
    }
    cluster.await_executors(3);
    large("m", "ranks = 2")
        .epochs(3)
        .start(&cluster)
        .trained(&cluster);
    scene::is_well(&cluster, 3);
}

fn store_is_gone() {
    let cluster = scene::pools(1, 2);
    let (store, aside) = (cluster.store(), cluster.dir().join("aside"));
    let mut fit: Fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(5);
    eventually("a checkpoint", SOON, || {
        let whole = checkpoints(&cluster, "m", "json");
        (!whole.is_empty()).then_some(())
    });
    fs::rename(&store, &aside).unwrap();
    fs::write(&store, "").unwrap();
    let said = fit.fails();
    assert!(said.contains("publish"), "{said}");
    fs::remove_file(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    let models = cluster.query("SHOW MODELS");
    assert!(models[0]["current"].is_null(), "{models:?}");
    assert!(models[0]["unfinished"].is_string(), "{models:?}");
    let fit = setup("m", "ranks = 2, resume = true").start(&cluster);
    let (_, run) = fit.trained(&cluster);
    assert!(!run.stderr.contains("epoch 1: "), "{}", run.stderr);
    scene::is_well(&cluster, 3);
}
