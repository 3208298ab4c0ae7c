//! Schedulers that end, freeze and come back: jobs go on under their ids, executors register again by themselves, and
//! training continues where it stood.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use volley_tests::{Cluster, ExecutorSetup, JobState, Numbers, Process, Samples, eventually};

use crate::asking::{Phase, Question, ask, question, reach, work};
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
    (
        "it is killed again and again under training",
        killed_again_and_again,
    ),
    (
        "it is killed while a training is submitted",
        killed_at_submission,
    ),
    (
        "it is killed under a job without a client",
        killed_under_a_detached_job,
    ),
    (
        "it is killed with jobs that have ended",
        killed_with_history,
    ),
    ("it comes back without its record", back_without_a_record),
    ("its record cannot be written", unwritable_record),
    ("it is killed, and another one takes over", taken_over),
    ("it freezes until another one has taken over", frozen_leader),
    ("it freezes for less than the timeout", frozen_a_little),
    ("it freezes for longer than the timeout", frozen_long),
    ("it is killed and does not come back", killed_for_good),
    ("it is told to end while it stands by", standby_told_to_end),
    (
        "executors that wait for it are told to end",
        waiting_executors_told_to_end,
    ),
];

const FACTS: u64 = 6_000;
/// Time within which changes are recorded.
const SECOND: Duration = Duration::from_secs(1);

/// Asks a question that takes longer than until its job is recorded, and waits until it is in a phase, and recorded.
fn recorded_question(phase: Phase, cluster: &Cluster, numbers: &Numbers) -> Question {
    let (asked, answer) = reach(phase, cluster, |times| {
        let work = work(64 * times);
        let client = ask(numbers, work, cluster, cluster.command());
        (client, numbers.answer(work))
    });
    let is_there = |content: Vec<u8>| {
        let mut places = content.windows(asked.id.len());
        places.any(|place| place == asked.id.as_bytes())
    };
    eventually("the job to be recorded", SOON, || {
        let segments = fs::read_dir(cluster.record().join("segments")).ok()?;
        // One that is being written has another name.
        let is_whole = |name: &OsStr| {
            name.to_str()
                .is_some_and(|name| name.parse::<u64>().is_ok())
        };
        let segments = segments
            .flatten()
            .filter(|file| is_whole(&file.file_name()));
        let mut contents = segments.flat_map(|file| fs::read(file.path()));
        contents.any(is_there).then_some(())
    });
    Question { asked, answer }
}

fn ended_under_a_query(end: fn(&mut Cluster)) {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    for phase in [Phase::Scan, Phase::Shuffle, Phase::Last] {
        let asked = recorded_question(phase, &cluster, &numbers);
        end(&mut cluster);
        cluster.restart_scheduler();
        asked.answered_again(&cluster);
    }
    // A job that is not recorded yet is run again by its client, as another one.
    let asked = question(Phase::Scan, &cluster, &numbers);
    end(&mut cluster);
    cluster.restart_scheduler();
    asked.answered_by_any();
    scene::is_well(&cluster, 2);
}

fn killed_under_training() {
    let mut cluster = scene::cluster(2);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(5);
    await_checkpoint(&cluster, "m");
    cluster.restart_scheduler();
    let (_, run) = fit.trained(&cluster);
    let firsts = run.stderr.matches("epoch 1: ").count();
    assert_eq!(firsts, 1, "it started over: {}", run.stderr);
    scene::is_well(&cluster, 2);
}

/// Kills the scheduler while executors come back, jobs are planned, and ranks meet and train.
fn killed_again_and_again() {
    let mut cluster = scene::cluster(2);
    let setup = setup("m", "ranks = 2").lasting(20.0, &cluster);
    let mut fit = setup.start(&cluster);
    fit.await_generation(1);
    for round in 0..8_u64 {
        std::thread::sleep(Duration::from_millis(150 + 450 * round));
        cluster.restart_scheduler();
    }
    fit.trained(&cluster);
    scene::is_well(&cluster, 2);
    scene::has_no_leftovers(&cluster, 2);
}

