//! The cluster's executors, and binding of tasks to them.
//!
//! Free slots are derived at every offer, from the executors' sizes and the tasks that have not
//! ended, those of jobs that are over among them ([`Slots`]).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::error::Result;
use ballista_core::serde::protobuf::ExecutorHeartbeat;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::scheduler::{ExecutorData, ExecutorMetadata};
use ballista_scheduler::cluster::memory::InMemoryClusterState;
use ballista_scheduler::cluster::{BoundTask, ClusterState, ClusterStateEventStream, ExecutorSlot};
use ballista_scheduler::config::TaskDistributionPolicy;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::task_manager::JobInfoCache;
use parking_lot::Mutex;
use tokio::sync::RwLockWriteGuard;
use volley_proto::plan::TrainExec;
use volley_proto::spec::TrainSpec;
use volley_proto::{TrainId, tables};

use super::{bind, losses};
use crate::jobs::Ending;
use crate::placement::{Decision, Executor, Role, WaitReason, Wish, grows_by, place};
use crate::planning::find;
use crate::slots::{self, Holder, Slots};
use volley_proto::tables::millis;

/// What the cluster's state asks and tells the rest of the scheduler.
#[async_trait]
pub(crate) trait ClusterEvents: fmt::Debug + Send + Sync + 'static {
    /// How many ranks a gang wants now that so many executors run ranks.
    fn gang_wish(&self, spec: &TrainSpec, registered: usize) -> Wish;
    /// A gang's job is planned.
    ///
    /// # Errors
    /// Names the run that is alive and that it would go on from.
    fn gang_arrives(&self, spec: &TrainSpec) -> std::result::Result<(), String>;
    /// A gang of an attempt starts: its tasks' numbers and executors, in the order of their ranks.
    fn gang_starts(&self, train: TrainId, attempt: &str, tasks: Vec<(usize, String)>);
    /// A gang waits.
    fn gang_waits(&self, train: TrainId, reason: String);
    /// Whether a running gang could be ended to start again with more ranks.
    fn gang_may_grow(&self, spec: &TrainSpec) -> bool;
    /// A gang's generation ends, so that an executor can join it.
    fn gang_grows(&self, train: TrainId, executor: &str);
    /// Whether a gang's generation has ended, so that its ranks end and meet again.
    fn gang_meets_again(&self, train: TrainId) -> bool;
    /// Whether the run has had a gang before.
    fn has_begun(&self, train: TrainId) -> bool;
    /// What orders attempts by the arrival of their jobs.
    fn arrival(&self, attempt: &str) -> String;
    /// Whether nothing more of an attempt is to be started.
    fn is_doomed(&self, attempt: &str) -> bool;
    /// An attempt must end.
    fn end_attempt(&self, attempt: &str, ending: Ending);
    /// What an attempt waits for that has no task, or nothing any more.
    fn job_waits(&self, attempt: &str, reason: Option<String>);
    /// An executor is gone, with whatever its tasks had written.
    async fn executor_lost(&self, executor: &str);
}

/// Ballista's in-memory state with Volley's binding.
pub(crate) struct VolleyClusterState {
    registered: InMemoryClusterState,
    /// Every registered executor, by id.
    executors: Mutex<HashMap<String, Registered>>,
    /// What executors said of themselves when they came to attend.
    attendees: Mutex<HashMap<String, Attendee>>,
    /// How often each executor has been removed.
    removals: Mutex<HashMap<String, u64>>,
    /// Held while an executor comes or goes. Two may find at once that one is gone, and each lets
    /// Ballista mend the graphs afterwards: not before the jobs have been told what they lost.
    turnstile: tokio::sync::Mutex<()>,
    /// Runs that wait for executors however long that takes.
    patient: Mutex<HashSet<TrainId>>,
    events: Arc<dyn ClusterEvents>,
    /// Which tasks hold slots.
    slots: Slots,
}

/// What an executor says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Attendee {
    /// What it is there for.
    pub(crate) role: Role,
    /// What its ranks compute on.
    pub(crate) device: String,
    /// Bytes of memory for its queries.
    pub(crate) memory_bytes: u64,
    /// Bytes of memory that each of its ranks may take.
    pub(crate) rank_memory_bytes: u64,
    pub(crate) version: String,
    /// When it came.
    pub(crate) since: SystemTime,
}

#[derive(Debug, Clone, Copy)]
struct Registered {
    slots: usize,
}

impl fmt::Debug for VolleyClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolleyClusterState")
            .field("executors", &self.executors)
            .finish_non_exhaustive()
    }
}

impl VolleyClusterState {
    pub(crate) fn new(events: Arc<dyn ClusterEvents>, slots: Slots) -> Self {
        Self {
            registered: InMemoryClusterState::default(),
            executors: Mutex::default(),
            attendees: Mutex::default(),
            removals: Mutex::default(),
            turnstile: tokio::sync::Mutex::default(),
            patient: Mutex::default(),
            events,
            slots,
        }
    }

