//! Executors lost under queries: the result is right and under the same job, or an error names the executor.

use std::ops::RangeInclusive;

use volley_tests::{
    Cluster, ExecutorSetup, JobState, Numbers, Proxy, Work, eventually, executor_id,
};

use crate::asking::{Asked, Phase, Question, question};
use crate::fault::{Fault, effort, missed};
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("an executor is killed while tables are read", || {
        lose(Phase::Scan, Loss::Kill, 1..=2);
    }),
    (
        "a holder of shuffle data is killed while it is read",
        || {
            lose(Phase::Shuffle, Loss::Kill, 2..=2);
        },
    ),
    (
        "a holder of shuffle data is killed in the last stage",
        || {
            lose(Phase::Last, Loss::Kill, 1..=2);
        },
    ),
    ("an executor freezes while tables are read", || {
        lose(Phase::Scan, Loss::Freeze, 1..=2);
    }),
    ("a holder of shuffle data freezes while it is read", || {
        lose(Phase::Shuffle, Loss::Freeze, 2..=2);
    }),
    ("a holder of shuffle data freezes in the last stage", || {
        lose(Phase::Last, Loss::Freeze, 1..=2);
    }),
    ("an executor is told to end while tables are read", || {
        lose(Phase::Scan, Loss::Terminate, 1..=1);
    }),
    (
        "a holder of shuffle data is told to end while it is read",
        || {
            lose(Phase::Shuffle, Loss::Terminate, 1..=1);
        },
    ),
    (
        "all executors are told to end, one after the other",
        rolling_restart,
    ),
    ("executors are told to end and have no time", no_time_to_end),
    ("an executor is drained by command", drained),
    (
        "the scheduler is killed while an executor is drained by command",
        drained_without_a_scheduler,
    ),
    ("an executor hands its rows over and leaves", hands_over),
    (
        "an executor freezes for less than the timeout",
        freezes_a_little,
    ),
    (
        "one of two that hold data is killed while the other is frozen",
        killed_beside_a_frozen_one,
    ),
    ("all executors are killed and others come", all_are_replaced),
    (
        "all executors are killed and none comes",
        all_are_lost_for_good,
    ),
    ("executors end in every attempt", lost_each_time),
    ("a stage ends the executors that run it", ended_by_a_stage),
    ("the work folder's disk is full", work_folder_is_full),
    ("two questions lose the same executor", two_questions),
    (
        "an executor crashes and is started again at once",
        started_again,
    ),
    (
        "an executor is started again while the one before is frozen",
        started_beside_a_frozen_one,
    ),
];

const FACTS: u64 = 6_000;

/// Loses an executor in a phase, if possible one that holds data of the question. Checks that the question is
/// answered in this many attempts, and that the cluster recovers.
fn lose(phase: Phase, loss: Loss, attempts: RangeInclusive<usize>) {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(phase, &cluster, &numbers);
    let victim = holder(&cluster, &question);
    loss.strike(&mut cluster, victim);
    let job = if attempts.contains(&1) {
        question.answered(&cluster)
    } else {
        question.answered_again(&cluster)
    };
    assert!(attempts.contains(&job.attempts.len()), "{job:?}");
    if phase == Phase::Shuffle && matches!(loss, Loss::Kill) {
        let log = cluster.manage_jobs(&["logs", &job.id]).stdout;
        assert!(log.contains("partitions are still there"), "{log}");
    }
    loss.make_up(&mut cluster, victim);
    scene::is_well(&cluster, 3);
}

/// Returns an executor with data of the question, or the first one.
fn holder(cluster: &Cluster, question: &Question) -> usize {
    let holds = |executor: &usize| cluster.holds_data(*executor, &question.asked.attempt);
    (0..3).find(holds).unwrap_or(0)
}

fn freezes_a_little() {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.executors()[1].freeze();
    std::thread::sleep(scene::SILENCE / 4);
    cluster.executors()[1].thaw();
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    scene::is_well(&cluster, 3);
}

/// Loses an executor's data while a frozen executor's tasks keep the stage open: the engine alone would repair this
/// into wrong rows.
fn killed_beside_a_frozen_one() {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.executors()[2].freeze();
    Loss::Kill.strike(&mut cluster, 0);
    cluster.executors()[2].thaw();
    let job = question.answered_again(&cluster);
    assert_eq!(job.attempts.len(), 2, "{job:?}");
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

fn all_are_replaced() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    for executor in 0..2 {
        cluster.executors()[executor].kill();
    }
    for _ in 0..2 {
        cluster.add_executor();
    }
    question.answered(&cluster);
    scene::is_well(&cluster, 2);
}

