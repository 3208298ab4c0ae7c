//! Attendance: a stream that each executor keeps open for as long as it lives.
//!
//! ```text
//!   executor ── Attend(id, incarnation, role) ──► welcome, then a sign of life each second
//!      │ dies: its connection closes, the stream is dropped ──► the executor is lost, at once
//!      │ freezes, or the network is cut: heartbeats stop ─────► lost after a while; stream ends
//!      └ comes back: the stream has ended, so it starts over as a new incarnation
//! ```
//!
//! It says who is there. What a loss means is for [`crate::ballista`] and [`crate::jobs`].

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ballista_core::serde::protobuf::ExecutorStoppedParams;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};
use volley_proto::TrainId;
use volley_proto::access::ClusterSecret;
use volley_proto::tables::{Line, millis};
use volley_proto::wire::attendance_server::{Attendance, AttendanceServer};
use volley_proto::wire::{
    self, AttendRequest, AttendResponse, EchoRequest, EchoResponse, EndRequest, EndResponse,
    ProbedRequest, ProbedResponse, TellRequest, TellResponse,
};

use crate::access::Caller;
use crate::ballista::{Attendee, BallistaScheduler, VolleyClusterState};
use crate::heard::Heard;
use crate::jobs::Book;
use crate::placement::Role;
use crate::probes::Probes;
use crate::slots::{Slots, Task};
use crate::tables::Tables;
use crate::watched::Ends;

/// How often the scheduler gives a sign of life.
const SIGN: Duration = Duration::from_secs(1);
/// How long an earlier incarnation may take to be removed.
const REMOVAL: Duration = Duration::from_secs(5);

/// The most that an echo returns.
const MOST_ECHOED: u64 = 1 << 20;

pub(crate) type Sign = Result<AttendResponse, Status>;

/// The service.
pub(crate) fn attendance_service(
    ballista: BallistaScheduler,
    tables: &Tables,
    slots: Slots,
    (secret, probes): (&ClusterSecret, Probes),
) -> AttendanceServer<Service> {
    AttendanceServer::new(Service {
        ballista,
        cluster: Arc::clone(&tables.cluster),
        book: tables.book.clone(),
        heard: tables.heard.clone(),
        slots,
        secret: secret.clone(),
        probes,
        present: Arc::default(),
    })
}

#[derive(Clone)]
pub(crate) struct Service {
    ballista: BallistaScheduler,
    cluster: Arc<VolleyClusterState>,
    book: Book,
    heard: Heard,
    slots: Slots,
    /// What executors prove themselves to each other with.
    secret: ClusterSecret,
    probes: Probes,
    /// The current incarnation of each executor.
    present: Arc<Mutex<HashMap<String, String>>>,
}

#[tonic::async_trait]
impl Attendance for Service {
    type AttendStream = Pin<Box<dyn Stream<Item = Sign> + Send>>;

    async fn attend(
        &self,
        request: Request<AttendRequest>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let caller = Caller::of(&request)?;
        let role = request.get_ref().role();
        let AttendRequest {
            executor_id,
            incarnation,
            version,
            device,
            memory_bytes,
            rank_memory_bytes,
            ..
        } = request.into_inner();
        let own = env!("CARGO_PKG_VERSION");
        if version != own {
            return Err(Status::failed_precondition(format!(
                "executor {executor_id} is version {version} and the scheduler is {own}: \
                 run the same version everywhere"
            )));
        }
        let before = {
            let mut present = self.present.lock();
            let before = present.get(&executor_id).cloned();
            if before
                .as_deref()
                .is_some_and(|before| process(before) != process(&incarnation))
            {
                return Err(Status::already_exists(format!(
                    "another executor with id {executor_id:?} is in the cluster: ids are unique"
                )));
            }
            present.insert(executor_id.clone(), incarnation.clone());
            before
        };
        let presence = Presence {
            present: Arc::clone(&self.present),
            executor: executor_id,
            incarnation,
        };
        let executor_id = presence.executor.clone();
        if before.is_some() || self.cluster.is_registered(&executor_id) {
            self.remove(&executor_id, "it has started over").await?;
        }
        let role = match role {
            wire::Role::Any => Role::Any,
            wire::Role::Query => Role::Query,
            wire::Role::Train => Role::Train,
        };
        let attendee = Attendee {
            role,
            device,
            memory_bytes,
            rank_memory_bytes,
            version,
            since: SystemTime::now(),
        };
        self.cluster.attends(&executor_id, attendee);
        caller.did("attend", &executor_id);
        let (signs, stream) = mpsc::unbounded_channel();
        let welcome = AttendResponse {
            secret: self.secret.to_wire(),
            ..AttendResponse::default()
        };
        signs.send(Ok(welcome)).ok();
        self.probes.attends(&executor_id, &signs);
        tokio::spawn(self.clone().watch(presence, signs));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(
            stream,
        ))))
    }

    async fn tell(&self, request: Request<TellRequest>) -> Result<Response<TellResponse>, Status> {
        let TellRequest {
            executor_id,
            notices,
        } = request.into_inner();
        for notice in notices {
            let job = notice.job_id.map(|attempt| self.book.job_of(&attempt));
            let train = job.as_ref().and_then(|job| self.book.train_of(job));
            self.heard.keep(Line {
                at: notice.at,
                job_id: job,
                train_id: train.map(|train| train.to_string()),
                executor_id: Some(executor_id.clone()),
                rank: None,
                failure: notice.failure,
                text: notice.text,
            });
        }
        Ok(Response::new(TellResponse {}))
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<EndResponse>, Status> {
        let EndRequest { executor_id, tasks } = request.into_inner();
        let tasks: Vec<_> = tasks.into_iter().map(Task::from).collect();
        if self.slots.ended(&executor_id, &tasks) {
            self.book.offer();
        }
        Ok(Response::new(EndResponse {}))
    }

    async fn probed(
        &self,
        request: Request<ProbedRequest>,
    ) -> Result<Response<ProbedResponse>, Status> {
        self.probes.probed(request.into_inner())?;
        Ok(Response::new(ProbedResponse {}))
    }

    async fn echo(&self, request: Request<EchoRequest>) -> Result<Response<EchoResponse>, Status> {
        let EchoRequest {
            executor_id,
            wanted,
            ..
        } = request.into_inner();
        if !self.cluster.is_registered(&executor_id) {
            let reason = format!("executor {executor_id} is not registered");
            return Err(Status::not_found(reason));
        }
        let payload = vec![0; wanted.min(MOST_ECHOED) as usize];
        Ok(Response::new(EchoResponse { payload }))
    }
}

