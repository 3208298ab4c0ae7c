//! Clusters over several hosts, each a network namespace with a cable: work over them, and the consequences of a
//! pulled cable, a deaf or mute host, two hosts that have lost each other, and a changed address.
//!
//! ```text
//!   a: scheduler     b, c: executors     d: clients        the switch between them is never lost
//! ```
//!
//! All clusters but the main job's are started as the documentation says for a trusted network (`--insecure`).

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use volley_tests::{
    Cluster, Dialled, ExecutorSetup, Hosts, JobState, Numbers, Setup, Spread, eventually,
    executor_id, generate_example,
};

use crate::asking::{Phase, question};
use crate::fault::{Fault, missed};
use crate::fitting::{Fit, setup};
use crate::main_job;
use crate::queries;
use crate::scene::{self, Patience, SOON};
use crate::stores::{checkpoints, large};

pub(crate) const FAULTS: &[Fault] = &[
    ("features, training and predictions without a fault", works),
    ("the same over IPv6", works_over_ipv6),
    ("a cable is pulled for five seconds under a query", || {
        cut_under_a_query(Cable::Soon);
    }),
    ("a cable is pulled for long under a query", || {
        cut_under_a_query(Cable::Late);
    }),
    ("the scheduler's cable is pulled for five seconds", || {
        scheduler_is_cut(Cable::Soon);
    }),
    ("the scheduler's cable is pulled for long", || {
        scheduler_is_cut(Cable::Late);
    }),
    (
        "a cable is pulled for five seconds while ranks load",
        || {
            cut_while_ranks_load(Cable::Soon);
        },
    ),
    ("a cable is pulled for long while ranks load", || {
        cut_while_ranks_load(Cable::Late);
    }),
    ("a cable is pulled for five seconds in a step", || {
        cut_in_a_step(Cable::Soon);
    }),
    ("a cable is pulled for long in a step", || {
        cut_in_a_step(Cable::Late);
    }),
    (
        "a cable is pulled while a checkpoint is written",
        cut_in_a_checkpoint,
    ),
    (
        "ranks meet again with a host that was cut off",
        meets_again_at_once,
    ),
    ("a host is not heard any more", || {
        half_open(Hosts::mute);
    }),
    ("a host hears nothing any more", || {
        half_open(Hosts::deafen);
    }),
    (
        "two executors lose each other under a query",
        parted_under_a_query,
    ),
    ("two ranks lose each other in a step", parted_in_a_step),
    ("two ranks never reach each other", parted_from_the_start),
    ("an executor hands its rows to another host", || {
        let on_c = || ExecutorSetup {
            host: Some("c"),
            ..ExecutorSetup::default()
        };
        queries::is_handed_over(false, on_c, || scene::spread(Patience::Short, (1, 0)));
    }),
    (
        "a host comes back with another address",
        comes_back_elsewhere,
    ),
    (
        "the scheduler is killed, and one on another host takes over",
        taken_over,
    ),
    ("the doctor of a cluster with a pulled cable", examined),
    (
        "the main job in a bucket, and executors are killed",
        main_job::in_a_bucket,
    ),
];

const FACTS: u64 = 6_000;
/// Time of a pulled cable that is plugged in again before anybody counts as lost.
const A_MOMENT: Duration = Duration::from_secs(5);
/// Time of a pulled cable after which unacknowledged data is sent again only once a minute.
const LONG: Duration = Duration::from_secs(40);
/// Time within which a host that is back must be useful again, on a busy system.
const BACK: Duration = Duration::from_secs(20);

/// Time at which a pulled cable is plugged in again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cable {
    /// Before anybody counts as lost.
    Soon,
    /// After its executors count as lost.
    Late,
}

impl Cable {
    fn patience(self) -> Patience {
        match self {
            Self::Soon => Patience::Default,
            Self::Late => Patience::Short,
        }
    }

    /// Pulls the cable of a host of executors, and plugs it in again.
    fn pull(self, cluster: &Cluster, host: &str, executors: &[usize]) {
        cluster.hosts().cut(host);
        match self {
            Self::Soon => std::thread::sleep(A_MOMENT),
            Self::Late => {
                for executor in executors {
                    scene::await_lost(cluster, *executor);
                }
                // Earlier connections are useless for as long again, unless they are given up.
                std::thread::sleep(2 * scene::SILENCE);
            }
        }
        cluster.hosts().plug(host);
    }
}

