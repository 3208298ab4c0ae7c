//! One rank from task to result.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::error::BallistaError;
use datafusion::arrow::array::{ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use volley_proto::failure::chain;
use volley_proto::plan::train_schema;
use volley_proto::runtime::{RankRuntime, RankTask};
use volley_proto::spec::{Device, TrainSpec};
use volley_proto::store::ModelStore;
use volley_trainer::collective::{Communicator, Listener, Membership, Options};
use volley_trainer::{
    Artifacts, LoadedShards, Outcome, Rank, ResolvedDevice, load, resolve_device, train,
};

use super::progress::reporter;
use super::rendezvous::Rendezvous;
use crate::ExecutorConfig;
use crate::error::RankError;

/// Planning and autodiff recurse; a rank's thread has room.
const STACK: usize = 16 * 1024 * 1024;

/// Runs ranks on this executor.
#[derive(Debug)]
pub(crate) struct RankHost {
    executor: String,
    host: String,
    socket_dir: PathBuf,
    device: Device,
    scheduler: Channel,
}

/// What a rank's thread hands back: its outcome, and the peers for the last word.
type Trained = Result<(Outcome, Communicator), volley_trainer::Error>;

impl RankHost {
    pub(crate) fn new(config: &ExecutorConfig, scheduler: Channel) -> Self {
        Self {
            executor: config.id.clone(),
            host: config.bind.to_string(),
            socket_dir: config.work_dir.clone(),
            device: config.device,
            scheduler,
        }
    }

    /// The device for a job: its own wish, else the executor's.
    fn device(&self, spec: &TrainSpec) -> Result<ResolvedDevice, volley_trainer::Error> {
        resolve_device(if spec.device == Device::Auto {
            self.device
        } else {
            spec.device
        })
    }

    async fn try_run(&self, task: RankTask) -> Result<RecordBatch, RankError> {
        let RankTask {
            spec,
            identity,
            shards,
            cancel,
        } = task;
        let rendezvous =
            Rendezvous::new(self.scheduler.clone(), spec.train_id, self.executor.clone());
        let bound = Listener::bind(&self.host, Some(&self.socket_dir)).map_err(Into::into);
        let listener = bound.map_err(|source| self.failed(&Seat::NONE, source))?;
        let membership = rendezvous
            .join(&identity, listener.endpoint(), spec.rendezvous_timeout)
            .await?;
        let seat = Seat::of(&membership);
        tracing::info!(train = %spec.train_id, rank = seat.rank, world_size = seat.world_size,
            generation = seat.generation, "rank joined");
        let shards = identity.partitions.iter().copied().zip(shards).collect();
        let ran = self.run_rank(
            &spec,
            &seat,
            listener,
            membership,
            shards,
            &rendezvous,
            &cancel,
        );
        match ran.await {
            Err(_) if cancel.is_cancelled() => Err(RankError::Cancelled {
                train: spec.train_id.to_string(),
            }),
            Err(error) => Err(self.root_cause(&rendezvous, &seat, error).await),
            Ok(row) => Ok(row),
        }
    }

    #[allow(clippy::too_many_arguments)] // the rank's own parts, each used once
    async fn run_rank(
        &self,
        spec: &Arc<TrainSpec>,
        seat: &Seat,
        listener: Listener,
        membership: Membership,
        shards: Vec<(usize, datafusion::execution::SendableRecordBatchStream)>,
        rendezvous: &Rendezvous,
        cancel: &CancellationToken,
    ) -> Result<RecordBatch, RankError> {
        let failed = |source| self.failed(seat, source);
        let device = self.device(spec).map_err(failed)?;
        let device_name = device.to_string();
        let options = Options {
            connect_timeout: spec.rendezvous_timeout,
            op_timeout: spec.collective_timeout,
            ..Options::default()
        };
        let abort = cancel.clone();
        let connect = move || Communicator::connect(listener, &membership, &options, &abort);
        let communicator = tokio::task::spawn_blocking(connect)
            .await
            .map_err(|panic| self.panicked(seat, &panic))?
            .map_err(|source| failed(source.into()))?;

        let loaded = match shards.first().map(|(_, rows)| rows.schema()) {
            Some(schema) => load(spec, &schema, shards, cancel).await,
            None => return Err(self.panicked(seat, &"the task has no shards")),
        };

        let (reporter, send) = reporter(rendezvous.clone(), seat.generation, seat.rank);
        let thread = RankThread {
            spec,
            communicator,
            device,
            reporter,
        };
        let training = thread.start(seat.rank, loaded, cancel.clone());
        let (trained, ()) = tokio::join!(training, send);
        let trained = trained.ok_or_else(|| self.panicked(seat, &"see the executor's log"))?;
        let (outcome, communicator) = trained.map_err(failed)?;
        let version = self
            .publish(spec, seat, outcome.artifacts, communicator)
            .await?;
        row(
            spec,
            seat,
            &self.executor,
            &device_name,
            version,
            &outcome.report,
        )
        .map_err(|source| self.panicked(seat, &source))
    }

    /// Rank 0 publishes the model; the others succeed only once it has.
    async fn publish(
        &self,
        spec: &TrainSpec,
        seat: &Seat,
        artifacts: Option<Artifacts>,
        mut communicator: Communicator,
    ) -> Result<u32, RankError> {
        let mut version = Vec::new();
        if let Some(Artifacts { manifest, files }) = artifacts {
            let publish = async {
                ModelStore::open(&spec.store)?
                    .publish(manifest, files)
                    .await
            };
            let published = publish.await.map_err(|source| RankError::Publish {
                model: spec.model.to_string(),
                source,
            })?;
            tracing::info!(model = %spec.model, version = published, "model published");
            version = published.to_le_bytes().to_vec();
        }
        let told = move || communicator.broadcast(0, &mut version).map(|()| version);
        let version = tokio::task::spawn_blocking(told)
            .await
            .map_err(|panic| self.panicked(seat, &panic))?
            .map_err(|source| self.failed(seat, source.into()))?;
        <[u8; 4]>::try_from(version.as_slice())
            .map(u32::from_le_bytes)
            .map_err(|_| self.panicked(seat, &"rank 0 sent a version that is none"))
    }

    /// Reports the failure; where it is only the loss of a peer, the peer's own account replaces it.
    async fn root_cause(
        &self,
        rendezvous: &Rendezvous,
        seat: &Seat,
        error: RankError,
    ) -> RankError {
        let peer_lost = matches!(&error, RankError::Rank { source, .. } if source.is_peer_loss());
        let root = rendezvous
            .fail(seat.generation, seat.rank, chain(&error), peer_lost)
            .await;
        root.filter(|_| peer_lost).unwrap_or(error)
    }

    fn failed(&self, seat: &Seat, source: volley_trainer::Error) -> RankError {
        let Seat {
            rank, world_size, ..
        } = *seat;
        RankError::Rank {
            rank,
            world_size,
            executor: self.executor.clone(),
            source,
        }
    }

    fn panicked(&self, seat: &Seat, message: &dyn std::fmt::Display) -> RankError {
        let (executor, message) = (self.executor.clone(), message.to_string());
        RankError::Panic {
            rank: seat.rank,
            executor,
            message,
        }
    }
}

#[async_trait]
impl RankRuntime for RankHost {
    async fn run(&self, task: RankTask) -> Result<RecordBatch, DataFusionError> {
        self.try_run(task).await.map_err(|error| match error {
            RankError::Cancelled { .. } => {
                DataFusionError::External(Box::new(BallistaError::Cancelled))
            }
            error => DataFusionError::External(Box::new(error)),
        })
    }
}

/// A rank's place in its generation.
#[derive(Debug, Clone, Copy)]
struct Seat {
    generation: u64,
    rank: usize,
    world_size: usize,
}

impl Seat {
    /// Before the rendezvous.
    const NONE: Self = Self {
        generation: 0,
        rank: 0,
        world_size: 0,
    };

    fn of(membership: &Membership) -> Self {
        let (generation, rank) = (membership.generation, membership.rank);
        Self {
            generation,
            rank,
            world_size: membership.world_size(),
        }
    }
}

/// The thread that a rank trains on.
struct RankThread<'a, O> {
    spec: &'a Arc<TrainSpec>,
    communicator: Communicator,
    device: ResolvedDevice,
    reporter: O,
}