    /// How many executors are registered.
    pub(crate) fn executors(&self) -> usize {
        self.executors.lock().len()
    }

    /// One of them.
    pub(crate) fn any_executor(&self) -> Option<String> {
        self.executors.lock().keys().next().cloned()
    }

    /// Whether an executor is registered.
    pub(crate) fn is_registered(&self, executor: &str) -> bool {
        self.executors.lock().contains_key(executor)
    }

    /// How many executors run ranks.
    pub(crate) fn rank_executors(&self) -> usize {
        self.rank_offers().len()
    }

    /// Bytes of memory that each executor that runs ranks offers one.
    pub(crate) fn rank_offers(&self) -> Vec<u64> {
        let ids: Vec<_> = self.executors.lock().keys().cloned().collect();
        let able = ids.iter().filter(|id| self.role(id).runs_ranks());
        able.map(|id| self.rank_memory(id)).collect()
    }

    /// Slots for queries: all, and those that no task holds.
    pub(crate) fn slots(&self) -> (usize, usize) {
        let held = self.slots.held();
        let executors = self.executors.lock().clone();
        let queries = executors
            .iter()
            .filter(|(id, _)| self.role(id).runs_queries());
        queries.fold((0, 0), |(all, free), (id, executor)| {
            let held = held.get(id).copied().unwrap_or(0);
            let left = executor.slots.saturating_sub(held);
            (all + executor.slots, free + left)
        })
    }

    /// How often an executor has been removed: it may be registered again at once.
    pub(crate) fn removals(&self, executor: &str) -> u64 {
        self.removals.lock().get(executor).copied().unwrap_or(0)
    }

    /// Notes what an executor says of itself.
    pub(crate) fn attends(&self, executor: &str, attendee: Attendee) {
        self.attendees.lock().insert(executor.to_owned(), attendee);
    }

    fn role(&self, executor: &str) -> Role {
        let attendees = self.attendees.lock();
        attendees
            .get(executor)
            .map(|attendee| attendee.role)
            .unwrap_or_default()
    }

    /// Without bound, where it has not said.
    fn rank_memory(&self, executor: &str) -> u64 {
        let attendees = self.attendees.lock();
        let attendee = attendees.get(executor);
        attendee.map_or(u64::MAX, |attendee| attendee.rank_memory_bytes)
    }

    /// The executors as rows of their table.
    pub(crate) async fn rows(&self) -> Vec<tables::Executor> {
        let held = self.slots.held();
        let (registered, attendees) =
            (self.executors.lock().clone(), self.attendees.lock().clone());
        let metadata = self.registered.registered_executor_metadata().await;
        let row = |metadata: ExecutorMetadata| {
            let slots = registered.get(&metadata.id)?.slots;
            let Attendee {
                role,
                device,
                memory_bytes,
                rank_memory_bytes,
                version,
                since,
            } = attendees.get(&metadata.id)?.clone();
            let held = held.get(&metadata.id).copied().unwrap_or(0);
            Some(tables::Executor {
                executor_id: metadata.id,
                host: metadata.host,
                port: metadata.port.into(),
                role: role.to_string(),
                slots: slots as u64,
                free_slots: slots.saturating_sub(held) as u64,
                device,
                memory_bytes,
                rank_memory_bytes,
                version,
                since: millis(since),
            })
        };
        let mut rows: Vec<_> = metadata.into_iter().filter_map(row).collect();
        rows.sort_by(|a, b| a.executor_id.cmp(&b.executor_id));
        rows
    }

    /// Notes a run whose job is planned.
    ///
    /// # Errors
    /// Names the run that is alive and that it would go on from.
    pub(crate) fn arrives(&self, spec: &TrainSpec) -> std::result::Result<(), String> {
        self.events.gang_arrives(spec)
    }

    /// Whether a training run has had a gang before, so that it is not new to the cluster.
    pub(crate) fn has_begun(&self, train: TrainId) -> bool {
        self.events.has_begun(train)
    }

    /// Notes that a run waits for executors however long that takes.
    pub(crate) fn set_patient(&self, train: TrainId) {
        self.patient.lock().insert(train);
    }

    /// Whether a job waits for executors however long that takes.
    pub(crate) fn waits_for_executors(&self, train: Option<TrainId>) -> bool {
        train.is_some_and(|train| self.patient.lock().contains(&train))
    }

