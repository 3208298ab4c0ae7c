//! Submitted job, from its submission to its end. Dropping it earlier cancels the job.
//!
//! ```text
//! submit ── ask ── ask ── succeeded: locations of the result rows, or the rows themselves
//!    │ ended soon: as below, without a question
//!    │       │ no answer: asked again, for a minute; then SchedulerLost, and a setting decides whether the job goes on
//!    │       │ unknown job: SchedulerRestarted
//!    │       │ rows are gone: ResultLost
//!    │       └ failed: the reason; cancelled: Cancelled
//!    └ dropped here or above: CancelJob to the scheduler
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_result::Result as Answer;
use ballista_core::serde::protobuf::job_status::Status as JobStatus;
use ballista_core::serde::protobuf::{
    CancelJobParams, ExecuteQueryParams, ExecuteQueryResult, GetJobStatusResult,
};
use ballista_core::utils::GrpcClientConfig;
use ballista_core::version::insert_version_header;
use datafusion::error::DataFusionError;
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Request, Response, Status, Streaming};
use volley_proto::failure::CANCELLED;
use volley_proto::wire::submit_response::Message;
use volley_proto::wire::{AskRequest, Outcome, SubmitRequest, SubmitResponse};

use super::{Cluster, JobRows};
use crate::{Error, Result};

/// Timeout of a cancellation.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two requests for a job's state. The scheduler holds an answer back until the job has ended, for at
/// most a second.
const AGAIN: Duration = Duration::from_millis(50);

/// Time limit for a scheduler that does not answer to come back: another one may take over, or it may restart.
pub(crate) const RETURN: Duration = Duration::from_secs(60);
/// Time limit for an answer about a job, which the scheduler holds back for at most a second.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause between two requests to a scheduler that does not answer.
pub(crate) const REDIAL: Duration = Duration::from_millis(500);

/// Wait for the rest of the answer to a submission.
const EARLY: Duration = Duration::from_secs(2);

/// Submitted job; dropping it cancels the job unless it has ended.
#[derive(Debug)]
pub(crate) struct Submitted {
    id: String,
    cluster: Arc<Cluster>,
    grpc: GrpcClientConfig,
    runtime: Handle,
    /// Rest of the answer to the submission: the outcome, if the job ends soon.
    rest: Option<Streaming<SubmitResponse>>,
    /// True once the job has ended, or if it must not be cancelled.
    over: bool,
}

