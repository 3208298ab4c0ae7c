//! Executors lost and added under training: training continues at the exact step, and every row of every epoch is
//! trained on once.

use std::time::Duration;

use volley_tests::{Cluster, ExecutorSetup, JobState, Proxy, eventually};

use crate::fault::{Fault, effort, missed};
use crate::fitting::{Fit, setup};
use crate::scene::{self, Loss, SOON};
use crate::stores::await_checkpoint;

pub(crate) const FAULTS: &[Fault] = &[
    ("a rank is killed before it has met the others", || {
        lost_at_rendezvous(Loss::Kill);
    }),
    ("a rank is frozen before it has met the others", || {
        lost_at_rendezvous(Loss::Freeze);
    }),
    ("what ranks stream from is killed", || {
        source_lost(Loss::Kill)
    }),
    ("what ranks stream from freezes", || {
        source_lost(Loss::Freeze);
    }),
    (
        "rank 0 is killed while others wait in an all-reduce",
        || {
            lost_in_all_reduce(0);
        },
    ),
    (
        "rank 1 is killed while others wait in an all-reduce",
        || {
            lost_in_all_reduce(1);
        },
    ),
    ("a rank is killed between epochs", || {
        lost_between_epochs(Loss::Kill);
    }),
    ("a rank is told to end between epochs", || {
        lost_between_epochs(Loss::Terminate);
    }),
    ("a rank freezes between epochs", || {
        lost_between_epochs(Loss::Freeze);
    }),
    ("a rank freezes for less than the timeout", freezes_a_little),
    ("a rank that froze comes back", comes_back),
    ("an executor joins", joins),
    ("ranks are killed one after the other", one_after_the_other),
    (
        "a rank is killed while the ranks meet again",
        killed_while_they_meet_again,
    ),
    (
        "a rank is killed together with what it streamed from",
        killed_with_the_source,
    ),
    ("the scheduler freezes for long", scheduler_freezes),
    (
        "executors are lost whose client is gone",
        lost_without_a_client,
    ),
    (
        "a rank is killed where executors hold data too",
        lost_with_data,
    ),
    ("all ranks are killed and others come", all_are_replaced),
    ("too few ranks are left", too_few_are_left),
    (
        "too few ranks are left and others are waited for",
        too_few_are_waited_for,
    ),
    ("a rank's connection to the scheduler is cut", || {
        network(|proxy| proxy.cut());
    }),
    ("a rank is cut off from the scheduler", || {
        network(Proxy::hold_both);
    }),
    (
        "the cancelled job of a frozen rank lets go of it",
        cancelled_while_frozen,
    ),
];

/// Starts a cluster with one executor that holds the data, and three that train.
fn cluster() -> Cluster {
    scene::pools(1, 3)
}

const ELASTIC: &str = "ranks = 3, min_ranks = 1, regroup_timeout = '2s'";

/// Checks that training ended as it should without a second attempt.
fn trained_at_once(fit: Fit, cluster: &Cluster) {
    let job = fit.job(cluster);
    let (_, run) = fit.trained(cluster);
    let job = cluster.job(&job.id).expect("the job is known");
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    assert_eq!(job.attempts.len(), 1, "only ranks were lost: {job:?}");
    assert!(!run.rows().is_empty());
}

fn lost_at_rendezvous(loss: Loss) {
    let mut cluster = cluster();
    cluster.executors()[3].freeze();
    let mut fit = setup("m", ELASTIC).start(&cluster);
    assert!(fit.await_generation(1).contains(&3));
    loss.strike(&mut cluster, 3);
    assert!(!fit.await_generation(2).contains(&3));
    trained_at_once(fit, &cluster);
    if loss == Loss::Freeze {
        loss.make_up(&mut cluster, 3);
        scene::is_well(&cluster, 4);
    } else {
        scene::is_well(&cluster, 3);
    }
}

/// Loses an executor while rows are streamed; another can hold them in the next attempt.
fn source_lost(loss: Loss) {
    let mut cluster = scene::pools(2, 2);
    // Both executors hold data, so streaming from the frozen one cannot end.
    let mut fit = setup("m", "ranks = 2")
        .rows(20_000 * effort() as usize)
        .epochs(2)
        .start(&cluster);
    fit.await_generation(1);
    let job = fit.job(&cluster);
    let holder = (0..2).find(|executor| cluster.holds_data(*executor, job.attempt()));
    let holder = holder.expect("somebody holds the rows");
    loss.strike(&mut cluster, holder);
    fit.trained(&cluster);
    let job = cluster.job(&job.id).expect("the job is known");
    if job.attempts.len() == 1 {
        missed("training was done before the loss");
    }
    assert_eq!(job.attempts.len(), 2, "the rows were lost: {job:?}");
    if loss == Loss::Freeze {
        loss.make_up(&mut cluster, holder);
        scene::is_well(&cluster, 4);
    }
}

fn lost_in_all_reduce(rank: usize) {
    let mut cluster = cluster();
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(3);
    // The other ranks cannot get past the next step.
    cluster.executors()[executors[rank]].freeze();
    std::thread::sleep(Duration::from_millis(200));
    Loss::Kill.strike(&mut cluster, executors[rank]);
    assert_eq!(fit.await_generation(2).len(), 2);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 3);
}