    fn act(
        &self,
        decision: Decision,
        graph: &mut ExecutionGraphBox,
        stage: usize,
    ) -> Vec<BoundTask> {
        let (job_id, session_id) = (graph.job_id().clone(), graph.session_id().to_owned());
        let attempt = job_id.as_str();
        let others: Vec<_> = graph
            .running_stages()
            .into_iter()
            .filter(|s| *s != stage)
            .collect();
        let Some(stage) = graph.fetch_running_stage(&others) else {
            return Vec::new();
        };
        let train = find::<TrainExec>(stage.plan.as_ref()).map(TrainExec::spec);
        let holder = match train {
            Some(spec) => Holder::Training(spec.model.to_string()),
            None => Holder::Query(self.events.arrival(attempt)),
        };
        let train = train.map(|spec| spec.train_id);
        match &decision {
            _ if decision.starts() => self.events.job_waits(attempt, None),
            Decision::Wait(reason) if !self.slots.runs(attempt) => {
                let reason = Some(self.reason(reason));
                self.events.job_waits(attempt, reason);
            }
            _ => {}
        }
        let mut bind_all = |tasks: &[crate::placement::Task]| -> Vec<BoundTask> {
            let bind = |task| {
                Some((
                    task,
                    bind::bind(stage, &session_id, &job_id, task).transpose()?,
                ))
            };
            let mut bound = Vec::new();
            for (task, result) in tasks.iter().filter_map(bind) {
                match result {
                    Ok(description) => bound.push((task, description)),
                    Err(reason) => {
                        // Not at launch: Ballista takes an executor for lost whose message cannot be sent.
                        self.events.end_attempt(attempt, Ending::Failed(reason));
                        return Vec::new();
                    }
                }
            }
            let hold = |(task, (executor, description)): (&crate::placement::Task, BoundTask)| {
                let held = slots::Task {
                    attempt: attempt.to_owned(),
                    stage: description.key.stage_id,
                    number: description.key.task_id,
                };
                self.slots.bind(&executor, held, task.slots, holder.clone());
                (executor, description)
            };
            bound.into_iter().map(hold).collect()
        };
        match (decision, train) {
            (Decision::Tasks(tasks), _) => bind_all(&tasks),
            (Decision::Start(tasks), Some(train)) => {
                let bound = bind_all(&tasks);
                let rank = |(executor, task): &BoundTask| (task.key.task_id, executor.clone());
                self.events
                    .gang_starts(train, attempt, bound.iter().map(rank).collect());
                bound
            }
            (Decision::Wait(reason), Some(train)) => {
                self.events.gang_waits(train, reason.to_string());
                Vec::new()
            }
            (Decision::Wait(_), None) => Vec::new(),
            (Decision::Fail(reason), _) => {
                self.events.end_attempt(attempt, Ending::Failed(reason));
                Vec::new()
            }
            (Decision::Rerun(reason), _) => {
                let ending = losses::lost(graph, "of a rank", &reason);
                self.events.end_attempt(attempt, ending);
                Vec::new()
            }
            (Decision::Start(_), None) => {
                unreachable!("only a stage with a training node is a gang")
            }
        }
    }

    /// What a job waits for, as it is told, with who holds the slots.
    fn reason(&self, reason: &WaitReason) -> String {
        let suits: fn(Role) -> bool = match reason {
            WaitReason::Slot { .. } => Role::runs_queries,
            _ => Role::runs_ranks,
        };
        let executors = self.executors.lock().clone();
        let suited = || executors.iter().filter(|(id, _)| suits(self.role(id)));
        let all = suited().map(|(_, executor)| executor.slots).sum();
        let holders = self.slots.told(suited().map(|(id, _)| id.as_str()), all);
        match (reason, holders) {
            (WaitReason::Slot { ahead: None }, Some(holders)) => holders,
            (WaitReason::Slot { .. } | WaitReason::Slots { .. }, Some(holders)) => {
                format!("{reason}; {holders}")
            }
            _ => reason.to_string(),
        }
    }

