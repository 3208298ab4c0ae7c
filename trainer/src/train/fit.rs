//! The training loop of one rank.
//!
//! All ranks make the same calls to the communicator, in the same order, whatever rows they have: a rank
//! without rows in a step contributes zeros.
//!
//! A step has two all-reduces. The first carries the batch's moments, its number of rows, their checksum and
//! their weight; the second the gradient and the sum of losses. Between hosts, and between GPUs, the second one of a large
//! gradient is in parts, [summed](backward) while the backward pass goes on. So after each step every rank knows what all
//! ranks did, and a lost rank takes nothing with it. If tables have many rows, an all-gather of the codes that
//! [pick](sparse) a step's rows comes between. The state changes only after the second all-reduce has
//! succeeded, when nothing can fail any more, or not at all. Where the ranks' GPUs are [linked](mod@super::link), both
//! all-reduces are on the GPUs, and a [turn](resident) of several steps changes the state or leaves it.

mod backward;
mod resident;
mod sparse;
mod stream;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{Keep, TrainSpec};
use volley_proto::store::{EpochRecord, Position, RankCoverage};

use self::resident::Pace;
pub(super) use self::sparse::{agree as agree_on_sparse, gradient_len};
use self::stream::READ_AHEAD;
use super::agree::{World, gather};
use super::batch::Batch;
use super::coverage::{self, Covered};
use super::loss;
use super::metrics::{EpochTotals, Sums};
use super::optimizer::{Optimizer, split};
use super::pace;
use super::rank::{Observer, Step};
use super::refit;
use super::schedule::{Epoch, Place, Schedule, steps_per_epoch};
use super::shuffle::Shuffle;
use super::state::{Basis, EpochProgress, Kept, Selected, TrainingState, Weights};
use super::trace::{Part, Slice, Trace};
use crate::collective::{Buffer, BufferPart, Communicator};
use crate::encode::{Scaling, Settled};
use crate::network::{Architecture, Compute, Moments, Normalization};
use crate::threads::Threads;
use crate::{Error, Result};

/// Numbers that follow the gradient in its all-reduce: the sum of the losses, as an `f32` and its remainder,
/// since a gradient is `f32`.
pub(super) const TAIL: usize = 2;

/// Epochs between checkpoints if an epoch is a single step.
const EPOCHS_A_CHECKPOINT: usize = 10;

/// Maximum number of retreats after a step that leaves evaluation rows without a finite loss.
const MOST_RETREATS: usize = 20;

/// Reason that the history gives for the end of a training by [`Observer::is_stopped`].
const BY_CLIENT: &str = "a client ended training";

/// Approximate number of points of the curve per epoch.
const POINTS: u64 = 100;

/// One rank's training in progress: the state, the network that computes it, and the data of this generation.
pub(super) struct Fit<'a, C: Compute> {
    pub(super) spec: &'a TrainSpec,
    pub(super) architecture: &'a Architecture,
    pub(super) shards: &'a [Settled],
    /// The shards' global numbers.
    ids: Vec<usize>,
    schedule: Schedule,
    shuffle: Shuffle,
    /// True if some rank has rows in files.
    spills: bool,
    /// Maximum number of passes over the rows.
    epochs: usize,
    /// Number of epochs at most, including those of a refit that follows.
    announced: usize,
    /// Rows that all ranks together train on in an epoch.
    manifest: Covered,
    /// Expected steps of the first epoch, while these rows are only a wave of it.
    expected: Option<u64>,
    /// What the waves of this epoch have left.
    begun: Option<Begun>,

    // The state.
    basis: Basis,
    global_batch: u64,
    pub(super) scaling: Scaling,
    /// Unscaled value of a loss of 1 between scaled labels; 1 with several labels.
    unit: f64,
    /// True if each member of the ensemble holds out a fold.
    pub(super) cross_validates: bool,
    /// The most frequent class in training, if the label is a class.
    pub(super) majority: Option<usize>,
    pub(super) position: Position,
    pub(super) network: C,
    /// True if the network's device takes steps over this rank's rows.
    resident: bool,
    /// True if it does so without holding them: they are brought while it computes.
    streams: bool,
    /// Reason why the state is lost, if a turn of steps was not undone.
    torn: Option<String>,
    pub(super) running: Normalization,
    optimizer: Optimizer<C>,
    /// True if the last step found nothing to change.
    converged: bool,
    /// True if a rank was told to end training after the last epoch.
    stopped: bool,
    progress: EpochProgress,
    history: Vec<EpochRecord>,
    /// The epoch that would be published if training ended.
    best: Option<Kept>,
    /// Summary of the epochs before a refit.
    selected: Option<Selected>,

    /// Rows that this rank has trained on in this epoch and generation.
    pub(super) own: Covered,
    /// Rows that all ranks trained on in this epoch in earlier generations.
    earlier: Covered,
    /// Length of a step's gradient, without the tail.
    len: usize,
    /// True if buckets of the gradient are summed while others are computed, as [agreed](Self::agree_on_overlap).
    overlaps: bool,
    moments: Moments,
    /// Rows and the sum of their losses since the curve's last point.
    since: (u64, f64),
    pub(super) tools: Tools,
}

