//! The cluster as Ballista sees it: its executors, and its offers of free slots.
//!
//! The controller is told of executors that come and go. For an offer, the controller says what starts now, under the
//! locks of the graphs in the offer, and the tasks are bound.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

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
use tokio::sync::{RwLock, RwLockWriteGuard};

use super::bind::carry_out;
use super::demands::demands;
use super::handover::{Moved, affects, is_departure};
use super::kept::{Kept, job_that_runs_again, running_job};
use super::{SharedGraph, losses};
use crate::control::{Controller, Event, ExecutorEndpoint, Offer};
use crate::handle::Control;

/// Ballista's in-memory cluster state with the controller's bindings.
pub(crate) struct VolleyClusterState {
    registered: InMemoryClusterState,
    control: Control,
    kept: Kept,
    moved: Moved,
    /// Graphs of the last offer; other graphs have no task on any executor.
    offered: Mutex<Vec<Weak<RwLock<ExecutionGraphBox>>>>,
    /// Lock held while an executor comes or goes. Two callers may find at once that an executor is gone, and each
    /// lets Ballista repair the graphs afterwards: this must wait until the controller has been told what the graphs
    /// lost.
    turnstile: tokio::sync::Mutex<()>,
}

impl VolleyClusterState {
    pub(super) fn new(control: Control, kept: Kept, moved: Moved) -> Self {
        Self {
            registered: InMemoryClusterState::default(),
            control,
            kept,
            moved,
            offered: Mutex::default(),
            turnstile: tokio::sync::Mutex::default(),
        }
    }

    /// Binds tasks that take rows of earlier attempts of the graph's job.
    fn adopt(
        &self,
        graph: &mut ExecutionGraphBox,
        alive: Option<&HashSet<String>>,
    ) -> Vec<BoundTask> {
        let Some(job) = job_that_runs_again(graph) else {
            return Vec::new();
        };
        let since = |executor: &str| {
            let is_silent = alive.is_some_and(|alive| !alive.contains(executor));
            let since = |control: &Controller| control.takes_tasks_since(executor);
            (!is_silent).then(|| self.control.look(since))?
        };
        let mut takers = self.control.look(Controller::query_executors);
        takers.retain(|taker| alive.is_none_or(|alive| alive.contains(taker)));
        let (bound, taken) = self.kept.adopt(&job, graph, since, &takers);
        for taken in taken {
            let job = job.clone();
            self.control.on(Event::RowsKept { job, taken });
        }
        bound
    }

    fn is_ending(&self, attempt: &JobId) -> bool {
        let attempt = attempt.as_str();
        self.control
            .look(|control| control.jobs().is_ending(attempt))
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
        let jobs = active_jobs.values();
        *self.offered.lock() = jobs
            .map(|job| Arc::downgrade(&job.execution_graph))
            .collect();
        let mut graphs: HashMap<&JobId, RwLockWriteGuard<'_, ExecutionGraphBox>> = HashMap::new();
        for (id, job) in active_jobs.iter() {
            if !matches!(job.status, Some(Status::Running(_))) || self.is_ending(id) {
                continue;
            }
            let mut graph = job.execution_graph.write().await;
            // The attempt may have lost data while the lock was waited for.
            if self.is_ending(id) {
                continue;
            }
            // Ballista starts stages whose inputs are ready only when asked.
            graph.revive();
            graphs.insert(id, graph);
        }
        let could_regroup = |train| {
            self.control
                .ask(|control, now| control.could_regroup(train, now))
        };
        let mut bound: Vec<_> = graphs
            .values_mut()
            .flat_map(|graph| self.adopt(graph, alive.as_ref()))
            .collect();
        let slots = self.control.look(Controller::query_slots);
        let stages = graphs
            .values()
            .flat_map(|graph| demands(graph, slots, could_regroup));
        let stages = stages.collect();
        let alive = alive.as_ref();
        for binding in self.control.place(Offer { stages, alive }) {
            let attempt = JobId::from(binding.attempt.clone());
            if let Some(graph) = graphs.get_mut(&attempt) {
                let places = self.moved.places(attempt.as_str());
                let on = (&mut **graph, &*places);
                bound.extend(carry_out(binding, on, (&self.control, slots)));
            }
        }
        Ok(bound)
    }

    /// Does nothing: free slots are derived at each offer.
    async fn unbind_tasks(&self, _: Vec<ExecutorSlot>) -> Result<()> {
        Ok(())
    }

    async fn register_executor(
        &self,
        metadata: ExecutorMetadata,
        spec: ExecutorData,
    ) -> Result<()> {
        let _turn = self.turnstile.lock().await;
        let registered = Event::ExecutorRegistered {
            executor: metadata.id.clone(),
            endpoint: ExecutorEndpoint {
                host: metadata.host.clone(),
                port: metadata.port,
                task_port: metadata.grpc_port,
            },
            slots: spec.available_vcores as usize,
        };
        self.registered.register_executor(metadata, spec).await?;
        self.control.on(registered);
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
        let executor = heartbeat.executor_id.clone();
        self.registered.save_executor_heartbeat(heartbeat).await?;
        self.control.on(Event::ExecutorHeartbeat { executor });
        Ok(())
    }

    async fn remove_executor(&self, executor_id: &str) -> Result<()> {
        let _turn = self.turnstile.lock().await;
        let executor = executor_id.to_owned();
        let is_registered = |control: &Controller| control.is_registered(executor_id);
        let was_registered = self.control.look(is_registered);
        // From here on nothing is placed on the executor, so the graphs have all its tasks.
        self.control.on(Event::ExecutorLeaves {
            executor: executor.clone(),
        });
        // Ballista repairs the graphs that name an executor, even if its rows have moved, and it came back and has left.
        if was_registered || !is_departure() {
            let graphs: Vec<SharedGraph> = {
                let offered = self.offered.lock();
                offered.iter().filter_map(Weak::upgrade).collect()
            };
            let mut effects = Vec::new();
            for graph in graphs {
                let graph = graph.read().await;
                let attempt = graph.job_id().as_str();
                let places = self.moved.places_at_removal(attempt);
                if !was_registered && !places.have_left(executor_id) {
                    continue;
                }
                let Some(effect) = losses::effect(&graph, executor_id, &places) else {
                    continue;
                };
                if effect.data.is_some() {
                    let job = || running_job(&self.control, &graph);
                    self.kept.capture(job, (&graph, &places), executor_id);
                }
                affects(attempt);
                effects.push(effect);
            }
            if was_registered || !effects.is_empty() {
                self.kept.loses(executor_id);
                // Told before Ballista, which then repairs the graphs.
                self.control.on(Event::ExecutorLost { executor, effects });
            }
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
pub(super) mod tests;
