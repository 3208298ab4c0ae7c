//! Connections cut, held and delayed between executors, clients and the scheduler.

use std::time::Duration;

use volley_tests::{
    Cluster, Direction, ExecutorSetup, JobState, Numbers, Proxy, eventually, executor_id,
};

use crate::asking::{Phase, question, question_by};
use crate::fault::Fault;
use crate::scene::{self, SILENCE, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    (
        "an executor's connection is cut while it registers",
        cut_while_it_registers,
    ),
    ("an idle executor's connection is cut", idle_and_cut),
    (
        "an executor's connection is cut while tables are read",
        || {
            cut(Phase::Scan);
        },
    ),
    (
        "an executor's connection is cut while shuffle data is read",
        || cut(Phase::Shuffle),
    ),
    ("an executor is cut off for a while", || {
        held(Phase::Shuffle, &[Direction::Up, Direction::Down]);
    }),
    ("an executor is not heard any more", || {
        held(Phase::Scan, &[Direction::Up]);
    }),
    ("an executor hears nothing any more", || {
        held(Phase::Shuffle, &[Direction::Down]);
    }),
    ("an executor cannot reach the scheduler again", refused),
    ("an executor's messages are late", executor_is_late),
    ("a client's connection is cut", client_is_cut),
    ("a client is cut off", client_is_cut_off),
    ("a client's messages are late", client_is_late),
];

const FACTS: u64 = 6_000;

/// Starts two executors, and one that reaches the scheduler through a proxy.
fn with_proxy() -> (Cluster, Proxy, Numbers, usize) {
    let mut cluster = scene::cluster(2);
    let proxy = Proxy::to(cluster.address());
    let executor = cluster.add_executor_with(ExecutorSetup {
        scheduler: Some(proxy.address()),
        ..ExecutorSetup::default()
    });
    cluster.await_executors(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    (cluster, proxy, numbers, executor)
}

/// Waits until an executor has noticed that it must start over.
fn await_start_over(cluster: &mut Cluster, executor: usize) {
    eventually("the executor to start over", SOON, || {
        let said = cluster.executors()[executor].output();
        said.contains("starting over").then_some(())
    });
}

fn cut_while_it_registers() {
    let mut cluster = scene::cluster(2);
    let proxy = Proxy::to(cluster.address());
    let executor = cluster.add_executor_with(ExecutorSetup {
        scheduler: Some(proxy.address()),
        ..ExecutorSetup::default()
    });
    let numbers = Numbers::write(cluster.dir(), FACTS);
    // The executor is back at once, so this waits for the scheduler's log of it.
    let id = executor_id(executor);
    for registration in 1..=4 {
        eventually("the executor to register again", SOON, || {
            let said = cluster.scheduler().output();
            let registers =
                |line: &&str| line.contains("executor registered") && line.contains(&id);
            (said.lines().filter(registers).count() >= registration).then_some(())
        });
        if registration < 4 {
            proxy.cut();
        }
    }
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    scene::is_well(&cluster, 3);
}

fn idle_and_cut() {
    let (mut cluster, proxy, numbers, executor) = with_proxy();
    eventually("the executor to know that it is registered", SOON, || {
        let said = cluster.executors()[executor].output();
        said.contains("registered with the scheduler").then_some(())
    });
    proxy.cut();
    await_start_over(&mut cluster, executor);
    scene::await_registered(&cluster, executor);
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    scene::is_well(&cluster, 3);
}

fn cut(phase: Phase) {
    let (mut cluster, proxy, numbers, executor) = with_proxy();
    let question = question(phase, &cluster, &numbers);
    proxy.cut();
    question.answered(&cluster);
    await_start_over(&mut cluster, executor);
    scene::is_well(&cluster, 3);
}

fn held(phase: Phase, directions: &[Direction]) {
    let (cluster, proxy, numbers, executor) = with_proxy();
    let question = question(phase, &cluster, &numbers);
    directions
        .iter()
        .for_each(|direction| proxy.hold(*direction));
    question.answered(&cluster);
    scene::await_lost(&cluster, executor);
    proxy.heal();
    scene::await_registered(&cluster, executor);
    scene::is_well(&cluster, 3);
}

fn refused() {
    let (mut cluster, proxy, numbers, executor) = with_proxy();
    let question = question(Phase::Shuffle, &cluster, &numbers);
    proxy.refuse();
    question.answered(&cluster);
    scene::await_lost(&cluster, executor);
    eventually("the executor to try again", SOON, || {
        let said = cluster.executors()[executor].output();
        said.contains("trying again").then_some(())
    });
    proxy.heal();
    scene::await_registered(&cluster, executor);
    scene::is_well(&cluster, 3);
}

fn executor_is_late() {
    let (cluster, proxy, numbers, _) = with_proxy();
    proxy.delay(SILENCE / 20);
    let job = question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    proxy.heal();
    scene::is_well(&cluster, 3);
}

/// Starts a cluster, and a proxy through which a client reaches it.
fn client_with_proxy() -> (Cluster, Proxy, Numbers) {
    let cluster = scene::cluster(2);
    let proxy = Proxy::to(cluster.address());
    let numbers = Numbers::write(cluster.dir(), FACTS);
    (cluster, proxy, numbers)
}

/// Cuts a client, which continues over a new connection or says that it has lost the scheduler.
fn client_is_cut() {
    let (cluster, proxy, numbers) = client_with_proxy();
    let command = || cluster.command_via(&proxy.address());
    let question = question_by(Phase::Scan, &cluster, &numbers, command);
    proxy.cut();
    let (id, answer) = (question.asked.id, question.answer);
    let run = question.asked.client.wait(SOON);
    if run.code == Some(0) {
        assert_eq!(run.rows(), answer);
    } else {
        assert!(run.error().contains("lost the scheduler"), "{}", run.stderr);
        assert!(run.stderr.contains(&id), "{}", run.stderr);
        assert!(run.stdout.is_empty(), "{}", run.stdout);
    }
    scene::is_well(&cluster, 2);
}

fn client_is_cut_off() {
    let (cluster, proxy, numbers) = client_with_proxy();
    let command = || cluster.command_via(&proxy.address());
    let question = question_by(Phase::Scan, &cluster, &numbers, command);
    proxy.hold_both();
    let job = eventually("the query to be cancelled", SOON, || {
        let job = cluster.job(&question.asked.id)?;
        (job.state != JobState::Running).then_some(job)
    });
    // The query may have ended before the client counted as gone.
    assert!(
        matches!(job.state, JobState::Cancelled | JobState::Succeeded),
        "{job:?}"
    );
    let run = question.asked.client.wait(SOON);
    assert!(run.error().contains("lost the scheduler"), "{}", run.stderr);
    scene::is_well(&cluster, 2);
}

fn client_is_late() {
    let (cluster, proxy, numbers) = client_with_proxy();
    proxy.delay(Duration::from_millis(100));
    let command = || cluster.command_via(&proxy.address());
    let question = question_by(Phase::Scan, &cluster, &numbers, command);
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "{job:?}");
    scene::is_well(&cluster, 2);
}
