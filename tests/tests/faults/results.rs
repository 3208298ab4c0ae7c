//! Executors lost while rows are fetched or written: whole results or an error, never a part that
//! looks whole.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use volley_tests::{Client, Cluster, Job, JobState, Numbers, eventually};

use crate::asking::{Asked, Phase, reach};
use crate::fault::Fault;
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    (
        "rows are lost before the client has read any",
        lost_before_any_was_read,
    ),
    ("rows are lost while the client reads", lost_while_read),
    ("a single file is written", || {
        let job = lost_while_copied(Phase::Last, Loss::Kill);
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    }),
    ("a single file is written by a frozen executor", || {
        let job = lost_while_copied(Phase::Last, Loss::Freeze);
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    }),
    (
        "files are added to a folder: nothing is written yet",
        lost_before_a_folder_is_written,
    ),
    (
        "files are added to a folder: writing has begun",
        lost_while_a_folder_is_written,
    ),
];

const FACTS: u64 = 6_000;

/// Starts the listing, with more rows where there were too few to be met in the phase.
fn listing(
    phase: Phase,
    cluster: &Cluster,
    start: impl Fn(&Numbers) -> Client,
) -> (Asked, Numbers) {
    reach(phase, cluster, |times| {
        let numbers = Numbers::write(cluster.dir(), FACTS * times);
        (start(&numbers), numbers)
    })
}

/// The client is frozen from the last stage on, and comes back to executors that are gone.
fn lost_before_any_was_read() {
    let mut cluster = scene::cluster(2);
    let (mut asked, numbers) = listing(Phase::Last, &cluster, |numbers| {
        let keep = "SET volley.on_client_loss = 'keep';";
        let sql = format!("{keep} {} {}", numbers.tables(), numbers.listing());
        cluster.spawn(cluster.command().args(["--format", "csv", "-c", &sql]))
    });
    asked.client.process().freeze();
    let job = eventually("the job to succeed without its client", SOON, || {
        let job = cluster.job(&asked.id)?;
        (job.state != JobState::Running).then_some(job)
    });
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    for executor in 0..2 {
        Loss::Kill.strike(&mut cluster, executor);
        cluster.add_executor();
    }
    cluster.await_executors(2);
    asked.client.process().thaw();
    let run = asked.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout, numbers.listed());
    scene::is_well(&cluster, 2);
}

/// Half of the rows have been printed when the rest is lost.
fn lost_while_read() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), 8 * FACTS);
    // Rows of numbers that cannot be compressed, many more than fit between client and executor.
    let columns: Vec<_> = (1..40).map(|n| format!("sin(id * {n}) AS c{n}")).collect();
    let sql = format!(
        "{} SET datafusion.execution.batch_size = 1024; SELECT id, {} FROM facts",
        numbers.tables(),
        columns.join(", ")
    );
    let mut command = cluster.command();
    command.args(["--format", "csv", "-c", &sql]);
    let (client, mut stdout) = cluster.spawn_piped(&mut command);
    let mut read = vec![0; 100_000];
    stdout.read_exact(&mut read).unwrap();
    for executor in 0..2 {
        Loss::Kill.strike(&mut cluster, executor);
    }
    stdout.read_to_end(&mut read).unwrap();
    let run = client.wait(SOON);
    assert!(run.error().contains("lost"), "{}", run.stderr);
    let lines = read.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert!(lines < numbers.facts(), "it read all {lines} lines");
    cluster.add_executor();
    scene::is_well(&cluster, 1);
}

fn copy(cluster: &Cluster, numbers: &Numbers, target: &str) -> Client {
    let sql = format!(
        "{} COPY ({}) TO '{target}' STORED AS CSV OPTIONS ('format.has_header' 'true')",
        numbers.tables(),
        numbers.listing()
    );
    cluster.spawn(cluster.command().args(["-c", &sql]))
}

fn lost_while_copied(phase: Phase, loss: Loss) -> Job {
    let mut cluster = scene::cluster(3);
    let target = cluster.dir().join("out.csv");
    let (asked, numbers) = listing(phase, &cluster, |numbers| {
        copy(&cluster, numbers, &target.display().to_string())
    });
    loss.strike(&mut cluster, 0);
    let run = asked.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(fs::read_to_string(&target).unwrap(), numbers.listed());
    let job = cluster.job(&asked.id).expect("the job is known");
    loss.make_up(&mut cluster, 0);
    scene::is_well(&cluster, 3);
    // What was frozen may not go on writing where the file is complete.
    assert_eq!(fs::read_to_string(&target).unwrap(), numbers.listed());
    job
}

fn lost_before_a_folder_is_written() {
    let mut cluster = scene::cluster(3);
    let folder = cluster.dir().join("out/");
    let (asked, numbers) = listing(Phase::Scan, &cluster, |numbers| {
        fs::remove_dir_all(&folder).ok();
        copy(&cluster, numbers, &folder.display().to_string())
    });
    Loss::Kill.strike(&mut cluster, 0);
    let run = asked.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(lines_in(&folder), numbers.facts());
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

fn lost_while_a_folder_is_written() {
    let mut cluster = scene::cluster(3);
    let folder = cluster.dir().join("out/");
    let (asked, numbers) = listing(Phase::Last, &cluster, |numbers| {
        fs::remove_dir_all(&folder).ok();
        copy(&cluster, numbers, &folder.display().to_string())
    });
    Loss::Kill.strike(&mut cluster, 0);
    let run = asked.client.wait(SOON);
    if run.code == Some(0) {
        // It had come to its end before the executor was lost.
        assert_eq!(lines_in(&folder), numbers.facts());
    } else {
        let said = run.error();
        assert!(said.contains("executor-0"), "{said}");
        assert!(said.contains(folder.to_str().unwrap()), "{said}");
    }
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

/// Lines of all CSV files in a folder, without their headers.
fn lines_in(folder: &Path) -> u64 {
    let files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "csv"))
        .collect();
    let lines = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count() - 1;
    files.iter().map(|path| lines(path) as u64).sum()
}
