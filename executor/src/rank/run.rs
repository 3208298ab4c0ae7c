//! One rank from its seat in a generation to its result.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use volley_proto::failure::chain;
use volley_proto::plan::train_schema;
use volley_proto::spec::TrainSpec;
use volley_proto::store::ModelStore;
use volley_trainer::collective::{Communicator, Listener, Membership, Options};
use volley_trainer::{
    Artifacts, LoadedShards, Outcome, Rank, RankReport, ResolvedDevice, load, train,
};

use super::progress::reporter;
use super::rendezvous::Rendezvous;
use crate::error::RankError;

/// Autodiff recurses; a rank's thread has room.
const STACK: usize = 16 * 1024 * 1024;

/// What a rank's thread hands back: its outcome, and the peers for the last word.
type Trained = Result<(Outcome, Communicator), volley_trainer::Error>;

/// A rank's place in its generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    generation: u64,
    rank: usize,
    world_size: usize,
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

/// A rank that has its seat.
pub(super) struct RankRun<'a> {
    pub(super) executor: &'a str,
    pub(super) device: ResolvedDevice,
    pub(super) seat: Seat,
    pub(super) rendezvous: &'a Rendezvous,
    pub(super) spec: &'a Arc<TrainSpec>,
    pub(super) cancel: &'a CancellationToken,
}

impl RankRun<'_> {
    /// Connects the peers, streams the shards, trains and publishes. Returns the rank's row.
    pub(super) async fn run(
        &self,
        listener: Listener,
        membership: Membership,
        shards: Vec<(usize, SendableRecordBatchStream)>,
    ) -> Result<RecordBatch, RankError> {
        let communicator = self.connect(listener, membership).await?;
        let device = self.device;
        let loaded = match shards.first().map(|(_, rows)| rows.schema()) {
            Some(schema) => load(self.spec, &schema, shards, self.cancel).await,
            None => return Err(self.broken(&"its task has no shards")),
        };
        let (outcome, communicator) = self.train(communicator, device, loaded).await?;
        let version = self.publish(outcome.artifacts, communicator).await?;
        self.row(&device, version, &outcome.report)
            .map_err(|error| self.broken(&error))
    }

    async fn connect(
        &self,
        listener: Listener,
        membership: Membership,
    ) -> Result<Communicator, RankError> {
        let options = Options {
            connect_timeout: self.spec.rendezvous_timeout,
            op_timeout: self.spec.collective_timeout,
            ..Options::default()
        };
        let abort = self.cancel.clone();
        let connect = move || Communicator::connect(listener, &membership, &options, &abort);
        tokio::task::spawn_blocking(connect)
            .await
            .map_err(|panic| self.broken(&panic))?
            .map_err(|source| self.failed(source.into()))
    }

    /// Trains on a thread of its own, and reports meanwhile what it does.
    async fn train(
        &self,
        mut communicator: Communicator,
        device: ResolvedDevice,
        loaded: Result<LoadedShards, volley_trainer::Error>,
    ) -> Result<(Outcome, Communicator), RankError> {
        let Seat {
            generation, rank, ..
        } = self.seat;
        let (reporter, send) = reporter(self.rendezvous.clone(), generation, rank);
        let (spec, cancel) = (Arc::clone(self.spec), self.cancel.clone());
        let (done, trained) = oneshot::channel::<Trained>();
        let work = move || {
            let rank = Rank {
                communicator: &mut communicator,
                device,
                observer: &reporter,
                cancel: &cancel,
            };
            let outcome = train(&spec, loaded, rank);
            // Nobody waits when the task was cancelled.
            done.send(outcome.map(|outcome| (outcome, communicator)))
                .ok();
        };
        std::thread::Builder::new()
            .name(format!("rank-{rank}"))
            .stack_size(STACK)
            .spawn(work)
            .map_err(|error| self.broken(&error))?;
        let (trained, ()) = tokio::join!(trained, send);
        trained
            .map_err(|_| self.broken(&"its thread panicked; see the executor's log"))?
            .map_err(|source| self.failed(source))
    }

    /// Rank 0 publishes the model; the others succeed only once it has.
    async fn publish(
        &self,
        artifacts: Option<Artifacts>,
        mut communicator: Communicator,
    ) -> Result<u32, RankError> {
        let mut version = Vec::new();
        if let Some(Artifacts { manifest, files }) = artifacts {
            let store = ModelStore::open(&self.spec.store);
            let published = async { store?.publish(manifest, files).await };
            let published = published.await.map_err(|source| RankError::Publish {
                model: self.spec.model.to_string(),
                source,
            })?;
            tracing::info!(model = %self.spec.model, version = published, "model published");
            version = published.to_le_bytes().to_vec();
        }
        let told = move || communicator.broadcast(0, &mut version).map(|()| version);
        let version = tokio::task::spawn_blocking(told)
            .await
            .map_err(|panic| self.broken(&panic))?
            .map_err(|source| self.failed(source.into()))?;
        <[u8; 4]>::try_from(version.as_slice())
            .map(u32::from_le_bytes)
            .map_err(|_| self.broken(&"rank 0 sent a version that is none"))
    }

    /// Reports a failure; where it is only the loss of a peer, the peer's own account replaces it.
    pub(super) async fn root_cause(&self, error: RankError) -> RankError {
        let peer_lost = matches!(&error, RankError::Rank { source, .. } if source.is_peer_loss());
        let Seat {
            generation, rank, ..
        } = self.seat;
        let told = self
            .rendezvous
            .fail(generation, rank, chain(&error), peer_lost);
        told.await.filter(|_| peer_lost).unwrap_or(error)
    }

    fn failed(&self, source: volley_trainer::Error) -> RankError {
        RankError::Rank {
            rank: self.seat.rank,
            world_size: self.seat.world_size,
            executor: self.executor.to_owned(),
            source,
        }
    }

    fn broken(&self, message: &dyn Display) -> RankError {
        RankError::Broken {
            rank: self.seat.rank,
            executor: self.executor.to_owned(),
            message: message.to_string(),
        }
    }

    /// The rank's row of the training's result.
    fn row(
        &self,
        device: &ResolvedDevice,
        version: u32,
        report: &RankReport,
    ) -> Result<RecordBatch, datafusion::arrow::error::ArrowError> {
        let text = |value: String| Arc::new(StringArray::from(vec![value])) as ArrayRef;
        let small = |value: usize| {
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            Arc::new(UInt32Array::from(vec![value])) as ArrayRef
        };
        let large = |value: u64| Arc::new(UInt64Array::from(vec![value])) as ArrayRef;
        let real = |value: Option<f64>| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
        let kept = &report.kept;
        RecordBatch::try_new(
            train_schema(),
            vec![
                text(self.spec.model.to_string()),
                small(version as usize),
                small(self.seat.rank),
                small(self.seat.world_size),
                text(self.executor.to_owned()),
                text(device.to_string()),
                large(report.train_rows),
                large(report.eval_rows),
                small(report.epochs),
                small(kept.epoch),
                real(Some(kept.loss)),
                real(kept.eval_loss),
                real(kept.eval_mae),
                real(kept.eval_rmspe),
                real(Some(report.load_seconds)),
                real(Some(report.train_seconds)),
            ],
        )
    }
}
