//! Attendance: a stream that each executor keeps open for as long as it lives.
//!
//! ```text
//!   executor ── Attend(id, incarnation, role) ──► welcome, then a sign of life each second
//!      │ dies: its connection closes, the stream is dropped ──► the executor is lost, at once
//!      │ freezes, or the network is cut: heartbeats stop ─────► lost after a while; stream ends
//!      └ comes back: the stream has ended, so it starts over as a new incarnation
//! ```
//!
//! It tracks liveness; [`crate::control`] decides what a loss means.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};
use volley_proto::access::ClusterSecret;
use volley_proto::spec::{Device, ThreadSpeed};
use volley_proto::tables::Vitals;
use volley_proto::wire::attendance_server::{Attendance, AttendanceServer};
use volley_proto::wire::{
    self, AttendRequest, AttendResponse, EchoRequest, EchoResponse, EndRequest, EndResponse,
    LeaveRequest, LeaveResponse, MeasureRequest, MeasureResponse, ProbedRequest, ProbedResponse,
    TellRequest, TellResponse,
};
use volley_proto::{Gpu, TrainId};

use super::invalid;
use super::probes::Probes;
use crate::access::Caller;
use crate::control::{
    Controller, Drain, Event, ExecutorRole, Notice, Presence, Profile, Task, Topic,
};
use crate::handle::Control;

/// Interval of the scheduler's signs of life.
const SIGN: Duration = Duration::from_secs(1);
/// Time within which an earlier incarnation must be removed.
const REMOVAL: Duration = Duration::from_secs(5);

/// Time for which the answer to an executor that is to leave is held back.
const HELD_BACK: Duration = Duration::from_secs(2);

/// Largest payload of an echo, in bytes.
const MOST_ECHOED: u64 = 1 << 20;

pub(crate) type Sign = Result<AttendResponse, Status>;

/// Builds the service.
pub(crate) fn attendance_service(
    control: Control,
    secret: ClusterSecret,
    probes: Probes,
) -> AttendanceServer<Service> {
    AttendanceServer::new(Service {
        control,
        secret,
        probes,
    })
}