/// Runs files of the Rossmann example. Returns the rows that they print.
fn run_example(cluster: &Cluster, files: &[&str]) -> Vec<Value> {
    let [data, out] = ["data", "out"].map(|folder| cluster.dir().join(folder));
    let defines = [
        ("data", data.to_str().unwrap()),
        ("out", out.to_str().unwrap()),
        ("epochs", "1"),
        ("ranks", "2"),
        ("batch_size", "64"),
        ("seed", "7"),
    ];
    let mut command = cluster.example(files, &defines);
    cluster.spawn(&mut command).wait(SOON).rows()
}

/// Runs the example from its seven tables to predictions: joins and windows over exchanges, and a gang of two ranks,
/// one on each host.
fn works() {
    let cluster = scene::spread(Patience::Default, (0, 0));
    let cluster = add_two(cluster);
    let (data, out) = (cluster.dir().join("data"), cluster.dir().join("out"));
    fs::create_dir(&out).unwrap();
    generate_example(4, &data);
    let checks = run_example(&cluster, &["tables.sql", "features.sql", "checks.sql"]);
    assert!(!checks.is_empty());
    let ranks = run_example(&cluster, &["tables.sql", "features.sql", "train.sql"]);
    assert_eq!(ranks.len(), 2, "one row a rank: {ranks:?}");
    assert_ne!(ranks[0]["executor"], ranks[1]["executor"]);
    run_example(&cluster, &["tables.sql", "features.sql", "predict.sql"]);
    let predicted = fs::read_to_string(out.join("submission.csv")).unwrap();
    let tests = fs::read_to_string(data.join("test.csv")).unwrap();
    assert_eq!(
        predicted.lines().count(),
        tests.lines().count(),
        "a line a row"
    );

    let run = cluster.examine();
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    scene::is_well(&cluster, 2);
}

fn add_two(mut cluster: Cluster) -> Cluster {
    cluster.add_executor();
    cluster.add_executor();
    cluster.await_executors(2);
    cluster
}

fn works_over_ipv6() {
    let hosts = Hosts::start(&Spread::NAMES).expect("there were some before");
    if !hosts.have_ipv6() {
        return;
    }
    let cluster = Cluster::start_with(Setup {
        executors: 2,
        spread: Some(Spread {
            hosts: Arc::new(hosts),
            dialled: Dialled::Ipv6,
        }),
        always_in_stages: true,
        ..Setup::default()
    });
    let numbers = Numbers::write(cluster.dir(), FACTS);
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    let fit = setup("m", "ranks = 2").epochs(3).start(&cluster);
    fit.trained(&cluster);
    let run = cluster.examine();
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    scene::is_well(&cluster, 2);
}

fn cut_under_a_query(cable: Cable) {
    let cluster = scene::spread(cable.patience(), (1, 0));
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cable.pull(&cluster, "c", &[1]);
    question.answered(&cluster);
    scene::await_registered(&cluster, 1);
    scene::is_well(&cluster, 2);
}

/// Cuts the scheduler: executors continue or start over, and the client gets its rows or an error that it has lost
/// the scheduler.
fn scheduler_is_cut(cable: Cable) {
    let mut cluster = scene::spread(cable.patience(), (1, 0));
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = question(Phase::Scan, &cluster, &numbers);
    let (id, answer) = (asked.asked.id.clone(), asked.answer.clone());
    cluster.hosts().cut("a");
    match cable {
        Cable::Soon => std::thread::sleep(A_MOMENT),
        Cable::Late => {
            for executor in 0..2 {
                eventually("executors to start over", SOON, || {
                    let said = cluster.executors()[executor].output();
                    said.contains("starting over").then_some(())
                });
            }
        }
    }
    cluster.hosts().plug("a");
    let run = asked.asked.client.wait(SOON);
    if run.code == Some(0) {
        assert_eq!(run.rows(), answer);
    } else {
        let said = run.error().to_lowercase();
        // The scheduler also treats a silent client as gone, and cancels its query.
        let lost = said.contains("lost the scheduler") && said.contains(&id.to_lowercase());
        assert!(lost || said.contains("cancelled"), "{said}");
    }
    for executor in 0..2 {
        scene::await_registered(&cluster, executor);
    }
    scene::is_well(&cluster, 2);
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
}

/// Options of training that waits for two ranks, however long one of them is gone.
const WAITING: &str = "ranks = 2, min_ranks = 2, on_too_few_ranks = 'wait', regroup_timeout = '2s'";

