//! The executor's tasks: which of them compute, which are to stop, and when one has ended.
//!
//! A task has ended when nothing holds it any more: not whoever waits for it, no operator of its plan
//! and no stream. Ballista says that a task is cancelled as soon as nobody waits for it; what its
//! plan has spawned may compute on, and holds the task's slot meanwhile.
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

/// Tasks that were told to stop before they began are remembered, this many.
const REMEMBERED: usize = 4096;

/// The tasks; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    known: Mutex<Known>,
    ended: UnboundedSender<TaskKey>,
    /// Ends every task.
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Known {
    running: HashMap<TaskKey, CancellationToken>,
    /// Told to stop before they had come; the oldest first.
    stopped: VecDeque<TaskKey>,
}

impl Tasks {
    /// No tasks yet, and those that have ended without success, as they do.
    pub(crate) fn new(stop: CancellationToken) -> (Self, UnboundedReceiver<TaskKey>) {
        let (ended, receiver) = unbounded_channel();
        let shared = Arc::new(Shared {
            known: Mutex::default(),
            ended,
            stop,
        });
        (Self { shared }, receiver)
    }

    /// A task begins. It has ended when the last clone of what is returned is dropped.
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

    /// Tasks are to stop. Those that do not run are said to have ended.
    pub(crate) fn stop(&self, tasks: Vec<TaskKey>) {
        let mut known = self.shared.known.lock();
        for task in tasks {
            if let Some(cancel) = known.running.get(&task) {
                cancel.cancel();
                continue;
            }
            if !known.stopped.contains(&task) {
                // It may be on its way here.
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

/// A task that runs, for as long as some clone of this is there.
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
    /// Cancelled when it is to stop.
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.held.cancel
    }

    /// It has succeeded, which whoever runs it says.
    pub(super) fn succeeds(&self) {
        self.held.succeeded.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// When it is to stop.
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

/// The error that a task ends with that is to stop.
pub(super) fn cancelled() -> DataFusionError {
    DataFusionError::External(Box::new(BallistaError::Cancelled))
}

/// A task that runs, for tests of what runs in one.
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
