//! The scheduler's job services over the wire: Volley's for lists, notes and result rows, Ballista's for cancellation.

use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use ballista_core::config::BallistaConfig;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{CancelJobParams, GetJobStatusResult, job_status};
use ballista_core::utils::GrpcClientConfig;
use futures::stream::BoxStream;
use tonic::{Code, Status};
use volley_proto::access::Authorized;
use volley_proto::did_you_mean;
use volley_proto::tables::{self, JobState};
use volley_proto::wire::FollowJobRequest;
use volley_proto::wire::jobs_client::JobsClient;

use super::{Job, JobEvent};
use crate::cluster::{Cluster, JobRows, Order, decode};
use crate::session::await_scheduler;
use crate::system_tables::{Scope, SystemTables};
use crate::{Error, Result, SchedulerAddress};

/// Maximum number of known jobs listed in the error about an unknown one.
const SUGGESTED: usize = 3;

/// Jobs of one scheduler.
#[derive(Debug, Clone)]
pub struct Jobs {
    cluster: Arc<Cluster>,
    grpc: GrpcClientConfig,
    tables: Arc<SystemTables>,
    ours: JobsClient<Authorized>,
    engine: SchedulerGrpcClient<Authorized>,
}

impl Jobs {
    /// Connects to a scheduler, and waits until it answers.
    ///
    /// # Errors
    /// When the scheduler does not answer in time, or refuses this client.
    pub async fn connect(scheduler: SchedulerAddress, patience: Duration) -> Result<Self> {
        await_scheduler(&scheduler, patience).await?;
        Self::of(scheduler)
    }

    /// Returns the jobs of a scheduler, which it connects to on first use.
    fn of(scheduler: SchedulerAddress) -> Result<Self> {
        let cluster = Cluster::of(scheduler);
        let grpc = GrpcClientConfig::from(&BallistaConfig::default());
        let channel = cluster.channel(&grpc)?;
        let ours = JobsClient::new(channel).max_decoding_message_size(grpc.max_message_size);
        Ok(Self {
            ours,
            tables: Arc::new(SystemTables::of(cluster.scheduler_address())),
            engine: cluster.scheduler(&grpc)?,
            cluster,
            grpc,
        })
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &SchedulerAddress {
        self.cluster.scheduler_address()
    }

    /// Returns the scheduler's address, `host:port`.
    pub fn address(&self) -> &str {
        self.cluster.address()
    }

    /// Lists the jobs that the scheduler knows, newest first.
    ///
    /// # Errors
    /// When the scheduler does not answer.
    pub async fn list(&self) -> Result<Vec<Job>> {
        let rows: Vec<tables::Job> = self.tables.rows(Scope::All).await?;
        let jobs = rows.into_iter().map(Job::try_from);
        Ok(jobs.collect::<Result<_, _>>()?)
    }

    /// Returns one job, by its id or by that of one of its attempts.
    ///
    /// # Errors
    /// When there is no such job; the error names the ids nearest to the one asked for.
    pub async fn find(&self, id: &str) -> Result<Job> {
        let jobs = self.list().await?;
        let is_meant = |job: &&Job| job.id == id || job.attempts.iter().any(|known| known == id);
        match jobs.iter().find(is_meant) {
            Some(job) => Ok(job.clone()),
            None => Err(unknown(id, &jobs)),
        }
    }

    /// Returns a job, its events after the first `seen`, and the number seen with these. Waits a few seconds for one if
    /// there are none.
    ///
    /// # Errors
    /// When there is no such job; the error names the ids nearest to the one asked for. The error is
    /// [`Error::SchedulerLost`] when the scheduler does not answer.
    pub async fn follow(&self, id: &str, seen: usize) -> Result<(Job, Vec<JobEvent>, usize)> {
        let request = FollowJobRequest {
            id: id.to_owned(),
            seen: seen as u64,
        };
        let answer = self.scheduler().authenticated(|| {
            let (mut jobs, request) = (self.ours.clone(), request.clone());
            async move { jobs.follow(request).await }
        });
        let answer = match answer.await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == Code::NotFound => {
                return Err(unknown(id, &self.list().await?));
            }
            Err(status) if Error::denied(self.address(), &status).is_some() => {
                return Err(self.refused("tell of the job", status));
            }
            Err(status) => {
                return Err(Error::SchedulerLost {
                    job: id.to_owned(),
                    training: false,
                    source: Box::new(self.refused("tell of the job", status)),
                });
            }
        };
        let job: tables::Job = serde_json::from_slice(&answer.job)
            .map_err(|error| volley_proto::Error::malformed("answer about jobs", error))?;
        let notes = answer.notes.into_iter().map(JobEvent::try_from);
        let seen = usize::try_from(answer.seen).unwrap_or(usize::MAX);
        Ok((Job::try_from(job)?, notes.collect::<Result<_, _>>()?, seen))
    }

