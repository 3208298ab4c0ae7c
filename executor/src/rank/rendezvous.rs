//! The executor's side of the rendezvous; the only file of the rank host that knows its wire format.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tonic::Code;
use volley_engine::runtime::TaskIdentity;
use volley_proto::access::Authorized;
use volley_proto::failure::chain;
use volley_proto::wire::join_response::Answer;
use volley_proto::wire::rendezvous_client::RendezvousClient;
use volley_proto::wire::{self, progress_request};
use volley_proto::{GpuId, Secret, TrainId};
use volley_trainer::collective::{Endpoint, Membership};

use super::progress::Report;
use crate::error::RankError;

/// A rank's place in its generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) generation: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl Seat {
    pub(super) fn of(membership: &Membership) -> Self {
        Self {
            generation: membership.generation,
            rank: membership.rank,
            world_size: membership.world_size(),
        }
    }
}

/// Answer to a rank once all ranks have joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) membership: Membership,
    /// GPU assigned to the rank; `None` means the CPU.
    pub(super) gpu: Option<GpuId>,
    /// Submission time of the training, by the scheduler's clock.
    pub(super) begun: Option<SystemTime>,
}

/// Timeout of reports. Ballista's request timeout would be shorter than a rendezvous may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two attempts to reach the scheduler.
const PAUSE: Duration = Duration::from_millis(500);

/// Client of the scheduler's rendezvous, for one task of a training run.
#[derive(Debug, Clone)]
pub(super) struct Rendezvous {
    client: RendezvousClient<Authorized>,
    train: TrainId,
    task: TaskIdentity,
    executor: String,
}

/// The scheduler's answer to a rank's failure.
#[derive(Debug)]
pub(super) enum Told {
    /// This failure is the root cause.
    Own,
    /// Another rank's failure is the root cause, or the ranks meet again.
    Instead(RankError),
    /// The scheduler cannot be reached.
    Nothing,
}

impl Rendezvous {
    pub(super) fn new(
        channel: Authorized,
        train: TrainId,
        task: TaskIdentity,
        executor: String,
    ) -> Self {
        Self {
            client: RendezvousClient::new(channel),
            train,
            task,
            executor,
        }
    }

    fn seat(&self, seat: &Seat) -> Option<wire::Seat> {
        Some(wire::Seat {
            train_id: self.train.to_string(),
            job_id: self.task.job_id.clone(),
            generation: seat.generation,
            rank: seat.rank as u64,
            executor_id: self.executor.clone(),
        })
    }

