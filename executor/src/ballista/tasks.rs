//! The executor's tasks: running tasks, tasks that are to stop, and the detection of their ends.
//!
//! A task has ended when nothing holds it any more: no future that waits for it, no operator of its plan and no
//! stream. Ballista counts a task as cancelled as soon as no future waits for it; work that its plan has spawned may
//! continue, and holds the task's slot meanwhile.
//!
//! ```text
//!   begin ──► Running ──► dropped by all ──► "it has ended", unless it has succeeded
//!                │ told to stop, or to fail: its token is cancelled, which operators look at
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use volley_engine::runtime::TaskIdentity;
use volley_proto::wire::TaskReading;

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
    running: HashMap<TaskKey, Arc<State>>,
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
        let state = Arc::new(State {
            cancel,
            failure: OnceLock::new(),
            memory: OnceLock::new(),
            plan: OnceLock::new(),
        });
        known.running.insert(key.clone(), Arc::clone(&state));
        drop(known);
        Running {
            held: Arc::new(Held {
                key,
                state,
                succeeded: AtomicBool::new(false),
                tasks: self.clone(),
            }),
        }
    }

    /// Returns the number of running tasks.
    pub(crate) fn count(&self) -> usize {
        self.shared.known.lock().running.len()
    }

    /// Returns the bytes that running tasks have reserved.
    pub(crate) fn reserved(&self) -> usize {
        let known = self.shared.known.lock();
        known.running.values().map(|state| state.reserved()).sum()
    }

    /// Returns the rows that each running task has read so far.
    pub(super) fn reading(&self) -> Vec<TaskReading> {
        let known = self.shared.known.lock();
        let running = known.running.iter();
        let running: Vec<_> = running
            .map(|(key, state)| (key.clone(), Arc::clone(state)))
            .collect();
        drop(known);
        let reading = running.into_iter().map(|(key, state)| TaskReading {
            job_id: key.attempt,
            stage_id: key.stage,
            task_id: key.number,
            rows: state.rows_read() as u64,
        });
        reading.collect()
    }

    /// Stops tasks. Reports those that are not running as ended.
    pub(crate) fn stop(&self, tasks: Vec<TaskKey>) {
        let mut known = self.shared.known.lock();
        for task in tasks {
            if let Some(running) = known.running.get(&task) {
                running.cancel.cancel();
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

    /// Ends the task that has reserved the most memory, if that is at least so many bytes, with an error that is given
    /// their number. Returns the task.
    pub(super) fn fail_largest(
        &self,
        least: usize,
        error: impl FnOnce(usize) -> String,
    ) -> Option<TaskKey> {
        let known = self.shared.known.lock();
        let running = known.running.iter();
        let running = running.filter(|(_, state)| !state.cancel.is_cancelled());
        let reserved = running.map(|(key, state)| (state.reserved(), key, state));
        let (bytes, key, state) = reserved.max_by_key(|(bytes, ..)| *bytes)?;
        if bytes < least {
            return None;
        }
        state.failure.set(error(bytes)).ok();
        state.cancel.cancel();
        Some(key.clone())
    }

    fn say_ended(&self, task: TaskKey) {
        if self.shared.ended.send(task).is_err() {
            tracing::debug!("the executor stops: a task's end is not reported");
        }
    }
}

/// State of a running task.
#[derive(Debug)]
struct State {
    cancel: CancellationToken,
    /// Error that the task fails with when it is to stop; otherwise it is cancelled.
    failure: OnceLock<String>,
    memory: OnceLock<Weak<dyn MemoryPool>>,
    plan: OnceLock<Weak<dyn ExecutionPlan>>,
}

impl State {
    /// Returns the bytes that the task has reserved.
    fn reserved(&self) -> usize {
        let memory = self.memory.get().and_then(Weak::upgrade);
        memory.map_or(0, |memory| memory.reserved())
    }

    /// Returns the rows that the operators which read have put out.
    fn rows_read(&self) -> usize {
        let plan = self.plan.get().and_then(Weak::upgrade);
        plan.map_or(0, |plan| read_by(plan.as_ref()))
    }
}

/// Returns the rows that the leaves of a plan have put out.
fn read_by(plan: &dyn ExecutionPlan) -> usize {
    let inputs = plan.children();
    match inputs.is_empty() {
        true => {
            let rows = plan.metrics().and_then(|metrics| metrics.output_rows());
            rows.unwrap_or(0)
        }
        false => inputs.iter().map(|input| read_by(input.as_ref())).sum(),
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
    state: Arc<State>,
    succeeded: AtomicBool,
    tasks: Tasks,
}

impl Running {
    /// Returns the token that is cancelled when the task is to stop.
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.held.state.cancel
    }

    /// Sets the memory that the task holds.
    pub(super) fn holds(&self, memory: &Arc<dyn MemoryPool>) {
        self.held.state.memory.set(Arc::downgrade(memory)).ok();
    }

    /// Sets the plan that the task runs.
    pub(super) fn runs(&self, plan: &Arc<dyn ExecutionPlan>) {
        self.held.state.plan.set(Arc::downgrade(plan)).ok();
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
        match self.cancel().is_cancelled() {
            true => Err(self.stopped()),
            false => Ok(()),
        }
    }

    /// Returns the error of this task, which is to stop.
    pub(super) fn stopped(&self) -> DataFusionError {
        match self.held.state.failure.get() {
            Some(failure) => DataFusionError::Execution(failure.clone()),
            None => DataFusionError::External(Box::new(BallistaError::Cancelled)),
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

/// Returns a running task, for tests.
#[cfg(test)]
pub(super) fn running() -> Running {
    let (tasks, _ended) = Tasks::new(CancellationToken::new());
    tasks.begin(&TaskIdentity {
        job_id: "j".into(),
        first_attempt: "j".into(),
        stage_id: 1,
        task_id: 0,
        partitions: vec![0],
    })
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{MemoryConsumer, UnboundedMemoryPool};
    use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{CsvReadOptions, SessionContext};

    use super::*;

    fn identity(task_id: usize) -> TaskIdentity {
        TaskIdentity {
            job_id: "j".into(),
            first_attempt: "j".into(),
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

    #[tokio::test]
    async fn running_tasks_tell_the_rows_that_they_have_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("n.csv");
        std::fs::write(&file, "n\n0\n1\n2\n3\n4\n5\n6\n").unwrap();
        let session = SessionContext::new();
        let read = session.read_csv(file.to_str().unwrap(), CsvReadOptions::new());
        let read = read.await.unwrap().create_physical_plan().await.unwrap();
        let plan: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(read));
        let (tasks, _ended) = Tasks::new(CancellationToken::new());
        let running = tasks.begin(&identity(0));
        let rows = |tasks: &Tasks| {
            tasks
                .reading()
                .into_iter()
                .map(|task| task.rows)
                .sum::<u64>()
        };
        assert_eq!((tasks.reading().len(), rows(&tasks)), (1, 0));
        running.runs(&plan);
        collect(Arc::clone(&plan), session.task_ctx())
            .await
            .unwrap();
        assert_eq!(rows(&tasks), 7);
        // The plan is not kept for it.
        drop(plan);
        assert_eq!(rows(&tasks), 0);
        drop(running);
        assert!(tasks.reading().is_empty());
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

    #[test]
    fn the_task_that_has_reserved_the_most_fails() {
        let (tasks, _ended) = Tasks::new(CancellationToken::new());
        let running: Vec<_> = (0..3)
            .map(|number| tasks.begin(&identity(number)))
            .collect();
        let pools: Vec<Arc<dyn MemoryPool>> = (0..3)
            .map(|_| Arc::new(UnboundedMemoryPool::default()) as _)
            .collect();
        for (task, pool) in running.iter().zip(&pools) {
            task.holds(pool);
        }
        let reserved = MemoryConsumer::new("test").register(&pools[1]);
        reserved.grow(100);
        assert_eq!((tasks.count(), tasks.reserved()), (3, 100));
        let fail = || tasks.fail_largest(50, |bytes| format!("{bytes} bytes"));
        assert_eq!(fail(), Some(key(1)));
        let failure = running[1].check().unwrap_err().to_string();
        assert!(failure.contains("100 bytes"), "{failure}");
        // The others hold too little.
        assert_eq!(fail(), None);
        assert!(running[0].check().is_ok() && running[2].check().is_ok());
    }
}