/// Starts executors that hold data and others that train, one of each on both hosts, and training whose two ranks load.
fn loading(patience: Patience) -> (Cluster, Fit) {
    let cluster = scene::spread(patience, (1, 1));
    let rows = 20_000 * crate::fault::effort() as usize;
    let mut fit = setup("m", WAITING).rows(rows).epochs(2).start(&cluster);
    fit.await_generation(1);
    (cluster, fit)
}

fn cut_while_ranks_load(cable: Cable) {
    let (cluster, fit) = loading(cable.patience());
    cable.pull(&cluster, "c", &[1, 3]);
    fit.trained(&cluster);
    scene::is_well(&cluster, 4);
}

fn cut_in_a_step(cable: Cable) {
    let cluster = scene::spread(cable.patience(), (1, 1));
    let mut fit = setup("m", WAITING).start(&cluster);
    fit.await_epoch(3);
    cable.pull(&cluster, "c", &[1, 3]);
    fit.trained(&cluster);
    scene::is_well(&cluster, 4);
}

/// Cuts off a rank that writes a checkpoint. All hosts see the store, so the rank continues to write for a while.
fn cut_in_a_checkpoint() {
    let cluster = scene::spread(Patience::Short, (1, 1));
    let mut fit = large("m", &format!("{WAITING}, checkpoint_every = 1")).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(2);
    eventually("a checkpoint to be written", SOON, || {
        let [states, infos] = ["state", "json"].map(|kind| checkpoints(&cluster, "m", kind));
        let newest = |files: &[std::path::PathBuf]| Some(files.last()?.file_stem()?.to_owned());
        (newest(&states) > newest(&infos)).then_some(())
    });
    let host = Spread::host(executors[0]);
    let on_it: Vec<_> = (0..4)
        .filter(|number| Spread::host(*number) == host)
        .collect();
    Cable::Late.pull(&cluster, host, &on_it);
    fit.trained(&cluster);
    scene::is_well(&cluster, 4);
}

/// Checks that ranks meet again at once. Data on earlier connections is sent again ever more rarely the longer the
/// cut lasts, so waiting for it would take as long again after the host is back.
fn meets_again_at_once() {
    let cluster = scene::spread(Patience::Short, (1, 1));
    let mut fit = setup("m", WAITING).lasting(4.0, &cluster).start(&cluster);
    fit.await_epoch(3);
    cluster.hosts().cut("c");
    for executor in [1, 3] {
        scene::await_lost(&cluster, executor);
    }
    std::thread::sleep(LONG);
    let done = |said: &str| {
        let epochs = (1..).take_while(|epoch| said.contains(&format!("epoch {epoch}: ")));
        epochs.count()
    };
    let before = done(&fit.client.said());
    cluster.hosts().plug("c");
    eventually("the ranks to have done an epoch together", BACK, || {
        (done(&fit.client.said()) > before).then_some(())
    });
    fit.trained(&cluster);
    scene::is_well(&cluster, 4);
}

fn half_open(fault: fn(&Hosts, &str)) {
    let cluster = scene::spread(Patience::Short, (1, 0));
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    fault(cluster.hosts(), "c");
    question.answered(&cluster);
    scene::await_lost(&cluster, 1);
    cluster.hosts().heal("c");
    scene::await_registered(&cluster, 1);
    scene::is_well(&cluster, 2);
}

/// Parts two executors that the scheduler reaches: a fetch finds out, and the query is run again until they have
/// found each other, or it has been run often enough.
fn parted_under_a_query() {
    let cluster = scene::spread(Patience::Short, (1, 0));
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let asked = question(Phase::Shuffle, &cluster, &numbers);
    cluster.hosts().part("b", "c");
    let ended = eventually("the query to be run again, or to end", SOON, || {
        let job = cluster.job(&asked.asked.id)?;
        (job.attempts.len() > 1 || job.state != JobState::Running).then_some(job)
    });
    cluster.hosts().join("b", "c");
    if ended.attempts.len() == 1 && ended.state == JobState::Succeeded {
        missed("the query was answered before the hosts lost each other");
    }
    asked.answered(&cluster);
    scene::is_well(&cluster, 2);
}

