//! The cluster's executors, and binding of tasks to them.
//!
//! Free slots are derived at every offer, from the executors' sizes and the tasks that the graphs
//! say are running; nothing is counted up and down, so nothing leaks.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

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
use volley_proto::TrainId;

use super::bind;
use crate::placement::{Decision, Executor, place};

/// What the cluster's state tells the rest of the scheduler.
pub(crate) trait ClusterEvents: Send + Sync + 'static {
    /// A gang starts: its tasks' numbers and executors, in the order of their ranks.
    fn gang_started(&self, train: TrainId, tasks: Vec<(usize, String)>);
    /// A gang waits.
    fn gang_waits(&self, train: TrainId, reason: String);
    /// A job must end, for this reason.
    fn abort_job(&self, job: JobId, reason: String);
    /// An executor is gone, with whatever its tasks had written.
    fn executor_lost(&self, executor: &str);
}

/// Ballista's in-memory state with Volley's binding.
pub(crate) struct VolleyClusterState {
    registered: InMemoryClusterState,
    /// Slots of every registered executor, by id.
    slots: Mutex<HashMap<String, usize>>,
    events: Arc<dyn ClusterEvents>,
}

impl fmt::Debug for VolleyClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolleyClusterState")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl VolleyClusterState {
    pub(crate) fn new(events: Arc<dyn ClusterEvents>) -> Self {
        Self {
            registered: InMemoryClusterState::default(),
            slots: Mutex::default(),
            events,
        }
    }

    /// How many executors are registered.
    pub(crate) fn executors(&self) -> usize {
        self.slots.lock().len()
    }

    /// Slots of all registered executors together.
    pub(crate) fn slots(&self) -> usize {
        self.slots.lock().values().sum()
    }

    fn act(
        &self,
        decision: Decision,
        graph: &mut ExecutionGraphBox,
        stage: usize,
    ) -> Vec<BoundTask> {
        let (job_id, session_id) = (graph.job_id().clone(), graph.session_id().to_owned());
        let others: Vec<_> = graph
            .running_stages()
            .into_iter()
            .filter(|s| *s != stage)
            .collect();
        let Some(stage) = graph.fetch_running_stage(&others) else {
            return Vec::new();
        };
        let train = bind::find_train(&stage.plan).map(|train| train.spec().train_id);
        let mut bind_all = |tasks: &[crate::placement::Task]| -> Vec<BoundTask> {
            let bind = |task| bind::bind(stage, &session_id, &job_id, task);
            tasks.iter().filter_map(bind).collect()
        };
        match (decision, train) {
            (Decision::Tasks(tasks), _) => bind_all(&tasks),
            (Decision::Start(tasks), Some(train)) => {
                let bound = bind_all(&tasks);
                let rank = |(executor, task): &BoundTask| (task.key.task_id, executor.clone());
                self.events
                    .gang_started(train, bound.iter().map(rank).collect());
                bound
            }
            (Decision::Wait(reason), Some(train)) => {
                self.events.gang_waits(train, reason.to_string());
                Vec::new()
            }
            (Decision::Abort(reason), _) => {
                self.events.abort_job(job_id, reason);
                Vec::new()
            }
            (Decision::Start(_) | Decision::Wait(_), None) => {
                unreachable!("only a stage with a training node is a gang")
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
        // Job ids ascend in time, so their order is the order of arrival.
        let mut jobs: Vec<_> = active_jobs
            .iter()
            .filter(|(_, job)| matches!(job.status, Some(Status::Running(_))))
            .collect();
        jobs.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
        let mut graphs: Vec<RwLockWriteGuard<'_, ExecutionGraphBox>> = Vec::new();
        for (_, job) in jobs {
            let mut graph = job.execution_graph.write().await;
            // Stages whose inputs are ready start to run only when somebody asks.
            graph.revive();
            graphs.push(graph);
        }

        let mut held: HashMap<&str, usize> = HashMap::new();
        for (executor, slots) in graphs.iter().flat_map(|graph| bind::held_slots(graph)) {
            *held.entry(executor).or_default() += slots;
        }
        let mut executors: Vec<_> = self
            .slots
            .lock()
            .iter()
            .filter(|(id, _)| alive.as_ref().is_none_or(|alive| alive.contains(*id)))
            .map(|(id, slots)| {
                let held = held.get(id.as_str()).copied().unwrap_or(0);
                Executor {
                    id: id.clone(),
                    free: slots.saturating_sub(held),
                }
            })
            .collect();
        executors.sort_by(|a, b| a.id.cmp(&b.id));

        let demands: Vec<_> = graphs.iter().map(|graph| bind::demands(graph)).collect();
        let mut decisions = place(&mut executors, &demands.concat()).into_iter();
        let mut bound = Vec::new();
        for (graph, demands) in graphs.iter_mut().zip(demands) {
            for (demand, decision) in demands.iter().zip(&mut decisions) {
                bound.extend(self.act(decision, graph, demand.stage));
            }
        }
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
        let (id, slots) = (metadata.id.clone(), spec.available_vcores as usize);
        self.registered.register_executor(metadata, spec).await?;
        tracing::info!(executor = %id, slots, "executor registered");
        self.slots.lock().insert(id, slots);
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
        if self.slots.lock().remove(executor_id).is_some() {
            tracing::info!(executor = executor_id, "executor gone");
            self.events.executor_lost(executor_id);
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
