//! Clusters that notice losses soon, losses of their executors, and checks of their final state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_tests::{
    Cluster, Dialled, ExecutorSetup, Hosts, Setup, Slots, Spread, eventually, executor_id,
};

/// Executor heartbeat timeout.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);
/// Client keepalive timeout.
pub(crate) const CLIENT_SILENCE: Duration = Duration::from_secs(6);
/// Time within which all consequences of a fault must have happened.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// Starts a cluster of executors of one slot each.
pub(crate) fn cluster(executors: usize) -> Cluster {
    Cluster::start_with(setup(executors))
}

/// Returns the setup of such a cluster.
pub(crate) fn setup(executors: usize) -> Setup {
    let args = |args: &[(&str, Duration)]| {
        let arg = |(name, time): &(&str, Duration)| [format!("--{name}"), format!("{time:?}")];
        args.iter().flat_map(arg).collect()
    };
    Setup {
        executors,
        scheduler_args: args(&[
            ("executor-timeout", SILENCE),
            ("client-timeout", CLIENT_SILENCE),
        ]),
        executor_args: args(&[
            ("heartbeat", Duration::from_secs(1)),
            ("scheduler-timeout", SILENCE),
            ("reconnect-timeout", SOON),
        ]),
        always_in_stages: true,
        ..Setup::default()
    }
}

/// Timeouts of a cluster over hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Timeouts of clusters on loopback.
    Short,
    /// The documented defaults.
    Default,
}

/// Starts a cluster over hosts, with the scheduler on `a` and executors on `b` and `c`: on each host, first `queries`
/// executors that hold data, and then `trainers` that train.
pub(crate) fn spread(patience: Patience, (queries, trainers): (usize, usize)) -> Cluster {
    let hosts = Hosts::start(&Spread::NAMES).expect("there were some before");
    let spread = Spread {
        hosts: Arc::new(hosts),
        dialled: Dialled::Name,
    };
    let cluster = Cluster::start_with(Setup {
        spread: Some(spread),
        ..match patience {
            Patience::Short => setup(0),
            Patience::Default => Setup {
                always_in_stages: true,
                ..Setup::default()
            },
        }
    });
    populate(cluster, 2 * queries, 2 * trainers)
}

/// Starts a cluster in which some executors hold the data and others train, numbered in this order.
pub(crate) fn pools(queries: usize, trainers: usize) -> Cluster {
    populate(cluster(0), queries, trainers)
}

/// Adds such executors to a cluster that has none yet.
pub(crate) fn populate(mut cluster: Cluster, queries: usize, trainers: usize) -> Cluster {
    for _ in 0..queries {
        add(&mut cluster, "query");
    }
    for _ in 0..trainers {
        add(&mut cluster, "train");
    }
    cluster.await_executors(queries + trainers);
    cluster
}

/// Adds an executor with a role. Returns its number.
pub(crate) fn add(cluster: &mut Cluster, role: &str) -> usize {
    cluster.add_executor_with(ExecutorSetup {
        args: vec!["--role".to_owned(), role.to_owned()],
        ..ExecutorSetup::default()
    })
}

/// Loss of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The process is killed.
    Kill,
    /// The process stops for longer than the scheduler waits.
    Freeze,
    /// The process is asked to end.
    Terminate,
}

impl Loss {
    /// Causes the loss, and waits until the scheduler knows.
    pub(crate) fn strike(self, cluster: &mut Cluster, executor: usize) {
        let process = &mut cluster.executors()[executor];
        match self {
            Self::Kill => process.kill(),
            Self::Freeze => process.freeze(),
            Self::Terminate => process.terminate(),
        }
        await_lost(cluster, executor);
    }

    /// Makes up for the loss: a frozen executor continues and registers again, an ended one is replaced.
    pub(crate) fn make_up(self, cluster: &mut Cluster, executor: usize) {
        match self {
            Self::Kill | Self::Terminate => {
                cluster.add_executor();
            }
            Self::Freeze => {
                cluster.executors()[executor].thaw();
                await_registered(cluster, executor);
            }
        }
    }
}

/// Waits until the scheduler treats an executor as lost.
pub(crate) fn await_lost(cluster: &Cluster, executor: usize) {
    let id = executor_id(executor);
    eventually(&format!("{id} to be lost"), SOON, || {
        (!cluster.registered()?.contains(&id)).then_some(())
    });
}

/// Waits until an executor is registered.
pub(crate) fn await_registered(cluster: &Cluster, executor: usize) {
    let id = executor_id(executor);
    eventually(&format!("{id} to register"), SOON, || {
        cluster.registered()?.contains(&id).then_some(())
    });
}

/// Checks that executors which have started over keep the files of one registration only.
pub(crate) fn has_no_leftovers(cluster: &Cluster, executors: usize) {
    for executor in 0..executors {
        let work_dir = cluster.work_dir(executor);
        eventually("earlier registrations' files to be removed", SOON, || {
            let entries = std::fs::read_dir(&work_dir).ok()?.flatten();
            let names = entries.map(|entry| entry.file_name());
            let shuffles = names.filter(|name| name.to_string_lossy().starts_with("shuffle-"));
            (shuffles.count() == 1).then_some(())
        });
    }
}

/// Checks that a cluster has recovered: it has this many executors, all of their slots are free, and it answers a
/// question.
pub(crate) fn is_well(cluster: &Cluster, executors: usize) {
    let started = Instant::now();
    loop {
        let slots = cluster.slots();
        let well = |slots: Slots| {
            slots.executors == executors as u64 && slots.free == slots.all && slots.all > 0
        };
        if slots.is_some_and(well) {
            break;
        }
        assert!(
            started.elapsed() < SOON,
            "waited {SOON:?} for {executors} executors with all slots free: {slots:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(cluster.query("SELECT 1 AS one")[0]["one"], 1);
}