    /// Cancels a job, and waits up to `patience` until it has ended. Returns its last known state, and whether it had
    /// ended before.
    ///
    /// # Errors
    /// When there is no such job, or the scheduler does not answer.
    pub async fn cancel(&self, id: &str, patience: Duration) -> Result<(JobState, bool)> {
        let job = self.find(id).await?;
        let (id, state) = (job.id.as_str(), job.state);
        if state.has_ended() {
            return Ok((state, true));
        }
        let cancel = CancelJobParams {
            job_id: id.to_owned(),
        };
        let cancelled = self.scheduler().authenticated(|| {
            let (mut engine, cancel) = (self.engine.clone(), cancel.clone());
            async move { engine.cancel_job(cancel).await }
        });
        let cancelled = cancelled.await;
        cancelled.map_err(|status| self.refused("cancel the job", status))?;
        let ended = async {
            let mut seen = 0;
            loop {
                let (job, _, seen_now) = self.follow(id, seen).await?;
                if job.state.has_ended() {
                    return Ok::<_, Error>(job.state);
                }
                seen = seen_now;
            }
        };
        match tokio::time::timeout(patience, ended).await {
            Ok(state) => Ok((state?, false)),
            Err(_) => Ok((state, false)),
        }
    }

    /// Returns the result rows of a job that has succeeded. The rows of each partition begin with an empty batch, so
    /// that the columns are known even without rows.
    ///
    /// # Errors
    /// When the job has no result rows, or they are lost.
    pub async fn rows(&self, id: &str) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        const REQUEST: &str = "say where the rows are";
        let outcome = self.cluster.ask(id.to_owned(), &self.grpc).await?;
        let outcome = outcome.map_err(|status| self.refused(REQUEST, status))?;
        let GetJobStatusResult {
            status,
            flight_proxy,
        } = decode(&outcome.status)?;
        let Some(job_status::Status::Successful(succeeded)) =
            status.and_then(|status| status.status)
        else {
            let reason = "the job has not succeeded, or its rows are gone by now";
            return Err(Error::request(self.address(), REQUEST, reason));
        };
        let places = (succeeded.partition_location, flight_proxy);
        let from = (&self.cluster, &self.grpc);
        Ok(JobRows::new(id.to_owned(), outcome, places, from).fetch(Order::Kept))
    }

    fn refused(&self, request: &'static str, status: Status) -> Error {
        Error::refused(self.address(), request, status)
    }
}