/// Resources that one training hands on to the next.
pub(super) struct Tools {
    /// All parameters' gradients, in the network's order, then the tail, then unused room: a buffer of length
    /// [`gradient_len`].
    pub(super) gradient: Buffer,
    /// True if the gradient has only the rows of tables that a step picks, as [agreed](agree_on_sparse).
    pub(super) sparse: bool,
    /// True if the ranks' GPUs are [linked](mod@super::link) and, during steps, hold all rows, so that recorded steps sum
    /// over them.
    pub(super) linked: bool,
    /// Mean losses of several steps each, with the last of these steps, as seen in this generation.
    pub(super) curve: Vec<(u64, f64)>,
    pub(super) trace: Trace,
    /// Threads that gather rows and compute losses.
    pub(super) threads: Threads,
}

impl Tools {
    /// Returns the tools of a rank without peers, which keeps no trace.
    pub(super) fn alone(architecture: &Architecture, alone: &mut Communicator) -> Result<Self> {
        Ok(Self {
            gradient: alone.buffer(gradient_len(architecture, false, 0))?,
            sparse: false,
            linked: false,
            curve: Vec::new(),
            trace: Trace::new(false),
            threads: Threads::default(),
        })
    }
}

/// This rank's part in the waves of a first epoch that [begins early](super::early).
#[derive(Debug)]
pub(super) struct Begun {
    /// Rows that this rank has trained on.
    pub(super) own: Covered,
    /// Time of the beginning.
    pub(super) since: Instant,
    /// Time spent in collectives before.
    pub(super) reducing: Duration,
    /// Time spent waiting for this rank's shards.
    pub(super) waited: Duration,
}

/// A rank's account of an epoch.
#[derive(Debug, Serialize, Deserialize)]
struct Account {
    covered: Covered,
    seconds: f64,
    /// True if the rank was told to end training after this epoch.
    stopped: bool,
}

