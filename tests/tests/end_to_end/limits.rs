//! Limits of a role, each exceeded by a principal of that role and not by one of another role.

use std::process::Command;

use volley_tests::{Setup, binary};

use crate::access::{Guarded, said};
use crate::fails;

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

    let endless =
        "SELECT sum(a.value * b.value % 7) AS s FROM range(1000000) a CROSS JOIN range(1000000) b";
    refused(endless, "query_time");
    // The cluster is there for the next.
    assert_eq!(rows("rita", "SELECT 1 AS one"), 1);
}

#[test]
fn a_limit_that_there_is_not_is_refused_at_the_start() {
    for (limit, part) in [
        ("read:query_memory=1GiB", "not supported: query_memory"),
        ("read:rows=7", "unknown limit"),
        ("everybody:query_time=1s", "no role"),
    ] {
        let mut scheduler = Command::new(binary("volley-scheduler"));
        let said = fails(scheduler.args(["--bind", "127.0.0.1:0", "--limit", limit]));
        assert!(said.contains(part), "{limit}: {said}");
    }
}
