//! What keeps jobs going: ends and submits attempts, and looks after what time brings about.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{
    UpdateTaskStatusParams, execute_query_failure_result::Failure, execute_query_result, job_status,
};
use ballista_core::version::insert_version_header;
use tokio::sync::mpsc;
use tonic::Request;
use volley_proto::failure::DataLost;

use super::job::{Now, State};
use super::rows::Patience;
use super::{Book, Command, Ending};
use crate::ballista::{BallistaScheduler, VolleyClusterState};
use crate::watched::Ends;

/// How often it looks around.
const TICK: Duration = Duration::from_millis(250);
/// How long a job waits on a cluster without a single executor.
const EMPTY_PATIENCE: Duration = Duration::from_secs(30);

/// The keeper of a scheduler's jobs.
pub(crate) struct Keeper {
    pub(crate) ballista: BallistaScheduler,
    pub(crate) book: Book,
    pub(crate) cluster: Arc<VolleyClusterState>,
    /// How long a client may be silent before it is taken for gone.
    pub(crate) client_timeout: Duration,
    /// How long rows are kept for those who do not read them.
    pub(crate) patience: Patience,
}

impl Keeper {
    /// Works for as long as the scheduler runs.
    pub(crate) async fn run(self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut empty_since = None;
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::End { attempt }) => {
                        self.end(&attempt).await;
                        // Its place in the queue is free; Ballista offers nothing for that.
                        self.offer().await;
                    }
                    Some(Command::Resubmit { job }) => self.resubmit(&job).await,
                    Some(Command::Offer) => self.offer().await,
                    None => return,
                },
                _ = tick.tick() => {
                    self.end_doomed().await;
                    if self.time_matters() {
                        self.offer().await;
                    }
                    self.cancel_abandoned().await;
                    self.end_without_executors(&mut empty_since);
                    self.notice_ended().await;
                    self.remove_rows();
                }
            }
        }
    }

    async fn end(&self, attempt: &str) {
        if let Err(error) = self.ballista.cancel_job(attempt.into()).await {
            tracing::error!(attempt, %error, "cannot end an attempt");
        }
    }

    /// Ends attempts that were being planned when they were to end.
    async fn end_doomed(&self) {
        for attempt in self
            .ballista
            .state
            .task_manager
            .get_running_job_cache()
            .keys()
        {
            if self.book.is_doomed(attempt.as_str()) {
                self.end(attempt.as_str()).await;
            }
        }
    }

    /// Whether something may be placed now only because time has passed.
    fn time_matters(&self) -> bool {
        let now = Instant::now();
        let executors = self.cluster.rank_executors();
        let waits = self.book.runs().scan(|_, run| {
            let grows = run.may_grow(now).is_some_and(|ranks| ranks < executors);
            (run.awaits_ranks() || grows).then_some(())
        });
        !waits.is_empty()
    }

    async fn resubmit(&self, job: &str) {
        let Some(submission) = self.book.submission(job) else {
            return; // it has been cancelled meanwhile
        };
        let mut request = Request::new(submission);
        insert_version_header(request.metadata_mut());
        let submitted = SchedulerGrpc::execute_query(&self.ballista, request).await;
        let failed = match submitted.map(|response| response.into_inner().result) {
            Ok(Some(execute_query_result::Result::Success(success))) => {
                return self.book.resubmitted(job, success.job_id);
            }
            Ok(Some(execute_query_result::Result::Failure(failure))) => match failure.failure {
                Some(
                    Failure::PlanParsingFailure(text)
                    | Failure::SqlParsingFailure(text)
                    | Failure::SessionNotFound(text),
                ) => text,
                None => "no reason given".to_owned(),
            },
            Ok(None) => "no answer".to_owned(),
            Err(status) => status.message().to_owned(),
        };
        self.book.end(
            job,
            State::Failed(format!("it could not be run again: {failed}")),
        );
    }

    /// Has the scheduler look for work to place.
    async fn offer(&self) {
        let Some(executor_id) = self.cluster.any_executor() else {
            return;
        };
        // A report of nothing makes Ballista offer its free slots.
        let nothing = UpdateTaskStatusParams {
            executor_id,
            task_status: Vec::new(),
        };
        let offered =
            SchedulerGrpc::update_task_status(&self.ballista, Request::new(nothing)).await;
        if let Err(error) = offered {
            tracing::debug!(%error, "the scheduler did not look for work");
        }
    }

    async fn cancel_abandoned(&self) {
        let abandoned = self.book.jobs.scan(|id, job| {
            job.is_abandoned(self.client_timeout, Now::read())
                .then(|| id.clone())
        });
        for id in abandoned {
            let timeout = self.client_timeout;
            self.book.jobs.change(&id, |job| {
                job.note(
                    format!("its client has not been heard of for {timeout:?}"),
                    Now::read(),
                );
            });
            self.book.end(&id, State::Cancelled);
        }
    }

    /// Has executors remove rows that nobody wants any more.
    fn remove_rows(&self) {
        let now = Now::read();
        let due = self.book.jobs.scan(|id, job| {
            let gone = job.rows.as_ref()?.due(&self.patience, now.instant)?;
            Some((id.clone(), gone))
        });
        for (id, gone) in due {
            let attempt = self.book.jobs.change(&id, |job| {
                if let Some(reason) = &gone {
                    job.note(format!("its rows are removed: {reason}"), now);
                }
                if let Some(rows) = &mut job.rows {
                    rows.remove(gone);
                }
                job.attempt().to_owned()
            });
            if let Some(attempt) = attempt {
                let executors = &self.ballista.state.executor_manager;
                executors.clean_up_job_data(attempt.into());
            }
        }
    }

    fn end_without_executors(&self, empty_since: &mut Option<Instant>) {
        if self.cluster.executors() > 0 {
            *empty_since = None;
            return;
        }
        let since = *empty_since.get_or_insert_with(Instant::now);
        let all = self
            .book
            .jobs
            .scan(|_, job| (!job.is_over()).then(|| job.attempt().to_owned()));
        for attempt in all {
            self.book
                .waits(&attempt, Some("no executor is registered".to_owned()));
        }
        if since.elapsed() < EMPTY_PATIENCE {
            return;
        }
        let running = self.book.jobs.scan(|_, job| {
            let waited = job.submitted.elapsed().unwrap_or_default() >= EMPTY_PATIENCE;
            (!job.is_over() && waited && !self.cluster.waits_for_executors(job.train))
                .then(|| job.attempt().to_owned())
        });
        for attempt in running {
            let reason = format!("no executor has been registered for {EMPTY_PATIENCE:?}");
            self.book.doom(&attempt, Ending::Failed(reason));
        }
    }

    /// Notices attempts that ended without a word, such as those that could not be planned.
    async fn notice_ended(&self) {
        let running = self
            .book
            .jobs
            .scan(|_, job| (job.state == State::Running).then(|| job.attempt().to_owned()));
        for attempt in running {
            let id = attempt.as_str().into();
            let status = self.ballista.state.task_manager.get_job_status(&id).await;
            let ending = match status.ok().flatten().and_then(|status| status.status) {
                // What was ended on purpose, or lost data, is told by the job's state.
                Some(job_status::Status::Failed(failed))
                    if self.book.is_doomed(&attempt) || DataLost::find(&failed.error).is_some() =>
                {
                    continue;
                }
                Some(job_status::Status::Failed(failed)) => Ending::of_failure(&failed.error),
                Some(job_status::Status::Successful(_)) => Ending::Succeeded,
                _ => continue,
            };
            self.book.attempt_ends(&attempt, ending);
        }
    }
}
