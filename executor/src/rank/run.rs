//! One rank's run, from its seat in a generation to its result.

use std::convert::Infallible;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datafusion::arrow::array::{ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use volley_engine::runtime::RankTask;
use volley_engine::train_schema;
use volley_proto::failure::chain;
use volley_proto::spec::{DeviceKind, TrainSpec};
use volley_trainer::collective::{Listener, Membership};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{
    Alone, ArrivingShards, GangRank, GpuLock, Interrupted, LoadedShards, Origin, Published,
    RankReport, ResolvedDevice, RowMemory, ShardCache, Shards, load, load_early, run_rank,
};

use super::origin::{Found, look_up};
use super::parking::{Parking, Place};
use super::prepared::Lease;
use super::progress::{Report, RunStore, reporter};
use super::rendezvous::{Rendezvous, Seat, Told};
use super::trace::RankTrace;
use crate::ballista::data_lost;
use crate::counts::Counts;
use crate::error::RankError;
use crate::memory;

/// Stack size of a rank's thread; autodiff recurses deeply.
const STACK: usize = 16 * 1024 * 1024;
/// Time limit for finishing pending work once the rank is to end.
pub(super) const LEAVING: Duration = Duration::from_secs(20);

/// Time limit for predictions to leave a rank's GPU, which they do after a batch, and for an earlier rank that is
/// [leaving](LEAVING).
const GPU_LEFT: Duration = Duration::from_secs(25);

/// Folder of the encoded shards' cache, within a stage's folder.
const SHARDS: &str = "shards";

/// Returns the newer of the state left on this executor and the origin found in the store.
fn newest(left: Option<Origin>, found: Option<Origin>) -> Origin {
    match (left, found) {
        (Some(Origin::State(left)), Some(Origin::State(found))) => {
            let newer = if found.position() > left.position() {
                found
            } else {
                left
            };
            Origin::State(newer)
        }
        (left, found) => left.or(found).unwrap_or(Origin::Fresh),
    }
}

/// A rank that has its seat.
pub(super) struct RankRun<'a> {
    pub(super) executor: &'a str,
    pub(super) device: ResolvedDevice,
    /// Lock of the rank's GPU, if it has one alone.
    pub(super) alone: Option<GpuLock>,
    pub(super) threads: NonZeroUsize,
    /// Memory limit of the rank, in bytes.
    pub(super) memory: u64,
    pub(super) layers: &'a CustomLayers,
    pub(super) seat: Seat,
    /// Submission time of the training, by the scheduler's clock.
    pub(super) begun: Option<SystemTime>,
    pub(super) rendezvous: &'a Rendezvous,
    pub(super) spec: &'a Arc<TrainSpec>,
    /// Token that ends the rank and keeps its state.
    pub(super) stop: CancellationToken,
    /// Token of the executor's planned departure.
    pub(super) leaving: &'a CancellationToken,
    /// Use of the prepared rows, if the encoded shards are kept.
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) counts: &'a Arc<Counts>,
    pub(super) trace: RankTrace,
}

