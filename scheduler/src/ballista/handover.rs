//! Rows of draining executors, handed to others so that their executors can leave before the queries that need them end.
//!
//! ```text
//!   an executor drains, its tasks have ended, an attempt needs its rows
//!     ─► its heir copies the files of the stages            executor/ballista/handover
//!     ─► tasks that begin read them from the heir           Places, in the plan of each task
//!     ─► the executor leaves once the tasks that began before have ended
//! ```
//!
//! Ballista's graphs go on to name the executor that has written rows. So the graphs are read together with the [`Places`]
//! of their rows, and Ballista is not told that an executor is lost whose rows have moved: it would repair graphs that
//! have lost nothing. Not here: which executors drain, which the controller knows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ballista_core::JobId;
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{ExecutorStoppedParams, UpdateTaskStatusParams};
use ballista_core::serde::scheduler::{ExecutorMetadata, PartitionLocation};
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tonic::Request;
use volley_proto::attempts::removal;
use volley_proto::tables::millis;
use volley_proto::wire::rows_client::RowsClient;
use volley_proto::wire::{SendRowsRequest, TakeRowsRequest};

use super::dial::ToExecutors;
use super::{BallistaScheduler, losses};
use crate::control::Controller;
use crate::handle::Control;

/// Time for which rows are needed before they are handed over: most queries end sooner.
const NEEDED: Duration = Duration::from_secs(1);
/// Time limit for the rows of an attempt to be copied.
const COPY: Duration = Duration::from_secs(600);
/// Number of failures after which an executor keeps its rows.
const MOST_FAILURES: usize = 3;

tokio::task_local! {
    /// Attempts that an executor's removal affects, while Ballista is not told of the loss.
    static AFFECTED: Mutex<Vec<String>>;
}

/// Rows that tasks have written: stage and number of each task.
type Rows = BTreeSet<(usize, usize)>;

/// Places of rows that have moved, by attempt; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Moved {
    attempts: Arc<Mutex<HashMap<String, Arc<Places>>>>,
}

/// Places of the rows of an attempt that are not where its graph says.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// By the stage and the number of the task that has written them.
    moved: HashMap<(usize, usize), Place>,
    /// Tasks that read rows from an executor since before they moved, by executor: stage and number.
    readers: HashMap<String, HashSet<(usize, usize)>>,
    /// True if rows count as being where the graph says, too: if their executor is lost, Ballista repairs the graph.
    named_too: bool,
}

#[derive(Debug, Clone)]
struct Place {
    on: ExecutorMetadata,
    /// Executor that the graph names.
    named: String,
    /// Time of the move, in milliseconds since 1970.
    since: u128,
}

impl Moved {
    /// Returns the places of an attempt's rows. Those that have moved are on their heirs only.
    pub(super) fn places(&self, attempt: &str) -> Arc<Places> {
        let attempts = self.attempts.lock();
        attempts.get(attempt).cloned().unwrap_or_default()
    }

    /// Returns the places of an attempt's rows for the removal of an executor by this caller: by any but [`Departures`],
    /// Ballista repairs the graph, which places rows where they were written.
    pub(super) fn places_at_removal(&self, attempt: &str) -> Arc<Places> {
        let places = self.places(attempt);
        match is_departure() || places.moved.is_empty() {
            true => places,
            false => Arc::new(Places {
                named_too: true,
                ..Places::clone(&places)
            }),
        }
    }

    /// Forgets the places of an attempt's rows.
    pub(super) fn release(&self, attempt: &str) {
        self.attempts.lock().remove(attempt);
    }

    /// Checks whether rows that graphs place on an executor have moved.
    fn have_left(&self, executor: &str) -> bool {
        let attempts = self.attempts.lock();
        let mut places = attempts.values();
        places.any(|places| places.have_left(executor))
    }

    /// Records that these rows of an attempt, as far as they are on an executor, are on its heir. The graph is locked
    /// meanwhile, so no task is bound.
    pub(super) fn moves(
        &self,
        graph: &ExecutionGraphBox,
        rows: &Rows,
        (from, to): (&str, &ExecutorMetadata),
    ) {
        let attempt = graph.job_id().as_str();
        let mut attempts = self.attempts.lock();
        let places = attempts.entry(attempt.to_owned()).or_default();
        let places = Arc::make_mut(places);
        let readers = losses::readers(graph, from, places);
        let there = losses::rows_on(graph, from, places).into_iter();
        for (row, named) in there.filter(|(row, _)| rows.contains(row)) {
            let place = Place {
                on: to.clone(),
                named,
                since: u128::from(millis(SystemTime::now())),
            };
            places.moved.insert(row, place);
        }
        let known = places.readers.entry(from.to_owned()).or_default();
        known.extend(readers);
    }
}

/// Checks whether the caller removes an executor of whose loss Ballista is not told.
pub(super) fn is_departure() -> bool {
    AFFECTED.try_with(|_| ()).is_ok()
}

