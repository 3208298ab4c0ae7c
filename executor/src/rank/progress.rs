//! Reports of a rank's thread: progress goes to the scheduler and checkpoints to the store, without making the
//! thread wait. It waits only for the store to publish its model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;
use volley_proto::failure::chain;
use volley_proto::notes::refit_follows;
use volley_proto::spec::{DeviceKind, RankDevice, TrainSpec};
use volley_proto::store::{EpochRecord, KeptOptions, ModelStore, Position, Writer};
use volley_proto::wire::Steps;
use volley_proto::{Error, Result, TrainId};
use volley_trainer::{Artifacts, Beginning, Observer, Publisher, Step};

use super::rendezvous::{Rendezvous, Seat};
use super::trace::RankTrace;
use crate::counts::Counts;

/// Intervals at which rank 0 and the other ranks report steps.
const INTERVALS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// Report of a rank to the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    /// The rank has streamed these shards, and has not met its peers yet. Their files have this many bytes, if the
    /// executor keeps them for the next training.
    Streamed {
        shards: Vec<u64>,
        kept_bytes: Option<u64>,
    },
    /// The rank has streamed all of its shards.
    Loaded { rows: u64, seconds: f64 },
    /// An epoch is done.
    Epoch(Box<EpochRecord>),
    /// Totals of the steps since the last report.
    Steps(Steps),
    /// A message for the user.
    Note(String),
}

/// Time without a finished checkpoint after which the store is reported busy; epochs may be shorter than a write.
const LATE: Duration = Duration::from_secs(10);

/// Write to the store; writes are done in the order in which they are sent.
#[derive(Debug)]
enum Write {
    Checkpoint(Position, Bytes),
    Model(Box<Artifacts>, oneshot::Sender<Result<u32>>),
}

/// The rank thread's end: an observer and publisher that passes everything on.
#[derive(Debug)]
pub(super) struct Reporter {
    reports: mpsc::UnboundedSender<Report>,
    writes: mpsc::Sender<Write>,
    rank: usize,
    /// True in the run's first generation.
    is_first: bool,
    untold: Mutex<Untold>,
    /// True once the scheduler has answered that training is to end early.
    stopped: Arc<AtomicBool>,
    /// Time when the store last accepted a checkpoint, or was reported busy.
    last_checkpoint: Mutex<Instant>,
    /// Epochs before a refit, and in all, that were told last.
    length: Mutex<Option<[usize; 2]>>,
    counts: Arc<Counts>,
    trace: RankTrace,
}

/// Steps not reported yet.
#[derive(Debug)]
struct Untold {
    /// Time of the last report, and the rank's time in collectives up to then.
    since: Instant,
    reducing: Duration,
    rows: u64,
    loss: f64,
}

impl Untold {
    fn from(reducing: Duration) -> Self {
        Self {
            since: Instant::now(),
            reducing,
            rows: 0,
            loss: 0.0,
        }
    }
}

/// Destination of a rank's checkpoints and its model.
#[derive(Debug)]
pub(super) struct RunStore<'a> {
    pub(super) spec: &'a TrainSpec,
    pub(super) generation: u64,
    /// Submission time of the training, by the scheduler's clock.
    pub(super) begun: Option<SystemTime>,
    /// Run that this one continues; its checkpoints are dropped once this run has one.
    pub(super) continues: Option<TrainId>,
}

/// Returns a reporter, and the future that sends its reports on; the future ends when the reporter is dropped.
pub(super) fn reporter(
    rendezvous: Rendezvous,
    seat: Seat,
    mut store: RunStore<'_>,
    (counts, trace): (Arc<Counts>, RankTrace),
) -> (Reporter, impl Future<Output = ()>) {
    let (reports, mut received) = mpsc::unbounded_channel();
    // One checkpoint can wait while another is written.
    let (writes, mut waiting) = mpsc::channel::<Write>(1);
    let (told, written) = (rendezvous.clone(), Arc::clone(&counts));
    let traced = trace.clone();
    let stopped = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stopped);
    let send = async move {
        while let Some(report) = received.recv().await {
            if rendezvous.report(&seat, report).await {
                stops.store(true, Ordering::Relaxed);
            }
        }
    };
    let write = async move {
        while let Some(write) = waiting.recv().await {
            let begun = SystemTime::now();
            let (position, state) = match write {
                Write::Checkpoint(position, state) => (position, state),
                Write::Model(artifacts, done) => {
                    let published = store.publish(*artifacts).await;
                    traced.publication(begun, &published);
                    written.model_store_errors.add(published.is_err().into());
                    // The waiting thread is gone only if it has panicked.
                    done.send(published).ok();
                    continue;
                }
            };
            let saved = store.save(position, state).await;
            traced.checkpoint(begun, &saved);
            if let Err(error) = saved {
                if let Error::Superseded { .. } = error {
                    // A later generation owns the checkpoints; this one ends.
                    tracing::warn!(%position, cause = chain(&error), "no checkpoint");
                    continue;
                }
                written.model_store_errors.add(1);
                let cause = chain(&error);
                tracing::error!(%position, cause, "cannot write a checkpoint");
                let note = format!(
                    "cannot write the checkpoint at {position}: {cause}; training continues without it"
                );
                told.report(&seat, Report::Note(note)).await;
            }
        }
    };
    let reporter = Reporter {
        reports,
        writes,
        rank: seat.rank,
        is_first: seat.generation == 1,
        untold: Mutex::new(Untold::from(Duration::ZERO)),
        stopped,
        last_checkpoint: Mutex::new(Instant::now()),
        length: Mutex::default(),
        counts,
        trace,
    };
    let work = async move {
        tokio::join!(send, write);
    };
    (reporter, work)
}

