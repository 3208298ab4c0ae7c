//! The scheduler is killed at a moment when something must happen once: files are committed, a checkpoint is written, a model is
//! published; and its record is on a disk that is full.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use volley_tests::{Samples, eventually};

use crate::fault::{Fault, missed, say};
use crate::fitting::{published, versions};
use crate::scene::{self, SOON};
use crate::stores::{await_checkpoint, checkpoints, large};

pub(crate) const FAULTS: &[Fault] = &[
    ("a COPY commits", killed_while_a_copy_commits),
    (
        "a checkpoint is written",
        killed_while_a_checkpoint_is_written,
    ),
    ("a model is published", killed_while_publishing),
    ("the record's disk is full", full_disk),
];

/// Kills the scheduler as soon as the first file of the result is there, and checks that each row is there once.
fn killed_while_a_copy_commits() {
    const ROWS: u64 = 20_000;
    const PARTS: u64 = 400;
    let mut cluster = scene::cluster(2);
    let target = cluster.dir().join("out");
    // Jobs are recorded within a second, so this one takes longer. What has been written without that is not run again.
    let slow = "SELECT a.value AS v, count(*) AS n FROM range(20000) a \
                JOIN range(200000) b ON a.value % 7 = b.value % 7 GROUP BY a.value";
    let sql = format!(
        "COPY (SELECT v, n, v % {PARTS} AS part FROM ({slow})) TO '{}/' STORED AS CSV PARTITIONED BY (part) \
         OPTIONS ('format.has_header' 'true')",
        target.display()
    );
    let client = cluster.spawn(cluster.command().args(["-c", &sql]));
    let started = Instant::now();
    let is_committing = || {
        let entries = fs::read_dir(&target).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with("part="))
    };
    while !is_committing() {
        assert!(started.elapsed() < SOON, "no file is committed");
        std::thread::yield_now();
    }
    if started.elapsed() < Duration::from_millis(1500) {
        missed("it was written before it was recorded");
    }
    cluster.restart_scheduler();
    let run = client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let read = format!(
        "SELECT count(*) AS rows, count(DISTINCT v) AS different, sum(n) AS n FROM '{}/*/*.csv'",
        target.display()
    );
    let rows = cluster.query(&read);
    assert_eq!(
        (&rows[0]["rows"], &rows[0]["different"]),
        (&ROWS.into(), &ROWS.into())
    );
    let pairs: u64 = (0..7)
        .map(|rest| count(ROWS, rest) * count(200_000, rest))
        .sum();
    assert_eq!(rows[0]["n"], pairs);
    scene::is_well(&cluster, 2);
}

/// Returns how many of the first numbers have this rest when divided by seven.
fn count(numbers: u64, rest: u64) -> u64 {
    (numbers + 6 - rest) / 7
}

fn killed_while_a_checkpoint_is_written() {
    let mut cluster = scene::pools(1, 2);
    let mut fit = large("m", "ranks = 2, checkpoint_every = 1").start(&cluster);
    fit.await_epoch(2);
    await_checkpoint(&cluster, "m");
    for _ in 0..3 {
        let newest = |extension| {
            let files = checkpoints(&cluster, "m", extension);
            files
                .last()
                .map(|path| path.file_stem().expect("a name").to_owned())
        };
        let started = Instant::now();
        // The newest state is newer than any that was declared whole.
        while newest("state") <= newest("json") && started.elapsed() < Duration::from_secs(2) {
            std::thread::yield_now();
        }
        cluster.restart_scheduler();
        cluster.await_executors(3);
    }
    let (_, run) = fit.trained(&cluster);
    let firsts = run.stderr.matches("epoch 1: ").count();
    assert_eq!(firsts, 1, "it started over: {}", run.stderr);
    scene::is_well(&cluster, 3);
}

fn killed_while_publishing() {
    let mut cluster = scene::pools(1, 2);
    let fit = large("m", "ranks = 2").epochs(3).start(&cluster);
    let written = cluster.store().join("models/m/unpublished");
    let started = Instant::now();
    while !written.exists() {
        assert!(started.elapsed() < SOON, "no model is written");
        std::thread::yield_now();
    }
    cluster.restart_scheduler();
    fit.trained(&cluster);
    assert_eq!(versions(&cluster, "m").len(), 1, "it was published once");
    assert_eq!(published(&cluster), 1);
    cluster.query("DESCRIBE MODEL m");
    scene::is_well(&cluster, 3);
}

/// File system of a few pages, mounted over a folder; it is unmounted when this is dropped.
struct Tiny<'a>(&'a Path);

impl<'a> Tiny<'a> {
    /// Mounts it; `None` where this user may not.
    fn mount(folder: &'a Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]);
        let output = mount.arg(folder).output().ok()?;
        output.status.success().then_some(Self(folder))
    }
}

impl Drop for Tiny<'_> {
    fn drop(&mut self) {
        // Lazily: a file may still be open.
        Command::new("umount").arg("-l").arg(self.0).status().ok();
    }
}

/// While the disk is full, queries run, and what has to outlive its client is not accepted.
fn full_disk() {
    let cluster = scene::cluster(1);
    let segments = cluster.record().join("segments");
    let Some(tiny) = Tiny::mount(&segments) else {
        return say("skipped: a file system of a few pages cannot be mounted");
    };
    let filled = fs::write(segments.join("filled"), vec![0; 1 << 20]);
    let error = filled.expect_err("it has a few pages");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert_eq!(cluster.query("SELECT 1 AS one").len(), 1);
    let samples = Samples::write(cluster.dir(), 100);
    let fit = |model| {
        let create = samples.create_model(model, "epochs = 2");
        cluster.run(&["--detach", "-c", &format!("{} {create}", samples.table())])
    };
    let run = fit("m");
    assert_ne!(run.code, Some(0));
    let said = &run.stderr;
    assert!(said.contains("cannot be recorded"), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    let failing = |line: &str| {
        eventually(line, SOON, || {
            let metrics = cluster.get("/metrics");
            metrics.lines().any(|found| found == line).then_some(())
        });
    };
    failing("volley_record_failing 1.0");
    drop(tiny);
    let run = fit("n");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    failing("volley_record_failing 0.0");
    scene::is_well(&cluster, 1);
}
