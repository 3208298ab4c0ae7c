//! A job from its submission to its end; dropped before that, it is cancelled.
//!
//! ```text
//! submit ── ask ── ask ── succeeded: where the rows are
//!    │       │ no answer: SchedulerLost; what becomes of the job is a setting
//!    │       │ not known: SchedulerRestarted
//!    │       └ failed: why
//!    └ dropped here or above: CancelJob to the scheduler
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_result::Result as Answer;
use ballista_core::serde::protobuf::job_status::Status as JobStatus;
use ballista_core::serde::protobuf::{CancelJobParams, ExecuteQueryParams, GetJobStatusParams};
use ballista_core::utils::GrpcClientConfig;
use ballista_core::version::insert_version_header;
use datafusion::error::DataFusionError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::{Code, Request, Status};

use super::{Cluster, JobRows};
use crate::{Error, Result};

/// How long a cancellation may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before a job's state is asked for again. An answer is held back until the job has
/// ended, for a second at most.
const AGAIN: Duration = Duration::from_millis(50);

/// A job that runs, as far as is known; dropping this cancels it then.
#[derive(Debug)]
pub(crate) struct Submitted {
    id: String,
    cluster: Arc<Cluster>,
    grpc: GrpcClientConfig,
    runtime: Handle,
    /// Whether it has ended, or is nobody's to cancel.
    over: bool,
}

impl Cluster {
    /// Submits a query. Where nobody waits for that any more, its job is cancelled.
    ///
    /// # Errors
    /// When the scheduler does not take it.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        query: ExecuteQueryParams,
        grpc: GrpcClientConfig,
    ) -> Result<Submitted> {
        let (send, receive) = oneshot::channel();
        let cluster = Arc::clone(self);
        self.spawn(&Handle::current(), async move {
            // Dropped here, while the task is still waited for, if nobody takes it.
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
        let mut request = Request::new(query);
        insert_version_header(request.metadata_mut());
        let answer = self.scheduler(&grpc)?.execute_query(request).await;
        let answer = match answer {
            Ok(answer) => answer.into_inner().result,
            Err(status) if is_no_answer(&status) => {
                self.forget_scheduler(&grpc);
                return Err(Error::refused(self.address(), "take the query", status));
            }
            Err(status) => {
                let denied = Error::denied(self.address(), &status);
                return Err(denied.unwrap_or_else(|| engine(status.message())));
            }
        };
        match answer {
            Some(Answer::Success(taken)) => Ok(Submitted {
                id: taken.job_id,
                grpc,
                runtime: Handle::current(),
                over: false,
                cluster: self,
            }),
            Some(Answer::Failure(failure)) => Err(match failure.failure {
                Some(
                    Failure::PlanParsingFailure(text)
                    | Failure::SqlParsingFailure(text)
                    | Failure::SessionNotFound(text),
                ) => engine(&text),
                None => engine("the scheduler does not take the query"),
            }),
            None => Err(engine(
                "the scheduler does not say whether it takes the query",
            )),
        }
    }

    async fn cancel(&self, job_id: String, grpc: &GrpcClientConfig) {
        let asked = async {
            let mut scheduler = self.scheduler(grpc)?;
            let cancel = CancelJobParams {
                job_id: job_id.clone(),
            };
            let cancelled = scheduler.cancel_job(cancel).await;
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
    /// The job's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Leaves the job to the cluster.
    pub(crate) fn leave(mut self) {
        self.over = true;
    }

    /// Waits until the job has succeeded; `trains` says what is lost with it.
    ///
    /// # Errors
    /// When it has failed, as [`Error::SchedulerLost`] when the scheduler does not answer, or as
    /// [`Error::SchedulerRestarted`] when it does not know the job that it has taken.
    pub(crate) async fn success(&mut self, trains: bool) -> Result<JobRows> {
        let mut scheduler = self.cluster.scheduler(&self.grpc)?;
        loop {
            let ask = GetJobStatusParams {
                job_id: self.id.clone(),
            };
            let answer = match scheduler.get_job_status(ask).await {
                Ok(answer) => answer.into_inner(),
                // One that does not know a token that it took the job with may have been started anew.
                Err(status) if is_no_answer(&status) || status.code() == Code::Unauthenticated => {
                    self.over = true;
                    self.cluster.forget_scheduler(&self.grpc);
                    return Err(Error::SchedulerLost {
                        job: self.id.clone(),
                        training: trains,
                        source: Box::new(engine(status.message())),
                    });
                }
                // It was restarted between two polls.
                Err(status) if status.code() == Code::NotFound => {
                    self.over = true;
                    return Err(Error::SchedulerRestarted {
                        job: self.id.clone(),
                        training: trains,
                    });
                }
                Err(status) => return Err(engine(status.message())),
            };
            match answer.status.and_then(|status| status.status) {
                Some(JobStatus::Failed(failed)) => {
                    self.over = true;
                    return Err(engine(&failed.error));
                }
                Some(JobStatus::Successful(succeeded)) => {
                    self.over = true;
                    let places = succeeded.partition_location;
                    let proxy = answer.flight_proxy;
                    let from = (&self.cluster, &self.grpc);
                    return Ok(JobRows::new(self.id.clone(), places, proxy, from));
                }
                Some(JobStatus::Queued(_) | JobStatus::Running(_)) | None => sleep(AGAIN).await,
            }
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

/// Whether a request got no answer, as far as one can tell.
fn is_no_answer(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

/// An error of the engine's by its text.
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

    #[test]
    fn answers_are_told_from_silence() {
        assert!(is_no_answer(&Status::unavailable("connection refused")));
        assert!(!is_no_answer(&Status::not_found("no such job")));
        assert!(!is_no_answer(&Status::invalid_argument("volley.train_id")));
    }
}
