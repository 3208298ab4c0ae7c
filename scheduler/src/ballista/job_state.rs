//! Job state that tells the [book](crate::jobs::Book) how attempts end, before anyone else hears.
//!
//! Ballista lets others end a job only by cancelling it, which it records as "Cancelled". How an
//! attempt was to end has been noted in the book by then.
//!
//! Execution graphs of finished attempts are evicted once the book has evicted their jobs, which bounds them: Ballista
//! would retain those of the last hour.

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
use parking_lot::Mutex;
use volley_proto::failure::DataLost;

use super::losses;
use crate::jobs::{Book, Ending};
use crate::slots::Slots;

/// Ballista's in-memory job state, with the book told.
pub(crate) struct VolleyJobState {
    jobs: InMemoryJobState,
    book: Book,
    slots: Slots,
    ended: Mutex<Ended>,
}

/// Execution graphs of the newest finished attempts that are retained, whether or not the book has their jobs.
const NEWEST_KEPT: usize = 256;

/// Attempts that have ended and whose graphs are kept, the newest last.
#[derive(Debug)]
struct Ended {
    all: Vec<JobId>,
    /// The length at which those of evicted jobs are evicted.
    most: usize,
}

impl VolleyJobState {
    pub(crate) fn new(jobs: InMemoryJobState, book: Book, slots: Slots) -> Self {
        Self {
            jobs,
            book,
            slots,
            ended: Mutex::new(Ended {
                all: Vec::new(),
                most: 2 * NEWEST_KEPT,
            }),
        }
    }

    /// Records that an attempt's execution graph is retained, and evicts older ones of evicted jobs.
    async fn keep(&self, job_id: &JobId) -> Result<()> {
        let mut forgotten = Vec::new();
        {
            let mut ended = self.ended.lock();
            if !ended.all.contains(job_id) {
                ended.all.push(job_id.clone());
            }
            if ended.all.len() > ended.most {
                // The newest may finish before their jobs are in the book, and clients poll for their status.
                let older = ended.all.len() - NEWEST_KEPT;
                let newest = ended.all.split_off(older);
                let known = |attempt: &JobId| self.book.knows(attempt.as_str());
                (ended.all, forgotten) = ended.all.drain(..).partition(known);
                ended.all.extend(newest);
                ended.most = ended.all.len() + NEWEST_KEPT;
            }
        }
        for attempt in forgotten {
            self.jobs.remove_job(&attempt).await?;
        }
        Ok(())
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
    use ballista_core::utils::default_config_producer;
    use datafusion::execution::SessionStateBuilder;

    use super::*;
    use crate::training::Runs;

    #[tokio::test]
    async fn graphs_of_forgotten_jobs_are_not_kept() {
        let build = |config| {
            let state = SessionStateBuilder::new().with_config(config);
            Ok(state.build())
        };
        let jobs = InMemoryJobState::new(
            "scheduler",
            Arc::new(build),
            Arc::new(default_config_producer),
        );
        let (book, _commands) = Book::new(Runs::default());
        let state = VolleyJobState::new(jobs, book, Slots::default());
        for number in 0..6 * NEWEST_KEPT {
            let job = JobId::from(number.to_string());
            state.accept_job(&job, "a job", 0).unwrap();
            let ended = state.fail_unscheduled_job(&job, "no".to_owned()).await;
            ended.unwrap();
            let kept = state.get_jobs().await.unwrap().len();
            assert!(kept <= 2 * NEWEST_KEPT, "{kept} of {number}");
            assert!(kept > number.min(NEWEST_KEPT - 1), "{kept} of {number}");
            assert!(state.get_job_status(&job).await.unwrap().is_some());
        }
    }
}