/// Parts two ranks that all others reach: only their connection is lost, and they meet again.
fn parted_in_a_step() {
    let cluster = scene::spread(Patience::Short, (1, 1));
    let setup = setup(
        "m",
        "ranks = 2, min_ranks = 2, on_too_few_ranks = 'wait', regroup_timeout = '2s'",
    );
    let mut fit = setup.start(&cluster);
    fit.await_epoch(3);
    cluster.hosts().part("b", "c");
    fit.await_generation(2);
    cluster.hosts().join("b", "c");
    fit.trained(&cluster);
    scene::is_well(&cluster, 4);
}

/// Parts two ranks that reach the rows that they load. They meet a few times, and the error names the rank that was
/// not reached; a rank that only waits for a busy peer would do so for an hour.
fn parted_from_the_start() {
    let mut cluster = scene::spread(Patience::Short, (0, 1));
    cluster.add_executor_with(ExecutorSetup {
        args: vec!["--role".to_owned(), "query".to_owned()],
        host: Some("d"),
        ..ExecutorSetup::default()
    });
    cluster.await_executors(3);
    cluster.hosts().part("b", "c");
    let fit = setup("m", "ranks = 2, collective_timeout = '3s'").start(&cluster);
    let said = fit.fails();
    assert!(said.contains("no connection with ranks [0]"), "{said}");
    cluster.hosts().join("b", "c");
    let fit = setup("n", "ranks = 2").epochs(2).start(&cluster);
    fit.trained(&cluster);
    scene::is_well(&cluster, 3);
}

/// Gives a lost host another address, as after a new lease: its name leads there when it is back.
fn comes_back_elsewhere() {
    let cluster = scene::spread(Patience::Short, (1, 1));
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let question = question(Phase::Shuffle, &cluster, &numbers);
    cluster.hosts().cut("c");
    for executor in [1, 3] {
        scene::await_lost(&cluster, executor);
    }
    cluster.hosts().readdress("c");
    cluster.hosts().plug("c");
    question.answered(&cluster);
    for executor in [1, 3] {
        scene::await_registered(&cluster, executor);
    }
    scene::is_well(&cluster, 4);
    let fit = setup("m", "ranks = 2").epochs(3).start(&cluster);
    fit.trained(&cluster);
}

/// Checks that `volley doctor` names executors that cannot be reached.
fn examined() {
    let cluster = scene::spread(Patience::Default, (1, 0));
    let [b, c] = [0, 1].map(executor_id);
    cluster.hosts().part("b", "c");
    let run = cluster.examine();
    let said = run.stdout;
    assert_eq!(run.code, Some(1), "{said}\n{}", run.stderr);
    for (from, to, host) in [(&b, &c, "c"), (&c, &b, "b")] {
        let line = said
            .lines()
            .find(|line| line.starts_with("FAILED") && line.contains(&format!("{from} to {to}")));
        let line = line.unwrap_or_else(|| panic!("{from} to {to}:\n{said}"));
        assert!(line.contains(host) && line.contains("--ports"), "{line}");
    }
    cluster.hosts().join("b", "c");
    let run = cluster.examine();
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    scene::is_well(&cluster, 2);
}

/// Time within which a scheduler on another host leads.
const TAKEOVER: Duration = Duration::from_secs(10);

/// A host cannot see that a process of another one has ended: it waits for the lease.
fn taken_over() {
    let hosts = Hosts::start(&Spread::NAMES).expect("there were some before");
    let spread = Spread {
        hosts: Arc::new(hosts),
        dialled: Dialled::Name,
    };
    let mut cluster = Cluster::start_with(Setup {
        spread: Some(spread),
        pair: true,
        ..scene::setup(2)
    });
    let numbers = Numbers::write(cluster.dir(), FACTS);
    let mut fit = setup("m", "ranks = 2").start(&cluster);
    fit.await_epoch(2);
    // The job is recorded, as one that outlives its client.
    for (from, to) in [(0, 1), (1, 0)] {
        let killed = Instant::now();
        cluster.schedulers()[from].kill();
        cluster.await_leader(to);
        let took = killed.elapsed();
        assert!(took < TAKEOVER, "it took {took:?}");
        cluster.await_executors(2);
        cluster.start_scheduler_again(from);
    }
    let (_, run) = fit.trained(&cluster);
    let firsts = run.stderr.matches("epoch 1: ").count();
    assert_eq!(firsts, 1, "it started over: {}", run.stderr);
    question(Phase::Shuffle, &cluster, &numbers).answered(&cluster);
    scene::is_well(&cluster, 2);
}