/// Returns the error about a job that is not among the known ones, which are listed newest first.
fn unknown(id: &str, known: &[Job]) -> Error {
    let mut hint = did_you_mean(id, known.iter().map(|job| job.id.as_str()));
    if hint.is_empty() {
        let newest: Vec<_> = known.iter().take(SUGGESTED).map(|job| &*job.id).collect();
        hint = match newest.len() {
            0 => "; the scheduler knows none".to_owned(),
            _ => format!("; the newest are {}", newest.join(", ")),
        };
    }
    Error::UnknownJob {
        id: id.to_owned(),
        hint,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Response};
    use volley_proto::access::Credential;
    use volley_proto::wire;
    use volley_proto::wire::cluster_server::{Cluster, ClusterServer};
    use volley_proto::wire::jobs_server::{Jobs as Service, JobsServer};

    use super::*;
    use volley_proto::version::Version;

    /// Scheduler with one job, which ends with its second note.
    struct Scheduler;

    impl Scheduler {
        fn job(notes: u64) -> tables::Job {
            tables::Job {
                job_id: "J1".into(),
                name: String::new(),
                statement: None,
                owner: String::new(),
                state: match notes {
                    0 | 1 => JobState::Running,
                    _ => JobState::Failed,
                },
                attempts: 1,
                attempt_ids: vec!["J1".into()],
                submitted: 0,
                ended: None,
                seconds: 0.0,
                train_id: None,
                queue: "default".into(),
                priority: 0,
                waits: None,
                error: (notes > 1).then(|| "boom".into()),
            }
        }

        /// Serves on a free port until the test's runtime ends. Returns the address.
        fn start() -> String {
            let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let address = incoming.local_addr().unwrap().to_string();
            let server = Server::builder()
                .add_service(ClusterServer::new(Self))
                .add_service(JobsServer::new(Self));
            tokio::spawn(server.serve_with_incoming(incoming));
            address
        }
    }

    #[tonic::async_trait]
    impl Cluster for Scheduler {
        async fn describe(
            &self,
            _: Request<wire::DescribeRequest>,
        ) -> Result<Response<wire::DescribeResponse>, Status> {
            let own = Version::own();
            Ok(Response::new(wire::DescribeResponse {
                version: own.build,
                wire: own.wire,
                ..Default::default()
            }))
        }

        async fn read_table(
            &self,
            request: Request<wire::ReadTableRequest>,
        ) -> Result<Response<wire::ReadTableResponse>, Status> {
            assert_eq!(request.get_ref().table, "jobs");
            let rows = serde_json::to_vec(&[Self::job(0)]).unwrap();
            Ok(Response::new(wire::ReadTableResponse { rows }))
        }

        type ProbeStream = futures::stream::Empty<Result<wire::ProbeResponse, Status>>;

        async fn probe(
            &self,
            _: Request<wire::ProbeRequest>,
        ) -> Result<Response<Self::ProbeStream>, Status> {
            Err(Status::unimplemented("no executors here"))
        }

        async fn drain(
            &self,
            _: Request<wire::DrainRequest>,
        ) -> Result<Response<wire::DrainResponse>, Status> {
            Err(Status::unimplemented("no executors here"))
        }

        async fn drop_prepared(
            &self,
            _: Request<wire::DropPreparedRequest>,
        ) -> Result<Response<wire::DropPreparedResponse>, Status> {
            Err(Status::unimplemented("no executors here"))
        }
    }

    #[tonic::async_trait]
    impl Service for Scheduler {
        async fn follow(
            &self,
            request: Request<FollowJobRequest>,
        ) -> Result<Response<wire::FollowJobResponse>, Status> {
            let FollowJobRequest { id, seen } = request.into_inner();
            if id != "J1" {
                return Err(Status::not_found("no such job"));
            }
            let note = wire::Note {
                at_ms: seen,
                text: format!("note {seen}"),
            };
            Ok(Response::new(wire::FollowJobResponse {
                job: serde_json::to_vec(&Self::job(seen + 1)).unwrap(),
                notes: vec![note],
                seen: seen + 1,
            }))
        }

        async fn read(
            &self,
            _: Request<wire::ReadRowsRequest>,
        ) -> Result<Response<wire::ReadRowsResponse>, Status> {
            Err(Status::unimplemented("no rows here"))
        }
    }

    #[tokio::test]
    async fn a_job_is_followed_to_its_end() {
        let scheduler = SchedulerAddress::open(Scheduler::start(), None, &Credential::Found);
        let jobs = Jobs::connect(scheduler.unwrap(), Duration::from_secs(10)).await;
        let jobs = jobs.unwrap();
        assert_eq!(jobs.list().await.unwrap().len(), 1);
        assert_eq!(jobs.find("J1").await.unwrap().state, JobState::Running);
        let mut seen = Vec::new();
        let job = loop {
            let (job, notes, _) = jobs.follow("J1", seen.len()).await.unwrap();
            seen.extend(notes.into_iter().map(|note| note.text));
            if job.state.has_ended() {
                break job;
            }
        };
        assert_eq!(seen, ["note 0", "note 1"]);
        assert_eq!(job.error.as_deref(), Some("boom"));
        for asked in [
            jobs.follow("J2", 0).await.map(drop),
            jobs.find("J2").await.map(drop),
            jobs.cancel("J2", Duration::ZERO).await.map(drop),
        ] {
            let error = asked.unwrap_err();
            assert!(matches!(error, Error::UnknownJob { .. }), "{error}");
        }
        // This scheduler does not have Ballista's service.
        let error = jobs.cancel("J1", Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, Error::Request { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_lost_scheduler_is_told_from_a_refusal() {
        let nobody = SchedulerAddress::open("127.0.0.1:1", None, &Credential::Found).unwrap();
        let jobs = Jobs::of(nobody).unwrap();
        let error = jobs.follow("J1", 0).await.unwrap_err();
        assert!(matches!(error, Error::SchedulerLost { .. }), "{error}");
        let error = jobs.list().await.unwrap_err();
        assert!(matches!(error, Error::Request { .. }), "{error}");
    }

    #[test]
    fn names_the_jobs_nearest_to_one_unknown() {
        let job = |id: &str| Job {
            id: id.to_owned(),
            name: String::new(),
            owner: String::new(),
            state: JobState::Running,
            waits: None,
            attempts: Vec::new(),
            submitted: SystemTime::UNIX_EPOCH,
            ended: None,
            error: None,
            train_id: None,
            queue: "default".into(),
            priority: 0,
        };
        let jobs = ["qDSaC1v", "bbbbbbb", "ccccccc", "ddddddd"].map(job);
        for (id, known, message) in [
            (
                "qDSaC1w",
                &jobs[..],
                "unknown job \"qDSaC1w\"; did you mean \"qDSaC1v\"?",
            ),
            (
                "zzz",
                &jobs[..],
                "unknown job \"zzz\"; the newest are qDSaC1v, bbbbbbb, ccccccc",
            ),
            ("zzz", &[], "unknown job \"zzz\"; the scheduler knows none"),
        ] {
            assert_eq!(unknown(id, known).to_string(), message);
        }
    }
}
