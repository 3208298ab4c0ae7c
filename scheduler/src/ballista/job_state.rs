//! Job state that remembers why Volley ended a job.
//!
//! Ballista lets others end a job only by cancelling it, which it records as "Cancelled". When
//! Volley cancels, it leaves its reason here first, and the job ends with that reason instead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::error::Result;
use ballista_core::serde::protobuf::JobStatus;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::{JobId, JobStatusSubscriber};
use ballista_scheduler::cluster::memory::InMemoryJobState;
use ballista_scheduler::cluster::{JobState, JobStateEventStream};
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use datafusion::prelude::{SessionConfig, SessionContext};
use parking_lot::Mutex;

/// Why Volley is cancelling jobs, by job.
pub(crate) type AbortReasons = Arc<Mutex<HashMap<JobId, String>>>;

/// Ballista's in-memory job state, with reasons.
pub(crate) struct VolleyJobState {
    jobs: InMemoryJobState,
    reasons: AbortReasons,
}

impl VolleyJobState {
    pub(crate) fn new(jobs: InMemoryJobState, reasons: AbortReasons) -> Self {
        Self { jobs, reasons }
    }
}

#[async_trait]
impl JobState for VolleyJobState {
    async fn save_job(&self, job_id: &JobId, graph: &ExecutionGraphBox) -> Result<()> {
        let failed = match &graph.status().status {
            Some(Status::Failed(failed)) => Some(failed),
            _ => None,
        };
        let reason = failed.and_then(|_| self.reasons.lock().remove(job_id));
        let (Some(failed), Some(reason)) = (failed, reason) else {
            return self.jobs.save_job(job_id, graph).await;
        };
        let mut failed = failed.clone();
        failed.error = reason;
        let mut told = graph.cloned();
        told.update_status(JobStatus {
            status: Some(Status::Failed(failed)),
            ..graph.status().clone()
        });
        self.jobs.save_job(job_id, &told).await
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
        self.jobs.submit_job(job_id, graph, subscriber).await
    }

    async fn get_jobs(&self) -> Result<HashSet<JobId>> {
        self.jobs.get_jobs().await
    }

    async fn get_all_jobs(&self) -> Result<HashSet<JobId>> {
        self.jobs.get_all_jobs().await
    }

    async fn get_job_status(&self, job_id: &JobId) -> Result<Option<JobStatus>> {
        self.jobs.get_job_status(job_id).await
    }

    async fn get_execution_graph(&self, job_id: &JobId) -> Result<Option<ExecutionGraphBox>> {
        self.jobs.get_execution_graph(job_id).await
    }

    async fn fail_unscheduled_job(&self, job_id: &JobId, reason: String) -> Result<()> {
        self.jobs.fail_unscheduled_job(job_id, reason).await
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
