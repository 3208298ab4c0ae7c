//! An intruder who speaks the cluster's protocols without its programs, and requests what belongs to others.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::executor_grpc_client::ExecutorGrpcClient;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    CancelJobParams, CancelTasksParams, GetJobStatusParams, LaunchMultiTaskParams,
    LaunchTaskParams, RegisterExecutorParams, RemoveJobDataParams, StopExecutorParams,
};
use ballista_core::serde::scheduler::{PartitionId, ShuffleLayout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use volley_proto::access::{Authorized, Bearer, Credential, Holder, Token};
use volley_proto::wire::attendance_client::AttendanceClient;
use volley_proto::wire::cluster_client::ClusterClient;
use volley_proto::wire::jobs_client::JobsClient;
use volley_proto::wire::rendezvous_client::RendezvousClient;
use volley_proto::wire::{
    AttendRequest, DescribeRequest, FollowJobRequest, HoldRequest, ReadRowsRequest,
};

/// Timeout of one answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Intruder with a token, or without.
#[derive(Debug)]
pub struct Intruder {
    address: String,
    credential: Credential,
    runtime: tokio::runtime::Runtime,
}

/// Answer to an intruder: success, or the code of the refusal.
pub type Answer = Result<(), Code>;

impl Intruder {
    /// Creates an intruder who reaches this address.
    ///
    /// # Panics
    /// When the test's process cannot create a runtime.
    pub fn at(address: &str, token: Option<&Token>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Self {
            address: address.to_owned(),
            credential: Credential::of(token.cloned(), None),
            runtime: runtime.expect("a runtime"),
        }
    }

    /// Makes every client's request to a scheduler, about somebody's job.
    pub fn asks_about(&self, job: &str) -> Vec<(&'static str, Answer)> {
        let id = || job.to_owned();
        vec![
            (
                "status",
                self.schedulers(async |mut scheduler| {
                    scheduler
                        .get_job_status(GetJobStatusParams { job_id: id() })
                        .await
                        .map(drop)
                }),
            ),
            (
                "cancel",
                self.schedulers(async |mut scheduler| {
                    scheduler
                        .cancel_job(CancelJobParams { job_id: id() })
                        .await
                        .map(drop)
                }),
            ),
            (
                "follow",
                self.ask(async |channel| {
                    let follow = FollowJobRequest { id: id(), seen: 0 };
                    JobsClient::new(channel).follow(follow).await.map(drop)
                }),
            ),
            (
                "read",
                self.ask(async |channel| {
                    let read = ReadRowsRequest {
                        id: id(),
                        reader: 1,
                        batches: 0,
                        done: true,
                    };
                    JobsClient::new(channel).read(read).await.map(drop)
                }),
            ),
        ]
    }

    /// Asks for the size of the cluster.
    pub fn describe(&self) -> Answer {
        self.ask(async |channel| {
            let mut cluster = ClusterClient::new(channel);
            cluster.describe(DescribeRequest {}).await.map(drop)
        })
    }

    /// Makes every executor's request to a scheduler.
    pub fn joins(&self) -> Vec<(&'static str, Answer)> {
        vec![
            (
                "attend",
                self.ask(async |channel| {
                    let attend = AttendRequest {
                        executor_id: "intruder".into(),
                        ..Default::default()
                    };
                    AttendanceClient::new(channel)
                        .attend(attend)
                        .await
                        .map(drop)
                }),
            ),
            (
                "hold",
                self.ask(async |channel| {
                    RendezvousClient::new(channel)
                        .hold(HoldRequest::default())
                        .await
                        .map(drop)
                }),
            ),
            (
                "register",
                self.schedulers(async |mut scheduler| {
                    scheduler
                        .register_executor(RegisterExecutorParams { metadata: None })
                        .await
                        .map(drop)
                }),
            ),
        ]
    }

    /// Makes every scheduler's request to an executor's task server.
    pub fn commands(&self, executor: &str) -> Vec<(&'static str, Answer)> {
        let executor_id = executor.to_owned();
        vec![
            (
                "launch",
                self.executors(async |mut executor| {
                    executor
                        .launch_multi_task(LaunchMultiTaskParams::default())
                        .await
                        .map(drop)
                }),
            ),
            (
                "launch one",
                self.executors(async |mut executor| {
                    executor
                        .launch_task(LaunchTaskParams::default())
                        .await
                        .map(drop)
                }),
            ),
            (
                "cancel",
                self.executors(async |mut executor| {
                    executor
                        .cancel_tasks(CancelTasksParams::default())
                        .await
                        .map(drop)
                }),
            ),
            (
                "remove",
                self.executors(async |mut executor| {
                    executor
                        .remove_job_data(RemoveJobDataParams::default())
                        .await
                        .map(drop)
                }),
            ),
            (
                "stop",
                self.executors(async |mut executor| {
                    let stop = StopExecutorParams {
                        executor_id,
                        reason: String::new(),
                        force: true,
                    };
                    executor.stop_executor(stop).await.map(drop)
                }),
            ),
        ]
    }

    /// Asks an executor's Flight service for rows of a job, by its id or by a ticket.
    ///
    /// # Errors
    /// The executor's answer.
    ///
    /// # Panics
    /// When the address is invalid.
    pub fn fetch(&self, job: &str) -> Result<(), String> {
        let (host, port) = self.address.rsplit_once(':').expect("HOST:PORT");
        let port = port.parse().expect("a port");
        let partition = PartitionId {
            job_id: job.into(),
            stage_id: 1,
            partition_id: 0,
        };
        let fetched = async {
            let mut client =
                BallistaClient::try_new(host, port, 1 << 20, false, None, 1, 1, 0, 0).await?;
            let layout = ShuffleLayout::Passthrough;
            client
                .fetch_partition("any", &partition, None, layout, true)
                .await?;
            Ok::<_, BallistaError>(())
        };
        let fetched = self
            .runtime
            .block_on(async { tokio::time::timeout(ANSWER, fetched).await });
        fetched
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    }

    /// Returns the head and body of the answer to an HTTP request with these headers and this body.
    ///
    /// # Panics
    /// When nothing answers.
    pub fn http(&self, request: &str, headers: &[&str], body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("somebody listens");
        stream.set_read_timeout(Some(ANSWER)).expect("a deadline");
        let headers: String = headers
            .iter()
            .map(|header| format!("{header}\r\n"))
            .collect();
        let length = body.len();
        write!(stream, "{request} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    async fn channel(&self) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        let endpoint = endpoint.map_err(|e| Status::internal(e.to_string()))?;
        endpoint
            .connect()
            .await
            .map_err(|e| Status::unavailable(e.to_string()))
    }

    fn ask<F: Future<Output = Result<(), Status>>>(
        &self,
        question: impl FnOnce(Authorized) -> F,
    ) -> Answer {
        let bearer = Bearer::new(&self.credential, &*self.address, Holder::Client);
        let answer = async {
            let bearer = bearer.map_err(|e| Status::internal(e.to_string()))?;
            question(bearer.over(self.channel().await?)).await
        };
        self.answer(answer)
    }

    fn schedulers<F: Future<Output = Result<(), Status>>>(
        &self,
        question: impl FnOnce(SchedulerGrpcClient<Authorized>) -> F,
    ) -> Answer {
        self.ask(|channel| question(SchedulerGrpcClient::new(channel)))
    }

    fn executors<F: Future<Output = Result<(), Status>>>(
        &self,
        question: impl FnOnce(ExecutorGrpcClient<Channel>) -> F,
    ) -> Answer {
        self.answer(async { question(ExecutorGrpcClient::new(self.channel().await?)).await })
    }

    fn answer(&self, answer: impl Future<Output = Result<(), Status>>) -> Answer {
        let answer = async { tokio::time::timeout(ANSWER, answer).await };
        match self.runtime.block_on(answer) {
            Ok(answer) => answer.map_err(|status| status.code()),
            Err(_) => Err(Code::DeadlineExceeded),
        }
    }
}