fn lost_between_epochs(loss: Loss) {
    let mut cluster = cluster();
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    loss.strike(&mut cluster, executors[2]);
    assert!(!fit.await_generation(2).contains(&executors[2]));
    trained_at_once(fit, &cluster);
    if loss == Loss::Freeze {
        loss.make_up(&mut cluster, executors[2]);
        scene::is_well(&cluster, 4);
    } else {
        scene::is_well(&cluster, 3);
    }
}

fn freezes_a_little() {
    let mut cluster = cluster();
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    cluster.executors()[executors[1]].freeze();
    std::thread::sleep(scene::SILENCE / 4);
    cluster.executors()[executors[1]].thaw();
    let (_, run) = fit.trained(&cluster);
    assert!(!run.stderr.contains("generation 2"), "{}", run.stderr);
    scene::is_well(&cluster, 4);
}

/// Loses a rank, which starts over and takes part again once the others have settled.
fn comes_back() {
    let mut cluster = scene::pools(1, 2);
    let mut fit = setup("m", "ranks = 2, min_ranks = 1, regroup_timeout = '1s'")
        .lasting(8.0, &cluster)
        .start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(2);
    Loss::Freeze.strike(&mut cluster, executors[1]);
    assert_eq!(fit.await_generation(2), [executors[0]]);
    Loss::Freeze.make_up(&mut cluster, executors[1]);
    assert_eq!(fit.await_generation(3).len(), 2);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 3);
}

fn joins() {
    let mut cluster = scene::pools(1, 1);
    let mut fit = setup("m", "ranks = 1, max_ranks = 2")
        .lasting(8.0, &cluster)
        .start(&cluster);
    assert_eq!(fit.await_generation(1), [1]);
    scene::add(&mut cluster, "train");
    assert_eq!(fit.await_generation(2).len(), 2);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 3);
    // Shards with half of the rows have moved, and the others are not streamed again.
    let (stays, comes) = (loads(&mut cluster, 1), loads(&mut cluster, 2));
    let kept = stays.windows(2).find_map(|both| match both {
        [(60, 0), (0, kept)] => Some(*kept),
        _ => None,
    });
    let kept = kept.unwrap_or_else(|| panic!("{stays:?}"));
    assert!((20..=40).contains(&kept), "{stays:?}");
    assert!(comes.contains(&(60 - kept, 0)), "{comes:?}");
}

/// Returns the number of shards that an executor's ranks have streamed, and the number from the cache, for each load.
fn loads(cluster: &mut Cluster, executor: usize) -> Vec<(usize, usize)> {
    let log = cluster.executors()[executor].output();
    let loads = log.lines().filter_map(|line| {
        let (before, after) = line.split_once(" shards streamed, ")?;
        let streamed = before.rsplit([' ', 'm']).next()?.parse().ok()?;
        Some((streamed, after.split(' ').next()?.parse().ok()?))
    });
    loads.collect()
}

fn one_after_the_other() {
    let mut cluster = scene::pools(1, 2);
    let mut fit = setup("m", "ranks = 2, regroup_timeout = '20s'")
        .epochs(100)
        .start(&cluster);
    for generation in 1..=4 {
        let executors = fit.await_generation(generation);
        assert_eq!(executors.len(), 2);
        fit.await_epoch(generation * 10);
        Loss::Kill.strike(&mut cluster, executors[generation % 2]);
        scene::add(&mut cluster, "train");
    }
    fit.await_generation(5);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 3);
}

/// Loses a second rank before any rank has taken a step since the first loss.
fn killed_while_they_meet_again() {
    let mut cluster = cluster();
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(3);
    cluster.executors()[executors[0]].kill();
    let executors = fit.await_generation(2);
    Loss::Kill.strike(&mut cluster, executors[0]);
    assert_eq!(fit.await_generation(3), executors[1..]);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 2);
}

fn killed_with_the_source() {
    let mut cluster = scene::pools(2, 3);
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    for executor in [executors[1], 0, 1] {
        cluster.executors()[executor].kill();
    }
    scene::add(&mut cluster, "query");
    let (_, run) = fit.trained(&cluster);
    let begun = run.stderr.matches("epoch 1: ").count();
    assert_eq!(begun, 1, "it did not begin again:\n{}", run.stderr);
    scene::is_well(&cluster, 3);
}

/// Freezes the scheduler: executors treat it as gone and end their tasks, and the ranks' state is still there when it
/// comes back.
fn scheduler_freezes() {
    let mut cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2")
        .lasting(4.0, &cluster)
        .start(&cluster);
    fit.await_epoch(3);
    cluster.scheduler().freeze();
    for executor in 0..2 {
        eventually("executors to start over", SOON, || {
            let said = cluster.executors()[executor].output();
            said.contains("starting over").then_some(())
        });
    }
    cluster.scheduler().thaw();
    let (_, run) = fit.trained(&cluster);
    let begun = run.stderr.matches("epoch 1: ").count();
    assert_eq!(begun, 1, "it did not begin again:\n{}", run.stderr);
    scene::is_well(&cluster, 2);
}

