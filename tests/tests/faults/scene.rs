//! Clusters that notice losses soon, what can happen to their executors, and what all must be like
//! in the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_tests::{
    Cluster, Dialled, ExecutorSetup, Hosts, Setup, Slots, Spread, eventually, executor_id,
};

/// A silent executor is lost after this long.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);
/// A silent client is gone after this long.
pub(crate) const CLIENT_SILENCE: Duration = Duration::from_secs(6);
/// Whatever a fault leads to has happened by then.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// A cluster of executors of one slot each.
pub(crate) fn cluster(executors: usize) -> Cluster {
    Cluster::start_with(setup(executors))
}

/// How such a cluster starts.
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

/// How long a cluster over hosts waits before it takes somebody for lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As the clusters on loopback.
    Short,
    /// As documented: the timeouts are nobody's but the defaults.
    Default,
}

/// A cluster over hosts, the scheduler on `a` and executors on `b` and `c`: so many on each that hold data, and then
/// so many on each that train.
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

/// A cluster in which some executors hold the data and others train, numbered in this order.
pub(crate) fn pools(queries: usize, trainers: usize) -> Cluster {
    populate(cluster(0), queries, trainers)
}

/// The same of a cluster that has none yet.
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

/// Adds an executor that is there for something, and returns its number.
pub(crate) fn add(cluster: &mut Cluster, role: &str) -> usize {
    cluster.add_executor_with(ExecutorSetup {
        args: vec!["--role".to_owned(), role.to_owned()],
        ..ExecutorSetup::default()
    })
}

/// What happens to an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its process is killed.
    Kill,
    /// It stops where it is, for longer than the scheduler waits.
    Freeze,
    /// It is asked to end.
    Terminate,
}

impl Loss {
    /// Lets it happen, and waits until the scheduler knows.
    pub(crate) fn strike(self, cluster: &mut Cluster, executor: usize) {
        let process = &mut cluster.executors()[executor];
        match self {
            Self::Kill => process.kill(),
            Self::Freeze => process.freeze(),
            Self::Terminate => process.terminate(),
        }
        await_lost(cluster, executor);
    }

    /// Makes up for it: what was frozen goes on and registers again, what has ended is replaced.
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

/// Waits until the scheduler takes an executor for lost.
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

/// Checks that a cluster is as good as new: so many executors, all of their slots free, and a
/// question answered.
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
