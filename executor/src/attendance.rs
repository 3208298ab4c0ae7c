//! The executor's side of attendance: a stream that stays open for as long as the scheduler counts the executor as
//! present.
//!
//! When the stream ends or the signs of life stop, the two have lost each other: the scheduler has given up the work
//! that ran here, so the executor ends it and starts over. This is the only file in the executor that knows the wire
//! format of attendance and of the messages beside it: ended tasks, notices, vital signs and probe results, whichever part sends
//! them.

use std::time::{Duration, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Streaming};
use volley_proto::access::{Authorized, ClusterSecret};
use volley_proto::probe::{Probe, Probed};
use volley_proto::schedulers::standing_by;
use volley_proto::tables::{Vitals, millis};
use volley_proto::tls::disagreement;
use volley_proto::version::Version;
use volley_proto::wire::attendance_client::AttendanceClient;
use volley_proto::wire::{
    self, AttendRequest, AttendResponse, EchoRequest, EndRequest, LeaveRequest, ProbedRequest,
};
use volley_proto::{Gpu, PreparedId, TrainId};
use volley_trainer::collective::host_id;
use volley_trainer::{gpus, thread_speed};

use crate::config::ExecutorRole;
use crate::{Error, ExecutorConfig, Result};

/// Timeout of one request to the scheduler.
const TELLING: Duration = Duration::from_secs(10);
/// Pause between two attempts to open the stream.
const PAUSE: Duration = Duration::from_millis(200);

/// Task, identified by its attempt, stage and number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TaskKey {
    pub(crate) attempt: String,
    pub(crate) stage: u64,
    pub(crate) number: u64,
}

/// A warning or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) at: SystemTime,
    /// Attempt that the notice is about.
    pub(crate) job: Option<String>,
    /// True for an error, false for a warning.
    pub(crate) failure: bool,
    pub(crate) text: String,
}

/// Probe that the scheduler asks for, with its number.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) probe: Probe,
}

/// Sends warnings and errors to the scheduler.
pub(crate) async fn tell(
    config: &ExecutorConfig,
    channel: Authorized,
    notices: &[Notice],
) -> Result<()> {
    let notice = |notice: &Notice| wire::Notice {
        at: millis(notice.at),
        job_id: notice.job.clone(),
        failure: notice.failure,
        text: notice.text.clone(),
    };
    let request = wire::TellRequest {
        executor_id: config.id.clone(),
        notices: notices.iter().map(notice).collect(),
    };
    let mut client = AttendanceClient::new(channel);
    heard(config, client.tell(request)).await.map(drop)
}

/// Sends vital signs to the scheduler.
pub(crate) async fn measured(
    config: &ExecutorConfig,
    channel: Authorized,
    vitals: Vitals,
) -> Result<()> {
    let request = wire::MeasureRequest::from(vitals);
    let mut client = AttendanceClient::new(channel);
    heard(config, client.measure(request)).await.map(drop)
}

/// Tells the scheduler that tasks have ended.
pub(crate) async fn end(
    config: &ExecutorConfig,
    channel: Authorized,
    tasks: Vec<TaskKey>,
) -> Result<()> {
    let request = EndRequest {
        executor_id: config.id.clone(),
        tasks: tasks.into_iter().map(wire::Task::from).collect(),
    };
    let mut client = AttendanceClient::new(channel);
    heard(config, client.end(request)).await.map(drop)
}

/// Tells the scheduler that the executor is to leave.
pub(crate) async fn leave(config: &ExecutorConfig, channel: Authorized) -> Result<()> {
    asks_to_leave(config, channel, false).await.map(drop)
}