impl Cluster {
    /// Submits a query. If the caller stops waiting, the job is cancelled.
    ///
    /// # Errors
    /// When the scheduler does not accept the query.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        query: ExecuteQueryParams,
        grpc: GrpcClientConfig,
    ) -> Result<Submitted> {
        let (send, receive) = oneshot::channel();
        let cluster = Arc::clone(self);
        self.spawn(&Handle::current(), async move {
            // If the caller is gone, the job is dropped here, in a task that `settle` still waits for.
            send.send(cluster.begin(query, grpc).await).ok();
        });
        receive.await.map_err(|_| {
            Error::from(DataFusionError::Execution(
                "the runtime ended while a query was submitted".to_owned(),
            ))
        })?
    }

    async fn begin(
        self: Arc<Self>,
        query: ExecuteQueryParams,
        grpc: GrpcClientConfig,
    ) -> Result<Submitted> {
        let tried = self.scheduler.schedulers().current().to_owned();
        let queries = self.queries(&grpc)?;
        let answer = self.scheduler.authenticated(|| {
            let mut request = Request::new(SubmitRequest {
                query: query.encode_to_vec(),
            });
            insert_version_header(request.metadata_mut());
            let mut queries = queries.clone();
            async move { queries.submit(request).await }
        });
        let accepted = match answer.await {
            Ok(answer) => {
                let mut messages = answer.into_inner();
                let first = messages.message().await;
                first.map(|first| (first.and_then(|first| first.message), messages))
            }
            Err(status) => Err(status),
        };
        let (first, rest) = match accepted {
            Ok(accepted) => accepted,
            Err(status) if is_no_answer(&status) => {
                self.forget_scheduler(&grpc, &tried);
                return Err(Error::refused(self.address(), "take the query", status));
            }
            Err(status) => {
                let denied = Error::denied(self.address(), &status);
                return Err(denied.unwrap_or_else(|| engine(status.message())));
            }
        };
        let Some(Message::Answer(answer)) = first else {
            return Err(engine(
                "the scheduler neither accepted nor refused the query",
            ));
        };
        match decode::<ExecuteQueryResult>(&answer)?.result {
            Some(Answer::Success(taken)) => Ok(Submitted {
                id: taken.job_id,
                grpc,
                runtime: Handle::current(),
                rest: Some(rest),
                over: false,
                cluster: self,
            }),
            Some(Answer::Failure(failure)) => Err(match failure.failure {
                Some(
                    Failure::PlanParsingFailure(text)
                    | Failure::SqlParsingFailure(text)
                    | Failure::SessionNotFound(text),
                ) => engine(&text),
                None => engine("the scheduler refused the query"),
            }),
            None => Err(engine(
                "the scheduler neither accepted nor refused the query",
            )),
        }
    }

    /// Asks for the outcome of a job; the scheduler holds its answer back for a while until the job has ended.
    pub(crate) async fn ask(
        &self,
        id: String,
        grpc: &GrpcClientConfig,
    ) -> Result<std::result::Result<Outcome, Status>> {
        let queries = self.queries(grpc)?;
        let answer = self.scheduler.authenticated(|| {
            let (mut queries, id) = (queries.clone(), id.clone());
            async move { queries.ask(AskRequest { id }).await }
        });
        Ok(answer.await.map(Response::into_inner))
    }

    async fn cancel(&self, job_id: String, grpc: &GrpcClientConfig) {
        let asked = async {
            let scheduler = self.scheduler(grpc)?;
            let cancelled = self.scheduler.authenticated(|| {
                let mut scheduler = scheduler.clone();
                let job_id = job_id.clone();
                async move { scheduler.cancel_job(CancelJobParams { job_id }).await }
            });
            let cancelled = cancelled.await;
            cancelled.map_err(|status| Error::refused(self.address(), "cancel the job", status))
        };
        tracing::info!(job_id, "cancelling the job of a dropped query");
        match timeout(PATIENCE, asked).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => tracing::warn!(%error, "a dropped query could not be cancelled"),
            Err(_) => tracing::warn!("a dropped query could not be cancelled in {PATIENCE:?}"),
        }
        self.undelivered.store(true, Ordering::Relaxed);
    }
}

impl Submitted {
    /// Returns the job's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Leaves the job to the cluster: it is not cancelled.
    pub(crate) fn leave(mut self) {
        self.over = true;
    }

