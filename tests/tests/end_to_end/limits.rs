//! Limits of a role, each exceeded by a principal of that role and not by one of another role.

use std::process::Command;
use std::time::Duration;

use volley_tests::{Setup, binary, eventually};

use crate::access::{Guarded, said};
use crate::fails;

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

#[test]
fn a_limit_that_there_is_not_is_refused_at_the_start() {
    for (limit, part) in [
        ("read:query_memory=much", "query_memory"),
        ("read:rows=7", "unknown limit"),
        ("everybody:query_time=1s", "not a role"),
    ] {
        let mut scheduler = Command::new(binary("volley-scheduler"));
        let said = fails(scheduler.args(["--bind", "127.0.0.1:0", "--limit", limit]));
        assert!(said.contains(part), "{limit}: {said}");
    }
}
