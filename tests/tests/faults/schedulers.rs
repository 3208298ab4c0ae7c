//! Schedulers that end, freeze and come back: waiting clients are told, executors register again by themselves, and
//! training continues from its checkpoint.

use volley_tests::{Cluster, Numbers, eventually};

use crate::asking::{Phase, question};
use crate::fault::Fault;
use crate::fitting::setup;
use crate::scene::{self, SILENCE, SOON};
use crate::stores::await_checkpoint;

pub(crate) const FAULTS: &[Fault] = &[
    ("it is killed under a query and comes back", || {
        ended_under_a_query(|cluster| cluster.scheduler().kill());
    }),
    ("it is told to end under a query and comes back", || {
        ended_under_a_query(|cluster| cluster.scheduler().terminate());
    }),
    (
        "it is killed under training and comes back",
        killed_under_training,
    ),
    ("it freezes for less than the timeout", frozen_a_little),
    ("it freezes for longer than the timeout", frozen_long),
    ("it is killed and does not come back", killed_for_good),
];

const FACTS: u64 = 6_000;

fn ended_under_a_query(end: fn(&mut Cluster)) {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = question(Phase::Scan, &cluster, &numbers);
    let id = asked.asked.id.clone();
    end(&mut cluster);
    let run = asked.fails();
    assert!(run.error().contains("lost the scheduler"), "{}", run.stderr);
    assert!(run.stderr.contains(&id), "{}", run.stderr);
    cluster.restart_scheduler();
    cluster.await_executors(2);
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    scene::is_well(&cluster, 2);
}

fn killed_under_training() {
    let mut cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(5);
    await_checkpoint(&cluster, "m");
    cluster.restart_scheduler();
    let said = fit.fails();
    assert!(said.contains("lost the scheduler"), "{said}");
    assert!(said.contains("resume"), "{said}");
    cluster.await_executors(2);
    let fit = setup("m", "ranks = 2, resume = true").start(&cluster);
    let (_, run) = fit.trained(&cluster);
    assert!(!run.stderr.contains("epoch 1: "), "{}", run.stderr);
    scene::is_well(&cluster, 2);
}

fn frozen_a_little() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.scheduler().freeze();
    std::thread::sleep(SILENCE / 4);
    cluster.scheduler().thaw();
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    scene::is_well(&cluster, 2);
}

/// Freezes the scheduler until executors treat it as gone and start over, which it finds when it comes back.
fn frozen_long() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.scheduler().freeze();
    for executor in 0..2 {
        eventually("executors to start over", SOON, || {
            let said = cluster.executors()[executor].output();
            said.contains("starting over").then_some(())
        });
    }
    cluster.scheduler().thaw();
    question.answered(&cluster);
    scene::is_well(&cluster, 2);
}

fn killed_for_good() {
    let mut cluster = Cluster::start_with(volley_tests::Setup {
        executors: 1,
        executor_args: ["--reconnect-timeout", "3s", "--connect-timeout", "1s"]
            .map(str::to_owned)
            .to_vec(),
        ..volley_tests::Setup::default()
    });
    cluster.scheduler().kill();
    let ended = eventually("the executor to give up", SOON, || {
        cluster.executors()[0].ended()
    });
    assert_eq!(ended.code(), Some(1));
    let said = cluster.executors()[0].output();
    assert!(said.contains(cluster.address()), "{said}");
}
