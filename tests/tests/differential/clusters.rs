//! Clusters of real processes, each used for many questions, and replaced when it is not well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use volley_tests::{Cluster, Setup};

/// What a cluster is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Executors of one slot each.
    pub(crate) executors: usize,
    /// Whether queries have so little memory that sorts spill.
    pub(crate) little_memory: bool,
}

/// The memory of an executor that has little.
const LITTLE: &str = "3MiB";
/// A task that was cancelled has ended by then.
const TO_REST: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(50);

/// The clusters that were needed so far.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    running: Mutex<HashMap<Kind, Arc<Cluster>>>,
}

impl Clusters {
    /// The cluster of a kind, started if there is none.
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

    /// Replaces a cluster that does not come to rest, or has lost executors; whether it was well.
    ///
    /// Others may ask it something meanwhile: then it is their tasks that come to rest.
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