impl<'a, C: Compute> Fit<'a, C> {
    /// Continues from a [checked](TrainingState::check) state, in a network that already has its weights.
    ///
    /// # Errors
    /// When a device has no memory for the optimizer's state.
    pub(super) fn new(
        spec: &'a TrainSpec,
        architecture: &'a Architecture,
        state: TrainingState,
        world: &World,
        shards: &'a [Settled],
        network: C,
        tools: Tools,
    ) -> Result<Self> {
        let TrainingState {
            basis,
            global_batch,
            scaling,
            position,
            weights: Weights { running, .. },
            slots,
            progress,
            history,
            kept: best,
            selected,
        } = state;
        let ids: Vec<usize> = shards.iter().map(|shard| shard.id).collect();
        let steps = steps_per_epoch(world.train.rows, global_batch);
        let sizes = world.shards.iter().map(|(id, rows)| (*id, rows.train.rows));
        let schedule = Schedule::new(spec.seed, steps, &sizes.collect(), ids.iter().copied());
        let l2 = pace::l2(spec, world.train.rows);
        // A refit starts its count of steps anew.
        let before = selected.map_or(0, |selected| history[selected.epochs - 1].steps);
        let (parameters, steps_before) = (architecture.parameters(), position.steps - before);
        let optimizer = Optimizer::new(spec, l2, parameters, &network, steps_before, slots)?;
        let epochs = pace::last_epoch(spec, steps, selected, &history);
        let refits = selected.is_none() && refit::follows(spec, world);
        Ok(Self {
            spec,
            architecture,
            shards,
            ids,
            schedule,
            shuffle: Shuffle::new(shards),
            spills: world.spills,
            epochs,
            // A refit takes no more epochs than those that are chosen from.
            announced: if refits { 2 * epochs } else { epochs },
            manifest: world.train,
            expected: None,
            begun: None,
            basis,
            global_batch,
            unit: loss::unit_of(&spec.loss, &scaling.labels),
            majority: world.majority(),
            cross_validates: spec.cross_validates() && selected.is_none(),
            scaling,
            position,
            network,
            resident: false,
            streams: false,
            torn: None,
            running,
            len: optimizer.len(),
            overlaps: false,
            optimizer,
            converged: false,
            stopped: selected.is_none()
                && history
                    .last()
                    .is_some_and(|record| record.ended.as_deref() == Some(BY_CLIENT)),
            earlier: progress.covered,
            progress,
            history,
            best,
            selected,
            own: Covered::default(),
            moments: Moments::around(world.means.clone(), coverage::PIECES + 1),
            since: (0, 0.0),
            tools,
        })
    }

    /// Returns the state after the last whole step; its rows must be [up to date](Self::catch_up).
    ///
    /// # Errors
    /// When the device that holds it has failed.
    pub(super) fn state(&self) -> Result<TrainingState> {
        self.state_with(self.optimizer.slots(), self.best.clone())
    }

    /// Returns the state with these numbers of the optimizer, and this kept epoch.
    fn state_with(
        &self,
        slots: Result<Vec<Vec<f32>>>,
        kept: Option<Kept>,
    ) -> Result<TrainingState> {
        if let Some(reason) = &self.torn {
            return Err(Error::DeviceFailed {
                device: "the GPU".into(),
                what: "undo a turn of steps".into(),
                reason: reason.clone(),
            });
        }
        Ok(TrainingState {
            basis: self.basis.clone(),
            global_batch: self.global_batch,
            scaling: self.scaling.clone(),
            position: self.position,
            weights: self.weights()?,
            slots: slots?,
            progress: self.progress,
            history: self.history.clone(),
            kept,
            selected: self.selected,
        })
    }

    /// Returns the state, and the resources for another training.
    pub(super) fn into_parts(mut self) -> (Result<TrainingState>, Tools) {
        self.catch_up();
        // Moved, since they may be large.
        let slots = self.optimizer.take_slots();
        let kept = self.best.take();
        (self.state_with(slots, kept), self.tools)
    }

    pub(super) fn weights(&self) -> Result<Weights> {
        Ok(Weights {
            values: self.network.values()?,
            running: self.running.clone(),
        })
    }

    /// Puts the kept weights into the network, and returns the replaced ones; does nothing if none are kept.
    pub(super) fn swap_kept(&mut self) -> Result<Option<Weights>> {
        let Some(best) = &self.best else {
            return Ok(None);
        };
        let kept = best.weights.clone();
        let last = self.weights()?;
        self.put(&kept)?;
        Ok(Some(last))
    }

    /// Returns the weights to evaluate and publish: those in the network, or their average.
    fn published(&self) -> Result<Weights> {
        let mut weights = self.weights()?;
        if let Some(average) = self.optimizer.average()? {
            split(&average, &mut weights.values);
        }
        Ok(weights)
    }

