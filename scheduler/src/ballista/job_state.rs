//! Job state that reports the ends of attempts to the [controller](crate::control) before anyone else sees them.
//!
//! In Ballista, others can end a job only by cancelling it, which it records as "Cancelled". By then the controller
//! has recorded the intended end of the attempt.
//!
//! Execution graphs of finished attempts are evicted once the controller has evicted their jobs, which bounds them:
//! Ballista would retain those of the last hour. A graph has the places of all rows, as many as the product of two stages'
//! partitions, so only the newest graphs are retained, and of earlier ones their rows in the table of stages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::error::{BallistaError, Result};
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::protobuf::{JobStatus, SuccessfulJob};
use ballista_core::{JobId, JobStatusSubscriber};
use ballista_scheduler::cluster::memory::InMemoryJobState;
use ballista_scheduler::cluster::{JobState, JobStateEventStream};
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use datafusion::prelude::{SessionConfig, SessionContext};
use parking_lot::Mutex;
use volley_proto::failure::{CANCELLED, DataLost};
use volley_proto::tables::Stage;

use super::graphs::stages;
use super::handover::Moved;
use super::kept::{Kept, running_job};
use super::losses::data_loss;
use super::small_results::SmallResults;
use crate::control::{AttemptEnd, Controller, Event};
use crate::handle::Control;

/// Ballista's in-memory job state, which also reports to the controller.
pub(crate) struct VolleyJobState {
    jobs: InMemoryJobState,
    control: Control,
    small_results: SmallResults,
    kept: Kept,
    moved: Moved,
    ended: Mutex<Ended>,
    /// Attempts whose graphs are not retained.
    without_graph: Mutex<HashMap<JobId, WithoutGraph>>,
}

/// Attempt that has ended, without its graph.
#[derive(Debug)]
struct WithoutGraph {
    status: JobStatus,
    stages: Arc<[Stage]>,
}

/// Number of the newest finished attempts whose execution graphs are retained.
const WHOLE: usize = 16;

/// Number of the newest finished attempts that are retained, even if their jobs are unknown.
const NEWEST_KEPT: usize = 256;

/// Ended attempts that are kept, the newest last.
#[derive(Debug)]
struct Ended {
    all: Vec<JobId>,
    /// Length of `all` above which attempts of evicted jobs are evicted.
    most: usize,
}

impl VolleyJobState {
    pub(super) fn new(
        jobs: InMemoryJobState,
        control: Control,
        (small_results, kept, moved): (SmallResults, Kept, Moved),
    ) -> Self {
        Self {
            jobs,
            control,
            small_results,
            kept,
            moved,
            ended: Mutex::new(Ended {
                all: Vec::new(),
                most: 2 * NEWEST_KEPT,
            }),
            without_graph: Mutex::default(),
        }
    }

    /// Returns the stages of an attempt that has ended, of no job; `None` if its graph is retained, or the attempt is not.
    pub(super) fn stages_of(&self, attempt: &JobId) -> Option<Vec<Stage>> {
        let without_graph = self.without_graph.lock();
        let ended = without_graph.get(attempt)?;
        Some(ended.stages.to_vec())
    }

    /// Evicts the graph of an attempt that has ended.
    async fn evict_graph(&self, attempt: &JobId) -> Result<()> {
        let graph = self.jobs.get_execution_graph(attempt).await?;
        let status = self.jobs.get_job_status(attempt).await?;
        let (Some(graph), Some(status)) = (graph, status) else {
            return Ok(());
        };
        let stages = stages(&graph).into();
        let ended = WithoutGraph { status, stages };
        self.without_graph.lock().insert(attempt.clone(), ended);
        self.jobs.remove_job(attempt).await
    }

    /// Records that an attempt is retained, and evicts older graphs, and older attempts of evicted jobs.
    async fn keep(&self, job_id: &JobId) -> Result<()> {
        let mut forgotten = Vec::new();
        let mut older = None;
        {
            let mut ended = self.ended.lock();
            if !ended.all.contains(job_id) {
                ended.all.push(job_id.clone());
                let at = ended.all.len().checked_sub(WHOLE + 1);
                older = at.map(|at| ended.all[at].clone());
            }
            if ended.all.len() > ended.most {
                // The newest may finish before their jobs are known, and clients poll for their status.
                let older = ended.all.len() - NEWEST_KEPT;
                let newest = ended.all.split_off(older);
                (ended.all, forgotten) = self.control.look(|control| {
                    let known = |attempt: &JobId| control.jobs().knows(attempt.as_str());
                    ended.all.drain(..).partition(known)
                });
                ended.all.extend(newest);
                ended.most = ended.all.len() + NEWEST_KEPT;
            }
        }
        if let Some(older) = older {
            self.evict_graph(&older).await?;
        }
        for attempt in forgotten {
            self.without_graph.lock().remove(&attempt);
            if self.jobs.get_job_status(&attempt).await?.is_some() {
                self.jobs.remove_job(&attempt).await?;
            }
        }
        Ok(())
    }

