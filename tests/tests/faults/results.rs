//! Executors lost while rows are fetched or written: the result is whole or an error, never a part that looks whole.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use volley_tests::{Client, Cluster, Job, JobState, Numbers, S3Server, eventually};

use crate::asking::{Asked, Phase, reach, work};
use crate::fault::Fault;
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    (
        "rows are lost before the client has read any",
        lost_before_any_was_read,
    ),
    (
        "executors of a small result are lost before the client asks",
        small_results_outlive_executors,
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
        || {
            lost_while_a_folder_is_written(Phase::Scan, Loss::Kill);
        },
    ),
    ("files are added to a folder: tasks write", || {
        lost_while_a_folder_is_written(Phase::Shuffle, Loss::Kill);
    }),
    (
        "files are added to a folder: a frozen executor writes",
        || lost_while_a_folder_is_written(Phase::Shuffle, Loss::Freeze),
    ),
    (
        "files are added to a folder: all are written, and are moved",
        lost_while_a_folder_is_committed,
    ),
    ("files are added to a bucket: tasks write", || {
        lost_while_a_bucket_is_written(Phase::Shuffle, None);
    }),
    ("files are added to a bucket: uploads are completed", || {
        lost_while_a_bucket_is_written(Phase::Last, Some(20));
    }),
];

const FACTS: u64 = 6_000;

/// Starts the listing, with more rows if there were too few to reach the phase.
fn listing(
    phase: Phase,
    cluster: &Cluster,
    start: impl Fn(&Numbers) -> Client,
) -> (Asked, Numbers) {
    listing_of(FACTS, phase, cluster, start)
}

fn listing_of(
    facts: u64,
    phase: Phase,
    cluster: &Cluster,
    start: impl Fn(&Numbers) -> Client,
) -> (Asked, Numbers) {
    reach(phase, cluster, |times| {
        let numbers = Numbers::write(cluster.dir(), facts * times);
        (start(&numbers), numbers)
    })
}

/// Freezes the client of a job in its last stage until the job has succeeded, and its executors are gone.
fn lose_executors_behind(asked: &mut Asked, cluster: &mut Cluster) {
    asked.client.process().freeze();
    let job = eventually("the job to succeed without its client", SOON, || {
        let job = cluster.job(&asked.id)?;
        (job.state != JobState::Running).then_some(job)
    });
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    for executor in 0..2 {
        Loss::Kill.strike(cluster, executor);
        cluster.add_executor();
    }
    cluster.await_executors(2);
    asked.client.process().thaw();
}

/// A job goes on without its client.
const KEEP: &str = "SET volley.on_client_loss = 'keep';";

fn lost_before_any_was_read() {
    let mut cluster = scene::cluster(2);
    // More rows than a small result has.
    let (mut asked, numbers) = listing_of(5 * FACTS, Phase::Last, &cluster, |numbers| {
        let sql = format!("{KEEP} {} {}", numbers.tables(), numbers.listing());
        cluster.spawn(cluster.command().args(["--format", "csv", "-c", &sql]))
    });
    lose_executors_behind(&mut asked, &mut cluster);
    let run = asked.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout, numbers.listed());
    assert!(run.stderr.contains("were lost with"), "{}", run.stderr);
    scene::is_well(&cluster, 2);
}

/// The scheduler has the rows of a small result, so they are not computed again.
fn small_results_outlive_executors() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let (mut asked, answer) = reach(Phase::Last, &cluster, |times| {
        let work = work(times);
        let sql = format!("{KEEP} {} {}", numbers.tables(), numbers.question(work));
        let mut command = cluster.command();
        let client = cluster.spawn(command.args(["--format", "json", "-c", &sql]));
        (client, numbers.answer(work))
    });
    lose_executors_behind(&mut asked, &mut cluster);
    let run = asked.client.wait(SOON);
    assert_eq!(run.rows(), answer, "{}", run.stderr);
    assert!(!run.stderr.contains("lost"), "{}", run.stderr);
    let jobs = cluster.jobs().expect("the scheduler's jobs");
    assert_eq!(jobs[0].id, asked.id, "it was not run again");
    scene::is_well(&cluster, 2);
}

/// Loses the rest of the rows when half of them have been printed.
fn lost_while_read() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), 8 * FACTS);
    // The numbers cannot be compressed, and have many more rows than fit between client and executor.
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
    // A frozen executor must not write on where the file is complete.
    assert_eq!(fs::read_to_string(&target).unwrap(), numbers.listed());
    job
}