    /// Ends generations that executors with nothing to do could join.
    fn grow_gangs(&self, graphs: &[RwLockWriteGuard<'_, ExecutionGraphBox>], left: &[Executor]) {
        let gangs = graphs.iter().filter_map(|graph| bind::running_gang(graph));
        for (stage, spec, ranks_on) in gangs {
            // What its exchange wrote is added up only where it could grow.
            if ranks_on.len() >= spec.most_ranks() || !self.events.gang_may_grow(spec) {
                continue;
            }
            let memory = bind::memory(stage, spec);
            if let Some(executor) = grows_by(left, &ranks_on, spec.most_ranks(), &memory) {
                self.events.gang_grows(spec.train_id, executor);
            }
        }
    }
}

#[async_trait]
impl ClusterState for VolleyClusterState {
    async fn bind_schedulable_tasks(
        &self,
        _: TaskDistributionPolicy,
        active_jobs: Arc<HashMap<JobId, JobInfoCache>>,
        alive: Option<HashSet<String>>,
    ) -> Result<Vec<BoundTask>> {
        // Job ids ascend in time, so their order is the order of arrival; a job that is run again
        // keeps its place.
        let mut jobs: Vec<_> = active_jobs
            .iter()
            .filter(|(id, job)| {
                let running = matches!(job.status, Some(Status::Running(_)));
                running && !self.events.is_doomed(id.as_str())
            })
            .collect();
        jobs.sort_by_cached_key(|(id, _)| self.events.arrival(id.as_str()));
        let mut graphs: Vec<RwLockWriteGuard<'_, ExecutionGraphBox>> = Vec::new();
        for (id, job) in jobs {
            let mut graph = job.execution_graph.write().await;
            // It may have lost data while the lock was waited for.
            if self.events.is_doomed(id.as_str()) {
                continue;
            }
            // Stages whose inputs are ready start to run only when somebody asks.
            graph.revive();
            graphs.push(graph);
        }

        let held = self.slots.held();
        let registered = self.executors.lock().clone();
        let mut executors: Vec<_> = registered
            .iter()
            .filter(|(id, _)| alive.as_ref().is_none_or(|alive| alive.contains(*id)))
            .map(|(id, executor)| {
                let held = held.get(id).copied().unwrap_or(0);
                Executor {
                    id: id.clone(),
                    free: executor.slots.saturating_sub(held),
                    idle: held == 0,
                    role: self.role(id),
                    rank_memory: self.rank_memory(id),
                }
            })
            .collect();
        executors.sort_by(|a, b| a.id.cmp(&b.id));

        let ranks = executors.iter().filter(|e| e.role.runs_ranks()).count();
        let wish = |spec: &TrainSpec| self.events.gang_wish(spec, ranks);
        let meets_again = |spec: &TrainSpec| self.events.gang_meets_again(spec.train_id);
        let demands: Vec<_> = graphs
            .iter()
            .map(|graph| bind::demands(graph, wish, meets_again))
            .collect();
        let mut decisions = place(&mut executors, &demands.concat()).into_iter();
        let mut bound = Vec::new();
        for (graph, demands) in graphs.iter_mut().zip(demands) {
            for (demand, decision) in demands.iter().zip(&mut decisions) {
                bound.extend(self.act(decision, graph, demand.stage));
            }
        }
        self.grow_gangs(&graphs, &executors);
        Ok(bound)
    }

    /// Slots are derived from the graphs; there is nothing to give back.
    async fn unbind_tasks(&self, _: Vec<ExecutorSlot>) -> Result<()> {
        Ok(())
    }

    async fn register_executor(
        &self,
        metadata: ExecutorMetadata,
        spec: ExecutorData,
    ) -> Result<()> {
        let _turn = self.turnstile.lock().await;
        let (id, slots) = (metadata.id.clone(), spec.available_vcores as usize);
        self.registered.register_executor(metadata, spec).await?;
        tracing::info!(executor = %id, slots, "executor registered");
        self.slots.joins(&id);
        self.executors.lock().insert(id, Registered { slots });
        Ok(())
    }

    async fn save_executor_metadata(&self, metadata: ExecutorMetadata) -> Result<()> {
        self.registered.save_executor_metadata(metadata).await
    }

    async fn get_executor_metadata(&self, executor_id: &str) -> Result<ExecutorMetadata> {
        self.registered.get_executor_metadata(executor_id).await
    }

    async fn registered_executor_metadata(&self) -> Vec<ExecutorMetadata> {
        self.registered.registered_executor_metadata().await
    }

    async fn save_executor_heartbeat(&self, heartbeat: ExecutorHeartbeat) -> Result<()> {
        self.registered.save_executor_heartbeat(heartbeat).await
    }

    async fn remove_executor(&self, executor_id: &str) -> Result<()> {
        let _turn = self.turnstile.lock().await;
        // Before it can be let in again with another role.
        self.attendees.lock().remove(executor_id);
        *self
            .removals
            .lock()
            .entry(executor_id.to_owned())
            .or_default() += 1;
        if self.executors.lock().remove(executor_id).is_some() {
            tracing::info!(executor = executor_id, "executor gone");
            self.slots.leaves(executor_id);
            // Before Ballista hears of it, which would mend the graphs.
            self.events.executor_lost(executor_id).await;
        }
        self.registered.remove_executor(executor_id).await
    }

    fn executor_heartbeats(&self) -> HashMap<String, ExecutorHeartbeat> {
        self.registered.executor_heartbeats()
    }

    fn get_executor_heartbeat(&self, executor_id: &str) -> Option<ExecutorHeartbeat> {
        self.registered.get_executor_heartbeat(executor_id)
    }

    async fn cluster_state_events(&self) -> Result<ClusterStateEventStream> {
        self.registered.cluster_state_events().await
    }
}

#[cfg(test)]
mod tests;