#[derive(Debug, Clone)]
pub(crate) struct Service {
    control: Control,
    /// Secret by which executors prove themselves to each other.
    secret: ClusterSecret,
    probes: Probes,
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
            host_id,
            gpus,
            product_rate,
            memory_rate,
            ..
        } = request.into_inner();
        let device = device.parse::<Device>().map_err(|error| invalid(&error))?;
        let gpus = gpus.into_iter().map(Gpu::try_from);
        let gpus = gpus
            .collect::<Result<_, _>>()
            .map_err(|error| invalid(&error))?;
        let admitted = self
            .control
            .ask(|control, _| control.admit(&executor_id, &incarnation));
        let replaces = admitted.map_err(Status::already_exists)?;
        let attending = Attending {
            control: self.control.clone(),
            executor: executor_id,
            incarnation,
        };
        if replaces {
            self.await_removal(&attending.executor).await?;
        }
        let profile = Profile {
            role: match role {
                wire::Role::Any => ExecutorRole::Any,
                wire::Role::Query => ExecutorRole::Query,
                wire::Role::Train => ExecutorRole::Train,
            },
            device,
            host: host_id,
            gpus,
            memory_bytes,
            rank_memory_bytes,
            speed: ThreadSpeed {
                products: product_rate,
                memory: memory_rate,
            },
            version,
        };
        let (signs, stream) = mpsc::unbounded_channel();
        // If a later incarnation is there by now, the stream just ends.
        if attending.begins(profile) {
            caller.did("attend", &attending.executor);
            let welcome = AttendResponse {
                secret: self.secret.to_wire(),
                ..AttendResponse::default()
            };
            signs.send(Ok(welcome)).ok();
            self.probes.attends(&attending.executor, &signs);
            tokio::spawn(self.clone().watch(attending, signs));
        }
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
            self.control.on(Event::Noticed(Notice {
                executor: executor_id.clone(),
                attempt: notice.job_id,
                at: notice.at,
                failure: notice.failure,
                text: notice.text,
            }));
        }
        Ok(Response::new(TellResponse {}))
    }

    async fn measure(
        &self,
        request: Request<MeasureRequest>,
    ) -> Result<Response<MeasureResponse>, Status> {
        let vitals = Vitals::from(request.into_inner());
        self.control.on(Event::ExecutorMeasured(Box::new(vitals)));
        Ok(Response::new(MeasureResponse {}))
    }

    async fn end(&self, request: Request<EndRequest>) -> Result<Response<EndResponse>, Status> {
        let EndRequest { executor_id, tasks } = request.into_inner();
        self.control.on(Event::TasksEnded {
            executor: executor_id,
            tasks: tasks.into_iter().map(Task::from).collect(),
        });
        Ok(Response::new(EndResponse {}))
    }

    async fn leave(
        &self,
        request: Request<LeaveRequest>,
    ) -> Result<Response<LeaveResponse>, Status> {
        let LeaveRequest { executor_id, waits } = request.into_inner();
        let executor = executor_id;
        self.control.on(Event::ExecutorDrains {
            executor: executor.clone(),
            knows: true,
        });
        let patience = if waits { HELD_BACK } else { Duration::ZERO };
        let topic = Topic::Executor(executor.clone());
        let released = self.control.wait(topic, patience, |control| {
            let drain = control.drain(&executor);
            matches!(drain, None | Some(Drain::Drained)).then_some(())
        });
        let released = released.await.is_some();
        Ok(Response::new(LeaveResponse { released }))
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
        let is_registered = |control: &Controller| control.is_registered(&executor_id);
        if !self.control.look(is_registered) {
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

/// An incarnation's attendance, which ends when this is dropped.
struct Attending {
    control: Control,
    executor: String,
    incarnation: String,
}

impl Attending {
    /// Begins the attendance; returns false if another incarnation is there by now.
    fn begins(&self, profile: Profile) -> bool {
        self.control
            .ask(|control, now| control.attends(&self.executor, &self.incarnation, profile, now))
    }

    fn presence(&self) -> Presence {
        let (executor, incarnation) = (&self.executor, &self.incarnation);
        self.control
            .look(|control| control.presence(executor, incarnation))
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.control.on(Event::ExecutorDisconnected {
            executor: self.executor.clone(),
            incarnation: self.incarnation.clone(),
        });
    }
}

impl Service {
    /// Sends signs of life until the executor is gone or another incarnation is there.
    async fn watch(self, attending: Attending, signs: mpsc::UnboundedSender<Sign>) {
        let mut tick = interval(SIGN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut endings = self.control.subscribe(Topic::Endings);
        let mut told = Vec::new();
        loop {
            tokio::select! {
                () = signs.closed() => return,
                () = endings.changed() => {}
                _ = tick.tick() => {}
            }
            match attending.presence() {
                Presence::Current => {}
                // The stream ends, and the executor starts over.
                Presence::Lost | Presence::Superseded => return,
            }
            let executor = &attending.executor;
            let (ending, dropped) = self.control.ask(|control, now| {
                let ending = control.ending_tasks(executor, now);
                (ending, control.take_removals(executor))
            });
            let drain = self.control.look(|control| control.drain(executor));
            let sign = AttendResponse {
                finished: self.finished(&mut told),
                ending: ending.into_iter().map(Into::into).collect(),
                leave: matches!(drain, Some(Drain::Draining | Drain::Drained)),
                dropped: dropped.iter().map(ToString::to_string).collect(),
                ..AttendResponse::default()
            };
            if signs.send(Ok(sign)).is_err() {
                return;
            }
        }
    }

    /// Returns the finished runs that the executor has not been told of.
    fn finished(&self, told: &mut Vec<TrainId>) -> Vec<String> {
        let over = self.control.look(|control| control.runs().over());
        let news: Vec<_> = over
            .iter()
            .filter(|train| !told.contains(train))
            .map(ToString::to_string)
            .collect();
        *told = over;
        news
    }

    /// Waits until an executor is no longer registered.
    async fn await_removal(&self, executor: &str) -> Result<(), Status> {
        let topic = Topic::Executor(executor.to_owned());
        let removed = self.control.wait(topic, REMOVAL, |control| {
            (!control.is_registered(executor)).then_some(())
        });
        removed.await.ok_or_else(|| {
            Status::deadline_exceeded(format!(
                "executor {executor} was not removed within {REMOVAL:?}"
            ))
        })
    }
}