/// Waits until the cluster needs nothing that this executor holds.
pub(crate) async fn until_released(config: &ExecutorConfig, channel: Authorized) {
    loop {
        match asks_to_leave(config, channel.clone(), true).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "the scheduler does not answer whether data here is still needed; asking again");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn asks_to_leave(config: &ExecutorConfig, channel: Authorized, waits: bool) -> Result<bool> {
    let request = LeaveRequest {
        executor_id: config.id.clone(),
        waits,
    };
    let mut client = AttendanceClient::new(channel);
    let answer = heard(config, client.leave(request)).await?;
    Ok(answer.into_inner().released)
}

/// Sends a probe's result to the scheduler.
pub(crate) async fn probed(
    config: &ExecutorConfig,
    channel: Authorized,
    id: u64,
    probed: &Probed,
) -> Result<()> {
    let refused = |error: serde_json::Error| Error::Attend {
        address: config.scheduler.to_string(),
        id: config.id.clone(),
        reason: error.to_string(),
    };
    let request = ProbedRequest {
        executor_id: config.id.clone(),
        id,
        probed: serde_json::to_vec(probed).map_err(refused)?,
    };
    let mut client = AttendanceClient::new(channel);
    heard(config, client.probed(request)).await.map(drop)
}

/// Sends this many bytes to the scheduler, which answers with `wanted` bytes. Returns the number of bytes received.
pub(crate) async fn echo(
    config: &ExecutorConfig,
    channel: Authorized,
    bytes: usize,
    wanted: usize,
) -> Result<usize> {
    let request = EchoRequest {
        executor_id: config.id.clone(),
        payload: vec![0; bytes],
        wanted: wanted as u64,
    };
    let mut client = AttendanceClient::new(channel);
    let answer = heard(config, client.echo(request)).await?;
    Ok(answer.into_inner().payload.len())
}

/// Waits for the scheduler's answer until the timeout.
async fn heard<T>(
    config: &ExecutorConfig,
    answer: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T> {
    let address = config.scheduler.to_string();
    Err(match timeout(TELLING, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(status)) if has_answered(status.code()) => Error::Attend {
            address,
            reason: status.message().to_owned(),
            id: config.id.clone(),
        },
        Ok(Err(status)) => Error::Unreachable {
            address,
            reason: status.message().to_owned(),
        },
        Err(_) => Error::Unreachable {
            address,
            reason: "it does not answer".to_owned(),
        },
    })
}

/// Returns whether a failure of a request is the scheduler's answer.
fn has_answered(code: Code) -> bool {
    !matches!(
        code,
        Code::Unknown | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
    )
}

impl From<TaskKey> for wire::Task {
    fn from(task: TaskKey) -> Self {
        Self {
            job_id: task.attempt,
            stage_id: task.stage,
            task_id: task.number,
        }
    }
}

impl From<wire::Task> for TaskKey {
    fn from(task: wire::Task) -> Self {
        Self {
            attempt: task.job_id,
            stage: task.stage_id,
            number: task.task_id,
        }
    }
}

/// Returns the GPUs of this host that the scheduler may give to ranks; none when they cannot be listed.
fn found_gpus(is_first: bool) -> Vec<Gpu> {
    match gpus() {
        Ok(gpus) => gpus,
        // An executor that tries again has said so before.
        Err(reason) if is_first => {
            tracing::info!(reason, "no GPU is registered");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// Returns why a scheduler has not answered: another one leads, or the connection failed.
async fn unanswered(config: &ExecutorConfig, status: &tonic::Status) -> String {
    // A standby answers nothing but HTTP/1. With TLS, it is not asked.
    let stands_by = match config.tls {
        None => standing_by(config.scheduler.current()).await,
        Some(_) => None,
    };
    stands_by.unwrap_or_else(|| status.message().to_owned())
}

/// Open attendance stream.
#[derive(Debug)]
pub(crate) struct Attendance {
    signs: Streaming<AttendResponse>,
    patience: Duration,
    secret: ClusterSecret,
}

impl Attendance {
    /// Opens the stream, retrying until the deadline.
    pub(crate) async fn begin(
        config: &ExecutorConfig,
        channel: Authorized,
        incarnation: &str,
    ) -> Result<Self> {
        // An estimate is not worth an executor that does not start.
        let speed = spawn_blocking(thread_speed).await.unwrap_or_default();
        let request = AttendRequest {
            executor_id: config.id.clone(),
            incarnation: incarnation.to_owned(),
            version: Version::own().build,
            role: match config.role {
                ExecutorRole::Any => wire::Role::Any,
                ExecutorRole::Query => wire::Role::Query,
                ExecutorRole::Train => wire::Role::Train,
            }
            .into(),
            device: config.device.to_string(),
            memory_bytes: config.memory.as_u64(),
            rank_memory_bytes: config.rank_memory.as_u64(),
            host_id: host_id(),
            gpus: found_gpus(incarnation.ends_with("/0"))
                .into_iter()
                .map(wire::Gpu::from)
                .collect(),
            product_rate: speed.products,
            memory_rate: speed.memory,
        };
        let deadline = Instant::now() + config.connect_timeout;
        let mut said_taken = false;
        // When the other end closes a connection with a TLS alert, a request may fail before the alert is read.
        let mut disagreed = None;
        loop {
            let mut client = AttendanceClient::new(channel.clone());
            let attend = client.attend(request.clone());
            let status = match timeout(config.scheduler_timeout, attend).await {
                Ok(Ok(signs)) => match Self::welcomed(signs.into_inner(), config).await {
                    Ok(attendance) => return Ok(attendance),
                    Err(status) => status,
                },
                Ok(Err(status)) => status,
                Err(_) => tonic::Status::deadline_exceeded("it does not answer"),
            };
            disagreed = disagreement(&status).or(disagreed);
            let is_final = matches!(
                status.code(),
                Code::FailedPrecondition | Code::Unauthenticated | Code::PermissionDenied
            );
            if is_final || Instant::now() >= deadline {
                let address = config.scheduler.to_string();
                let has_answered = has_answered(status.code());
                return Err(match (disagreed, has_answered) {
                    (None, false) => Error::Unreachable {
                        reason: unanswered(config, &status).await,
                        address,
                    },
                    (disagreed, _) => Error::Attend {
                        address,
                        id: config.id.clone(),
                        reason: disagreed.unwrap_or_else(|| status.message().to_owned()),
                    },
                });
            }
            if status.code() == Code::AlreadyExists && !said_taken {
                said_taken = true;
                let (executor, limit) = (&config.id, config.connect_timeout);
                let limit = humantime::format_duration(limit);
                tracing::warn!(
                    %executor,
                    "another executor {executor} is registered: waiting up to {limit} until it leaves"
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for the first sign of life, which carries the cluster's secret.
    async fn welcomed(
        mut signs: Streaming<AttendResponse>,
        config: &ExecutorConfig,
    ) -> Result<Self, tonic::Status> {
        let patience = config.scheduler_timeout;
        let first = match timeout(patience, signs.message()).await {
            Ok(first) => first?,
            Err(_) => None,
        };
        let secret = first.and_then(|first| ClusterSecret::from_wire(&first.secret));
        Ok(Self {
            signs,
            patience,
            secret: secret.ok_or_else(|| {
                tonic::Status::unavailable("it did not send the cluster's secret")
            })?,
        })
    }

    /// Returns the secret with which the cluster's processes authenticate to each other.
    pub(crate) fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    /// Waits until the stream is over and returns the reason. Meanwhile passes on finished training runs, dropped
    /// prepared rows, tasks to end, requested probes, and that the executor is to leave.
    pub(crate) async fn until_over(
        &mut self,
        (finished, dropped): (impl Fn(TrainId), impl Fn(PreparedId)),
        ending: impl Fn(Vec<TaskKey>),
        asked: impl Fn(Asked),
        leave: &CancellationToken,
    ) -> String {
        loop {
            match timeout(self.patience, self.signs.message()).await {
                Ok(Ok(Some(sign))) => {
                    let trains = sign.finished.iter().filter_map(|train| train.parse().ok());
                    trains.for_each(&finished);
                    let rows = sign.dropped.iter().filter_map(|id| id.parse().ok());
                    rows.for_each(&dropped);
                    if sign.leave {
                        leave.cancel();
                    }
                    if !sign.ending.is_empty() {
                        ending(sign.ending.into_iter().map(TaskKey::from).collect());
                    }
                    for wire::Probe { id, probe } in sign.probes {
                        match serde_json::from_slice(&probe) {
                            Ok(probe) => asked(Asked { id, probe }),
                            Err(error) => {
                                tracing::warn!(%error, "the scheduler asked for an unknown probe")
                            }
                        }
                    }
                }
                Ok(Ok(None)) => return "the scheduler counts the executor as lost".to_owned(),
                Ok(Err(status)) => return format!("the scheduler is gone: {}", status.message()),
                Err(_) => {
                    return format!("no response from the scheduler for {:?}", self.patience);
                }
            }
        }
    }
}
