//! Queues and priorities, as a session sets them and tables show them.

use volley_tests::{Cluster, Setup};

#[test]
fn a_job_is_in_the_queue_that_its_session_names() {
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        scheduler_args: ["--queue", "etl=2,user_slots=4"]
            .map(str::to_owned)
            .to_vec(),
        ..Setup::default()
    });
    let set = "SET volley.queue = 'etl'; SET volley.priority = -5;";
    let answer = cluster.query(&format!("{set} SELECT 1 AS one"));
    assert_eq!(answer[0]["one"], 1);
    let told = "SELECT queue, priority FROM volley.jobs WHERE queue = 'etl'";
    let told = cluster.query(told);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["priority"], -5);
    cluster.query("SELECT 2 AS two");
    let told = cluster.query("SELECT DISTINCT queue, priority FROM volley.jobs ORDER BY queue");
    assert_eq!(told[0]["queue"], "default");
    assert_eq!(told[0]["priority"], 0);
}

#[test]
fn an_unknown_queue_is_refused_with_those_that_there_are() {
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        scheduler_args: ["--queue", "etl=2"].map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    let said = cluster.fail("SET volley.queue = 'etll'; SELECT 1");
    for part in [
        "volley.queue = etll",
        "the scheduler's queues are default, etl",
        "did you mean \"etl\"?",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
