//! Limits of a role, each exceeded by a principal of that role and not by one of another role.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::runtime::Runtime;
use volley_proto::store::{Log, log_url};
use volley_tests::hostile::{field, number};
use volley_tests::{Setup, binary, eventually};

use crate::access::{Guarded, said};
use crate::{create_model, fails, write_table};

/// Time limit for what is to happen soon.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn limits_are_kept_for_the_role_that_has_them() {
    let limits = [
        "read:message_bytes=64KiB",
        "read:plan_depth=12",
        "read:query_time=3s",
        "read:result_rows=10",
    ];
    let arguments = limits.map(|limit| ["--limit".to_owned(), limit.to_owned()]);
    let guarded = Guarded::start_with(Setup {
        executors: 1,
        scheduler_args: arguments.concat(),
        ..Setup::default()
    });
    let rows = |who: &str, sql: &str| {
        let run = guarded.run(who, sql);
        assert_eq!(run.code, Some(0), "{sql}: {}", run.stderr);
        run.rows().len()
    };
    let refused = |sql: &str, limit: &str| {
        let run = guarded.run("rita", sql);
        assert_ne!(run.code, Some(0), "{sql}");
        said(&run, &[limit, "of the role read"]);
    };

    // Rows: all of them, or an error.
    let eleven = "SELECT value FROM range(11)";
    assert_eq!(rows("rita", &format!("{eleven} LIMIT 10")), 10);
    refused(eleven, "result_rows");
    assert_eq!(rows("alice", eleven), 11);

    let nested = (0..12).fold("SELECT value FROM range(3)".to_owned(), |sql, _| {
        format!("SELECT value FROM ({sql}) ORDER BY random() LIMIT 3")
    });
    refused(&nested, "plan_depth");
    assert_eq!(rows("alice", &nested), 3);

    let long = format!("SELECT '{}' AS a", "x".repeat(100_000));
    refused(&long, "message_bytes");
    assert_eq!(rows("alice", &long), 1);

    refused(ENDLESS, "query_time");
    // The cluster runs the next query.
    assert_eq!(rows("rita", "SELECT 1 AS one"), 1);
}

const ENDLESS: &str =
    "SELECT sum(a.value * b.value % 7) AS s FROM range(1000000) a CROSS JOIN range(1000000) b";

#[test]
fn a_principals_jobs_are_limited_and_counted() {
    let guarded = Guarded::start_with(Setup {
        executors: 1,
        scheduler_args: ["--limit", "read:jobs=1"].map(str::to_owned).into(),
        ..Setup::default()
    });
    let usage = |who: &str| {
        let run = guarded.run(who, "SELECT * FROM volley.usage ORDER BY owner");
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        run.rows()
    };
    let mut endless = guarded.spawn("rita", ENDLESS);
    let one_runs = || {
        let rows = usage("root");
        let rita = rows.iter().find(|row| row["owner"] == "rita")?;
        (rita["running"] == 1 && rita["slot_seconds"].as_f64()? > 0.0).then_some(())
    };
    eventually("the job to hold a slot", SOON, one_runs);
    let run = guarded.run("rita", "SELECT count(*) FROM range(3)");
    assert_ne!(run.code, Some(0));
    said(&run, &["the limit jobs of the role read is 1"]);
    endless.process().terminate();
    eventually("the job to end", SOON, || {
        let rows = usage("root");
        let rita = rows.iter().find(|row| row["owner"] == "rita")?;
        (rita["running"] == 0 && rita["cancelled"] == 1).then_some(())
    });
    let run = guarded.run("rita", "SELECT count(*) FROM range(3)");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let own = usage("rita");
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(
        (&own[0]["jobs"], &own[0]["succeeded"]),
        (&2.into(), &1.into())
    );
}

/// Operators that cannot spill fail with an error that names the limit; others spill.
#[test]
fn a_querys_memory_is_limited_for_the_role_that_has_a_limit() {
    let limit = ["--limit".to_owned(), "read:query_memory=64MiB".to_owned()];
    let guarded = Guarded::start_with(Setup {
        executors: 2,
        scheduler_args: limit.to_vec(),
        ..Setup::default()
    });
    let held = "SELECT count(DISTINCT s) AS n FROM (SELECT value, ntile(4) OVER (ORDER BY value) AS s FROM range(5000000))";
    let run = guarded.run("alice", held);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let run = guarded.run("rita", held);
    assert_ne!(run.code, Some(0));
    said(&run, &["64.0 MiB, the limit query_memory of the role read"]);
    let whole = "SELECT count(DISTINCT s) AS n FROM (SELECT value, sum(value) OVER () AS s FROM range(5000000))";
    let run = guarded.run("rita", whole);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.rows(), [serde_json::json!({"n": 1})]);
    let hashed = "SELECT count(*) AS n FROM range(5000000) a JOIN range(5000000) b USING (value)";
    let run = guarded.run("rita", hashed);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.rows(), [serde_json::json!({"n": 5_000_000})]);
    let sorted = "SELECT count(*) AS n FROM (SELECT value, row_number() OVER (ORDER BY -value) AS r FROM range(1000000)) \
                  WHERE r > 10";
    let run = guarded.run("rita", sorted);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.rows(), [serde_json::json!({"n": 999_990})]);
}

/// Returns a user's row of the table of usage.
fn usage(guarded: &Guarded, owner: &str) -> Option<serde_json::Value> {
    let sql = format!("SELECT * FROM volley.usage WHERE owner = '{owner}'");
    let run = guarded.run("root", &sql);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.rows().into_iter().next()
}

