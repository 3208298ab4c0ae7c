//! Clients that end, freeze and come back.

use volley_tests::{Client, Job, JobState, Numbers, eventually};

use crate::asking::{Phase, question};
use crate::fault::Fault;
use crate::fitting::setup;
use crate::scene::{self, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("a query's client is killed", || {
        gone(|client| client.process().kill());
    }),
    ("a query's client is told to end", || {
        gone(|client| client.process().terminate());
    }),
    ("a query's client freezes", frozen),
    ("training's client is killed", killed_while_training),
    (
        "training's client is killed, and training is to end with it",
        training_ends_with_it,
    ),
    ("training is cancelled by another", cancelled_by_another),
    (
        "a query is cancelled by another",
        query_cancelled_by_another,
    ),
];

const FACTS: u64 = 6_000;

/// Waits until a job has ended.
fn ended(cluster: &volley_tests::Cluster, id: &str) -> Job {
    eventually("the job to end", SOON, || {
        let job = cluster.job(id)?;
        (job.state != JobState::Running).then_some(job)
    })
}

/// Checks that work ends when nobody waits for it any more.
fn gone(end: fn(&mut Client)) {
    let cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let mut asked = question(Phase::Scan, &cluster, &numbers).asked;
    end(&mut asked.client);
    let job = ended(&cluster, &asked.id);
    // The query may have ended before its client counted as gone.
    assert!(
        matches!(job.state, JobState::Cancelled | JobState::Succeeded),
        "{job:?}"
    );
    scene::is_well(&cluster, 2);
}

fn frozen() {
    let cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let mut question = question(Phase::Scan, &cluster, &numbers);
    question.asked.client.process().freeze();
    let job = ended(&cluster, &question.asked.id);
    question.asked.client.process().thaw();
    match job.state {
        JobState::Cancelled => {
            let run = question.asked.client.wait(SOON);
            let said = run.error().to_lowercase();
            assert!(said.contains("cancelled"), "{said}");
        }
        _ => {
            question.answered(&cluster);
        }
    }
    scene::is_well(&cluster, 2);
}

fn killed_while_training() {
    let cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(3);
    let job = fit.job(&cluster);
    fit.client.process().kill();
    // A user who knows the id finds the job again.
    let attached = cluster.manage_jobs(&["attach", &job.id, "--format", "json"]);
    assert_eq!(attached.rows().len(), 2, "one row a rank");
    assert_eq!(ended(&cluster, &job.id).state, JobState::Succeeded);
    fit.has_published(&cluster);
    scene::is_well(&cluster, 2);
}

fn training_ends_with_it() {
    let cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2")
        .epochs(20_000)
        .arg("--set=volley.on_client_loss=cancel")
        .start(&cluster);
    fit.await_epoch(3);
    let job = fit.job(&cluster);
    fit.client.process().kill();
    assert_eq!(ended(&cluster, &job.id).state, JobState::Cancelled);
    scene::is_well(&cluster, 2);
}

fn cancelled_by_another() {
    let cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2").epochs(20_000).start(&cluster);
    fit.await_epoch(3);
    let job = fit.job(&cluster);
    let listed = cluster.manage_jobs(&["list", "--format", "json"]);
    assert!(listed.rows().iter().any(|row| row["id"] == job.id.as_str()));
    let cancelled = cluster.manage_jobs(&["cancel", &job.id]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    let said = fit.fails().to_lowercase();
    assert!(said.contains("cancelled"), "{said}");
    let logs = cluster.manage_jobs(&["logs", &job.id]);
    assert!(logs.stdout.contains("cancelled"), "{}", logs.stdout);
    scene::is_well(&cluster, 2);
}

fn query_cancelled_by_another() {
    let cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Scan, &cluster, &numbers);
    let cancelled = cluster.manage_jobs(&["cancel", &question.asked.id]);
    let run = question.fails();
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    let said = run.error().to_lowercase();
    assert!(said.contains("cancelled"), "{said}");
    scene::is_well(&cluster, 2);
}
