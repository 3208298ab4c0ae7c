//! Steps over rows in a device's memory: recorded once, replayed for each step of an epoch.
//!
//! ```text
//!  host      order, starts, numbers of each step, keys ──one upload──▶            ◀──one read── totals
//!  device    gather ─ settle ─ [enter ─ layers ─ losses ─ back]* ─ check ─ update   a step
//! ```
//!
//! Rows that do not fit are brought in [windows](super::windows) while the device computes.
//!
//! On linked devices, a step is one of all ranks: the sums of `gather`, and after `back` the gradient and the losses, are
//! summed over the devices within the recorded step. If a peer is lost in a turn of such steps, later steps of the turn
//! compute with wrong sums, so the [whole turn is undone](Resident::undo).
//!
//! With [custom layers](super::calls), a step is recorded in parts, between which the host computes.
//!
//! A step is atomic: if its loss or gradient is not finite, it and the steps after it change nothing. The training loop
//! assigns rows to steps and sets the learning rate.

use std::ops::Range;
use std::rc::Rc;

use volley_proto::spec::{Loss, PIECE, Rule};

use super::buckets::{CopyBucket, Losses};
use super::evaluated::{EvaluatedRows, Part};
use super::layers::{Batch, Pass};
use super::rows::{RowMemory, Widths};
use super::windows::{RowSource, WindowSize, Windows};
use super::words::Arguments;
use super::{NUMBERS, Places, Plan, Slot};
use crate::device::{Address, Call, Memory, Number, Recorded, Runtime, Summed, Work};
use crate::network::Normalization;
use crate::{Error, Result};

/// Rows per block of the copy.
const ROWS_OF_BLOCK: usize = 64;
/// Maximum number of blocks that copy rows, each of which leaves partial sums.
const GATHER_BLOCKS: usize = 128;
/// Numbers that the kernel `fold` puts behind the sums of a step's rows; the first of them, the checksum's pieces, are
/// summed over devices.
const FOLDED: usize = 5;
const PIECES: usize = 3;

/// Loss, optimizer and sizes of a training over rows.
#[derive(Debug, Clone)]
pub(crate) struct Objective<'a> {
    pub(crate) loss: &'a Loss,
    /// Weights of several labels.
    pub(crate) loss_weights: &'a [f64],
    pub(crate) labels: usize,
    /// Members that each row trains.
    pub(crate) trained: usize,
    /// Loss of 1, in the label's scale.
    pub(crate) unit: f64,
    pub(crate) rule: &'a Rule,
    /// The last slot is the average of the weights.
    pub(crate) averages: bool,
    /// Shift that the sums of moments are relative to.
    pub(crate) shift: &'a [f64],
    /// Minimum number of passes per step.
    pub(crate) accumulate: usize,
    /// Maximum number of rows per step.
    pub(crate) rows: usize,
    /// Rows evaluated at once.
    pub(crate) evaluated: usize,
    /// Number of slots of the optimizer, if recorded steps sum over linked devices.
    pub(crate) linked: Option<usize>,
}

/// Encoded rows of a shard, with C categorical features, N numbers and L labels.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShardRows<'a> {
    /// Global number of the shard.
    pub(crate) shard: usize,
    /// `[rows × C]`
    pub(crate) codes: &'a [u32],
    /// `[rows × N]`
    pub(crate) numbers: &'a [f32],
    /// `[rows × L]`
    pub(crate) labels: &'a [f32],
    /// `[rows]`; empty where all are 1.
    pub(crate) weights: &'a [f32],
    /// `[rows]`
    pub(crate) keys: &'a [u64],
    /// `[rows]`; empty without cross-validation.
    pub(crate) folds: &'a [u8],
}

/// Order and numbers of an epoch's steps.
#[derive(Debug)]
pub(crate) struct EpochRows<'a> {
    /// Indices of held rows, step after step; empty where rows are [brought](Resident::streams).
    pub(crate) order: &'a [u32],
    /// Offset of each step's first row in `order`, and the end of the last step.
    pub(crate) starts: &'a [u32],
    /// [`Update::numbers`](super::Update::numbers) of each step.
    pub(crate) numbers: &'a [[f32; NUMBERS]],
    /// Key of the epoch's masks, for each dropout.
    pub(crate) dropouts: &'a [u64],
    pub(crate) running: &'a Normalization,
    /// First step to take.
    pub(crate) step: usize,
}

/// Totals of a step.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct StepTotal {
    pub(crate) rows: f64,
    pub(crate) weight: f64,
    pub(crate) loss: f64,
    /// Non-finite number of the gradient, or 0 if there is none.
    pub(crate) bad: f64,
    pub(crate) checksum: u64,
    /// 1 if the step has changed the weights.
    pub(crate) taken: u64,
    /// Rows and checksum of this device alone.
    pub(crate) own_rows: f64,
    pub(crate) own_checksum: u64,
}

