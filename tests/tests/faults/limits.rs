//! Work that would not stop, clients that read slowly, and queries that are too large: each ends, or is refused,
//! without harm to others.

use std::fs;
use std::io::Read;
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use volley_tests::{Client, Cluster, JobState, Numbers, Setup, eventually};

use crate::asking::{Phase, question};
use crate::fault::{Fault, effort, missed};
use crate::fitting::{newest_job, setup};
use crate::scene::{self, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("a three-way cross join is cancelled", || {
        stops(
            "SELECT count(*) FROM ints a CROSS JOIN ints b CROSS JOIN ints c \
             WHERE a.k + b.k + c.k < 0",
        );
    }),
    ("a nested loop join without a match is cancelled", || {
        stops("SELECT count(*) FROM ints a JOIN ints b ON a.k * b.k < -1");
    }),
    (
        "a hash join of one key without a match is cancelled",
        || {
            stops("SELECT count(*) FROM ints a JOIN ints b ON a.z = b.z AND a.k * b.k < -1");
        },
    ),
    ("an aggregate over a cross join is cancelled", || {
        stops("SELECT (a.k + b.k) % 7 AS g, sum(a.k) FROM ints a CROSS JOIN ints b GROUP BY 1");
    }),
    ("a write of a cross join is cancelled", || {
        stops("COPY (SELECT a.k FROM ints a CROSS JOIN ints b) TO 'out.csv' STORED AS CSV");
    }),
    ("a file cannot be made", no_file),
    ("a task computes on after its job ended", holds_its_slot),
    ("a query waits for training", says_for_what),
    ("a client reads slowly", reads_slowly),
    ("a client is killed while it reads", stops_reading),
    ("a small result needs no file", needs_no_file),
    ("a query is too large for an executor", too_large),
    ("a query is too large for the scheduler", refused),
    ("queries nest deeply", nest),
];

/// Rows of the table of whole numbers: joining it with itself takes minutes.
const INTS: u64 = 100_000;
/// Time within which a task must have stopped, on a busy host.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Writes whole numbers from 0, each beside a zero. Returns the statement that declares the table.
fn ints(cluster: &Cluster, rows: u64) -> String {
    let path = cluster.dir().join("ints.csv");
    let lines = (0..rows).map(|k| format!("{k},0\n"));
    fs::write(&path, lines.collect::<String>()).unwrap();
    format!(
        "CREATE EXTERNAL TABLE ints (k BIGINT, z BIGINT) STORED AS CSV LOCATION '{}' OPTIONS \
         ('format.has_header' 'false');",
        path.display()
    )
}

/// Starts a query and waits until one of its tasks computes. Returns its job.
fn start(cluster: &mut Cluster, sql: &str) -> (Client, String) {
    let before = computed(cluster);
    let known = cluster.jobs().map_or(0, |jobs| jobs.len());
    let mut client = cluster.spawn(cluster.command().args(["--format", "json", "-c", sql]));
    let id = eventually("a task of the query", SOON, || {
        if client.process().ended().is_some() {
            missed("the query ended at once");
        }
        let jobs = cluster.jobs()?;
        let job = jobs.first().filter(|_| jobs.len() > known)?;
        let stages = cluster.stages(job.attempt())?;
        let runs = stages.iter().any(|stage| stage.running > 0);
        // After a second of computing, the task has read its rows.
        (runs && computed(cluster) > before + 100).then(|| job.id.clone())
    });
    (client, id)
}

/// Returns the number of slots that no task holds.
fn free(cluster: &Cluster) -> Option<u64> {
    cluster.slots().map(|slots| slots.free)
}

/// Returns the processor time of the first executor, in hundredths of a second.
fn computed(cluster: &mut Cluster) -> u64 {
    let id = cluster.executors()[0].id();
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let field = |n: usize| fields.split(' ').nth(n).unwrap().parse::<u64>().unwrap();
    field(11) + field(12)
}

/// Share of a core above which an executor counts as computing; tasks yield to other work on a host.
const COMPUTES: f64 = 0.1;