fn all_are_lost_for_good() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Scan, &cluster, &numbers);
    for executor in 0..2 {
        cluster.executors()[executor].kill();
    }
    let id = question.asked.id.clone();
    let run = question.fails();
    assert!(run.error().contains("no executor"), "{}", run.stderr);
    assert_eq!(
        cluster.job(&id).map(|job| job.state),
        Some(JobState::Failed)
    );
    cluster.add_executor();
    scene::is_well(&cluster, 1);
}

/// Tells each of the executors of a question to end, the next one when one before is gone. Others come in their places.
fn rolling_restart() {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), 4 * FACTS);
    let question = question(Phase::Scan, &cluster, &numbers);
    for executor in 0..3 {
        cluster.add_executor();
        Loss::Terminate.strike(&mut cluster, executor);
        let log = cluster.executors()[executor].output();
        assert!(!log.contains("are still needed"), "{log}");
    }
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    scene::is_well(&cluster, 3);
}

/// Tells executors to end that may not wait for a question. That is no failure of the question, however often.
fn no_time_to_end() {
    let hasty = || ExecutorSetup {
        args: vec!["--drain-timeout".to_owned(), "0s".to_owned()],
        ..ExecutorSetup::default()
    };
    let mut cluster = scene::cluster(0);
    for _ in 0..2 {
        cluster.add_executor_with(hasty());
    }
    cluster.await_executors(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    let id = question.asked.id.clone();
    for attempt in 1..8 {
        if await_reads(&cluster, &id, attempt).is_none() {
            break;
        }
        cluster.add_executor_with(hasty());
        Loss::Terminate.strike(&mut cluster, attempt - 1);
    }
    let job = question.answered_again(&cluster);
    let told = cluster.manage_jobs(&["logs", &job.id]).stdout;
    assert!(told.contains("with data of this job"), "{told}");
    scene::is_well(&cluster, 2);
}

fn drained() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    let mistaken = cluster.manage_executors(&["drain", "executor-7"]);
    assert!(
        mistaken.error().contains("executor-0, executor-1"),
        "{}",
        mistaken.stderr
    );
    let drained = cluster.manage_executors(&["drain", "executor-1"]);
    assert_eq!(drained.code, Some(0), "{}", drained.stderr);
    assert_eq!(drained.stdout, "executor executor-1 has left\n");
    let job = question.answered(&cluster);
    assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    // Its registration goes before its process.
    let ended = eventually("its end", SOON, || cluster.executors()[1].ended());
    assert!(ended.success(), "{ended:?}");
    let listed = cluster.manage_executors(&["--format", "csv"]).stdout;
    assert!(listed.contains("executor-0,"), "{listed}");
    assert!(!listed.contains("executor-1,"), "{listed}");
    scene::is_well(&cluster, 1);
}

/// Kills the scheduler while a command waits for an executor to leave: once the executor knows that it leaves, and at
/// once, when the request may be lost. The command waits for the next scheduler, and asks again if it has to.
fn drained_without_a_scheduler() {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    for (executor, is_told) in [(1, true), (2, false)] {
        let question = question(Phase::Shuffle, &cluster, &numbers);
        let id = executor_id(executor);
        let mut drain = cluster.executors_command();
        let mut drain = cluster.spawn(drain.args(["drain", &id]));
        drain.await_line("takes no new tasks", SOON);
        if is_told {
            eventually("the executor to be told", SOON, || {
                let said = cluster.executors()[executor].output();
                said.contains("leaves once").then_some(())
            });
        }
        cluster.restart_scheduler();
        let drained = drain.wait(SOON);
        assert_eq!(drained.code, Some(0), "{}", drained.stderr);
        assert_eq!(drained.stdout, format!("executor {id} has left\n"));
        let ended = eventually("its end", SOON, || cluster.executors()[executor].ended());
        assert!(ended.success(), "{ended:?}");
        question.answered_by_any();
    }
    scene::is_well(&cluster, 1);
}