impl From<Task> for wire::Task {
    fn from(task: Task) -> Self {
        Self {
            job_id: task.attempt,
            stage_id: task.stage as u64,
            task_id: task.number as u64,
        }
    }
}

impl From<wire::Task> for Task {
    fn from(task: wire::Task) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            attempt: task.job_id,
            stage: number(task.stage_id),
            number: number(task.task_id),
        }
    }
}

/// An incarnation that is there; no longer when this is dropped.
struct Presence {
    present: Arc<Mutex<HashMap<String, String>>>,
    executor: String,
    incarnation: String,
}

impl Presence {
    fn is_current(&self) -> bool {
        self.present.lock().get(&self.executor) == Some(&self.incarnation)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut present = self.present.lock();
        if present.get(&self.executor) == Some(&self.incarnation) {
            present.remove(&self.executor);
        }
    }
}

/// The process of an incarnation.
fn process(incarnation: &str) -> &str {
    incarnation.split('/').next().unwrap_or(incarnation)
}

impl Service {
    /// Gives signs of life until the executor is gone or another incarnation is there.
    async fn watch(self, presence: Presence, signs: mpsc::UnboundedSender<Sign>) {
        let executor = presence.executor.clone();
        let removals = self.cluster.removals(&executor);
        let mut tick = interval(SIGN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut told, mut ends) = (Vec::new(), self.slots.ends());
        loop {
            tokio::select! {
                () = signs.closed() => break,
                // It is there for as long as this is.
                _ = ends.changed() => {}
                _ = tick.tick() => {}
            }
            if !presence.is_current() {
                return;
            }
            if self.cluster.removals(&executor) != removals {
                break; // lost by other means: the stream ends, and the executor starts over
            }
            let sign = AttendResponse {
                finished: self.finished(&mut told),
                ending: self.ending(&executor),
                probes: Vec::new(),
                secret: Vec::new(),
            };
            if signs.send(Ok(sign)).is_err() {
                break;
            }
        }
        let there = presence.is_current() && self.cluster.is_registered(&executor);
        drop(presence);
        if there && let Err(error) = self.remove(&executor, "its connection closed").await {
            tracing::error!(executor, %error, "cannot remove an executor");
        }
    }

    /// Tasks of an executor that are to end; what takes long is said.
    fn ending(&self, executor: &str) -> Vec<wire::Task> {
        let (tasks, lines) = self.slots.ending(executor, std::time::Instant::now());
        for text in lines {
            tracing::warn!(executor, "{text}");
            self.heard.keep(Line {
                at: millis(SystemTime::now()),
                job_id: None,
                train_id: None,
                executor_id: Some(executor.to_owned()),
                rank: None,
                failure: false,
                text,
            });
        }
        tasks.into_iter().map(Into::into).collect()
    }

    /// Runs that are over and of which the executor has not been told.
    fn finished(&self, told: &mut Vec<TrainId>) -> Vec<String> {
        let over = self
            .book
            .runs()
            .scan(|train, run| run.is_over().then_some(*train));
        let news: Vec<_> = over
            .iter()
            .filter(|train| !told.contains(train))
            .map(ToString::to_string)
            .collect();
        *told = over;
        news
    }

    /// Removes an executor, and waits until it is.
    async fn remove(&self, executor: &str, reason: &str) -> Result<(), Status> {
        let stopped = ExecutorStoppedParams {
            executor_id: executor.to_owned(),
            reason: reason.to_owned(),
        };
        SchedulerGrpc::executor_stopped(&self.ballista, Request::new(stopped)).await?;
        let deadline = Instant::now() + REMOVAL;
        while self.cluster.is_registered(executor) {
            if Instant::now() > deadline {
                return Err(Status::deadline_exceeded(format!(
                    "executor {executor} was not removed within {REMOVAL:?}"
                )));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}