/// Copies the facts into a folder after two exchanges, into `parts` folders in it if given.
fn copy_into(cluster: &Cluster, numbers: &Numbers, folder: &Path, parts: Option<u64>) -> Client {
    fs::remove_dir_all(folder).ok();
    copy_to(cluster, numbers, (&folder.display().to_string(), ""), parts)
}

/// Does the same to a URL with these options.
fn copy_to(
    cluster: &Cluster,
    numbers: &Numbers,
    (folder, options): (&str, &str),
    parts: Option<u64>,
) -> Client {
    let rows = "SELECT id, v, count(*) OVER (PARTITION BY v) AS of_value, \
                count(*) OVER (PARTITION BY id) AS of_id FROM facts";
    let (part, by) = match parts {
        Some(parts) => (format!(", id % {parts} AS part"), "PARTITIONED BY (part)"),
        None => (String::new(), ""),
    };
    let sql = format!(
        "{} COPY (SELECT *{part} FROM ({rows})) TO '{folder}' STORED AS CSV {by} \
         OPTIONS ('format.has_header' 'true'{options})",
        numbers.tables(),
    );
    cluster.spawn(cluster.command().args(["-c", &sql]))
}

/// Checks that the job is run again, and that the rows in the folder were written once.
fn lost_while_a_folder_is_written(phase: Phase, loss: Loss) {
    let mut cluster = scene::cluster(3);
    let folder = cluster.dir().join("out/");
    let (asked, numbers) = listing(phase, &cluster, |numbers| {
        copy_into(&cluster, numbers, &folder, None)
    });
    loss.strike(&mut cluster, 0);
    let run = asked.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(Folder::read(&folder), Folder::whole(&numbers));
    loss.make_up(&mut cluster, 0);
    scene::is_well(&cluster, 3);
    // A frozen executor may write on, but no table sees it.
    let count = format!(
        "CREATE EXTERNAL TABLE copied (id BIGINT, v BIGINT, a BIGINT, b BIGINT) STORED AS CSV \
         LOCATION '{}'; SELECT count(*) AS n FROM copied",
        folder.display()
    );
    let counted = cluster.query(&count);
    assert_eq!(counted, vec![serde_json::json!({"n": numbers.facts()})]);
}

fn lost_while_a_folder_is_committed() {
    let mut cluster = scene::cluster(3);
    let folder = cluster.dir().join("out/");
    let (asked, numbers) = listing(Phase::Last, &cluster, |numbers| {
        let parts = numbers.facts() / 20;
        copy_into(&cluster, numbers, &folder, Some(parts))
    });
    Loss::Kill.strike(&mut cluster, 0);
    let run = asked.client.wait(SOON);
    // The job had ended, or another attempt finishes it.
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(Folder::read(&folder), Folder::whole(&numbers));
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

/// Checks that the job is run again. Listed files are committed at any time, the rows were written once at the end,
/// and no upload is left.
fn lost_while_a_bucket_is_written(phase: Phase, rows_of_part: Option<u64>) {
    let server = S3Server::start();
    let mut cluster = scene::cluster(3);
    let folder = server.bucket_dir().join("out");
    let url = format!("s3://{}/out/", S3Server::BUCKET);
    let options = S3Server::options(&server.endpoint()).into_iter();
    let options: String = options
        .map(|(option, value)| format!(", '{option}' '{value}'"))
        .collect();
    let (asked, numbers) = listing(phase, &cluster, |numbers| {
        fs::remove_dir_all(&folder).ok();
        let parts = rows_of_part.map(|rows| numbers.facts() / rows);
        copy_to(&cluster, numbers, (&url, &options), parts)
    });
    Loss::Kill.strike(&mut cluster, 0);
    // There are thousands of files, each completed by a server that writes to a disk.
    let run = asked.client.wait(4 * SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(Folder::read(&folder), Folder::whole(&numbers));
    assert_eq!(server.open_uploads(), 0);
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

/// Contents of a folder of CSV files, and of the folders in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Folder {
    /// Number of lines without the headers.
    rows: u64,
    /// Files that a reader of CSV ignores.
    others: Vec<PathBuf>,
}

impl Folder {
    fn read(folder: &Path) -> Self {
        let mut all = Self::default();
        // A folder without files does not exist in a bucket.
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let below = Self::read(&path);
                all.rows += below.rows;
                all.others.extend(below.others);
            } else if path.extension().is_some_and(|extension| extension == "csv") {
                all.rows += fs::read_to_string(&path).unwrap().lines().count() as u64 - 1;
            } else {
                all.others.push(path);
            }
        }
        all
    }

    /// Returns the contents with all facts and nothing else.
    fn whole(numbers: &Numbers) -> Self {
        Self {
            rows: numbers.facts(),
            others: Vec::new(),
        }
    }
}