    /// Waits until the job has succeeded; `trains` tells errors that it is a training run.
    ///
    /// # Errors
    /// When the job has failed. The error is [`Error::Cancelled`] when somebody cancelled it, [`Error::SchedulerLost`]
    /// when the scheduler does not answer, and [`Error::SchedulerRestarted`] when it does not know the job that it
    /// accepted.
    pub(crate) async fn success(&mut self, trains: bool) -> Result<JobRows> {
        let mut silent_since = None;
        loop {
            let tried = self.cluster.scheduler.schedulers().current().to_owned();
            let answer = match self.early_outcome().await {
                Some(outcome) => Ok(outcome),
                None => {
                    let ask = self.cluster.ask(self.id.clone(), &self.grpc);
                    match timeout(ANSWER, ask).await {
                        Ok(answer) => answer?,
                        Err(_) => Err(Status::deadline_exceeded("it does not answer")),
                    }
                }
            };
            let outcome = match answer {
                Ok(outcome) => {
                    silent_since = None;
                    outcome
                }
                // A scheduler that rejects the token it accepted the job with may have been restarted.
                Err(status) if is_no_answer(&status) || status.code() == Code::Unauthenticated => {
                    self.cluster.forget_scheduler(&self.grpc, &tried);
                    let since = *silent_since.get_or_insert_with(|| {
                        let address = self.cluster.address();
                        tracing::warn!(
                            "the scheduler at {address} does not answer: waiting up to {RETURN:?} for it to come back"
                        );
                        Instant::now()
                    });
                    if since.elapsed() < RETURN {
                        sleep(REDIAL).await;
                        continue;
                    }
                    self.over = true;
                    return Err(Error::SchedulerLost {
                        job: self.id.clone(),
                        training: trains,
                        source: Box::new(engine(status.message())),
                    });
                }
                // The scheduler was restarted between two polls.
                Err(status) if status.code() == Code::NotFound => {
                    self.over = true;
                    return Err(Error::SchedulerRestarted {
                        job: self.id.clone(),
                        training: trains,
                    });
                }
                // It has succeeded, and its rows went with the scheduler that ran it.
                Err(status) if status.code() == Code::FailedPrecondition => {
                    self.over = true;
                    return Err(Error::ResultLost {
                        job: self.id.clone(),
                        holder: "the scheduler that ran it".to_owned(),
                        advice: String::new(),
                        source: Box::new(engine(status.message())),
                    });
                }
                Err(status) => return Err(engine(status.message())),
            };
            let told: GetJobStatusResult = decode(&outcome.status)?;
            match told.status.and_then(|status| status.status) {
                Some(JobStatus::Failed(failed)) => {
                    self.over = true;
                    return Err(match failed.error.as_str() {
                        CANCELLED => Error::Cancelled {
                            job: self.id.clone(),
                        },
                        error => engine(error),
                    });
                }
                Some(JobStatus::Successful(succeeded)) => {
                    self.over = true;
                    let places = (succeeded.partition_location, told.flight_proxy);
                    let from = (&self.cluster, &self.grpc);
                    return Ok(JobRows::new(self.id.clone(), outcome, places, from));
                }
                Some(JobStatus::Queued(_) | JobStatus::Running(_)) | None => sleep(AGAIN).await,
            }
        }
    }
}

impl Submitted {
    /// Returns the outcome, if it follows the answer to the submission.
    async fn early_outcome(&mut self) -> Option<Outcome> {
        let mut rest = self.rest.take()?;
        // The scheduler waits less. If the connection is lost, the question that follows finds out.
        let message = timeout(EARLY, rest.message()).await.ok()?.ok()??.message?;
        match message {
            Message::Outcome(outcome) => Some(outcome),
            Message::Answer(_) => None,
        }
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (id, grpc) = (std::mem::take(&mut self.id), self.grpc.clone());
        let cluster = Arc::clone(&self.cluster);
        let cancel = async move { cluster.cancel(id, &grpc).await };
        self.cluster.spawn(&self.runtime, cancel);
    }
}