    fn attempt_ended(&self, attempt: &JobId, end: AttemptEnd) {
        if !matches!(end, AttemptEnd::Succeeded { .. }) {
            self.small_results.release(attempt.as_str());
        }
        self.control.on(Event::AttemptEnded {
            attempt: attempt.to_string(),
            end,
        });
    }
}

/// Returns the end of a graph's attempt, if it has ended.
fn end_of(graph: &ExecutionGraphBox) -> Option<AttemptEnd> {
    match &graph.status().status {
        Some(Status::Successful(succeeded)) => Some(end_of_success(succeeded)),
        Some(Status::Failed(failed)) => Some(match DataLost::find(&failed.error) {
            Some(loss) => AttemptEnd::Lost(data_loss(graph, &loss.executor, &loss.reason)),
            None => end_of_failure(&failed.error),
        }),
        _ => None,
    }
}

/// Returns the end of a successful attempt, with its rows if all were counted.
pub(super) fn end_of_success(succeeded: &SuccessfulJob) -> AttemptEnd {
    let mut places = succeeded.partition_location.iter();
    let rows = places.try_fold(0_u64, |rows, place| {
        let counted = place.partition_stats.as_ref()?.num_rows;
        // The count is negative if rows were not counted.
        Some(rows.saturating_add(u64::try_from(counted).ok()?))
    });
    AttemptEnd::Succeeded { rows }
}

/// Returns the end of a failed attempt from Ballista's text of the failure.
pub(super) fn end_of_failure(error: &str) -> AttemptEnd {
    match error {
        CANCELLED => AttemptEnd::Cancelled,
        error => AttemptEnd::Failed(error.to_owned()),
    }
}

#[async_trait]
impl JobState for VolleyJobState {
    async fn save_job(&self, job_id: &JobId, graph: &ExecutionGraphBox) -> Result<()> {
        if let Some(end) = end_of(graph) {
            if let AttemptEnd::Lost(lost) = &end {
                let job = || running_job(&self.control, graph);
                let places = self.moved.places(job_id.as_str());
                let graph = (graph, &*places);
                self.kept
                    .capture_unreadable(job, graph, &lost.loss.executor);
            }
            self.attempt_ended(job_id, end);
            self.jobs.save_job(job_id, graph).await?;
            return self.keep(job_id).await;
        }
        self.jobs.save_job(job_id, graph).await
    }

    fn accept_job(&self, job_id: &JobId, job_name: &str, queued_at: u64) -> Result<()> {
        self.jobs.accept_job(job_id, job_name, queued_at)
    }

    fn pending_job_number(&self) -> usize {
        self.jobs.pending_job_number()
    }

    async fn submit_job(
        &self,
        job_id: JobId,
        graph: &ExecutionGraphBox,
        subscriber: Option<JobStatusSubscriber>,
    ) -> Result<()> {
        let is_ending = |control: &Controller| control.jobs().is_ending(job_id.as_str());
        if self.control.look(is_ending) {
            // The attempt was ended while it was being planned.
            return Err(BallistaError::Cancelled);
        }
        self.jobs.submit_job(job_id, graph, subscriber).await
    }

    async fn get_jobs(&self) -> Result<HashSet<JobId>> {
        self.jobs.get_jobs().await
    }

    async fn get_all_jobs(&self) -> Result<HashSet<JobId>> {
        let mut all = self.jobs.get_all_jobs().await?;
        all.extend(self.without_graph.lock().keys().cloned());
        Ok(all)
    }

    async fn get_job_status(&self, job_id: &JobId) -> Result<Option<JobStatus>> {
        // An attempt without a graph is noted before its graph is evicted.
        if let Some(status) = self.jobs.get_job_status(job_id).await? {
            return Ok(Some(status));
        }
        let without_graph = self.without_graph.lock();
        Ok(without_graph.get(job_id).map(|ended| ended.status.clone()))
    }

    async fn get_execution_graph(&self, job_id: &JobId) -> Result<Option<ExecutionGraphBox>> {
        self.jobs.get_execution_graph(job_id).await
    }