/// Notes that such a removal affects an attempt.
pub(super) fn affects(attempt: &str) {
    // Any other removal is Ballista's affair.
    AFFECTED
        .try_with(|affected| affected.lock().push(attempt.to_owned()))
        .ok();
}

impl Places {
    /// Checks whether rows that the graph places on an executor have moved.
    pub(super) fn have_left(&self, executor: &str) -> bool {
        let mut moved = self.moved.values();
        moved.any(|place| place.named == executor)
    }

    /// Checks whether the rows that a task of a stage has written are on an executor, where the graph names another or
    /// the same.
    pub(super) fn are_on(&self, executor: &str, row: (usize, usize), named: &str) -> bool {
        match self.moved.get(&row) {
            Some(place) => place.on.id == executor || self.named_too && named == executor,
            None => named == executor,
        }
    }

    /// Returns the tasks that read rows from an executor that has handed them over.
    pub(super) fn readers(&self, executor: &str) -> impl Iterator<Item = &(usize, usize)> {
        self.readers.get(executor).into_iter().flatten()
    }

    /// Returns the executor that the rows of a task have moved to, and when they did, in milliseconds since 1970.
    pub(super) fn heir(&self, row: (usize, usize)) -> Option<(&str, u128)> {
        let place = self.moved.get(&row)?;
        Some((&place.on.id, place.since))
    }

    /// Changes the place of rows to where they are.
    pub(super) fn relocate(&self, location: &mut PartitionLocation) {
        if let Some(row) = row(location)
            && let Some(place) = self.moved.get(&row)
        {
            location.executor_meta = place.on.clone();
        }
    }
}

/// Returns the stage and the number of the task that has written the rows of a location, if these are known.
pub(super) fn row(location: &PartitionLocation) -> Option<(usize, usize)> {
    let task = usize::try_from(location.file_id?).ok()?;
    Some((location.partition_id.stage_id, task))
}

/// Departures of executors; cheap to clone.
#[derive(Clone)]
pub(super) struct Departures {
    pub(super) ballista: BallistaScheduler,
    pub(super) control: Control,
    pub(super) moved: Moved,
    pub(super) to_executors: Arc<ToExecutors>,
    /// Executors that drain and whose rows are needed.
    pub(super) needed: Arc<Mutex<HashMap<String, Needed>>>,
}

/// Executor whose rows are needed while it drains.
#[derive(Debug)]
pub(super) struct Needed {
    since: Instant,
    is_copied: bool,
    failures: usize,
}

impl Departures {
    /// Removes an executor from the cluster.
    pub(super) async fn remove(&self, executor: String, reason: String) {
        if !self.moved.have_left(&executor) {
            let stopped = ExecutorStoppedParams {
                executor_id: executor.clone(),
                reason,
            };
            let stopped = Request::new(stopped);
            let removed = SchedulerGrpc::executor_stopped(&self.ballista, stopped).await;
            if let Err(error) = removed {
                tracing::error!(executor, %error, "cannot remove an executor");
            }
            return;
        }
        let executors = &self.ballista.state.executor_manager;
        let removal = async {
            let removed = executors.remove_executor(&executor, Some(reason)).await;
            (
                removed,
                AFFECTED.with(|affected| std::mem::take(&mut *affected.lock())),
            )
        };
        let (removed, affected) = AFFECTED.scope(Mutex::default(), removal).await;
        if let Err(error) = removed {
            tracing::error!(executor, %error, "cannot remove an executor");
        }
        // Ballista repairs the graphs that have lost something.
        let running = self.ballista.state.task_manager.get_running_job_cache();
        let mut tasks = Vec::new();
        for attempt in affected {
            let Some(job) = running.get(&JobId::from(attempt.clone())) else {
                continue;
            };
            let mut graph = job.execution_graph.write().await;
            match graph.reset_stages_on_lost_executor(&executor) {
                Ok((_, ended)) => tasks.extend(ended),
                Err(error) => tracing::error!(attempt, %error, "a graph cannot be repaired"),
            }
        }
        if let Err(error) = executors.cancel_running_tasks(tasks).await {
            tracing::warn!(executor, %error, "tasks of a lost stage cannot be cancelled");
        }
        self.offer().await;
    }

