//! Job state that tells the [book](crate::jobs::Book) how attempts end, before anyone else hears.
//!
//! Ballista lets others end a job only by cancelling it, which it records as "Cancelled". How an
//! attempt was to end has been noted in the book by then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ballista_core::error::{BallistaError, Result};
use ballista_core::serde::protobuf::JobStatus;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::{JobId, JobStatusSubscriber};
use ballista_scheduler::cluster::memory::InMemoryJobState;
use ballista_scheduler::cluster::{JobState, JobStateEventStream};
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use datafusion::prelude::{SessionConfig, SessionContext};
use volley_proto::failure::DataLost;

use super::losses;
use crate::jobs::{Book, Ending};
use crate::slots::Slots;

/// Ballista's in-memory job state, with the book told.
pub(crate) struct VolleyJobState {
    jobs: InMemoryJobState,
    book: Book,
    slots: Slots,
}

impl VolleyJobState {
    pub(crate) fn new(jobs: InMemoryJobState, book: Book, slots: Slots) -> Self {
        Self { jobs, book, slots }
    }

    /// How an attempt with this status has ended, if it has.
    fn ending(&self, attempt: &str, graph: &ExecutionGraphBox) -> Option<Ending> {
        match &graph.status().status {
            Some(Status::Successful(_)) => Some(Ending::Succeeded),
            Some(Status::Failed(failed)) => Some(self.book.doom_of(attempt).unwrap_or_else(|| {
                match DataLost::find(&failed.error) {
                    Some(loss) => losses::lost(graph, &loss.executor, &loss.reason),
                    None => Ending::of_failure(&failed.error),
                }
            })),
            _ => None,
        }
    }
}

#[async_trait]
impl JobState for VolleyJobState {
    async fn save_job(&self, job_id: &JobId, graph: &ExecutionGraphBox) -> Result<()> {
        if let Some(ending) = self.ending(job_id.as_str(), graph) {
            // What still computes for it holds its slots until the executor says that it has ended.
            self.slots.attempt_ends(job_id.as_str(), Instant::now());
            self.book.attempt_ends(job_id.as_str(), ending);
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
        if self.book.is_doomed(job_id.as_str()) {
            // It was to end while it was being planned.
            return Err(BallistaError::Cancelled);
        }
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
        let ending = self.book.doom_of(job_id.as_str());
        let ending = ending.unwrap_or_else(|| Ending::Failed(reason.clone()));
        self.book.attempt_ends(job_id.as_str(), ending);
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