/// Network that trains on rows in its own memory.
pub(crate) trait Resident<N> {
    /// Copies rows of shards to the device or, if they do not fit, prepares to bring them in windows. Returns whether
    /// steps over them can be taken.
    fn hold(&mut self, shards: &[ShardRows<'_>], objective: &Objective<'_>) -> Result<bool>;

    /// Returns whether rows are brought in windows, from the source that steps are given.
    fn streams(&self) -> bool;

    /// Copies evaluation rows to the device, beside training rows or their windows, if they fit.
    fn hold_evaluated(&mut self, shards: &[ShardRows<'_>]) -> Result<()>;

    /// Returns whether the device holds all rows of a part.
    fn holds(&self, part: Part) -> bool;

    /// Returns the outputs of rows that it [holds](Self::holds), numbered shard after shard: with `mean`, `[B × K]`;
    /// else those of each of the M members, `[B × M·K]`.
    fn evaluate(
        &mut self,
        part: Part,
        rows: Range<usize>,
        running: &Normalization,
        mean: bool,
    ) -> Result<Vec<f32>>;

    /// Begins an epoch, or the rest of one.
    fn begin(&mut self, epoch: &EpochRows<'_>) -> Result<()>;

    /// Takes the next steps; `slots` is the optimizer state of each weight, and `rows` the epoch's rows.
    fn run(&mut self, steps: usize, slots: &[N], rows: &dyn RowSource) -> Result<Vec<StepTotal>>;

    /// Queues the next steps of an [objective](Objective::linked) that sums over linked devices.
    fn queue(&mut self, steps: usize, slots: &[N]) -> Result<()>;

    /// Returns true if the queued steps are done. Does not wait.
    fn is_done(&self) -> Result<bool>;

    /// Returns the totals of steps that were queued and are done.
    fn totals(&mut self, steps: usize) -> Result<Vec<StepTotal>>;

    /// Leaves the link, and restores the weights and the optimizer's state from before the steps that were queued last.
    fn undo(&mut self, slots: &[N]) -> Result<()>;

    /// Leaves the link, which no step will use, and frees what such steps need.
    fn unlink(&mut self) -> Result<()>;

    /// Returns batch norm's running statistics after the last step.
    fn running(&mut self) -> Result<Normalization>;

    /// Gathers this rank's rows of a step that is shared with peers, and returns the sums that they need.
    fn gather(&mut self, step: usize, rows: &dyn RowSource) -> Result<Gathered>;

    /// Computes the gradient of the gathered rows, with the totals over all ranks. Returns the sum of their losses.
    fn backward(&mut self, all: &AllRows<'_>) -> Result<f64>;

    /// Computes it likewise, in its prepared [buckets](crate::network::Compute::buckets). Once one is complete, while the
    /// device computes the next ones, `done` gets the sum of the losses and the bucket.
    fn backward_in_buckets(
        &mut self,
        all: &AllRows<'_>,
        done: &mut dyn FnMut(f64, CopyBucket<'_>),
    ) -> Result<()>;
}

/// Sums over a rank's rows of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gathered {
    pub(crate) rows: f64,
    pub(crate) weight: f64,
    pub(crate) checksum: u64,
    /// Σ(x − shift) of each normalised number, then Σ(x − shift)² of each.
    pub(crate) moments: Vec<f64>,
}

/// Totals over all ranks' rows of a step.
#[derive(Debug)]
pub(crate) struct AllRows<'a> {
    pub(crate) weight: f64,
    /// Moments of the normalised numbers.
    pub(crate) statistics: &'a Normalization,
}

/// Rows on the device, and memory for a step over them.
#[derive(Debug)]
pub(super) struct Held {
    rows: RowMemory,
    /// Unless all rows are there.
    windows: Option<Windows>,
    pub(super) evaluated: Option<EvaluatedRows>,
    /// Running statistics to evaluate with.
    pub(super) statistics: Memory,
    /// Bytes of memory that training and evaluation allocate later.
    due: u64,
    count: usize,
    step: StepRoom,
    objective: Kept,
    epoch: Option<Epoch>,
    recorded: Option<Rc<[Replayed]>>,
    linked: Option<Linked>,
}

/// Part of a step that is replayed.
#[derive(Debug)]
enum Replayed {
    /// Recorded kernels and products.
    Work(Recorded),
    /// What the host computes between them.
    Call(Call),
}

/// Memory of steps that sum over linked devices.
#[derive(Debug)]
struct Linked {
    /// Sums of a step's rows, and the numbers behind them.
    sums: Memory,
    loss: Memory,
    /// Weights, then each slot, from before the steps that were queued last.
    before: Vec<Memory>,
    /// True if `before` is of the steps that were queued last.
    is_kept: bool,
}

impl Held {
    fn epoch(&self) -> &Epoch {
        self.epoch.as_ref().expect("an epoch has begun")
    }

    /// Returns the rows and their number, if all are there.
    pub(super) fn whole(&self) -> Option<(&RowMemory, usize)> {
        match self.windows {
            None => Some((&self.rows, self.count)),
            Some(_) => None,
        }
    }

    /// Returns the memory of the partial sums of losses.
    pub(super) fn losses(&self) -> &Memory {
        &self.step.losses
    }

    #[cfg(test)]
    pub(super) fn windows(&self) -> &Windows {
        self.windows.as_ref().expect("rows are brought in windows")
    }
}

/// Memory of a step.
#[derive(Debug)]
struct StepRoom {
    rows: usize,
    batch: Batch,
    codes: Memory,
    numbers: Memory,
    labels: Memory,
    weights: Memory,
    folds: Memory,
    keys: Memory,
    partials: Memory,
    checks: Memory,
    statistics: Memory,
    losses: Memory,
    /// Rows per piece.
    piece: usize,
    _values: Memory,
    values: Places,
}

/// Objective in a device's memory.
#[derive(Debug)]
struct Kept {
    kind: usize,
    parameters: Memory,
    loss_weights: Option<Memory>,
    labels: usize,
    trained: usize,
    unit: f64,
    rule: Rule,
    averages: bool,
    shift: Memory,
}

/// Tables of an epoch in one block of memory, with their offsets.
#[derive(Debug)]
struct Epoch {
    memory: Memory,
    at: Offsets,
    /// Next step.
    next: usize,
    steps: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Offsets {
    clock: usize,
    starts: usize,
    numbers: usize,
    dropouts: usize,
    running: usize,
    totals: usize,
    order: usize,
}

/// Parts of a step's work that the host takes.
#[derive(Debug, Default)]
struct Taken {
    /// Number of partial sums of losses.
    losses: usize,
    /// Number of parts of the work after which the losses are complete, and likewise the gradient by each parameter.
    losses_end: usize,
    ends: Vec<usize>,
}

/// Returns the number of a loss in `kernels.cu`, and its parameters.
fn losses(loss: &Loss) -> (usize, Vec<f64>) {
    match loss {
        Loss::Mae => (0, vec![]),
        Loss::Mse => (1, vec![]),
        Loss::Huber => (2, vec![1.0]),
        Loss::HuberOf { delta } => (2, vec![*delta]),
        Loss::Quantile { share } => (3, vec![*share]),
        Loss::Quantiles { shares } => (4, shares.clone()),
        Loss::Tweedie { power } => (5, vec![*power]),
        Loss::LogLoss => (6, vec![]),
        Loss::Focal { gamma } => (7, vec![*gamma]),
    }
}

impl Linked {
    /// Iterates over the addresses of the weights and of each slot, with those of their copies.
    fn copies(&self, weights: Address, slots: &[Slot]) -> impl Iterator<Item = (Address, Address)> {
        let slots = slots.iter().map(|slot| slot.memory.at());
        let all = std::iter::once(weights).chain(slots);
        all.zip(self.before.iter().map(Memory::at))
    }
}

impl Plan {
    /// Returns the rows that are held.
    pub(super) fn held(&self) -> &Held {
        self.held.as_ref().expect("rows are held")
    }

    /// Returns whether batch norm normalises the numbers.
    fn normalized(&self) -> bool {
        self.layers.architecture.normalized() > 0
    }

    /// Returns the number of blocks that copy the rows of a step.
    fn gather_blocks(&self, rows: usize) -> usize {
        let most = GATHER_BLOCKS.min(2 * self.layers.grid.blocks);
        rows.div_ceil(ROWS_OF_BLOCK).clamp(1, most)
    }

    fn step_room(&self, objective: &Objective<'_>) -> Result<StepRoom> {
        let architecture = &self.layers.architecture;
        let (rows, width) = (objective.rows.max(1), architecture.continuous);
        let piece = rows.div_ceil(objective.accumulate).min(PIECE);
        let memory = |bytes: usize| Memory::new(&self.runtime, bytes);
        let ld = self.layers.sketch.numbers_ld(architecture);
        let numbers = memory(4 * rows * ld)?;
        let tensor = self.layers.numbers_at(numbers.at());
        let (memory_of_values, values) = self.place_values(piece, tensor)?;
        let codes = memory(4 * rows * architecture.categorical)?;
        let keys = memory(8 * rows * architecture.dropouts().len())?;
        let blocks = self.gather_blocks(rows);
        let batch = Batch {
            codes: codes.at(),
            numbers: tensor,
            keys: keys.at(),
            rows,
        };
        let losses = rows.div_ceil(piece) * piece.div_ceil(self.layers.grid.threads);
        let room = StepRoom {
            rows,
            batch,
            codes,
            numbers,
            labels: memory(4 * rows * objective.labels)?,
            weights: memory(4 * rows)?,
            folds: memory(4 * rows)?,
            keys,
            partials: memory(8 * blocks * (2 * width + 2))?,
            checks: memory(8 * blocks)?,
            statistics: memory(8 * (2 * width + 5))?,
            losses: memory(8 * losses)?,
            piece,
            _values: memory_of_values,
            values,
        };
        for first in (0..rows).step_by(piece) {
            let pass = self.pass(&room, first);
            self.runtime.run(&self.layers.ones(&pass))?;
        }
        Ok(room)
    }

    /// Returns the pass over a piece, from the row `first` on.
    fn pass<'a>(&self, room: &'a StepRoom, first: usize) -> Pass<'a> {
        Pass {
            first,
            rows: room.piece.min(room.rows - first),
            drops: true,
            statistics: self.normalized().then(|| room.statistics.at()),
            ..Pass::of(room.batch, &room.values, self.weights.at())
        }
    }

    /// Returns the kernels and products of a step.
    fn step(&self, held: &Held, epoch: &Epoch, slots: &[Slot]) -> Vec<Work> {
        let Held {
            step: room,
            objective,
            ..
        } = held;
        let [gather, settle] = self.rows_of_step(held, epoch);
        let mut work = vec![gather];
        if let Some(linked) = &held.linked {
            work.extend(self.sum_rows(room, linked));
        }
        work.push(settle);
        let mut blocks = self.pieces(held, &mut work).losses;
        let mut losses = room.losses.at();
        if let Some(linked) = &held.linked {
            work.extend(self.sum_gradient(room, linked, blocks));
            (losses, blocks) = (linked.loss.at(), 1);
        }
        let (check, checks) = self.check();
        work.push(check);
        let statistics = self.normalized().then(|| epoch.address(epoch.at.running));
        let step = Arguments::new()
            .address(losses)
            .number(blocks)
            .address(room.statistics.at())
            .number(self.layers.architecture.continuous)
            .address(statistics.unwrap_or(0))
            .address(epoch.address(epoch.at.totals))
            .precise(objective.unit);
        work.push(self.update(
            [
                epoch.address(epoch.at.clock),
                epoch.address(epoch.at.numbers),
            ],
            &objective.rule,
            slots,
            objective.averages,
            checks,
            step,
        ));
        work
    }

    /// Returns the work that sums the moments, rows, weights and checksums of a step over linked devices.
    fn sum_rows(&self, room: &StepRoom, linked: &Linked) -> [Work; 2] {
        let numbers = self.layers.architecture.continuous;
        let columns = 2 * numbers + 2;
        let arguments = Arguments::new()
            .address(room.partials.at())
            .number(self.gather_blocks(room.rows))
            .number(columns)
            .address(linked.sums.at())
            .address(room.checks.at());
        let fold = self.layers.grid.launch("fold", columns, arguments);
        let skipped = if self.normalized() { 0 } else { 2 * numbers };
        let sums = Summed {
            at: linked.sums.at() + 8 * skipped as u64,
            len: columns + PIECES - skipped,
            kind: Number::F64,
        };
        [fold, Work::AllReduce(vec![sums])]
    }

    /// Returns the work that sums the gradient and the losses, of this many partial sums, over linked devices.
    fn sum_gradient(&self, room: &StepRoom, linked: &Linked, losses: usize) -> [Work; 2] {
        let arguments = Arguments::new()
            .address(room.losses.at())
            .number(losses)
            .number(1)
            .address(linked.loss.at())
            .address(0);
        let fold = self.layers.grid.launch("fold", 1, arguments);
        let gradient = Summed {
            at: self.gradient.at(),
            len: self.layers.layout.len(),
            kind: Number::F32,
        };
        let loss = Summed {
            at: linked.loss.at(),
            len: 1,
            kind: Number::F64,
        };
        [fold, Work::AllReduce(vec![gradient, loss])]
    }

    /// Adds the work from rows to the gradient, piece by piece.
    fn pieces(&self, held: &Held, work: &mut Vec<Work>) -> Taken {
        let (room, mut taken) = (&held.step, Taken::default());
        for first in (0..room.rows).step_by(room.piece) {
            let pass = self.pass(room, first);
            work.extend(self.layers.forward(&pass));
            let (launch, more) = self.losses(&pass, room, &held.objective, taken.losses);
            work.push(launch);
            taken.losses += more;
            taken.losses_end = work.len();
            let gradient = self.gradient.at();
            // Of several pieces, the last one completes the gradient.
            taken.ends = self.layers.backward(work, &pass, gradient, first > 0);
        }
        taken
    }

    /// Returns the launches that copy the rows of a step and that add up their partial sums.
    fn rows_of_step(&self, held: &Held, epoch: &Epoch) -> [Work; 2] {
        let architecture = &self.layers.architecture;
        let (room, objective) = (&held.step, &held.objective);
        let [keys, codes, numbers, labels, weights, folds, shards, places] = held.rows.addresses();
        let blocks = self.gather_blocks(room.rows);
        let width = architecture.continuous;
        let arguments = Arguments::new()
            .address(epoch.address(epoch.at.clock))
            .address(epoch.address(epoch.at.order))
            .address(epoch.address(epoch.at.starts))
            .address(codes)
            .number(architecture.categorical)
            .address(numbers)
            .number(width)
            .address(labels)
            .number(objective.labels)
            .address(weights)
            .address(keys)
            .address(folds)
            .address(shards)
            .address(places)
            .address(epoch.address(epoch.at.dropouts))
            .number(architecture.dropouts().len())
            .address(room.codes.at())
            .address(room.numbers.at())
            .number(room.batch.numbers.ld)
            .address(room.labels.at())
            .address(room.weights.at())
            .address(room.folds.at())
            .address(room.keys.at())
            .number(room.rows)
            .address(room.partials.at())
            .address(room.checks.at())
            .address(objective.shift.at())
            .flag(self.normalized())
            .flag(held.windows.is_some())
            .number(held.rows.spare);
        let gather = self.layers.grid.launch("gather", blocks, arguments);
        let sums = held.linked.as_ref().map(|linked| linked.sums.at());
        let arguments = Arguments::new()
            .address(epoch.address(epoch.at.clock))
            .address(sums.unwrap_or(room.partials.at()))
            .address(room.checks.at())
            .number(if sums.is_some() { 1 } else { blocks })
            .number(width)
            .address(objective.shift.at())
            .address(room.statistics.at())
            .flag(self.normalized())
            .address(sums.map_or(0, |at| at + 8 * (2 * width + 2) as u64));
        let blocks = width.div_ceil(self.layers.grid.threads);
        let settle = self.layers.grid.launch("settle", blocks, arguments);
        [gather, settle]
    }

    /// Returns the launch that computes the losses and slopes of a piece, and the number of partial sums that it
    /// leaves, behind the `before` earlier ones.
    fn losses(
        &self,
        pass: &Pass<'_>,
        room: &StepRoom,
        objective: &Kept,
        before: usize,
    ) -> (Work, usize) {
        let architecture = &self.layers.architecture;
        let grid = self.layers.grid;
        let blocks = pass.rows.div_ceil(grid.threads);
        let from = |memory: &Memory, width: usize| memory.at() + 4 * (pass.first * width) as u64;
        let folds = objective.trained < architecture.members;
        let arguments = Arguments::new()
            .number(pass.rows)
            .number(1)
            .number(0)
            .number(architecture.outputs)
            .tensor(self.layers.output(pass))
            .tensor(self.layers.output_delta(pass))
            .number(self.layers.sketch.lanes)
            .number(objective.kind)
            .address(objective.parameters.at())
            .number(architecture.outputs)
            .address(from(&room.labels, objective.labels))
            .number(objective.labels)
            .address(objective.loss_weights.as_ref().map_or(0, Memory::at))
            .address(from(&room.weights, 1))
            .address(if folds { from(&room.folds, 1) } else { 0 })
            .address(room.statistics.at())
            .number(architecture.continuous)
            .sigmoid(&self.layers)
            .number(objective.trained)
            .address(room.losses.at() + 8 * before as u64);
        (grid.launch("losses", blocks, arguments), blocks)
    }

    /// Returns the bytes of a step's values, of its rows and other fixed memory, and of the held rows and what a turn of
    /// linked devices is undone with.
    fn bytes(&self, rows: usize, objective: &Objective<'_>) -> [u64; 3] {
        let architecture = &self.layers.architecture;
        let step = objective.rows.max(1);
        let piece = step.div_ceil(objective.accumulate).min(PIECE);
        let columns = architecture.categorical + architecture.continuous + objective.labels;
        let row = 4 * (columns + 4) + 8 * (1 + architecture.dropouts().len());
        let held = 4 * (columns + 6) + 8;
        let fixed = (step * row) as u64 + self.due(rows, objective) - 4 * rows as u64;
        let before = objective.linked.map_or(0, |slots| 1 + slots);
        let before = before * 4 * self.layers.layout.len();
        let [values, held] =
            [self.layers.values_bytes(piece), rows * held + before].map(|bytes| bytes as u64);
        [values, fixed, held]
    }

    /// Returns the bytes that are allocated after rows are held: for evaluation, and for an epoch's tables and order.
    fn due(&self, rows: usize, objective: &Objective<'_>) -> u64 {
        let architecture = &self.layers.architecture;
        let columns = architecture.categorical + architecture.continuous + objective.labels;
        let outputs = architecture.members * architecture.outputs;
        let row = 4 * (columns + 4 + outputs) + 8 * (1 + architecture.dropouts().len());
        let evaluation = self.layers.values_bytes(objective.evaluated) + objective.evaluated * row;
        let step = 4 + 4 * NUMBERS + size_of::<StepTotal>();
        let tables = rows.div_ceil(objective.rows.max(1)) * step;
        (evaluation + tables + 4 * rows) as u64
    }
}

impl Epoch {
    fn address(&self, offset: usize) -> Address {
        self.memory.at() + offset as u64
    }
}

impl Offsets {
    /// Lays out the tables of this many steps, rows, dropouts and numbers. Returns their offsets and their size in
    /// bytes.
    fn new(steps: usize, rows: usize, dropouts: usize, numbers: usize) -> (Self, usize) {
        let mut end: usize = 0;
        let mut carve = |bytes: usize| {
            let start = end.next_multiple_of(64);
            end = start + bytes;
            start
        };
        let at = Self {
            clock: carve(3 * 4),
            starts: carve(4 * (steps + 1)),
            numbers: carve(4 * NUMBERS * steps),
            dropouts: carve(8 * dropouts),
            running: carve(2 * 8 * numbers),
            totals: carve(size_of::<StepTotal>() * steps),
            order: carve(4 * rows),
        };
        (at, end)
    }
}

impl Resident<Slot> for Plan {
    fn hold(&mut self, shards: &[ShardRows<'_>], objective: &Objective<'_>) -> Result<bool> {
        let architecture = &self.layers.architecture;
        let count: usize = shards.iter().map(|rows| rows.keys.len()).sum();
        let [values, batch, held] = self.bytes(count, objective);
        let (step, free) = (values + batch, self.runtime.free()?);
        if step > free {
            let rows = objective.rows.max(1) as u64;
            // Tensors of few rows are padded, so the estimates keep a margin.
            let passes = (5 * values / 4).checked_div(free.saturating_sub(batch));
            return Err(Error::DeviceBatch {
                device: self.runtime.name(),
                rows,
                bytes: step,
                free,
                fitting: (rows * free / step * 4 / 5).max(1),
                accumulate: passes.map(|passes| (passes + 1) * objective.accumulate as u64),
            });
        }
        let widths = Widths::of(architecture, shards, objective);
        let fits = step + held <= free;
        // Linked steps are over held rows only, and the offsets of an epoch's rows have 32 bits.
        if !fits && (objective.linked.is_some() || u32::try_from(count).is_err()) {
            return Ok(false);
        }
        let runtime = &self.runtime;
        let (kind, parameters) = losses(objective.loss);
        let objective_of = Kept {
            kind,
            parameters: Memory::of(runtime, &[&parameters[..], &[0.0]].concat())?,
            loss_weights: Memory::of_some(runtime, objective.loss_weights)?,
            labels: objective.labels,
            trained: objective.trained,
            unit: objective.unit,
            rule: objective.rule.clone(),
            averages: objective.averages,
            shift: Memory::of(runtime, objective.shift)?,
        };
        let step = self.step_room(objective)?;
        let linked = |slots: usize| {
            let numbers = 2 * architecture.continuous + 2 + FOLDED;
            let before = (0..=slots).map(|_| Memory::new(runtime, 4 * self.layers.layout.len()));
            Ok::<_, Error>(Linked {
                sums: Memory::new(runtime, 8 * numbers)?,
                loss: Memory::new(runtime, 8)?,
                before: before.collect::<Result<_>>()?,
                is_kept: false,
            })
        };
        let statistics = Memory::new(runtime, 2 * 8 * architecture.normalized())?;
        let mut due = self.due(count, objective);
        let mut size = None;
        if !fits {
            // Each step has a place in a table, instead of each row.
            due -= 4 * count as u64;
            due += 4 * (count.div_ceil(objective.rows.max(1)) + 1) as u64;
            let left = self.runtime.free()?.saturating_sub(due);
            size = WindowSize::fitting(widths, objective.rows, left);
            if size.is_none() {
                return Ok(false);
            }
        }
        let held = || -> Result<_> {
            match size {
                None => {
                    let rows = RowMemory::whole(runtime, architecture, shards, widths)?;
                    Ok((rows, None, objective.linked.map(linked).transpose()?))
                }
                Some(size) => {
                    let rows = RowMemory::room(runtime, architecture, 2 * size.rows, widths)?;
                    Ok((rows, Some(Windows::new(runtime, size, widths)?), None))
                }
            }
        };
        let (rows, windows, linked) = match held() {
            Err(Error::DeviceMemory { .. }) => return Ok(false),
            // Without pinned memory, rows are sent step by step.
            Err(error @ Error::DeviceFailed { .. }) if size.is_some() => {
                tracing::warn!(%error, "rows are not copied to the device ahead of their steps");
                return Ok(false);
            }
            held => held?,
        };
        let held = Held {
            rows,
            windows,
            evaluated: None,
            statistics,
            due,
            count,
            step,
            objective: objective_of,
            epoch: None,
            recorded: None,
            linked,
        };
        self.forget();
        self.held = Some(held);
        // Their memory is of this step's losses.
        self.buckets = None;
        Ok(true)
    }

    fn begin(&mut self, epoch: &EpochRows<'_>) -> Result<()> {
        let clear = self.clear();
        self.runtime.run(&[clear])?;
        let numbers = self.layers.architecture.normalized();
        let held = self.held.as_mut().expect("rows are held");
        let steps = epoch.numbers.len();
        let places;
        let order = match &mut held.windows {
            None => {
                assert_eq!(epoch.order.len(), held.count, "an epoch is all rows");
                epoch.order
            }
            Some(windows) => {
                places = windows.begin(epoch.starts, epoch.step)?;
                &places[..]
            }
        };
        let (at, bytes) = Offsets::new(steps, order.len(), epoch.dropouts.len(), numbers);
        let mut table = vec![0_u8; bytes];
        let mut put = |at: usize, bytes: &[u8]| table[at..at + bytes.len()].copy_from_slice(bytes);
        put(at.clock, bytemuck::cast_slice(&[epoch.step as u32, 0, 0]));
        put(at.starts, bytemuck::cast_slice(epoch.starts));
        put(at.numbers, bytemuck::cast_slice(epoch.numbers));
        put(at.dropouts, bytemuck::cast_slice(epoch.dropouts));
        let running = [
            &epoch.running.mean[..numbers],
            &epoch.running.variance[..numbers],
        ];
        put(at.running, bytemuck::cast_slice(&running.concat()));
        put(at.order, bytemuck::cast_slice(order));
        if held
            .epoch
            .as_ref()
            .is_none_or(|epoch| epoch.at != at || epoch.memory.bytes() != bytes)
        {
            held.epoch = Some(Epoch {
                memory: Memory::new(&self.runtime, bytes)?,
                at,
                next: 0,
                steps,
            });
            if let Some(recorded) = held.recorded.take() {
                forget(&*self.runtime, &recorded);
            }
        }
        let tables = held.epoch.as_mut().expect("it was just made");
        tables.next = epoch.step;
        tables.memory.write(0, &table)
    }

    fn streams(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.windows.is_some())
    }

    fn hold_evaluated(&mut self, shards: &[ShardRows<'_>]) -> Result<()> {
        let due = self.held().due;
        let evaluated = match self.evaluated(shards, due) {
            Err(Error::DeviceMemory { .. }) => None,
            evaluated => evaluated?,
        };
        self.held.as_mut().expect("rows are held").evaluated = evaluated;
        Ok(())
    }

    fn holds(&self, part: Part) -> bool {
        self.place_of(part).is_some()
    }

    fn evaluate(
        &mut self,
        part: Part,
        rows: Range<usize>,
        running: &Normalization,
        mean: bool,
    ) -> Result<Vec<f32>> {
        self.outputs_of(part, rows, running, mean)
    }

    fn run(
        &mut self,
        steps: usize,
        slots: &[Slot],
        rows: &dyn RowSource,
    ) -> Result<Vec<StepTotal>> {
        let epoch = self.held().epoch();
        let steps = steps.min(epoch.steps - epoch.next);
        let recorded = self.recorded(slots)?;
        let held = self.held.as_mut().expect("rows are held");
        let epoch = held.epoch();
        let replay = || replay(&*self.runtime, &recorded);
        let range = epoch.next..epoch.next + steps;
        match &mut held.windows {
            None => range.into_iter().try_for_each(|_| replay())?,
            Some(windows) => windows.run(range, &held.rows, rows, replay)?,
        }
        self.totals(steps)
    }

    fn queue(&mut self, steps: usize, slots: &[Slot]) -> Result<()> {
        let bytes = 4 * self.layers.layout.len();
        let held = self.held.as_mut().expect("rows are held");
        let linked = held.linked.as_mut().expect("devices are linked");
        linked.is_kept = false;
        for (own, before) in linked.copies(self.weights.at(), slots) {
            self.runtime.copy(own, before, bytes)?;
        }
        linked.is_kept = true;
        let recorded = self.recorded(slots)?;
        (0..steps).try_for_each(|_| replay(&*self.runtime, &recorded))
    }

    fn is_done(&self) -> Result<bool> {
        self.runtime.is_done()
    }

    fn undo(&mut self, slots: &[Slot]) -> Result<()> {
        self.runtime.leave()?;
        let bytes = 4 * self.layers.layout.len();
        let held = self.held.as_mut().expect("rows are held");
        // Leaving a link forgets what was recorded.
        held.recorded = None;
        let linked = held.linked.as_mut().expect("devices were linked");
        if std::mem::take(&mut linked.is_kept) {
            for (own, before) in linked.copies(self.weights.at(), slots) {
                self.runtime.copy(before, own, bytes)?;
            }
        }
        Ok(())
    }

    fn unlink(&mut self) -> Result<()> {
        self.runtime.leave()?;
        if let Some(held) = &mut self.held {
            held.linked = None;
        }
        Ok(())
    }

    fn totals(&mut self, steps: usize) -> Result<Vec<StepTotal>> {
        let epoch = self.held().epoch();
        let mut totals: Vec<StepTotal> = vec![bytemuck::Zeroable::zeroed(); steps];
        let from = epoch.at.totals + size_of::<StepTotal>() * epoch.next;
        epoch.memory.read(from, &mut totals)?;
        let epoch = self.held.as_mut().and_then(|held| held.epoch.as_mut());
        epoch.expect("an epoch has begun").next += steps;
        Ok(totals)
    }

    fn running(&mut self) -> Result<Normalization> {
        let numbers = self.layers.architecture.normalized();
        let epoch = self.held().epoch();
        let mut running = Normalization::unit(numbers);
        let bytes = 8 * numbers;
        epoch.memory.read(epoch.at.running, &mut running.mean)?;
        let variance = &mut running.variance;
        epoch.memory.read(epoch.at.running + bytes, variance)?;
        Ok(running)
    }

    fn gather(&mut self, step: usize, rows: &dyn RowSource) -> Result<Gathered> {
        let held = self.held();
        let epoch = held.epoch();
        epoch.memory.write(epoch.at.clock, &[step as u32])?;
        let [gather, _] = self.rows_of_step(held, epoch);
        let held = self.held.as_mut().expect("rows are held");
        let run = || self.runtime.run(std::slice::from_ref(&gather));
        match &mut held.windows {
            None => run()?,
            Some(windows) => windows.run(step..step + 1, &held.rows, rows, run)?,
        }
        let held = self.held();
        let numbers = self.layers.architecture.continuous;
        let blocks = self.gather_blocks(held.step.rows);
        let mut partials = vec![0.0_f64; blocks * (2 * numbers + 2)];
        let mut checks = vec![0_u64; blocks];
        held.step.partials.read(0, &mut partials)?;
        held.step.checks.read(0, &mut checks)?;
        let mut found = Gathered {
            moments: vec![0.0; 2 * self.layers.architecture.normalized()],
            checksum: checks.into_iter().fold(0, u64::wrapping_add),
            ..Gathered::default()
        };
        for partial in partials.chunks_exact(2 * numbers + 2) {
            let moments = found.moments.iter_mut().zip(partial);
            moments.for_each(|(sum, of)| *sum += of);
            found.rows += partial[2 * numbers];
            found.weight += partial[2 * numbers + 1];
        }
        Ok(found)
    }

    fn backward(&mut self, all: &AllRows<'_>) -> Result<f64> {
        let (work, taken) = self.backward_work(all)?;
        self.runtime.run(&work)?;
        let held = self.held();
        let mut losses = vec![0.0_f64; taken.losses];
        held.step.losses.read(0, &mut losses)?;
        Ok(losses.iter().sum())
    }

    fn backward_in_buckets(
        &mut self,
        all: &AllRows<'_>,
        done: &mut dyn FnMut(f64, CopyBucket<'_>),
    ) -> Result<()> {
        let (work, taken) = self.backward_work(all)?;
        let held = self.held();
        let losses = Losses {
            after: taken.losses_end,
            memory: &held.step.losses,
            count: taken.losses,
        };
        self.queue_buckets(&work, &taken.ends, Some(losses))?;
        let loss = self.take_losses(taken.losses)?;
        self.take_buckets(|copy| done(loss, copy))
    }
}

impl Plan {
    /// Copies the totals over all ranks to the device. Returns the work from the gathered rows to their gradient.
    fn backward_work(&self, all: &AllRows<'_>) -> Result<(Vec<Work>, Taken)> {
        let held = self.held();
        let numbers = self.layers.architecture.continuous;
        let Normalization { mean, variance } = all.statistics;
        let mut statistics = vec![0.0; 2 * numbers + 2];
        statistics[..mean.len()].copy_from_slice(mean);
        statistics[numbers..numbers + variance.len()].copy_from_slice(variance);
        statistics[2 * numbers + 1] = all.weight;
        held.step.statistics.write(0, &statistics)?;
        let mut work = vec![self.clear()];
        let taken = self.pieces(held, &mut work);
        Ok((work, taken))
    }

    /// Returns the recorded step; records it if that was not done.
    fn recorded(&mut self, slots: &[Slot]) -> Result<Rc<[Replayed]>> {
        let held = self.held();
        let epoch = held.epoch();
        let recorded = match &held.recorded {
            Some(recorded) => Rc::clone(recorded),
            None => self.record(&self.step(held, epoch, slots))?,
        };
        if let Some(held) = &mut self.held {
            held.recorded = Some(Rc::clone(&recorded));
        }
        Ok(recorded)
    }

    /// Records a step, in parts between the host's calls.
    fn record(&self, step: &[Work]) -> Result<Rc<[Replayed]>> {
        let is_call = |work: &Work| matches!(work, Work::Call(_));
        let mut all = Vec::new();
        for part in step.chunk_by(|one, next| !is_call(one) && !is_call(next)) {
            let recorded = match part {
                [Work::Call(call)] => Ok(Replayed::Call(call.clone())),
                work => self.runtime.record(work).map(Replayed::Work),
            };
            match recorded {
                Ok(recorded) => all.push(recorded),
                Err(error) => {
                    forget(&*self.runtime, &all);
                    return Err(error);
                }
            }
        }
        Ok(all.into())
    }

    fn forget(&mut self) {
        let recorded = self.held.as_mut().and_then(|held| held.recorded.take());
        if let Some(recorded) = recorded {
            forget(&*self.runtime, &recorded);
        }
    }
}

/// Queues a recorded step; if the host has a part in it, computes that too.
fn replay(runtime: &dyn Runtime, step: &[Replayed]) -> Result<()> {
    step.iter().try_for_each(|part| match part {
        Replayed::Work(recorded) => runtime.replay(*recorded),
        Replayed::Call(call) => call.make(runtime),
    })
}

fn forget(runtime: &dyn Runtime, step: &[Replayed]) {
    for part in step {
        if let Replayed::Work(recorded) = part {
            runtime.forget(*recorded);
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.forget();
        let counters = self.runtime.counters().get();
        tracing::debug!(device = self.runtime.name(), ?counters, "a plan ends");
    }
}
