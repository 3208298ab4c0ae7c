//! The executor's side of the rendezvous; the only file here that knows the wire.

use std::time::Duration;

use tonic::transport::Channel;
use volley_proto::TrainId;
use volley_proto::runtime::TaskIdentity;
use volley_proto::wire::rendezvous_client::RendezvousClient;
use volley_proto::wire::{self, progress_request};
use volley_trainer::collective::{Endpoint, Membership};

use super::progress::Report;
use crate::error::RankError;

/// Ballista's deadline for requests would be shorter than a rendezvous may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The scheduler's rendezvous, for one training run and executor.
#[derive(Debug, Clone)]
pub(super) struct Rendezvous {
    client: RendezvousClient<Channel>,
    train: TrainId,
    executor: String,
}

impl Rendezvous {
    pub(super) fn new(channel: Channel, train: TrainId, executor: String) -> Self {
        Self {
            client: RendezvousClient::new(channel),
            train,
            executor,
        }
    }

    /// Joins the gang; returns once all of its ranks have.
    pub(super) async fn join(
        &self,
        task: &TaskIdentity,
        endpoint: &Endpoint,
        timeout: Duration,
    ) -> Result<Membership, RankError> {
        let malformed = |source| RankError::Membership {
            train: self.train.to_string(),
            source,
        };
        let mut request = tonic::Request::new(wire::JoinRequest {
            train_id: self.train.to_string(),
            job_id: task.job_id.clone(),
            stage_id: task.stage_id as u64,
            task_id: task.task_id as u64,
            executor_id: self.executor.clone(),
            endpoint: serde_json::to_vec(endpoint).map_err(malformed)?,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        });
        // The scheduler keeps the deadline; this one is for a scheduler that is gone.
        request.set_timeout(timeout + REPORT_TIMEOUT);
        let joined = self.client.clone().join(request).await.map_err(|status| {
            let (train, message) = (self.train.to_string(), status.message().to_owned());
            RankError::Rendezvous { train, message }
        })?;
        let wire::Membership {
            generation,
            rank,
            endpoints,
            ..
        } = joined.into_inner();
        let decode = |endpoint: &Vec<u8>| serde_json::from_slice(endpoint);
        let peers = endpoints
            .iter()
            .map(decode)
            .collect::<Result<_, _>>()
            .map_err(malformed)?;
        let group = self.train.to_string();
        Ok(Membership {
            group,
            generation,
            rank: usize::try_from(rank).unwrap_or(usize::MAX),
            peers,
        })
    }

    /// Tells what the rank has done. A report that is lost is no reason to stop.
    pub(super) async fn report(&self, generation: u64, rank: usize, report: Report) {
        let event = match report {
            Report::Loaded { rows, seconds } => {
                progress_request::Event::Loaded(wire::Loaded { rows, seconds })
            }
            Report::Epoch(record) => match serde_json::to_vec(&record) {
                Ok(json) => progress_request::Event::Epoch(json),
                Err(error) => return tracing::warn!(%error, "an epoch's record has no JSON form"),
            },
        };
        let mut request = tonic::Request::new(wire::ProgressRequest {
            train_id: self.train.to_string(),
            generation,
            rank: rank as u64,
            event: Some(event),
        });
        request.set_timeout(REPORT_TIMEOUT);
        if let Err(error) = self.client.clone().progress(request).await {
            tracing::warn!(%error, "the scheduler did not take a progress report");
        }
    }

    /// Tells why the rank failed. Returns the root cause, if it lay with another rank.
    pub(super) async fn fail(
        &self,
        generation: u64,
        rank: usize,
        error: String,
        peer_lost: bool,
    ) -> Option<RankError> {
        let mut request = tonic::Request::new(wire::FailRequest {
            train_id: self.train.to_string(),
            generation,
            rank: rank as u64,
            executor_id: self.executor.clone(),
            error,
            peer_lost,
        });
        request.set_timeout(REPORT_TIMEOUT);
        match self.client.clone().fail(request).await {
            Ok(answer) => answer.into_inner().root.map(|root| RankError::Peer {
                rank: root.rank,
                executor: root.executor_id,
                message: root.error,
            }),
            Err(error) => {
                tracing::warn!(%error, "the scheduler did not take a failure report");
                None
            }
        }
    }
}