    /// Joins the gang. Returns once all of its ranks have joined.
    pub(super) async fn join(
        &self,
        endpoint: &Endpoint,
        timeout: Duration,
    ) -> Result<Joined, RankError> {
        let malformed = |source| RankError::Membership {
            train: self.train.to_string(),
            source,
        };
        let join = wire::JoinRequest {
            train_id: self.train.to_string(),
            job_id: self.task.job_id.clone(),
            task_id: self.task.task_id as u64,
            executor_id: self.executor.clone(),
            endpoint: serde_json::to_vec(endpoint).map_err(malformed)?,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let deadline = Instant::now() + timeout;
        let answer = loop {
            let mut request = tonic::Request::new(join.clone());
            // The scheduler enforces the deadline; this longer one applies when the scheduler is gone.
            request.set_timeout(timeout + REPORT_TIMEOUT);
            let status = match self.client.clone().join(request).await {
                Ok(joined) => break joined.into_inner().answer,
                Err(status) => status,
            };
            // What the scheduler says has no source, and none of these codes. A connection that breaks has many codes,
            // cancelled among them.
            let code = status.code();
            let broke =
                status.source().is_some() || matches!(code, Code::Unavailable | Code::Unknown);
            if !broke || Instant::now() >= deadline {
                return Err(RankError::Rendezvous {
                    train: self.train.to_string(),
                    message: status.message().to_owned(),
                });
            }
            tracing::debug!(train = %self.train, error = status.message(), "joining again");
            sleep(PAUSE).await;
        };
        let membership = match answer {
            Some(Answer::Membership(membership)) => membership,
            Some(Answer::Ended(reason)) => {
                return Err(RankError::Regroup {
                    train: self.train.to_string(),
                    reason,
                });
            }
            None => {
                return Err(RankError::Rendezvous {
                    train: self.train.to_string(),
                    message: "the scheduler's answer is empty".to_owned(),
                });
            }
        };
        let wire::Membership {
            generation,
            rank,
            endpoints,
            secret,
            gpu,
            begun,
        } = membership;
        let decode = |endpoint: &Vec<u8>| serde_json::from_slice(endpoint);
        let peers = endpoints
            .iter()
            .map(decode)
            .collect::<Result<_, _>>()
            .map_err(malformed)?;
        let secret = Secret::from_bytes(&secret).ok_or_else(|| RankError::Rendezvous {
            train: self.train.to_string(),
            message: "the generation's secret is not as long as one".to_owned(),
        })?;
        let gpu = gpu.map(|gpu| gpu.parse::<GpuId>()).transpose();
        let gpu = gpu.map_err(|error| RankError::Rendezvous {
            train: self.train.to_string(),
            message: chain(&error),
        })?;
        let group = self.train.to_string();
        let membership = Membership {
            group,
            generation,
            rank: usize::try_from(rank).unwrap_or(usize::MAX),
            peers,
            secret,
        };
        // An unknown time is not told.
        let begun = (begun > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(begun));
        Ok(Joined {
            membership,
            gpu,
            begun,
        })
    }

    /// Holds the rank's seat. Returns the reason once the generation has ended.
    pub(super) async fn hold(&self, seat: &Seat) -> String {
        loop {
            let mut request = tonic::Request::new(wire::HoldRequest {
                seat: self.seat(seat),
            });
            request.set_timeout(REPORT_TIMEOUT);
            match self
                .client
                .clone()
                .hold(request)
                .await
                .map(tonic::Response::into_inner)
            {
                Ok(wire::HoldResponse { ended: None }) => {}
                Ok(wire::HoldResponse {
                    ended: Some(reason),
                }) => return reason,
                Err(status) if status.code() == Code::NotFound => {
                    return "the scheduler knows nothing of it any more".to_owned();
                }
                // The executor's attendance finds out when the scheduler is gone.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Reports the rank's progress. Returns true if training is to end after the epoch under way. A lost report does not
    /// stop the rank.
    pub(super) async fn report(&self, seat: &Seat, report: Report) -> bool {
        let event = match report {
            Report::Streamed { shards, kept_bytes } => {
                progress_request::Event::Streamed(wire::Streamed { shards, kept_bytes })
            }
            Report::Loaded { rows, seconds } => {
                progress_request::Event::Loaded(wire::Loaded { rows, seconds })
            }
            Report::Epoch(record) => match serde_json::to_vec(&record) {
                Ok(json) => progress_request::Event::Epoch(json),
                Err(error) => {
                    tracing::warn!(%error, "an epoch's record cannot be encoded as JSON");
                    return false;
                }
            },
            Report::Steps(steps) => progress_request::Event::Steps(steps),
            Report::Note(note) => progress_request::Event::Note(note),
        };
        let mut request = tonic::Request::new(wire::ProgressRequest {
            seat: self.seat(seat),
            event: Some(event),
        });
        request.set_timeout(REPORT_TIMEOUT);
        match self.client.clone().progress(request).await {
            Ok(answer) => answer.into_inner().stop,
            Err(error) => {
                tracing::warn!(%error, "the scheduler did not accept a progress report");
                false
            }
        }
    }

    /// Reports the rank's failure and returns the root cause as the scheduler knows it.
    pub(super) async fn fail(&self, seat: &Seat, error: String, peer_lost: bool) -> Told {
        let mut request = tonic::Request::new(wire::FailRequest {
            seat: self.seat(seat),
            error,
            peer_lost,
        });
        request.set_timeout(REPORT_TIMEOUT);
        match self.client.clone().fail(request).await {
            Ok(answer) => {
                let wire::FailResponse { root, regroup } = answer.into_inner();
                let train = self.train.to_string();
                match root {
                    Some(root) => Told::Instead(RankError::Peer {
                        rank: root.rank,
                        world_size: seat.world_size,
                        executor: root.executor_id,
                        message: root.error,
                    }),
                    None if regroup => Told::Instead(RankError::Regroup {
                        train,
                        reason: "the ranks meet again".to_owned(),
                    }),
                    None => Told::Own,
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the scheduler did not accept a failure report");
                Told::Nothing
            }
        }
    }
}
