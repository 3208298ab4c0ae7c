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
use volley_proto::tables::Line;
use volley_proto::wire::attendance_server::{Attendance, AttendanceServer};
use volley_proto::wire::{self, AttendRequest, AttendResponse, TellRequest, TellResponse};

use crate::ballista::{Attendee, BallistaScheduler, VolleyClusterState};
use crate::heard::Heard;
use crate::jobs::Book;
use crate::placement::Role;
use crate::tables::Tables;
use crate::watched::Ends;

/// How often the scheduler gives a sign of life.
const SIGN: Duration = Duration::from_secs(1);
/// How long an earlier incarnation may take to be removed.
const REMOVAL: Duration = Duration::from_secs(5);

type Sign = Result<AttendResponse, Status>;

/// The service.
pub(crate) fn attendance_service(
    ballista: BallistaScheduler,
    tables: &Tables,
) -> AttendanceServer<Service> {
    AttendanceServer::new(Service {
        ballista,
        cluster: Arc::clone(&tables.cluster),
        book: tables.book.clone(),
        heard: tables.heard.clone(),
        present: Arc::default(),
    })
}

#[derive(Clone)]
pub(crate) struct Service {
    ballista: BallistaScheduler,
    cluster: Arc<VolleyClusterState>,
    book: Book,
    heard: Heard,
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
        let role = request.get_ref().role();
        let AttendRequest {
            executor_id,
            incarnation,
            version,
            device,
            memory_bytes,
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
            version,
            since: SystemTime::now(),
        };
        self.cluster.attends(&executor_id, attendee);
        let (signs, stream) = mpsc::unbounded_channel();
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
        let mut told = Vec::new();
        loop {
            tokio::select! {
                () = signs.closed() => break,
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