impl RunStore<'_> {
    async fn save(&mut self, position: Position, state: Bytes) -> Result<()> {
        let TrainSpec {
            model,
            train_id,
            transform,
            shards,
            ..
        } = self.spec;
        let store = ModelStore::open(&self.spec.store)?;
        let writer = Writer {
            run: *train_id,
            generation: self.generation,
        };
        let kept = KeptOptions {
            transform: transform.clone(),
            shards: Some(*shards),
        };
        store
            .save_checkpoint(model, writer, position, kept, state)
            .await?;
        if let Some(run) = self.continues.take() {
            store.drop_checkpoints(model, run).await?;
        }
        Ok(())
    }

    async fn publish(&self, artifacts: Artifacts) -> Result<u32> {
        let Artifacts {
            mut manifest,
            files,
        } = artifacts;
        manifest.begun = self.begun;
        let store = ModelStore::open(&self.spec.store)?;
        let version = store.publish(self.generation, manifest, files).await?;
        tracing::info!(model = %self.spec.model, version, "model published");
        Ok(version)
    }
}

impl Reporter {
    fn send(&self, report: Report) {
        // The receiver is gone once the task is; then the report has no reader.
        self.reports.send(report).ok();
    }

    /// Tells of a refit that follows, and of its beginning.
    fn tell_length(&self, step: &Step) {
        let Step {
            selecting, epochs, ..
        } = *step;
        let mut length = self.length.lock();
        let before = length.replace([selecting, epochs]);
        let note = match before {
            None if selecting < epochs && self.is_first => refit_follows(selecting as u64),
            Some([selected, all]) if selected < all && selecting == epochs => {
                format!("refit on all rows, to epoch {epochs}")
            }
            _ => return,
        };
        self.send(Report::Note(note));
    }

    /// Sends the checkpoint of a rank that ends, after which none follows: it waits for earlier ones.
    pub(super) fn last_checkpoint(&self, position: Position, state: Bytes) {
        // The writing future is gone if the store has not answered in time.
        let write = Write::Checkpoint(position, state);
        self.writes.blocking_send(write).ok();
    }
}

impl Observer for Reporter {
    fn loaded(&self, rows: u64, seconds: f64) {
        self.trace.loaded(rows);
        self.send(Report::Loaded { rows, seconds });
    }

    fn started(&self, beginning: Beginning) {
        *self.untold.lock() = Untold::from(Duration::ZERO);
        if self.rank == 0 && beginning != Beginning::Fresh {
            self.send(Report::Note(format!("training starts {beginning}")));
        }
    }

    fn fell_back(&self, computed: RankDevice, reason: &str) {
        let place = match computed.device {
            DeviceKind::Cpu => "on the CPU",
            DeviceKind::Cuda | DeviceKind::Wgpu => "with Burn",
        };
        let note = format!("rank {} computes {place}: {reason}", self.rank);
        self.send(Report::Note(note));
    }

    fn noted(&self, note: &str) {
        self.send(Report::Note(note.to_owned()));
    }

    fn step(&self, step: &Step) {
        let Position {
            epoch,
            step: done,
            steps,
        } = step.next;
        self.counts.rank_steps.add(1);
        if self.rank == 0 {
            // They are those of all ranks.
            self.counts.trained_rows.add(step.rows);
            self.tell_length(step);
        }
        let mut untold = self.untold.lock();
        untold.rows += step.rows;
        untold.loss += step.loss;
        let elapsed = untold.since.elapsed();
        let is_last = done == step.steps_per_epoch;
        if elapsed < INTERVALS[self.rank.min(1)] && !is_last {
            return;
        }
        let reducing = step.reducing.saturating_sub(untold.reducing);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.counts.step_micros.add(micros(elapsed));
        self.counts.reduce_micros.add(micros(reducing));
        let told = std::mem::replace(&mut *untold, Untold::from(step.reducing));
        self.send(Report::Steps(Steps {
            epoch: epoch as u64,
            epochs: step.epochs as u64,
            step: done,
            steps_per_epoch: step.steps_per_epoch,
            total: steps,
            rows: told.rows,
            loss: told.loss,
            seconds: elapsed.as_secs_f64(),
            reduce_seconds: reducing.as_secs_f64(),
        }));
    }

    fn epoch(&self, record: &EpochRecord) {
        // Evaluation does not count into the time of the next steps.
        self.untold.lock().since = Instant::now();
        self.trace.epoch(record);
        if self.rank == 0 {
            self.send(Report::Epoch(Box::new(record.clone())));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn checkpoint(&self, position: Position, state: Bytes) {
        // Training does not wait for a store: the next checkpoint will be newer.
        let sent = self.writes.try_send(Write::Checkpoint(position, state));
        let mut last = self.last_checkpoint.lock();
        match sent {
            Err(TrySendError::Full(_)) if last.elapsed() > LATE => {
                let note =
                    format!("no checkpoint at {position}: the store is busy with earlier ones");
                self.send(Report::Note(note));
                *last = Instant::now();
            }
            Ok(()) => *last = Instant::now(),
            Err(_) => {}
        }
    }
}

impl Publisher for Reporter {
    fn publish(
        &self,
        artifacts: Artifacts,
    ) -> std::result::Result<u32, Box<dyn std::error::Error + Send + Sync>> {
        let (done, published) = oneshot::channel();
        let write = Write::Model(Box::new(artifacts), done);
        // The writing future is gone once the rank is to end.
        let gone = || "the rank ends before its store has taken the model";
        self.writes.blocking_send(write).map_err(|_| gone())?;
        Ok(published.blocking_recv().map_err(|_| gone())??)
    }
}