/// Measures the share of a core that an executor takes over a second.
fn busy(cluster: &mut Cluster) -> f64 {
    let (before, started) = (computed(cluster), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let after = computed(cluster);
    (after - before) as f64 / 100.0 / started.elapsed().as_secs_f64()
}

fn stops(sql: &str) {
    let mut cluster = scene::cluster(1);
    let tables = ints(&cluster, INTS);
    let (client, id) = start(&mut cluster, &format!("{tables} {sql}"));
    let cancelled = cluster.manage_jobs(&["cancel", &id]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    eventually("the slot to be free", AT_ONCE, || {
        (free(&cluster)? == 1).then_some(())
    });
    // A slot is free once nothing computes on it.
    let busy = busy(&mut cluster);
    assert!(busy < COMPUTES, "it takes {busy:.2} of a core");
    let run = client.wait(SOON);
    assert!(run.error().to_lowercase().contains("cancelled"));
    scene::is_well(&cluster, 1);
}

/// Writes to a folder that exists, but where the file system denies its existence.
fn no_file() {
    let mut cluster = scene::cluster(1);
    let tables = ints(&cluster, 10);
    for (target, format) in [("/proc/x.csv", "CSV"), ("/proc/x/", "PARQUET")] {
        let said = cluster.fail(&format!(
            "{tables} COPY (SELECT k FROM ints) TO '{target}' STORED AS {format}"
        ));
        assert!(said.contains("no file can be made at /proc/x"), "{said}");
    }
    let busy = busy(&mut cluster);
    assert!(busy < COMPUTES, "it takes {busy:.2} of a core");
    scene::is_well(&cluster, 1);
}

/// Computes medians of ever more rows: a window computes a whole batch without a check for cancellation, and here one
/// batch has all rows.
fn holds_its_slot() {
    let mut cluster = scene::cluster(1);
    let rows = 60_000 * effort();
    let tables = ints(&cluster, rows);
    let (client, id) = start(
        &mut cluster,
        &format!(
            "{tables} SET datafusion.execution.batch_size = 1000000; SELECT max(m) FROM (SELECT median(k) OVER (ORDER BY k ROWS BETWEEN \
             UNBOUNDED PRECEDING AND CURRENT ROW) AS m FROM ints) q"
        ),
    );
    let cancelled = cluster.manage_jobs(&["cancel", &id]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    client.wait(SOON);
    let left = free(&cluster);
    if busy(&mut cluster) < COMPUTES {
        missed("it stopped at once");
    }
    assert_eq!(left, Some(0), "the slot is free and computed on");
    let sql = format!("{tables} SELECT count(*) AS n FROM ints");
    let waits = cluster.spawn(cluster.command().args(["--format", "json", "-c", &sql]));
    let said = eventually("what the next query waits for", SOON, || {
        let waits = "SELECT waits FROM volley.jobs WHERE waits IS NOT NULL";
        let said = cluster.query(waits).first()?["waits"].as_str()?.to_owned();
        Some(said)
    });
    let over = format!("job {id} (over, but still computing) holds the only slot");
    assert_eq!(said, over);
    assert_eq!(waits.wait(SOON).rows()[0]["n"], rows);
    scene::is_well(&cluster, 1);
}

fn says_for_what() {
    let cluster = scene::cluster(1);
    let tables = ints(&cluster, 10);
    let mut fit = setup("m", "ranks = 1").epochs(20_000).start(&cluster);
    fit.await_epoch(2);
    let training = fit.job(&cluster);
    let sql = format!("{tables} SELECT count(*) AS n FROM ints");
    let mut client = cluster.spawn(cluster.command().args(["--format", "json", "-c", &sql]));
    let waits = eventually("what the query waits for", SOON, || {
        let waits = "SELECT waits FROM volley.jobs WHERE waits IS NOT NULL";
        let rows = cluster.query(waits);
        rows.first()?["waits"].as_str().map(str::to_owned)
    });
    assert_eq!(waits, "training m holds the only slot");
    client.await_line(&format!("\"waits\":\"{waits}\""), SOON);
    cluster.manage_jobs(&["cancel", &training.id]);
    assert_eq!(client.wait(SOON).rows()[0]["n"], 10);
    let none = "SELECT count(waits) AS n FROM volley.jobs";
    assert_eq!(cluster.query(none)[0]["n"], 0);
    scene::is_well(&cluster, 1);
}

/// Timeout of unread rows, longer than the interval of a reader's reports.
const UNREAD: Duration = Duration::from_secs(20);

/// Starts a cluster that soon removes rows that nobody reads.
fn forgetful() -> Cluster {
    Cluster::start_with(Setup {
        executors: 2,
        scheduler_args: vec!["--rows-timeout".to_owned(), format!("{UNREAD:?}")],
        always_in_stages: true,
        ..Setup::default()
    })
}

/// Query of many rows, some of which have been read.
struct Reader {
    client: Client,
    stdout: ChildStdout,
    read: Vec<u8>,
    /// Attempt of the query's job.
    attempt: String,
}

fn begin_to_read(cluster: &Cluster, numbers: &Numbers) -> Reader {
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
    let attempt = newest_job(cluster).attempt().to_owned();
    let reader = Reader {
        client,
        stdout,
        read,
        attempt,
    };
    assert!(reader.rows_are_kept(cluster));
    reader
}

impl Reader {
    /// Checks whether executors keep rows of the job.
    fn rows_are_kept(&self, cluster: &Cluster) -> bool {
        [0, 1]
            .iter()
            .any(|executor| cluster.holds_data(*executor, &self.attempt))
    }

    fn await_removal(&self, cluster: &Cluster) {
        eventually("rows to be removed", UNREAD + SOON, || {
            (!self.rows_are_kept(cluster)).then_some(())
        });
    }
}

fn reads_slowly() {
    let cluster = forgetful();
    let numbers = Numbers::write(cluster.dir(), 48_000);
    let mut slow = begin_to_read(&cluster, &numbers);
    // These jobs end later and nobody reads their rows: once they are removed, the slow reader's rows would be too,
    // if unread.
    for _ in 0..2 {
        let mut other = begin_to_read(&cluster, &numbers);
        other.client.process().kill();
        other.await_removal(&cluster);
        assert!(slow.rows_are_kept(&cluster));
    }
    slow.stdout.read_to_end(&mut slow.read).unwrap();
    let lines = slow.read.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(lines, numbers.facts() + 1, "with the header");
    slow.await_removal(&cluster);
    let run = slow.client.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    scene::is_well(&cluster, 2);
}

fn stops_reading() {
    let cluster = forgetful();
    let numbers = Numbers::write(cluster.dir(), 48_000);
    let mut reader = begin_to_read(&cluster, &numbers);
    reader.client.process().kill();
    assert!(reader.rows_are_kept(&cluster), "it may come back");
    reader.await_removal(&cluster);
    let said = "SELECT text FROM volley.log WHERE text LIKE '%no client has asked for them%'";
    assert_eq!(cluster.query(said).len(), 1);
    scene::is_well(&cluster, 2);
}

fn needs_no_file() {
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        ..Setup::default()
    });
    for (rows, in_files) in [(1_000, false), (100_000, true)] {
        let read = cluster.query(&format!("SELECT value FROM range({rows})"));
        assert_eq!(read.len(), rows);
        let attempt = newest_job(&cluster).attempt().to_owned();
        let holds = cluster.holds_data(0, &attempt);
        assert_eq!(holds, in_files, "{rows} rows");
        // They are kept for a while, for another reader.
        let again = cluster.manage_jobs(&["attach", &attempt]);
        assert_eq!(again.code, Some(0), "{}", again.stderr);
        assert!(
            again.stdout.contains(&format!("{}", rows - 1)),
            "{}",
            again.stdout
        );
    }
    scene::is_well(&cluster, 1);
}

/// Writes a query that contains a text of this many bytes to a file.
fn large(cluster: &Cluster, bytes: usize) -> String {
    let path = cluster.dir().join("large.sql");
    let text = "x".repeat(bytes);
    // The column is named by its expression, so the task has the text twice.
    let sql = format!("{} SELECT 'a' || id = '{text}' FROM facts", tables(cluster));
    fs::write(&path, sql).unwrap();
    path.display().to_string()
}

fn tables(cluster: &Cluster) -> String {
    Numbers::write(cluster.dir(), 6_000).tables()
}

fn too_large() {
    let cluster = scene::cluster(1);
    let numbers = Numbers::write(cluster.dir(), 6_000);
    let others = question(Phase::Scan, &cluster, &numbers);
    let large = large(&cluster, 9_000_000);
    let run = cluster.run(&["--format", "json", "--quiet", "-f", &large]);
    let said = run.error();
    assert!(said.contains("too large"), "{said}");
    assert!(said.contains("the limit is 16.0 MiB"), "{said}");
    // An uninvolved user's query is answered.
    let job = others.answered(&cluster);
    assert_eq!((job.state, job.attempts.len()), (JobState::Succeeded, 1));
    scene::is_well(&cluster, 1);
}

fn refused() {
    let cluster = scene::cluster(1);
    let large = large(&cluster, 20_000_000);
    let run = cluster.run(&["--format", "json", "--quiet", "-f", &large]);
    let said = run.error();
    assert!(said.contains("too large"), "{said}");
    assert!(said.contains("the limit is 16.0 MiB"), "{said}");
    assert_eq!(cluster.jobs().map(|jobs| jobs.len()), Some(0));
    scene::is_well(&cluster, 1);
}

/// Sends queries that nest deeply, which take stack on every process that they pass, while another user's query
/// computes.
fn nest() {
    let cluster = scene::cluster(1);
    let numbers = Numbers::write(cluster.dir(), 6_000);
    let others = question(Phase::Scan, &cluster, &numbers);
    let ask = |sql: String| {
        let path = cluster.dir().join("deep.sql");
        fs::write(&path, sql).unwrap();
        let path = path.display().to_string();
        cluster.run(&["--format", "json", "--quiet", "-f", &path])
    };
    let sum = |terms| {
        format!(
            "SELECT {} AS n FROM range(2) t(x)",
            vec!["x"; terms].join(" + ")
        )
    };
    let any = |terms| {
        let terms: Vec<_> = (0..terms).map(|k| format!("x = {k} AND x < 9")).collect();
        format!(
            "SELECT count(*) AS n FROM range(20) t(x) WHERE {}",
            terms.join(" OR ")
        )
    };
    let union = |branches: i32| {
        let branches: Vec<_> = (0..branches).map(|k| format!("SELECT {k} AS x")).collect();
        format!(
            "SELECT count(*) AS n FROM ({}) q",
            branches.join(" UNION ALL ")
        )
    };
    // Each step is three operators upon the last.
    let steps = |steps: usize| {
        let mut sql = "WITH c0 AS (SELECT value AS x FROM range(3))".to_owned();
        for (from, step) in (1..steps).enumerate() {
            sql += &format!(
                ", c{step} AS (SELECT x + 1 AS x, count(*) OVER (PARTITION BY x) AS n FROM c{from})"
            );
        }
        format!("{sql} SELECT count(*) AS n FROM c{}", steps - 1)
    };
    for (sql, due) in [
        (sum(1_000), vec![0, 1_000]),
        (any(20_000), vec![9]),
        (union(500), vec![500]),
        (steps(90), vec![3]),
    ] {
        let rows = ask(sql).rows();
        let mut got: Vec<_> = rows.iter().map(|row| row["n"].as_i64().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, due);
    }
    for (sql, due) in [
        (
            sum(1_001),
            "an expression of more than 1000 nested operators",
        ),
        (steps(200), "a query of more than 300 nested operators"),
    ] {
        let run = ask(sql);
        assert!(run.error().contains(due), "{}", run.error());
    }
    let job = others.answered(&cluster);
    assert_eq!((job.state, job.attempts.len()), (JobState::Succeeded, 1));
    scene::is_well(&cluster, 1);
}