impl<O: volley_trainer::Observer + Send + 'static> RankThread<'_, O> {
    /// Trains on a thread of its own; `None` when the thread panicked or could not be started.
    async fn start(
        self,
        rank: usize,
        loaded: Result<LoadedShards, volley_trainer::Error>,
        cancel: CancellationToken,
    ) -> Option<Trained> {
        let Self {
            spec,
            mut communicator,
            device,
            reporter,
        } = self;
        let spec = Arc::clone(spec);
        let (done, trained) = oneshot::channel();
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
        let spawned = std::thread::Builder::new()
            .name(format!("rank-{rank}"))
            .stack_size(STACK)
            .spawn(work);
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start the rank's thread");
        }
        trained.await.ok()
    }
}

/// The rank's row of the training's result.
fn row(
    spec: &TrainSpec,
    seat: &Seat,
    executor: &str,
    device: &str,
    version: u32,
    report: &volley_trainer::RankReport,
) -> Result<RecordBatch, datafusion::arrow::error::ArrowError> {
    let text = |value: &str| Arc::new(StringArray::from(vec![value])) as ArrayRef;
    let small = |value: usize| {
        Arc::new(UInt32Array::from(vec![
            u32::try_from(value).unwrap_or(u32::MAX),
        ])) as ArrayRef
    };
    let large = |value: u64| Arc::new(UInt64Array::from(vec![value])) as ArrayRef;
    let real = |value: Option<f64>| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
    let kept = &report.kept;
    RecordBatch::try_new(
        train_schema(),
        vec![
            text(spec.model.as_str()),
            small(version as usize),
            small(seat.rank),
            small(seat.world_size),
            text(executor),
            text(device),
            large(report.train_rows),
            large(report.eval_rows),
            small(spec.epochs),
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
