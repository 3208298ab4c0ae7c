//! Vital signs of an executor for its metrics and probes: its state, connection and resources.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use volley_proto::traces::Traces;

use crate::ExecutorConfig;
use crate::ballista::Tasks;
use crate::counts::Counts;
use crate::memory::Machine;
use crate::rank::Parking;

/// State of an executor that its metrics and probes tell.
#[derive(Debug)]
pub(crate) struct Vitals {
    pub(super) config: ExecutorConfig,
    pub(crate) counts: Arc<Counts>,
    pub(super) parking: Parking,
    /// Token of the executor's planned departure.
    leaving: CancellationToken,
    /// Tasks of the current registration; `None` while the executor does not attend a scheduler.
    pub(super) tasks: Mutex<Option<Tasks>>,
    /// Memory of the machine, where the system reports it.
    pub(super) machine: Option<Machine>,
    /// Handle by which spans are sent, if jobs are traced.
    pub(crate) traces: Option<Traces>,
}

impl Vitals {
    /// Creates the state of an executor that is not registered yet.
    pub(crate) fn new(
        config: ExecutorConfig,
        counts: Arc<Counts>,
        parking: Parking,
        leaving: CancellationToken,
    ) -> Self {
        Self {
            config,
            counts,
            parking,
            leaving,
            tasks: Mutex::default(),
            machine: Machine::find(),
            traces: None,
        }
    }

    /// Returns the same state of an executor that traces jobs, if it does.
    pub(crate) fn traced(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Notes that the executor has registered, with its tasks from now on.
    pub(crate) fn attends(&self, tasks: Tasks) {
        self.counts.registrations.add(1);
        *self.tasks.lock() = Some(tasks);
    }

    /// Notes that the executor and its scheduler have lost each other.
    pub(crate) fn loses_scheduler(&self) {
        *self.tasks.lock() = None;
    }

    /// Returns why the executor takes no work; `None` if it does.
    pub(super) fn unready(&self) -> Option<&'static str> {
        if self.leaving.is_cancelled() {
            return Some("the executor leaves");
        }
        let attends = self.tasks.lock().is_some();
        (!attends).then_some("the executor does not attend its scheduler")
    }
}