    /// Puts weights into the network.
    pub(super) fn put(&mut self, weights: &Weights) -> Result<()> {
        let Weights { values, running } = weights;
        self.running.clone_from(running);
        self.network.put(values)
    }

    /// Continues a first epoch whose steps are done, in waves.
    pub(super) fn continues(&mut self, begun: Begun) {
        // Its steps were all in this generation.
        (self.own, self.earlier) = (begun.own, Covered::default());
        self.begun = Some(begun);
    }

    /// Takes the steps of a wave of the first epoch, which is expected to have so many in all.
    pub(super) fn run_wave(
        &mut self,
        expected: u64,
        communicator: &mut Communicator,
        observer: &dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<()> {
        self.expected = Some(expected);
        self.epochs = pace::last_epoch(self.spec, expected, None, &[]);
        self.announced = self.epochs;
        self.begin(communicator)?;
        let taken = self
            .ordered(communicator, cancel)
            .and_then(|rows| self.steps(&rows, communicator, observer, cancel));
        if taken.is_err() && self.tools.linked {
            // Peers that wait for sums hear of it before this GPU leaves the link.
            communicator.close();
        }
        taken.map_err(|error| error.at(self.of_epoch(self.position)))
    }

    /// Agrees with the other ranks on how they take steps over these rows.
    fn begin(&mut self, communicator: &mut Communicator) -> Result<()> {
        let may_link = self.hold()?;
        self.agree_to_link(may_link, communicator)?;
        self.overlaps = self.agree_on_overlap(communicator)?;
        Ok(())
    }

    /// Trains the rest of the epochs.
    pub(super) fn run(
        &mut self,
        communicator: &mut Communicator,
        observer: &dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<()> {
        self.begin(communicator)?;
        while self.position.epoch <= self.epochs && !self.has_stopped() {
            let done = self.epoch(communicator, observer, cancel);
            if done.is_err() && self.tools.linked {
                // Peers that wait for sums hear of it before this GPU leaves the link.
                communicator.close();
            }
            done.map_err(|error| error.at(self.position))?;
        }
        // A refit has no evaluation that would show how a last move went. Its first move is from weights without training.
        let own = self.own_history();
        let has_converged = own.last().is_some_and(|last| last.ended.is_some());
        let may_return = self.selected.is_some() && own.len() > 1 && !has_converged;
        if may_return && self.optimizer.converges() {
            self.optimizer.return_to_point(&mut self.network)?;
        }
        Ok(())
    }

    /// Returns the epochs of this training: a refit's without those before it.
    fn own_history(&self) -> &[EpochRecord] {
        let before = self.selected.map_or(0, |selected| selected.epochs);
        &self.history[before..]
    }

    /// Returns the learning rate of a step.
    fn learn_rate(&self, at: Position) -> f64 {
        pace::learn_rate(
            self.spec,
            self.global_batch,
            at,
            self.steps_per_epoch(),
            self.selected,
            &self.history,
        )
    }

    /// Returns the steps of an epoch, as expected if these rows are a wave of it.
    fn steps_per_epoch(&self) -> u64 {
        self.expected.unwrap_or(self.schedule.steps())
    }

    /// Returns a position within the epoch, given one within these rows.
    fn of_epoch(&self, at: Position) -> Position {
        match self.expected {
            // All steps so far are the first epoch's.
            Some(_) => Position {
                step: at.steps,
                ..at
            },
            None => at,
        }
    }

    /// Returns true if the last epoch ended training.
    fn has_stopped(&self) -> bool {
        let may_end = self.spec.early_stop.is_some() || self.optimizer.converges();
        let last = self.own_history().last().filter(|_| may_end);
        self.stopped || last.is_some_and(|record| record.ended.is_some())
    }

    /// Gathers the traces of all ranks, if tracing is on.
    pub(super) fn traces(
        &mut self,
        communicator: &mut Communicator,
    ) -> Result<Option<Vec<Vec<Slice>>>> {
        let slices = self.tools.trace.take();
        let traces = slices.map(|slices| gather(&slices, "trace", communicator));
        traces.transpose()
    }

    /// Trains the rest of an epoch.
    fn epoch(
        &mut self,
        communicator: &mut Communicator,
        observer: &dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<()> {
        let Begun {
            since: start,
            reducing,
            waited,
            ..
        } = self.begun.take().unwrap_or_else(|| Begun {
            own: Covered::default(),
            since: Instant::now(),
            reducing: communicator.counters().time,
            waited: Duration::ZERO,
        });
        let rows = self.ordered(communicator, cancel)?;
        self.steps(&rows, communicator, observer, cancel)?;
        self.catch_up();
        let reduce = (communicator.counters().time - reducing).as_secs_f64();
        let compute = start.elapsed().saturating_sub(waited).as_secs_f64() - reduce;
        let mut sums = self.evaluated([compute, reduce], communicator, cancel)?;
        // A step may have reached weights for which rows outside the training set have no loss.
        let is_lost = |sums: &Sums| sums.mean_loss().is_some_and(|loss| !loss.is_finite());
        let mut retreats = 0;
        while is_lost(&sums)
            && retreats < MOST_RETREATS
            && self.optimizer.retreat(&mut self.network)?
        {
            sums = self.evaluated([compute, reduce], communicator, cancel)?;
            retreats += 1;
        }
        let account = Account {
            covered: self.own,
            seconds: start.elapsed().as_secs_f64(),
            stopped: observer.is_stopped() && self.selected.is_none(),
        };
        let accounts = gather(&account, "account of an epoch", communicator)?;
        let mut record = self.record(&sums, &accounts)?;
        let all = self.history.iter().chain([&record]);
        let early_stop = self.spec.early_stop.filter(|_| self.selected.is_none());
        let stops = pace::stops(early_stop, all);
        self.stopped = accounts.iter().any(|account| account.stopped);
        record.ended = match (self.converged, self.stopped) {
            (true, _) => Some("converged: the gradient is close to zero".to_owned()),
            (false, true) => stops.or_else(|| Some(BY_CLIENT.to_owned())),
            (false, false) => stops,
        };
        self.check_weights()?;
        observer.epoch(&record);
        let is_last = record.ended.is_some() || self.position.epoch == self.epochs;
        let epoch = self.position.epoch;
        self.close(record)?;
        // If an epoch is one step, writing the state takes longer than the step.
        if !self.optimizer.converges() || is_last || epoch.is_multiple_of(EPOCHS_A_CHECKPOINT) {
            self.checkpoint(communicator, observer)?;
        }
        Ok(())
    }

    /// Takes the steps that are left over these rows.
    fn steps(
        &mut self,
        rows: &Epoch,
        communicator: &mut Communicator,
        observer: &dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<()> {
        if self.resident {
            self.begin_epoch(rows)?;
        }
        let by_itself = self.resident && communicator.world_size() == 1;
        let mut pace = Pace::default();
        while self.position.step < self.schedule.steps() {
            check(cancel)?;
            let steps = match (by_itself, self.tools.linked) {
                (true, _) => self.replay(&mut pace, rows, None)?,
                (false, true) => self.replay(&mut pace, rows, Some(communicator))?,
                (false, false) => vec![self.step(rows, communicator)?],
            };
            for (next, (rows, loss)) in self.positions(steps.len()).zip(steps) {
                observer.step(&Step {
                    next: self.of_epoch(next),
                    steps_per_epoch: self.steps_per_epoch(),
                    epochs: self.announced,
                    selecting: self.epochs,
                    rows,
                    loss,
                    reducing: communicator.counters().time,
                });
            }
            let every = self.spec.checkpoint_every;
            let due = every.is_some_and(|every| self.position.steps.is_multiple_of(every));
            // The rows of an epoch that arrives are not known, and so its state is not complete.
            let due = due && self.expected.is_none();
            if due && self.position.step < self.schedule.steps() {
                self.catch_up();
                self.check_weights()?;
                self.checkpoint(communicator, observer)?;
            }
        }
        Ok(())
    }

    /// Returns this rank's rows in the epoch's order; copies rows in files, unless that was done ahead.
    fn ordered(
        &mut self,
        communicator: &mut Communicator,
        cancel: &CancellationToken,
    ) -> Result<Epoch> {
        let epoch = self.position.epoch;
        let rows = match self.resident && !self.streams {
            true => self.schedule.epoch(epoch),
            false => {
                let last = epoch == self.epochs || self.expected.is_some();
                self.shuffle.take(&self.schedule, epoch, last, cancel)?
            }
        };
        if self.spills {
            // Patiently, since some ranks have more rows to copy than others.
            communicator.patiently(Communicator::barrier)?;
        }
        Ok(rows)
    }

    /// Evaluates; returns the sums over all ranks, with the seconds that they spent before.
    fn evaluated(
        &mut self,
        [compute, reduce]: [f64; 2],
        communicator: &mut Communicator,
        cancel: &CancellationToken,
    ) -> Result<Sums> {
        let mut sums = Sums::of(self.spec.label.columns.len());
        sums.spent(compute, reduce);
        self.tools.trace.begins();
        let averages = self.optimizer.averages();
        let trained = averages.then(|| self.weights()).transpose()?;
        if averages {
            self.put(&self.published()?)?;
        }
        let evaluated = self.evaluate(&mut sums, cancel);
        if let Some(trained) = trained {
            self.put(&trained)?;
        }
        evaluated?;
        self.tools.trace.ends(Part::Evaluate, self.position.steps);
        // Patiently, since some ranks have more rows to evaluate than others.
        communicator.patiently(|peers| peers.all_reduce_sum_f64(sums.as_mut_slice()))?;
        Ok(sums)
    }

    fn checkpoint(&mut self, communicator: &Communicator, observer: &dyn Observer) -> Result<()> {
        if communicator.rank() == 0 {
            self.tools.trace.begins();
            observer.checkpoint(self.position, self.state()?.into_bytes());
            self.tools.trace.ends(Part::Checkpoint, self.position.steps);
        }
        Ok(())
    }

    /// Takes one step of all ranks, entirely or, on an error, not at all. Returns its number of rows, and the
    /// sum of their losses.
    fn step(&mut self, epoch: &Epoch, communicator: &mut Communicator) -> Result<(u64, f64)> {
        let number = self.position.steps + 1;
        self.tools.trace.begins();
        let places = match self.resident {
            true => vec![],
            false => epoch.step(self.position.step),
        };
        let (mine, mut batch) = match self.resident {
            true => (self.gather_resident(epoch)?, None),
            false => {
                let first = self.own.rows == 0;
                epoch.read_ahead(self.position.step, first, READ_AHEAD);
                let (mine, batch) = self.gather(epoch, &places);
                (mine, Some(batch))
            }
        };
        self.tools.trace.ends(Part::Rows, number);
        communicator.all_reduce_sum_f64(self.moments.sums_mut())?;
        if let Some(batch) = &batch {
            self.pick(batch, communicator)?;
        }
        self.tools.trace.ends(Part::Moments, number);
        let all = Covered {
            rows: self.moments.rows() as u64,
            checksum: coverage::join(&self.moments.riders_mut()[..coverage::PIECES]),
        };
        let weight = self.moments.riders_mut()[coverage::PIECES];
        let statistics = self.moments.normalization();
        if let Some(batch) = batch.as_mut().filter(|_| self.architecture.batch_norm) {
            statistics.apply(&mut batch.continuous);
        }
        match batch {
            batch if self.overlaps => {
                match batch {
                    Some(batch) => {
                        self.backward_and_reduce(&places, batch, weight, communicator)?;
                    }
                    None => self.backward_and_reduce_resident(&statistics, weight, communicator)?,
                }
                self.network
                    .write_gradient(&self.tools.gradient[..self.len])?;
            }
            batch => {
                let loss = match batch {
                    Some(batch) => self.backward(&places, batch, weight)?,
                    None => self.backward_resident(&statistics, weight)?,
                };
                write_loss(&mut self.tools.gradient[self.len..], loss);
                self.tools.trace.ends(Part::Backward, number);
                self.reduce(communicator)?;
            }
        }
        self.tools.trace.ends(Part::Gradient, number);

        let rate = self.learn_rate(self.position);
        let (gradient, tail) = self.tools.gradient.split_at_mut(self.len);
        let loss = self.unit * (f64::from(tail[0]) + f64::from(tail[1]));
        let diverged = match loss.is_finite() {
            true => {
                let found = self.network.non_finite_gradient(gradient)?;
                found.map(|value| ("a number of the gradient", value))
            }
            false => Some(("the loss", loss)),
        };
        let retreats = diverged.is_some() && self.optimizer.retreat(&mut self.network)?;
        if let Some((what, value)) = diverged.filter(|_| !retreats) {
            return Err(self.diverged(what, value));
        }
        // From here on only a device can fail, and it takes the state with it.
        let loss = if retreats { f64::from(f32::MAX) } else { loss };
        self.running.follow(&statistics);
        self.converged = !retreats && self.optimizer.apply(gradient, rate, &mut self.network)?;
        self.tools.trace.ends(Part::Update, number);
        self.own.add(mine);
        Ok(self.took(all, weight, loss))
    }

    /// Gathers this rank's rows of a step, and computes the sums that peers need.
    fn gather(&mut self, epoch: &Epoch, places: &[Place]) -> (Covered, Batch) {
        let rows = |shard| epoch.rows(shard, self.shards);
        let batch = Batch::gather(rows, places, &self.tools.threads);
        let normalized: &[f32] = if self.architecture.batch_norm {
            &batch.continuous
        } else {
            &[]
        };
        self.moments.sum(batch.len(), normalized);
        let mine = Covered {
            rows: batch.len() as u64,
            checksum: batch.checksum,
        };
        let weights = batch.weights.iter().map(|weight| f64::from(*weight));
        self.ride(mine, weights.sum());
        (mine, batch)
    }

    /// Attaches a step's account and weight to its moments.
    fn ride(&mut self, mine: Covered, of_rows: f64) {
        let pieces = coverage::split(mine.checksum);
        let (checksum, weight) = self.moments.riders_mut().split_at_mut(coverage::PIECES);
        checksum.copy_from_slice(&pieces);
        weight[0] = of_rows;
    }

    /// Records that a step over these rows was taken. Returns their number, and the sum of their losses as if
    /// all had the same weight.
    fn took(&mut self, all: Covered, weight: f64, loss: f64) -> (u64, f64) {
        self.progress.loss += loss;
        self.progress.weight += weight;
        self.progress.covered.add(all);
        self.position.step += 1;
        self.position.steps += 1;
        let loss = loss * all.rows as f64 / weight.max(f64::MIN_POSITIVE);
        self.plot(all.rows, loss);
        (all.rows, loss)
    }

    /// Returns the position after each of the last `steps` steps.
    fn positions(&self, steps: usize) -> impl Iterator<Item = Position> + use<C> {
        let last = self.position;
        (0..steps as u64).rev().map(move |before| Position {
            step: last.step - before,
            steps: last.steps - before,
            ..last
        })
    }

    /// Sums the gradient and its tail over the ranks.
    fn reduce(&mut self, communicator: &mut Communicator) -> Result<()> {
        if communicator.world_size() == 1 {
            return Ok(());
        }
        let len = self.len;
        self.network
            .read_gradient(&mut self.tools.gradient[..len])?;
        communicator.all_reduce_sum_of(&mut self.tools.gradient, len + TAIL)?;
        self.network.write_gradient(&self.tools.gradient[..len])
    }

    /// Adds a step to the curve; each point averages several steps.
    fn plot(&mut self, rows: u64, loss: f64) {
        self.since.0 += rows;
        self.since.1 += loss;
        let every = self.schedule.steps().div_ceil(POINTS);
        let is_last = self.position.step == self.schedule.steps();
        if (self.position.steps.is_multiple_of(every) || is_last) && self.since.0 > 0 {
            let (rows, loss) = std::mem::take(&mut self.since);
            self.tools
                .curve
                .push((self.position.steps, loss / rows as f64));
        }
    }

    /// Returns the epoch's record, if every training row was used once by both accounts: that of the steps'
    /// totals, and that of each rank.
    fn record(&self, sums: &Sums, accounts: &[Account]) -> Result<EpochRecord> {
        let Position { epoch, steps, .. } = self.position;
        let mut own = self.earlier;
        accounts.iter().for_each(|account| own.add(account.covered));
        let total = self.progress.covered;
        coverage::check(epoch, "the totals of its steps", self.manifest, total)?;
        coverage::check(epoch, "the ranks' own accounts", self.manifest, own)?;
        let ranks = accounts
            .iter()
            .enumerate()
            .map(|(rank, account)| RankCoverage {
                rank,
                rows: account.covered.rows,
                checksum: account.covered.hex(),
            });
        let record = sums.record(EpochTotals {
            epoch,
            steps,
            progress: self.progress,
            ranks: ranks.collect(),
            earlier: Some(self.earlier)
                .filter(|earlier| earlier.rows > 0)
                .map(Covered::record),
            classes: self.majority.is_some(),
            quantiles: self.spec.loss.shares().is_some(),
            labels: self.spec.label.several().to_vec(),
            learn_rate: self.learn_rate(Position {
                steps: steps - 1,
                ..self.position
            }),
            // Ranks that have waited for others since their last epoch report longer times.
            seconds: accounts
                .iter()
                .map(|account| account.seconds)
                .fold(0.0, f64::max),
        });
        let losses = [
            ("the loss", Some(record.loss)),
            ("the loss of evaluation", record.eval_loss),
        ];
        let lost = |(what, loss): (&'static str, Option<f64>)| {
            let value = loss.filter(|loss| !loss.is_finite())?;
            Some(self.diverged(what, value))
        };
        match losses.into_iter().find_map(lost) {
            Some(error) => Err(error),
            None => Ok(record),
        }
    }

    /// Keeps the epoch's weights if they are the best or averaged, and moves on to the next epoch.
    fn close(&mut self, record: EpochRecord) -> Result<()> {
        let score = pace::score(&record);
        let is_kept = match self.spec.keep {
            Keep::Best if self.selected.is_none() => {
                self.best.as_ref().is_none_or(|best| score < best.score)
            }
            // Averaged weights are not those of the state.
            Keep::Best | Keep::Last => self.optimizer.averages(),
        };
        if is_kept {
            self.best = Some(Kept {
                epoch: record.epoch,
                score,
                weights: self.published()?,
            });
        }
        self.history.push(record);
        self.progress = EpochProgress::default();
        self.own = Covered::default();
        self.earlier = Covered::default();
        self.position.epoch += 1;
        self.position.step = 0;
        Ok(())
    }
}

/// Writes a rank's sum of losses to the tail of its gradient.
fn write_loss(tail: &mut [f32], loss: f64) {
    tail[0] = loss as f32;
    tail[1] = (loss - f64::from(tail[0])) as f32;
}

/// Writes it to a part of the gradient, if that has the tail, which ends at `end`.
fn write_tail(part: &mut BufferPart<'_>, end: usize, loss: f64) {
    if part.range().end == end {
        let at = part.len() - TAIL;
        write_loss(&mut part[at..], loss);
    }
}

pub(super) fn check(cancel: &CancellationToken) -> Result<()> {
    if cancel.is_cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}
