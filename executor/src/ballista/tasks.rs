//! The executor's tasks: running tasks, tasks that are to stop, and the detection of their ends.
//!
//! A task has ended when nothing holds it any more: no future that waits for it, no operator of its plan and no
//! stream. Ballista counts a task as cancelled as soon as no future waits for it; work that its plan has spawned may
//! continue, and holds the task's slot meanwhile.
//!
//! ```text
//!   begin ──► Running ──► dropped by all ──► "it has ended", unless it has succeeded
//!                │ told to stop: its token is cancelled, which operators look at
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::error::DataFusionError;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use volley_engine::runtime::TaskIdentity;

use crate::attendance::TaskKey;

use ballista_core::error::BallistaError;

/// Number of remembered tasks that were told to stop before they began.
const REMEMBERED: usize = 4096;

/// Tasks of the executor; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    known: Mutex<Known>,
    ended: UnboundedSender<TaskKey>,
    /// Token that ends every task.
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Known {
    running: HashMap<TaskKey, CancellationToken>,
    /// Tasks told to stop before they arrived, the oldest first.
    stopped: VecDeque<TaskKey>,
}

impl Tasks {
    /// Returns an empty set, and the receiver of tasks that end without success.
    pub(crate) fn new(stop: CancellationToken) -> (Self, UnboundedReceiver<TaskKey>) {
        let (ended, receiver) = unbounded_channel();
        let shared = Arc::new(Shared {
            known: Mutex::default(),
            ended,
            stop,
        });
        (Self { shared }, receiver)
    }

    /// Begins a task. It has ended when the last clone of the returned value is dropped.
    pub(super) fn begin(&self, task: &TaskIdentity) -> Running {
        let key = TaskKey {
            attempt: task.job_id.clone(),
            stage: task.stage_id as u64,
            number: task.task_id as u64,
        };
        let cancel = self.shared.stop.child_token();
        let mut known = self.shared.known.lock();
        if known.stopped.contains(&key) {
            cancel.cancel();
        }
        known.running.insert(key.clone(), cancel.clone());
        drop(known);
        Running {
            held: Arc::new(Held {
                key,
                cancel,
                succeeded: AtomicBool::new(false),
                tasks: self.clone(),
            }),
        }
    }

    /// Stops tasks. Reports those that are not running as ended.
    pub(crate) fn stop(&self, tasks: Vec<TaskKey>) {
        let mut known = self.shared.known.lock();
        for task in tasks {
            if let Some(cancel) = known.running.get(&task) {
                cancel.cancel();
                continue;
            }
            if !known.stopped.contains(&task) {
                // The task may be on its way to this executor.
                known.stopped.push_back(task.clone());
            }
            if known.stopped.len() > REMEMBERED {
                known.stopped.pop_front();
            }
            self.say_ended(task);
        }
    }

    fn say_ended(&self, task: TaskKey) {
        if self.shared.ended.send(task).is_err() {
            tracing::debug!("the executor stops: nobody is told that a task has ended");
        }
    }
}

/// Running task; it runs for as long as a clone of this value exists.
#[derive(Debug, Clone)]
pub(super) struct Running {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    key: TaskKey,
    cancel: CancellationToken,
    succeeded: AtomicBool,
    tasks: Tasks,
}

impl Running {
    /// Returns the token that is cancelled when the task is to stop.
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.held.cancel
    }

    /// Marks the task as succeeded.
    pub(super) fn succeeds(&self) {
        self.held.succeeded.store(true, Ordering::Relaxed);
    }

    /// Checks that the task may continue.
    ///
    /// # Errors
    /// When the task is to stop.
    pub(super) fn check(&self) -> datafusion::error::Result<()> {
        match self.held.cancel.is_cancelled() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tasks.shared.known.lock().running.remove(&self.key);
        if !self.succeeded.load(Ordering::Relaxed) {
            self.tasks.say_ended(self.key.clone());
        }
    }
}

/// Returns the error of a task that is to stop.
pub(super) fn cancelled() -> DataFusionError {
    DataFusionError::External(Box::new(BallistaError::Cancelled))
}

/// Returns a running task, for tests.
#[cfg(test)]
pub(super) fn running() -> Running {
    let (tasks, _ended) = Tasks::new(CancellationToken::new());
    tasks.begin(&TaskIdentity {
        job_id: "j".into(),
        stage_id: 1,
        task_id: 0,
        partitions: vec![0],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(task_id: usize) -> TaskIdentity {
        TaskIdentity {
            job_id: "j".into(),
            stage_id: 1,
            task_id,
            partitions: Vec::new(),
        }
    }

    fn key(number: u64) -> TaskKey {
        TaskKey {
            attempt: "j".into(),
            stage: 1,
            number,
        }
    }

    #[test]
    fn a_task_has_ended_when_nothing_holds_it() {
        let (tasks, mut ended) = Tasks::new(CancellationToken::new());
        let waits = tasks.begin(&identity(0));
        let computes = waits.clone();
        tasks.stop(vec![key(0)]);
        assert!(computes.check().is_err() && waits.cancel().is_cancelled());
        drop(waits);
        assert!(ended.try_recv().is_err(), "it computes");
        drop(computes);
        assert_eq!(ended.try_recv().ok(), Some(key(0)));
    }

    #[test]
    fn what_succeeds_is_not_told() {
        let (tasks, mut ended) = Tasks::new(CancellationToken::new());
        let running = tasks.begin(&identity(0));
        running.succeeds();
        drop(running);
        assert!(ended.try_recv().is_err());
    }

    #[test]
    fn a_task_that_comes_after_it_was_to_stop_does_not_begin() {
        let stop = CancellationToken::new();
        let (tasks, mut ended) = Tasks::new(stop.clone());
        tasks.stop(vec![key(7)]);
        tasks.stop(vec![key(7)]);
        assert_eq!(ended.try_recv().ok(), Some(key(7)));
        assert_eq!(ended.try_recv().ok(), Some(key(7)), "it is told again");
        assert!(tasks.begin(&identity(7)).check().is_err());
        let other = tasks.begin(&identity(8));
        assert!(other.check().is_ok());
        stop.cancel();
        assert!(other.check().is_err());
    }
}
