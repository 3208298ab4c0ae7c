//! Clusters of real processes, each used for many questions, and replaced when it is unhealthy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use volley_tests::{Cluster, Setup};

/// Configuration of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Number of executors, of one slot each.
    pub(crate) executors: usize,
    /// True if queries have so little memory that sorts spill.
    pub(crate) little_memory: bool,
}

/// Memory of an executor in clusters with little memory.
const LITTLE: &str = "3MiB";
/// Time limit for cancelled tasks to end.
const TO_REST: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(50);

/// Clusters started so far.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    running: Mutex<HashMap<Kind, Arc<Cluster>>>,
}

impl Clusters {
    /// Returns the cluster of a kind; starts it if there is none.
    pub(crate) fn of(&self, kind: Kind) -> Arc<Cluster> {
        let mut running = self.running.lock().expect("nobody panics with it");
        let cluster = running.entry(kind).or_insert_with(|| {
            let mut setup = Setup {
                executors: kind.executors,
                ..Setup::default()
            };
            if kind.little_memory {
                setup.executor_args = vec!["--memory".to_owned(), LITTLE.to_owned()];
            }
            Arc::new(Cluster::start_with(setup))
        });
        Arc::clone(cluster)
    }

    /// Waits until all executors and slots of a cluster are free, and returns true. If that does not happen in time,
    /// drops the cluster, so that `of` starts a new one, and returns false.
    ///
    /// Other threads may use the cluster meanwhile: then their tasks must end as well.
    pub(crate) fn look_after(&self, kind: Kind, cluster: &Arc<Cluster>) -> bool {
        let started = Instant::now();
        while started.elapsed() < TO_REST {
            let slots = cluster.slots();
            if slots.is_some_and(|slots| {
                slots.executors == kind.executors as u64 && slots.free == slots.all
            }) {
                return true;
            }
            std::thread::sleep(TICK);
        }
        let mut running = self.running.lock().expect("nobody panics with it");
        if running
            .get(&kind)
            .is_some_and(|known| Arc::ptr_eq(known, cluster))
        {
            running.remove(&kind);
        }
        false
    }
}