/// Tells an executor to end that holds rows of a long stage: it leaves before the question ends, which loses nothing. Then
/// the executor that has taken the rows is killed, and the question runs again.
fn hands_over() {
    let patient = || ExecutorSetup {
        args: vec!["--drain-timeout".to_owned(), "5m".to_owned()],
        ..ExecutorSetup::default()
    };
    for kills in [false, true] {
        is_handed_over(kills, patient, || {
            let mut cluster = scene::cluster(0);
            for _ in 0..3 {
                cluster.add_executor_with(patient());
            }
            cluster.await_executors(3);
            cluster
        });
    }
}

/// Has an executor hand over its rows in clusters of a kind, until a question is slow enough to outlast that.
pub(crate) fn is_handed_over(
    kills: bool,
    another: fn() -> ExecutorSetup,
    cluster: impl Fn() -> Cluster,
) {
    let outlasts = |join: u64| has_handed_over(cluster(), another, (join * effort(), kills));
    if ![80_000, 320_000].into_iter().any(outlasts) {
        missed("no question outlasted the departure of an executor");
    }
}

/// Checks whether the first of several executors left before the question ended.
fn has_handed_over(
    mut cluster: Cluster,
    another: fn() -> ExecutorSetup,
    (join, kills): (u64, bool),
) -> bool {
    let executors = cluster.executors().len();
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let work = Work { scan: 100, join };
    // Tasks that begin after the rows have moved.
    let partitions = "SET datafusion.execution.target_partitions = 24;";
    let (tables, question) = (numbers.tables(), numbers.question(work));
    let sql = format!("{tables} {partitions} {question}");
    let client = cluster.spawn(cluster.command().args(["--format", "json", "-c", &sql]));
    let job = eventually("the question's job", SOON, || {
        cluster.jobs()?.first().cloned()
    });
    if await_reads(&cluster, &job.id, 1).is_none() {
        return false;
    }
    let heir = cluster.add_executor_with(another());
    cluster.await_executors(executors + 1);
    Loss::Terminate.strike(&mut cluster, 0);
    let state = cluster.job(&job.id).expect("the job is known").state;
    let log = cluster.scheduler().output();
    let outlasts = state == JobState::Running && log.contains("rows have moved");
    if outlasts && kills {
        Loss::Kill.strike(&mut cluster, heir);
    }
    let question = Question {
        asked: Asked {
            client,
            attempt: job.attempt().to_owned(),
            id: job.id,
        },
        answer: numbers.answer(work),
    };
    let job = question.answered(&cluster);
    if !outlasts || !kills {
        assert_eq!(job.attempts.len(), 1, "nothing was lost: {job:?}");
    }
    let log = cluster.executors()[0].output();
    assert!(!log.contains("are still needed"), "{log}");
    let lost = usize::from(outlasts && kills);
    scene::is_well(&cluster, executors - lost);
    outlasts
}

fn lost_each_time() {
    // The last attempt may be done before its data is lost: then its answer is right, and the next round may reach the
    // end.
    assert!(
        (0..4).any(|_| is_lost_each_time()),
        "it was never lost often enough"
    );
}

/// Waits until tasks of this attempt of a job read data. Returns `None` if the job has ended.
fn await_reads(cluster: &Cluster, job: &str, attempt: usize) -> Option<()> {
    let job = eventually("data of the next attempt, or the end", SOON, || {
        let job = cluster.job(job)?;
        let stages = cluster.stages(job.attempt()).unwrap_or_default();
        let reads = stages.iter().filter(|stage| stage.done).count() >= 2;
        let over = job.state != JobState::Running;
        (over || (job.attempts.len() == attempt && reads)).then_some(job)
    });
    (job.state == JobState::Running).then_some(())
}