/// Returns whether a request probably got no answer.
pub(crate) fn is_no_answer(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

/// Decodes a message of Ballista's.
pub(crate) fn decode<M: prost::Message + Default>(message: &[u8]) -> Result<M> {
    M::decode(message).map_err(|error| engine(&format!("the scheduler's answer: {error}")))
}

/// Returns an error of the engine with this text.
fn engine(text: &str) -> Error {
    DataFusionError::Execution(text.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use ballista_core::config::BallistaConfig;
    use volley_proto::access::Credential;

    use super::*;
    use crate::SchedulerAddress;

    #[tokio::test]
    async fn a_scheduler_that_is_gone_is_told_from_a_refusal() {
        let nobody = SchedulerAddress::open("127.0.0.1:1", None, &Credential::Found).unwrap();
        let cluster = Cluster::of(nobody);
        let grpc = GrpcClientConfig::from(&BallistaConfig::default());
        let submitted = cluster.submit(ExecuteQueryParams::default(), grpc.clone());
        let error = submitted.await.unwrap_err();
        assert!(matches!(error, Error::Request { .. }), "{error}");
        assert!(cluster.settle(PATIENCE).await, "there is nothing to cancel");
        let mut job = Submitted {
            id: "J1".to_owned(),
            cluster: Arc::clone(&cluster),
            grpc: grpc.clone(),
            runtime: Handle::current(),
            rest: None,
            over: false,
        };
        let error = job.success(true).await.unwrap_err();
        let Error::SchedulerLost { training: true, .. } = error else {
            panic!("{error}")
        };
        assert!(error.to_string().contains("volley jobs attach J1"));
        drop(job);
        assert!(
            cluster.settle(PATIENCE).await,
            "nobody is there to cancel it"
        );
        let dropped = Submitted {
            id: "J2".to_owned(),
            cluster: Arc::clone(&cluster),
            grpc,
            runtime: Handle::current(),
            rest: None,
            over: false,
        };
        drop(dropped);
        assert!(!cluster.settle(PATIENCE).await, "it was not cancelled");
    }

    #[cfg(feature = "standalone")]
    #[tokio::test]
    async fn a_restarted_scheduler_is_told_from_one_that_is_gone() {
        use crate::standalone::{Standalone, StandaloneConfig};
        let started = Standalone::start(StandaloneConfig {
            executors: 1,
            vcores: 1,
            ..Default::default()
        });
        let started = started.await.unwrap();
        let address = SchedulerAddress::open(started.scheduler(), None, &Credential::Found);
        let cluster = Cluster::of(address.unwrap());
        let mut job = Submitted {
            id: "J1".to_owned(),
            cluster: Arc::clone(&cluster),
            grpc: GrpcClientConfig::from(&BallistaConfig::default()),
            runtime: Handle::current(),
            rest: None,
            over: false,
        };
        let error = job.success(true).await.unwrap_err();
        let Error::SchedulerRestarted { training: true, .. } = error else {
            panic!("{error}")
        };
        assert!(error.to_string().contains("resume = true"), "{error}");
        drop(job);
        assert!(cluster.settle(PATIENCE).await, "there is nothing to cancel");
        started.stop().await;
    }

    #[cfg(feature = "standalone")]
    #[tokio::test]
    async fn a_submission_sent_again_is_the_same_job() {
        use crate::standalone::{Standalone, StandaloneConfig};
        use ballista_core::serde::protobuf::execute_query_params::Query;
        use datafusion::logical_expr::LogicalPlanBuilder;
        use datafusion_proto::logical_plan::AsLogicalPlan;
        use datafusion_proto::protobuf::LogicalPlanNode;
        use volley_engine::VolleyLogicalCodec;
        let started = Standalone::start(StandaloneConfig {
            executors: 1,
            vcores: 1,
            ..Default::default()
        });
        let started = started.await.unwrap();
        let address = SchedulerAddress::open(started.scheduler(), None, &Credential::Found);
        let cluster = Cluster::of(address.unwrap());
        let plan = LogicalPlanBuilder::empty(true).build().unwrap();
        let codec = VolleyLogicalCodec::default();
        let plan = LogicalPlanNode::try_from_logical_plan(&plan, &codec).unwrap();
        let query = |operation: &str| ExecuteQueryParams {
            query: Some(Query::LogicalPlan(plan.encode_to_vec())),
            session_id: "s".to_owned(),
            operation_id: operation.to_owned(),
            ..ExecuteQueryParams::default()
        };
        let mut ids = Vec::new();
        for operation in ["a", "a", "b", "a", "", ""] {
            let grpc = GrpcClientConfig::from(&BallistaConfig::default());
            let mut job = cluster.submit(query(operation), grpc).await.unwrap();
            ids.push(job.id().to_owned());
            // It may have ended, with its rows handed out.
            job.success(false).await.ok();
        }
        assert_eq!([&ids[1], &ids[3]], [&ids[0]; 2], "{ids:?}");
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 4, "{ids:?}");
        started.stop().await;
    }

    #[test]
    fn answers_are_told_from_silence() {
        assert!(is_no_answer(&Status::unavailable("connection refused")));
        assert!(!is_no_answer(&Status::not_found("no such job")));
        assert!(!is_no_answer(&Status::invalid_argument("volley.train_id")));
    }
}