/// Kills the scheduler before, while and after it accepts a training, whose client may get no answer: it trains once.
fn killed_at_submission() {
    // Each scheduler makes tokens of its own, and a client that begins may have read the earlier one's.
    let mut cluster = scene::cluster(2);
    let mut names = Vec::new();
    // A restarted scheduler waits for executors that are recorded, which takes a second.
    std::thread::sleep(2 * SECOND);
    for millis in [0, 40, 80, 120, 180, 260, 400] {
        let name = format!("m{millis}");
        let fit = setup(&name, "ranks = 2").start(&cluster);
        std::thread::sleep(Duration::from_millis(millis));
        cluster.restart_scheduler();
        fit.trained(&cluster);
        names.push(name);
    }
    for name in names {
        let models = cluster.query(&format!(
            "SELECT * FROM volley.models WHERE model = '{name}'"
        ));
        assert_eq!(models.len(), 1, "{name} has one version: {models:?}");
    }
    scene::is_well(&cluster, 2);
}

fn killed_under_a_detached_job() {
    let mut cluster = scene::cluster(2);
    let samples = Samples::write(cluster.dir(), 1_000);
    let options = "ranks = 2, epochs = 60, batch_size = 16, hidden_units = [64, 64]";
    let sql = format!("{} {}", samples.table(), samples.create_model("m", options));
    let run = cluster.run(&["--detach", "-c", &sql]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let [job] = &cluster.jobs().expect("the scheduler answers")[..] else {
        panic!("one job was submitted")
    };
    // At once: that it was accepted is a promise.
    cluster.restart_scheduler();
    let known = eventually("the job to be known", SOON, || cluster.job(&job.id));
    assert!(matches!(
        known.state,
        JobState::Running | JobState::Succeeded
    ));
    let attached = cluster.manage_jobs(&["attach", &job.id]);
    assert_eq!(attached.code, Some(0), "{}", attached.stderr);
    let models = cluster.query("SHOW MODELS");
    assert_eq!(models.len(), 1, "{models:?}");
    scene::is_well(&cluster, 2);
}

fn killed_with_history() {
    let mut cluster = scene::cluster(1);
    cluster.query("SELECT 1 AS one");
    let said = cluster.fail("SELECT 1 / (SELECT 0) AS impossible");
    let before = cluster.jobs().expect("the scheduler answers");
    // What nobody waits for is written within a second.
    std::thread::sleep(Duration::from_secs(3));
    cluster.restart_scheduler();
    cluster.await_executors(1);
    let after = cluster.jobs().expect("the scheduler answers");
    assert_eq!(after.len(), before.len());
    for (job, was) in after.iter().zip(&before) {
        assert_eq!((&job.id, job.state), (&was.id, was.state));
        assert_eq!(job.error, was.error);
        assert_eq!(job.attempts, was.attempts);
    }
    let failed = after.iter().find(|job| job.state == JobState::Failed);
    let failed = failed.unwrap_or_else(|| panic!("{said}: {after:?}"));
    let logs = cluster.manage_jobs(&["logs", &failed.id]);
    assert!(logs.stdout.contains("failed"), "{}", logs.stdout);
    let done = after.iter().find(|job| job.state == JobState::Succeeded);
    let attached = cluster.manage_jobs(&["attach", &done.expect("one has").id]);
    assert!(
        attached.stderr.contains("the scheduler was restarted"),
        "{}",
        attached.stderr
    );
}

/// A query is run again by its client if the scheduler does not know it any more; what may have written is not.
fn back_without_a_record() {
    let mut cluster = scene::cluster(2);
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = question(Phase::Shuffle, &cluster, &numbers);
    let (answer, client) = (asked.answer.clone(), asked.asked.client);
    cluster.scheduler().kill();
    fs::remove_dir_all(cluster.record()).expect("the record is there");
    cluster.restart_scheduler();
    let run = client.wait(SOON);
    assert_eq!(run.rows(), answer, "{}", run.stderr);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(5);
    await_checkpoint(&cluster, "m");
    cluster.scheduler().kill();
    fs::remove_dir_all(cluster.record()).expect("the record is there");
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

/// While the record cannot be written, queries run, and what has to outlive its client is not accepted.
fn unwritable_record() {
    let cluster = scene::cluster(1);
    let segments = cluster.record().join("segments");
    let away = cluster.dir().join("away");
    fs::rename(&segments, &away).expect("the record is there");
    fs::write(&segments, "no folder").expect("the folder is ours");
    let rows = cluster.query("SELECT 1 AS one");
    assert_eq!(rows.len(), 1);
    let told = |line: &str| {
        eventually(line, SOON, || {
            let metrics = cluster.get("/metrics");
            metrics.lines().any(|found| found == line).then_some(())
        });
    };
    let samples = Samples::write(cluster.dir(), 100);
    let fit = |model| {
        let create = samples.create_model(model, "epochs = 2");
        cluster.run(&["--detach", "-c", &format!("{} {create}", samples.table())])
    };
    let run = fit("m");
    assert_ne!(run.code, Some(0));
    let said = &run.stderr;
    assert!(said.contains("cannot be recorded"), "{said}");
    assert!(said.contains("segments"), "{said}");
    told("volley_record_failing 1.0");
    fs::remove_file(&segments).expect("the folder is ours");
    fs::rename(&away, &segments).expect("it was there");
    let run = fit("n");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    told("volley_record_failing 0.0");
    scene::is_well(&cluster, 1);
}

/// Starts a cluster of two schedulers, which would make different tokens.
fn pair() -> Cluster {
    let mut setup = scene::setup(2);
    setup.scheduler_args.push("--insecure".to_owned());
    Cluster::start_with(volley_tests::Setup {
        pair: true,
        ..setup
    })
}

fn taken_over() {
    let mut cluster = pair();
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = recorded_question(Phase::Shuffle, &cluster, &numbers);
    cluster.schedulers()[0].kill();
    cluster.await_leader(1);
    asked.answered_again(&cluster);
    cluster.start_scheduler_again(0);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(5);
    cluster.schedulers()[1].terminate();
    cluster.await_leader(0);
    let (_, run) = fit.trained(&cluster);
    let firsts = run.stderr.matches("epoch 1: ").count();
    assert_eq!(firsts, 1, "it started over: {}", run.stderr);
    scene::is_well(&cluster, 2);
}

/// The scheduler that was taken for gone finds out, and ends.
fn frozen_leader() {
    let mut cluster = pair();
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = question(Phase::Scan, &cluster, &numbers);
    cluster.schedulers()[0].freeze();
    cluster.await_leader(1);
    cluster.schedulers()[0].thaw();
    let ended = eventually("the frozen scheduler to end", SOON, || {
        cluster.schedulers()[0].ended()
    });
    assert_eq!(ended.code(), Some(1));
    let said = cluster.schedulers()[0].output();
    assert!(said.contains("another scheduler has taken over"), "{said}");
    asked.answered_by_any();
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

/// Waits for a line of a process's log, tells the process to end, and checks that it ends by itself and says so.
fn ends_when_told(process: &mut Process, begun: &str, said: &str) {
    eventually(begun, SOON, || {
        process.output().contains(begun).then_some(())
    });
    process.terminate();
    let ended = eventually("its end", SOON, || process.ended());
    let output = process.output();
    assert!(ended.success(), "{ended}: {output}");
    assert!(output.contains(said), "{output}");
}

fn standby_told_to_end() {
    let mut cluster = pair();
    let standby = &mut cluster.schedulers()[1];
    ends_when_told(
        standby,
        "this one stands by",
        "stopped before it has served",
    );
    scene::is_well(&cluster, 2);
}

/// Tells executors to end that have not registered: nothing listens, or what listens does not answer.
fn waiting_executors_told_to_end() {
    let mut cluster = scene::cluster(0);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("it is bound").to_string();
    for scheduler in ["127.0.0.1:1", silent.as_str()] {
        let number = cluster.add_executor_with(ExecutorSetup {
            scheduler: Some(scheduler.to_owned()),
            args: vec!["--connect-timeout".to_owned(), "5m".to_owned()],
            ..ExecutorSetup::default()
        });
        let executor = &mut cluster.executors()[number];
        let said = "stopped before it has registered";
        ends_when_told(executor, "ranks compute on this device", said);
        let left = fs::read_dir(cluster.work_dir(number)).expect("its work folder");
        let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
        assert!(
            left.iter().all(|name| name == ".volley-owner-lock"),
            "{left:?}"
        );
    }
}