impl RankRun<'_> {
    /// Loads the shards and trains. Returns the rank's result row.
    pub(super) async fn run(
        &self,
        listener: Listener,
        membership: Membership,
        task: &RankTask,
        place: Place,
    ) -> Result<RecordBatch, RankError> {
        let found = if self.seat.rank == 0 {
            match look_up(self.spec, self.layers).await {
                Ok(found) => Some(found),
                Err(error) if place.has_state() => {
                    tracing::warn!(%error, "continues with the state that the earlier rank left");
                    None
                }
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        let fewer = self.fewer_threads();
        for note in found.iter().flat_map(|found| &found.notes).chain(&fewer) {
            let note = Report::Note(note.clone());
            self.rendezvous.report(&self.seat, note).await;
        }
        place.holds(self.least_memory(None));
        let Published { version, report } = match self.spec.begin_early {
            false => {
                let loaded = self.load(task).await?;
                if let Ok(loaded) = &loaded {
                    self.streamed(task, loaded.rows(), place.parking()).await;
                }
                self.train(listener, membership, loaded.into(), found, place)
                    .await?
            }
            true => {
                let parking = place.parking().clone();
                let (arriving, late) = self.load_early(task, parking);
                let trained = self.train(listener, membership, arriving.into(), found, place);
                tokio::select! {
                    trained = trained => trained?,
                    late = late => return Err(late),
                }
            }
        };
        self.row(version, &report)
            .map_err(|error| self.broken(&error))
    }

    /// Reports that the task's shards, with so many rows, have arrived.
    async fn streamed(&self, task: &RankTask, rows: u64, parking: &Parking) {
        parking.holds(self.spec.train_id, self.least_memory(Some(rows)));
        let shards = task.identity.partitions.iter();
        let report = Report::Streamed {
            shards: shards.map(|shard| *shard as u64).collect(),
            kept_bytes: self.lease.as_deref().and_then(Lease::kept_bytes),
        };
        self.rendezvous.report(&self.seat, report).await;
    }

    /// Returns a note if rank 0 has fewer threads than the training asks for.
    fn fewer_threads(&self) -> Option<String> {
        let asked = self.spec.threads.filter(|asked| *asked > self.threads);
        let asked = asked.filter(|_| self.seat.rank == 0)?;
        let threads = self.threads;
        let slots = if threads.get() == 1 { "slot" } else { "slots" };
        Some(format!(
            "threads = {asked}: rank 0 computes with {threads}, since its executor has {threads} {slots}"
        ))
    }

    /// Loads the task's shards, from the executor's cache or by streaming their rows.
    async fn load(
        &self,
        task: &RankTask,
    ) -> Result<Result<LoadedShards, volley_trainer::Error>, RankError> {
        // What queries and the load have freed must not come on top of what the rank needs next.
        memory::give_back();
        let (cache, schema) = (self.cache(task), task.input.schema());
        let loaded = load(
            self.spec,
            &schema,
            shards_of(task),
            Some(&cache),
            &self.stop,
        );
        let loaded = timeout(self.spec.loading_timeout, loaded).await;
        memory::give_back();
        loaded.map_err(|_| self.late())
    }

    /// Loads likewise while the rank trains on the shards that it has. The future reports that all have arrived, and ends
    /// only if they do not.
    fn load_early(
        &self,
        task: &RankTask,
        parking: Parking,
    ) -> (
        Result<ArrivingShards, volley_trainer::Error>,
        impl Future<Output = RankError>,
    ) {
        memory::give_back();
        let (cache, schema) = (self.cache(task), task.input.schema());
        let (arriving, loading) = load_early(
            self.spec,
            &schema,
            shards_of(task),
            Some(&cache),
            &self.stop,
        );
        let late = async move {
            match timeout(self.spec.loading_timeout, loading).await {
                Err(_) => return self.late(),
                Ok(Some(rows)) => self.streamed(task, rows, &parking).await,
                // The rank ends, and knows why.
                Ok(None) => {}
            }
            std::future::pending().await
        };
        (arriving, late)
    }

    fn late(&self) -> RankError {
        let limit = humantime::format_duration(self.spec.loading_timeout);
        self.broken(&format!(
            "its shards did not arrive within loading_timeout, which is {limit}"
        ))
    }

    /// Returns the cache of the task's encoded shards.
    fn cache(&self, task: &RankTask) -> ShardCache {
        let memory = self.memory_of_rows();
        let memory = match self.spec.begin_early {
            // There is a network before all rows are scaled.
            true => RowMemory {
                loading: memory.training,
                ..memory
            },
            false => memory,
        };
        ShardCache::new(task.folder.join(SHARDS), memory)
    }

    /// Returns the memory limit for rows: the rank's memory minus the network's, as far as that is known. Unlimited
    /// when each step takes all rows.
    fn memory_of_rows(&self) -> RowMemory {
        let ranks = self.seat.world_size as u64;
        let memory = self.spec.rank_memory();
        if memory.is_some_and(|memory| memory.in_files(0, ranks).is_none()) {
            return RowMemory::UNLIMITED;
        }
        let network = memory.map_or(0, |memory| memory.without_rows(None, ranks));
        RowMemory {
            loading: self.memory,
            training: self.memory.saturating_sub(network),
        }
    }

    /// Returns the least memory of the rank with so many rows, in memory if they fit, else in files; `None` with a custom
    /// layer. Without the memory that depends on rows, if their number is not known yet.
    fn least_memory(&self, rows: Option<u64>) -> Option<u64> {
        let memory = self.spec.rank_memory()?;
        let memory = memory.with_threads(self.threads.get());
        let ranks = self.seat.world_size as u64;
        let Some(rows) = rows else {
            return Some(memory.of_rank(None, ranks));
        };
        // As many as if all ranks had this one's.
        let all = rows.saturating_mul(ranks);
        let in_memory = memory.in_memory(all, ranks);
        let in_files = memory.in_files(all, ranks);
        in_files
            .filter(|_| in_memory > self.memory)
            .or(Some(in_memory))
    }

    /// Stops the rank once its generation has ended.
    pub(super) async fn hold_seat(&self) -> Infallible {
        let Seat {
            generation, rank, ..
        } = self.seat;
        let reason = self.rendezvous.hold(&self.seat).await;
        tracing::info!(train = %self.spec.train_id, generation, rank, reason, "generation ended");
        self.stop.cancel();
        std::future::pending().await
    }

    /// Ends a rank that does not stop because something it waits for does not answer.
    pub(super) async fn overstay(&self) -> RankError {
        self.stop.cancelled().await;
        sleep(2 * LEAVING).await;
        self.broken(&"it does not stop; see the executor's log")
    }

    /// Trains with the peers on a separate thread, while reporting its progress and storing its checkpoints. However
    /// the thread ends, and even if no task waits for it any more, the state goes back to the rank's place.
    async fn train(
        &self,
        listener: Listener,
        membership: Membership,
        shards: Shards,
        found: Option<Found>,
        mut place: Place,
    ) -> Result<Published, RankError> {
        let (found, continues) = found.map(|found| (found.origin, found.continues)).unzip();
        let store = RunStore {
            spec: self.spec,
            generation: self.seat.generation,
            begun: self.begun,
            continues: continues.flatten(),
        };
        let observed = (Arc::clone(self.counts), self.trace.clone());
        let (reporter, send) = reporter(self.rendezvous.clone(), self.seat, store, observed);
        let (spec, stop) = (Arc::clone(self.spec), self.stop.clone());
        let (leaving, is_first) = (self.leaving.clone(), self.seat.rank == 0);
        let (device, threads) = (self.device, self.threads);
        let alone = self.alone.clone();
        let layers = self.layers.clone();
        // The thread reads files of the folder for as long as it lives.
        let lease = self.lease.clone();
        let (done, trained) = oneshot::channel();
        let span = tracing::Span::current();
        let work = move || {
            let _about = span.enter();
            let _alone = alone.as_ref().and_then(take_alone);
            let left = place.take().map(|state| Origin::State(*state));
            let rank = GangRank {
                listener,
                membership: &membership,
                device,
                threads,
                layers: &layers,
                observer: &reporter,
                publisher: &reporter,
                cancel: &stop,
                origin: newest(left, found),
            };
            let trained = run_rank(&spec, shards, rank);
            let trained = trained.map_err(|Interrupted { error, state }| {
                if let Some(state) = state
                    .as_ref()
                    .filter(|_| is_first && leaving.is_cancelled())
                {
                    // The state left here goes with the executor.
                    reporter.last_checkpoint(state.position(), state.encode());
                }
                place.put(state);
                error
            });
            drop((place, lease));
            memory::give_back();
            // The receiver is gone when the task was cancelled.
            done.send(trained).ok();
        };
        std::thread::Builder::new()
            .name(format!("rank-{}", self.seat.rank))
            .stack_size(STACK)
            .spawn(work)
            .map_err(|error| self.broken(&error))?;
        let (trained, ()) = tokio::join!(trained, async {
            let leaving = async {
                self.stop.cancelled().await;
                sleep(LEAVING).await;
            };
            // Once the rank is to end, a store that does not answer is not waited for.
            tokio::select! {
                () = send => {}
                () = leaving => {}
            }
        });
        trained
            .map_err(|_| self.broken(&"its thread panicked; see the executor's log"))?
            .map_err(|source| self.failed(source))
    }

    /// Reports a failure. If it is only the loss of a peer or the end of the generation, the scheduler's knowledge
    /// of the root cause replaces it.
    pub(super) async fn root_cause(&self, error: RankError) -> RankError {
        let consequence = match &error {
            // Cancelled, but not by this rank's job: a peer was cancelled, or the generation has ended.
            RankError::Rank { source, .. } => {
                source.is_peer_loss() || matches!(source, volley_trainer::Error::Cancelled)
            }
            _ => false,
        };
        let peer_lost = consequence || self.stop.is_cancelled();
        // The reader of the failure adds the rank's number itself.
        let cause = match &error {
            RankError::Rank { source, .. } => chain(source),
            other => chain(other),
        };
        let told = self.rendezvous.fail(&self.seat, cause, peer_lost).await;
        match told {
            Told::Instead(told) if peer_lost => told,
            // The scheduler has ended the generation, and cannot be asked any more.
            Told::Nothing if self.stop.is_cancelled() => RankError::Regroup {
                train: self.spec.train_id.to_string(),
                reason: chain(&error),
            },
            _ => error,
        }
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

    /// Builds the rank's row of the training's result.
    fn row(
        &self,
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
        let device = match report.computed.device {
            DeviceKind::Cpu => ResolvedDevice::CPU,
            DeviceKind::Cuda | DeviceKind::Wgpu => self.device,
        };
        RecordBatch::try_new(
            train_schema(),
            vec![
                text(self.spec.model.to_string()),
                small(version as usize),
                small(self.seat.rank),
                small(self.seat.world_size),
                text(self.executor.to_owned()),
                text(device.to_string()),
                text(report.computed.precision.to_string()),
                small(self.threads.get()),
                large(report.train_rows),
                large(report.eval_rows),
                small(report.epochs),
                small(kept.epoch),
                real(Some(kept.loss)),
                real(kept.eval_loss),
                real(kept.eval_mae),
                real(kept.eval_rmse),
                real(kept.eval_r2),
                real(kept.eval_accuracy),
                real(kept.eval_majority),
                real(kept.eval_rmspe),
                real(kept.eval_interval_coverage),
                real(Some(report.eval_train_loss)),
                Arc::new(UInt64Array::from(vec![report.refit_rows])),
                real(Some(report.load_seconds)),
                real(Some(report.train_seconds)),
            ],
        )
    }
}

/// Takes a rank's GPU once predictions have left it. The scheduler has assigned it, so the rank computes on it even if
/// they have not.
fn take_alone(lock: &GpuLock) -> Option<Alone> {
    let taken = lock.take_alone(GPU_LEFT);
    match &taken {
        Ok(Some(alone)) if alone.is_alone() => {}
        Ok(Some(_)) => {
            tracing::warn!("predictions still use the rank's GPU, and leave it after a batch")
        }
        Ok(None) => tracing::warn!("an earlier rank still uses the rank's GPU"),
        Err(error) => {
            tracing::warn!(%error, "predictions may use the rank's GPU: it cannot be locked")
        }
    }
    taken.ok().flatten()
}

/// Returns the task's shards, each with a function that opens its rows.
fn shards_of(
    task: &RankTask,
) -> Vec<(
    usize,
    impl FnOnce() -> Result<SendableRecordBatchStream, DataFusionError> + Send + use<>,
)> {
    let shards = task.identity.partitions.iter().enumerate();
    let shards = shards.map(|(at, shard)| {
        let rows = task.rows(at);
        (*shard, move || rows().map(mark_lost))
    });
    shards.collect()
}

/// Marks lost data in the rows' errors before other errors wrap them.
fn mark_lost(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let marked = rows.map_err(|error| match data_lost(&error) {
        Some(lost) => DataFusionError::External(Box::new(lost)),
        None => error,
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, marked))
}