/// Loses a rank without a client: only the scheduler can submit the job again.
fn lost_without_a_client() {
    let mut cluster = scene::cluster(3);
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    let job = fit.job(&cluster);
    fit.client.process().kill();
    Loss::Kill.strike(&mut cluster, executors[0]);
    let ended = eventually("the job to end", SOON, || {
        let job = cluster.job(&job.id)?;
        (job.state != JobState::Running).then_some(job)
    });
    assert_eq!(ended.state, JobState::Succeeded, "{ended:?}");
    fit.has_published(&cluster);
    scene::is_well(&cluster, 2);
}

/// Loses a part of the rows with a rank: the job is run again, and continues from the state of the other ranks.
fn lost_with_data() {
    let mut cluster = scene::cluster(3);
    let mut fit = setup("m", ELASTIC).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(10);
    let job = fit.job(&cluster);
    Loss::Kill.strike(&mut cluster, executors[0]);
    let (_, run) = fit.trained(&cluster);
    let begun = |epoch: usize| {
        let line = format!("epoch {epoch}: ");
        run.stderr
            .lines()
            .filter(|said| said.contains(&line))
            .count()
    };
    assert_eq!(begun(1), 1, "it did not begin again:\n{}", run.stderr);
    let job = cluster.job(&job.id).expect("the job is known");
    assert_eq!(job.state, JobState::Succeeded, "{job:?}");
    scene::is_well(&cluster, 2);
}

/// Replaces all ranks, so that only the newest checkpoint is left.
fn all_are_replaced() {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, on_too_few_ranks = 'wait', regroup_timeout = '2s'";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(10);
    await_checkpoint(&cluster, "m");
    for executor in &executors {
        cluster.executors()[*executor].kill();
    }
    for _ in &executors {
        scene::add(&mut cluster, "train");
    }
    let (_, run) = fit.trained(&cluster);
    assert!(run.stderr.contains("checkpoint"), "{}", run.stderr);
    scene::is_well(&cluster, 3);
}

fn too_few_are_left() {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, min_ranks = 2, regroup_timeout = '2s', shards = 10";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(10);
    await_checkpoint(&cluster, "m");
    Loss::Kill.strike(&mut cluster, executors[0]);
    let said = fit.fails();
    assert!(said.contains("min_ranks") && said.contains('2'), "{said}");

    // The work done so far is not lost. The checkpoint's number of shards is kept.
    let fit = setup("m", "ranks = 1, resume = true").start(&cluster);
    let (_, run) = fit.trained(&cluster);
    assert!(!run.stderr.contains("epoch 1: "), "{}", run.stderr);
    scene::is_well(&cluster, 2);
}

fn too_few_are_waited_for() {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, min_ranks = 2, on_too_few_ranks = 'wait', regroup_timeout = '1s'";
    let mut fit = setup("m", options).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(10);
    Loss::Kill.strike(&mut cluster, executors[0]);
    fit.client.await_line("training waits", SOON);
    scene::add(&mut cluster, "train");
    assert_eq!(fit.await_generation(2).len(), 2);
    trained_at_once(fit, &cluster);
    scene::is_well(&cluster, 3);
}

/// Applies a fault to the connection between a rank's executor and the scheduler. The rank's peers reach it all the
/// time.
fn network(fault: fn(&Proxy)) {
    let mut cluster = scene::pools(1, 1);
    let proxy = Proxy::to(cluster.address());
    let executor = cluster.add_executor_with(ExecutorSetup {
        scheduler: Some(proxy.address()),
        args: vec!["--role".to_owned(), "train".to_owned()],
        ..ExecutorSetup::default()
    });
    cluster.await_executors(3);
    let options = "ranks = 2, min_ranks = 1, regroup_timeout = '1s'";
    let mut fit = setup("m", options).lasting(8.0, &cluster).start(&cluster);
    assert!(fit.await_generation(1).contains(&executor));
    fit.await_epoch(3);
    fault(&proxy);
    fit.await_generation(2);
    proxy.heal();
    trained_at_once(fit, &cluster);
    scene::await_registered(&cluster, executor);
    scene::is_well(&cluster, 3);
}

fn cancelled_while_frozen() {
    let mut cluster = scene::pools(1, 2);
    let mut fit = setup("m", "ranks = 2, min_ranks = 2")
        .epochs(20_000)
        .start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(2);
    cluster.executors()[executors[1]].freeze();
    let job = fit.job(&cluster);
    let cancelled = cluster.manage_jobs(&["cancel", &job.id]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    let said = fit.fails().to_lowercase();
    assert!(said.contains("cancelled"), "{said}");
    cluster.executors()[executors[1]].thaw();
    let known = eventually("the job to have ended", SOON, || {
        let job = cluster.job(&job.id)?;
        (job.state != JobState::Running).then_some(job)
    });
    assert_eq!(known.state, JobState::Cancelled);
    scene::is_well(&cluster, 3);
    let fit = setup("n", "ranks = 2").epochs(2).start(&cluster);
    fit.trained(&cluster);
}