/// Checks whether the job was lost until it was no longer run again.
fn is_lost_each_time() -> bool {
    let mut cluster = scene::cluster(0);
    let mut proxies = Vec::new();
    for _ in 0..2 {
        let proxy = Proxy::to(cluster.address());
        cluster.add_executor_with(ExecutorSetup {
            scheduler: Some(proxy.address()),
            ..ExecutorSetup::default()
        });
        proxies.push(proxy);
    }
    cluster.await_executors(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let mut question = question(Phase::Shuffle, &cluster, &numbers);
    for attempt in 1.. {
        // The attempt's data is lost as soon as tasks read any.
        if await_reads(&cluster, &question.asked.id, attempt).is_none() {
            break;
        }
        // An executor that has lost the scheduler starts over, so there are always two.
        proxies[attempt % 2].cut();
        assert!(attempt < 10, "it is run again for ever");
    }
    let ended = question.asked.client.process().ended();
    let run = question.asked.client.wait(SOON);
    let job = cluster.job(&question.asked.id).expect("the job is known");
    scene::is_well(&cluster, 2);
    if job.state == JobState::Succeeded {
        assert_eq!(run.rows(), question.answer, "{}", run.stderr);
        return false;
    }
    assert_eq!(job.attempts.len(), 5, "{ended:?} {job:?}");
    assert!(run.error().contains("executor-"), "{}", run.stderr);
    true
}

/// Kills the only executor while it runs tasks, in each attempt, as the system does where they need too much memory.
fn ended_by_a_stage() {
    let mut cluster = scene::cluster(1);
    // Tasks are long, for a kill between two of them is no stage's.
    let numbers = Numbers::write(cluster.dir(), 4 * FACTS);
    let question = question(Phase::Scan, &cluster, &numbers);
    let id = question.asked.id.clone();
    for victim in 0.. {
        Loss::Kill.strike(&mut cluster, victim);
        cluster.add_executor();
        let job = eventually("tasks of the next attempt, or the end", SOON, || {
            let job = cluster.job(&id)?;
            let stages = cluster.stages(job.attempt()).unwrap_or_default();
            let runs = stages.iter().any(|stage| stage.running > 0);
            let is_next = job.attempts.len() == victim + 2 && runs;
            (is_next || job.state != JobState::Running).then_some(job)
        });
        if job.state != JobState::Running {
            // Tasks of one of the two first stages run, or none at that moment.
            let error = job.error.as_deref().unwrap_or_default();
            if error.contains("lost data each time") {
                missed(&format!("tasks ended before the kills: {job:?}"));
            }
            assert!((2..=5).contains(&job.attempts.len()), "{job:?}");
            break;
        }
    }
    let run = question.fails();
    let told = ["executor-", "of stage ", "third time"];
    assert!(
        told.iter().all(|told| run.error().contains(told)),
        "{}",
        run.stderr
    );
    scene::is_well(&cluster, 1);
}

/// Lets one of two executors fail to write shuffle files beyond a limit.
fn work_folder_is_full() {
    let mut cluster = scene::cluster(0);
    let numbers = Numbers::write(cluster.dir(), 4 * FACTS);
    cluster.add_executor();
    let full = cluster.add_executor_with(ExecutorSetup {
        file_limit: Some(64),
        ..ExecutorSetup::default()
    });
    cluster.await_executors(2);
    // The numbers cannot be compressed: about 100 KiB for each file of a task.
    let columns: Vec<_> = (1..8)
        .map(|n| format!("sum(sin(id * {n})) AS c{n}"))
        .collect();
    let sql = format!(
        "{} SELECT id, {} FROM facts GROUP BY id ORDER BY id LIMIT 3",
        numbers.tables(),
        columns.join(", ")
    );
    let said = cluster.fail(&sql);
    let told = ["File too large", "executor executor-", "free in "];
    assert!(told.iter().all(|told| said.contains(told)), "{said}");
    Loss::Kill.strike(&mut cluster, full);
    assert_eq!(cluster.query(&sql).len(), 3);
    scene::is_well(&cluster, 1);
}

fn two_questions() {
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let first = question(Phase::Scan, &cluster, &numbers);
    let second = question(Phase::Scan, &cluster, &numbers);
    Loss::Kill.strike(&mut cluster, 0);
    first.answered(&cluster);
    second.answered(&cluster);
    cluster.add_executor();
    scene::is_well(&cluster, 3);
}

/// Restarts an executor as a supervisor does: the same id, the same work folder, no pause.
fn started_again() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.executors()[0].kill();
    drop(cluster.start_executor_again(0));
    let job = question.answered_again(&cluster);
    assert_eq!(job.attempts.len(), 2, "its data is gone: {job:?}");
    scene::is_well(&cluster, 2);
}

/// Starts an executor whose id is taken. Ids are unique: one of the two finds its place taken.
fn started_beside_a_frozen_one() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.executors()[0].freeze();
    let before = cluster.start_executor_beside(0);
    question.answered(&cluster);
    scene::is_well(&cluster, 2);
    before.thaw();
    // Tasks on their way to the earlier process then fail, and the engine treats the executor with that id as lost:
    // the later one, which may be the one that comes back.
    eventually("one of the two to say that its id is taken", SOON, || {
        let later = cluster.executors()[0].output();
        (before.output() + &later).contains("unique").then_some(())
    });
    scene::is_well(&cluster, 2);
}