    async fn fail_unscheduled_job(&self, job_id: &JobId, reason: String) -> Result<()> {
        self.attempt_ended(job_id, AttemptEnd::Failed(reason.clone()));
        self.jobs.fail_unscheduled_job(job_id, reason).await?;
        self.keep(job_id).await
    }

    async fn remove_job(&self, job_id: &JobId) -> Result<()> {
        self.jobs.remove_job(job_id).await
    }

    async fn try_acquire_job(&self, job_id: &JobId) -> Result<Option<ExecutionGraphBox>> {
        self.jobs.try_acquire_job(job_id).await
    }

    async fn job_state_events(&self) -> Result<JobStateEventStream> {
        self.jobs.job_state_events().await
    }

    async fn create_or_update_session(
        &self,
        session_id: &str,
        config: &SessionConfig,
    ) -> Result<Arc<SessionContext>> {
        self.jobs.create_or_update_session(session_id, config).await
    }

    async fn remove_session(&self, session_id: &str) -> Result<()> {
        self.jobs.remove_session(session_id).await
    }

    fn produce_config(&self) -> SessionConfig {
        self.jobs.produce_config()
    }
}

#[cfg(test)]
mod tests {
    use ballista_core::serde::protobuf::{PartitionLocation, PartitionStats};
    use ballista_core::utils::default_config_producer;
    use datafusion::execution::SessionStateBuilder;

    use super::super::cluster_state::tests::graph;
    use super::*;
    use crate::handle::testing::control;

    #[test]
    fn rows_of_a_result_are_those_of_its_partitions() {
        let rows = |counted: &[i64]| {
            let place = |num_rows: &i64| PartitionLocation {
                partition_stats: Some(PartitionStats {
                    num_rows: *num_rows,
                    ..PartitionStats::default()
                }),
                ..PartitionLocation::default()
            };
            let succeeded = SuccessfulJob {
                partition_location: counted.iter().map(place).collect(),
                ..SuccessfulJob::default()
            };
            end_of_success(&succeeded)
        };
        let due = |rows| AttemptEnd::Succeeded { rows };
        assert_eq!(rows(&[]), due(Some(0)));
        assert_eq!(rows(&[3, 0, 4]), due(Some(7)));
        assert_eq!(rows(&[3, -1]), due(None));
    }

    fn job_state() -> VolleyJobState {
        let build = |config| {
            let state = SessionStateBuilder::new().with_config(config);
            Ok(state.build())
        };
        let jobs = InMemoryJobState::new(
            "scheduler",
            Arc::new(build),
            Arc::new(default_config_producer),
        );
        VolleyJobState::new(jobs, control().0, Default::default())
    }

    #[tokio::test]
    async fn forgotten_jobs_are_not_kept() {
        let state = job_state();
        for number in 0..6 * NEWEST_KEPT {
            let job = JobId::from(number.to_string());
            state.accept_job(&job, "a job", 0).unwrap();
            let ended = state.fail_unscheduled_job(&job, "no".to_owned()).await;
            ended.unwrap();
            let kept = state.get_all_jobs().await.unwrap().len();
            assert!(kept <= 2 * NEWEST_KEPT, "{kept} of {number}");
            assert!(kept > number.min(NEWEST_KEPT - 1), "{kept} of {number}");
            assert!(state.get_job_status(&job).await.unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn of_older_attempts_the_stages_are_kept() {
        let state = job_state();
        let ended = 6 * NEWEST_KEPT;
        for number in 0..ended {
            let id = number.to_string();
            let mut graph = graph(&id).await;
            graph.fail_job("no".to_owned());
            state.save_job(graph.job_id(), &graph).await.unwrap();
            let whole = state.jobs.get_jobs().await.unwrap().len();
            assert_eq!(whole, (number + 1).min(WHOLE));
            let all = whole + state.without_graph.lock().len();
            assert!(all <= 2 * NEWEST_KEPT, "{all} of {number}");
        }
        let [newest, older, first] =
            [1, WHOLE + 1, ended].map(|ago| JobId::from((ended - ago).to_string()));
        assert!(state.get_execution_graph(&newest).await.unwrap().is_some());
        assert!(state.get_execution_graph(&older).await.unwrap().is_none());
        assert!(state.stages_of(&newest).is_none() && state.stages_of(&first).is_none());
        assert_eq!(state.stages_of(&older).unwrap().len(), 1);
        let status = state.get_job_status(&older).await.unwrap().unwrap();
        assert!(matches!(status.status, Some(Status::Failed(failed)) if failed.error == "no"));
        assert!(state.get_job_status(&first).await.unwrap().is_none());
    }
}