    /// Hands over the rows of executors that drain without tasks, for as long as they are needed. Removes the executors
    /// whose rows are on their way, or will be, from `drained`.
    pub(super) async fn hand_over(&self, drained: &mut Vec<String>) {
        self.needed
            .lock()
            .retain(|executor, _| drained.contains(executor));
        let mut wanted: HashMap<&str, Vec<(JobId, Rows)>> = HashMap::new();
        let running = self.ballista.state.task_manager.get_running_job_cache();
        for (attempt, job) in running.iter() {
            let graph = job.execution_graph.read().await;
            if self.is_over(attempt) {
                continue;
            }
            let places = self.moved.places(attempt.as_str());
            for executor in drained.iter() {
                let rows = losses::rows_on(&graph, executor, &places);
                if !rows.is_empty() {
                    let rows = rows.into_keys().collect();
                    let wanted = wanted.entry(executor).or_default();
                    wanted.push((attempt.clone(), rows));
                }
            }
        }
        let mut waiting = HashSet::new();
        for (executor, rows) in wanted {
            let mut needed = self.needed.lock();
            let needed = needed.entry(executor.to_owned()).or_insert_with(|| Needed {
                since: Instant::now(),
                is_copied: false,
                failures: 0,
            });
            let heir = |control: &Controller| control.heir(executor, needed.failures);
            let heir = self.control.look(heir);
            if needed.failures == MOST_FAILURES || heir.is_none() && !needed.is_copied {
                continue;
            }
            waiting.insert(executor.to_owned());
            if let Some(heir) = heir
                && !needed.is_copied
                && needed.since.elapsed() >= NEEDED
            {
                needed.is_copied = true;
                tokio::spawn(self.clone().copy(executor.to_owned(), heir, rows));
            }
        }
        drained.retain(|executor| !waiting.contains(executor));
    }

    /// Has an heir copy the rows of an executor, attempt by attempt.
    async fn copy(self, executor: String, heir: String, wanted: Vec<(JobId, Rows)>) {
        let mut has_failed = false;
        for (attempt, rows) in wanted {
            let copied = timeout(COPY, self.copy_rows((&executor, &heir), &attempt, &rows));
            let copied = copied.await.unwrap_or_else(|_| {
                let limit = humantime::format_duration(COPY);
                Err(format!("it takes longer than {limit}"))
            });
            // The files may have been written after those of the attempt were removed.
            let is_useless = |control: &Controller| !control.keeps_rows(attempt.as_str());
            if self.control.look(is_useless) {
                self.moved.release(attempt.as_str());
                let executors = &self.ballista.state.executor_manager;
                executors.clean_up_job_data(JobId::from(removal(attempt.as_str())));
            }
            match copied {
                Ok(bytes) => tracing::info!(
                    %attempt, executor, heir, bytes,
                    "rows have moved from an executor that drains"
                ),
                // Its rows are removed, or read nowhere.
                Err(_) if self.is_over(&attempt) => {}
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(
                        %attempt, executor, heir, error,
                        "rows cannot move from an executor that drains"
                    );
                }
            }
        }
        if let Some(needed) = self.needed.lock().get_mut(&executor) {
            needed.is_copied = false;
            needed.failures += usize::from(has_failed);
        }
    }

    /// Has an heir copy rows of an attempt. Returns the bytes of their stages' files.
    async fn copy_rows(
        &self,
        (executor, heir): (&str, &str),
        attempt: &JobId,
        rows: &Rows,
    ) -> Result<u64, String> {
        let executors = &self.ballista.state.executor_manager;
        let since = || self.control.look(|control| control.takes_tasks_since(heir));
        let before = since();
        let unknown = |error: BallistaError| error.to_string();
        let from = executors.get_executor_metadata(executor).await;
        let to = executors.get_executor_metadata(heir).await;
        let (from, to) = (from.map_err(unknown)?, to.map_err(unknown)?);
        let address = |of: &ExecutorMetadata| format!("{}:{}", of.host, of.port);
        let channel = self.to_executors.dial(&address(&to)).await;
        let mut client = RowsClient::new(channel.map_err(|error| error.to_string())?);
        let stages: BTreeSet<_> = rows.iter().map(|(stage, _)| *stage as u64).collect();
        let request = TakeRowsRequest {
            address: address(&from),
            rows: Some(SendRowsRequest {
                attempt: attempt.to_string(),
                stages: stages.into_iter().collect(),
            }),
        };
        let told = |status: tonic::Status| status.message().to_owned();
        let mut taken = client.take(request).await.map_err(told)?.into_inner();
        let taken = taken.message().await.map_err(told)?;
        let taken = taken.ok_or("its answer has no content")?;
        let running = self.ballista.state.task_manager.get_running_job_cache();
        let job = running.get(attempt).ok_or("the attempt has ended")?;
        // Nobody finds out meanwhile what the loss of the heir means.
        let graph = job.execution_graph.write().await;
        if before.is_none() || since() != before {
            return Err("the executor that took them leaves, or has left".to_owned());
        }
        self.moved.moves(&graph, rows, (executor, &to));
        Ok(taken.bytes)
    }

    /// Makes Ballista offer its free slots. Ballista has no call for that; a status report without tasks triggers it.
    pub(super) async fn offer(&self) {
        let any = |control: &Controller| control.any_executor().map(str::to_owned);
        let Some(executor_id) = self.control.look(any) else {
            return;
        };
        let nothing = UpdateTaskStatusParams {
            executor_id,
            task_status: Vec::new(),
        };
        let offered =
            SchedulerGrpc::update_task_status(&self.ballista, Request::new(nothing)).await;
        if let Err(error) = offered {
            tracing::debug!(%error, "Ballista did not look for work");
        }
    }

    fn is_over(&self, attempt: &JobId) -> bool {
        let is_over = |control: &Controller| control.jobs().is_over(attempt.as_str());
        self.control.look(is_over)
    }
}