/// Encodes a segment of the record that says that alice has used this many GPU hours today.
fn used_by_alice(hours: f64) -> Vec<u8> {
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = (today.as_secs() / (24 * 60 * 60)).to_string();
    let seconds = hours * 3600.0;
    let usage = json!({
        "owner": "alice",
        "jobs": {"submitted": 0, "succeeded": 0, "failed": 0, "cancelled": 0},
        "held": {"slot_seconds": 0.0, "rank_seconds": 0.0, "gpu_seconds": seconds, "gpu_days": {day: seconds}},
    });
    let user = [field(1, b"alice"), field(2, usage.to_string().as_bytes())].concat();
    [number(1, 2), field(7, &user)].concat()
}

/// Tasks of a user wait for memory, and trainings on GPUs are refused. No executor has a GPU, so the record says that some
/// were used.
#[test]
fn quotas_hold_over_all_jobs_of_a_principal_and_usage_over_a_restart() {
    let limits = [
        "--limit",
        "read:memory=300MiB",
        "--limit",
        "run:gpu_hours=1/30d",
    ];
    let mut guarded = Guarded::start_with(Setup {
        executors: 3,
        scheduler_args: limits.map(str::to_owned).into(),
        executor_args: ["--memory", "256MiB"].map(str::to_owned).into(),
        ..Setup::default()
    });
    let slot = 256_u64 << 20;
    let mut endless = guarded.spawn("rita", ENDLESS);
    eventually("the query to hold memory", SOON, || {
        let rita = usage(&guarded, "rita")?;
        (rita["memory_bytes"] == slot).then_some(())
    });
    // Two slots are free, and she may hold no other.
    let second = guarded.spawn("rita", "SELECT sum(value) AS s FROM range(1000)");
    eventually("the second query to wait for memory", SOON, || {
        let waiting = "SELECT waits FROM volley.jobs WHERE owner = 'rita' AND waits IS NOT NULL";
        let jobs = guarded.run("root", waiting).rows();
        let waits = jobs.first()?["waits"].as_str()?;
        let limit = "the limit memory of the role read is 300.0 MiB";
        waits.contains(limit).then_some(())
    });
    let run = guarded.run("alice", "SELECT sum(value) AS s FROM range(1000)");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(usage(&guarded, "rita").unwrap()["memory_bytes"], slot);
    endless.process().terminate();
    let run = second.wait(SOON);
    assert_eq!(run.code, Some(0), "{}", run.stderr);

    // A scheduler that is killed loses what it has not recorded.
    let runtime = Runtime::new().unwrap();
    let record = log_url(guarded.cluster.record().to_str().unwrap()).unwrap();
    let log = Log::open(&record).unwrap();
    let both = br#""owner":"rita","jobs":{"submitted":2,"succeeded":1,"failed":0,"cancelled":1}"#;
    eventually("usage to be recorded", SOON, || {
        let replay = runtime.block_on(log.read()).ok()?;
        let mut parts = replay.snapshot.iter().chain(&replay.segments);
        let has_both = parts.any(|part| part.windows(both.len()).any(|bytes| bytes == both));
        has_both.then_some(())
    });
    let before = usage(&guarded, "rita").unwrap();
    assert_eq!(before["memory_bytes"], 0);
    guarded.cluster.scheduler().kill();
    runtime.block_on(async {
        let next = log.read().await.unwrap().next;
        let used = used_by_alice(2.0).into();
        assert!(log.append(next, &used).await.unwrap());
    });
    guarded.cluster.restart_scheduler();
    let after = usage(&guarded, "rita").unwrap();
    assert_eq!(after, before);
    assert_eq!(
        (&after["jobs"], &after["cancelled"]),
        (&2.into(), &1.into())
    );
    assert_eq!(after["memory_limit_bytes"], 300_u64 << 20);
    assert!(after["since"].is_string(), "{after}");

    guarded.cluster.await_executors(3);
    let table = write_table(guarded.cluster.dir(), 50);
    let on_cpu = format!("{table} {}", create_model("m", ", epochs = 1"));
    let on_gpus = on_cpu.replace("device = 'cpu'", "device = 'cuda'");
    let run = guarded.run("alice", &on_gpus);
    let used = "trainings of alice have used 2.00 GPU hours in the last 30 days";
    said(
        &run,
        &[used, "the limit gpu_hours of the role run is 1/30d"],
    );
    // Hers are not his.
    let run = guarded.run("bob", &on_gpus);
    assert!(!run.error().contains("gpu_hours"), "{}", run.stderr);
    let run = guarded.run("alice", &on_cpu);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let alice = usage(&guarded, "alice").unwrap();
    assert_eq!(
        (&alice["gpu_hours"], &alice["gpu_hours_limit"]),
        (&2.0.into(), &1.0.into())
    );
}

#[test]
fn a_limit_that_there_is_not_is_refused_at_the_start() {
    for (limit, part) in [
        ("read:query_memory=much", "query_memory"),
        ("run:gpu_hours=40", "expected HOURS/DAYSd, such as 40/30d"),
        ("read:gpu_hours=40/30d", "the role read trains nothing"),
        ("read:rows=7", "unknown limit"),
        ("everybody:query_time=1s", "not a role"),
    ] {
        let mut scheduler = Command::new(binary("volley-scheduler"));
        let said = fails(scheduler.args(["--bind", "127.0.0.1:0", "--limit", limit]));
        assert!(said.contains(part), "{limit}: {said}");
    }
}
