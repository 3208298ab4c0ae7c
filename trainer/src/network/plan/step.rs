//! Steps over rows in a device's memory: recorded once, replayed for each step of an epoch.
//!
//! ```text
//!  host      order, starts, numbers of each step, keys ──one upload──▶            ◀──one read── totals
//!  device    gather ─ settle ─ [enter ─ layers ─ losses ─ back]* ─ check ─ update   a step
//! ```
//!
//! A step is atomic: if its loss or gradient is not finite, it and the steps after it change nothing. The training loop
//! assigns rows to steps and sets the learning rate.

use volley_proto::spec::{Loss, PIECE, Rule};

use super::layers::{Batch, Pass};
use super::words::{Arguments, Tensor};
use super::{NUMBERS, Places, Plan, Slot};
use crate::device::{Address, Memory, Recorded, Work};
use crate::network::Normalization;
use crate::network::host::sigmoid_scale;
use crate::{Error, Result};

/// Rows per block of the copy.
const ROWS_OF_BLOCK: usize = 64;
/// Maximum number of blocks that copy rows, each of which leaves partial sums.
const GATHER_BLOCKS: usize = 128;

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
    /// Indices of held rows, step after step.
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
}

/// Network that trains on rows in its own memory.
pub(crate) trait Resident<N> {
    /// Copies rows of shards to the device. Returns whether they fit.
    fn hold(&mut self, shards: &[ShardRows<'_>], objective: &Objective<'_>) -> Result<bool>;

    /// Begins an epoch, or the rest of one.
    fn begin(&mut self, epoch: &EpochRows<'_>) -> Result<()>;

    /// Takes the next steps; `slots` is the optimizer state of each weight.
    fn run(&mut self, steps: usize, slots: &[N]) -> Result<Vec<StepTotal>>;

    /// Returns batch norm's running statistics after the last step.
    fn running(&mut self) -> Result<Normalization>;

    /// Gathers this rank's rows of a step that is shared with peers, and returns the sums that they need.
    fn gather(&mut self, step: usize) -> Result<Gathered>;

    /// Computes the gradient of the gathered rows, with the totals over all ranks. Returns the sum of their losses.
    fn backward(&mut self, all: &AllRows<'_>) -> Result<f64>;
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
    codes: Memory,
    numbers: Memory,
    labels: Memory,
    weights: Option<Memory>,
    keys: Memory,
    folds: Option<Memory>,
    shards: Memory,
    places: Memory,
    count: usize,
    step: StepRoom,
    objective: Kept,
    epoch: Option<Epoch>,
    recorded: Option<Recorded>,
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
    bytes: usize,
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

impl Plan {
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
        let tensor = Tensor {
            at: numbers.at(),
            ld,
            lane: 0,
            width,
            lanes: 1,
        };
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
            statistics: memory(8 * (2 * width + 3))?,
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
            batch: room.batch,
            places: &room.values,
            weights: self.weights.at(),
            first,
            rows: room.piece.min(room.rows - first),
            drops: true,
            statistics: self.normalized().then(|| room.statistics.at()),
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
        let mut work = vec![gather, settle];
        let blocks = self.pieces(held, &mut work);
        let (check, checks) = self.check();
        work.push(check);
        let statistics = self.normalized().then(|| epoch.address(epoch.at.running));
        let step = Arguments::new()
            .address(room.losses.at())
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

    /// Adds the work from rows to the gradient, piece by piece. Returns the number of partial sums of losses.
    fn pieces(&self, held: &Held, work: &mut Vec<Work>) -> usize {
        let (room, mut blocks) = (&held.step, 0);
        for first in (0..room.rows).step_by(room.piece) {
            let pass = self.pass(room, first);
            work.extend(self.layers.forward(&pass));
            let (launch, more) = self.losses(&pass, room, &held.objective, blocks);
            work.push(launch);
            blocks += more;
            let gradient = self.gradient.at();
            work.extend(self.layers.backward(&pass, gradient, first > 0));
        }
        blocks
    }

    /// Returns the launches that copy the rows of a step and that add up their partial sums.
    fn rows_of_step(&self, held: &Held, epoch: &Epoch) -> [Work; 2] {
        let architecture = &self.layers.architecture;
        let (room, objective) = (&held.step, &held.objective);
        let optional = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::at);
        let blocks = self.gather_blocks(room.rows);
        let width = architecture.continuous;
        let arguments = Arguments::new()
            .address(epoch.address(epoch.at.clock))
            .address(epoch.address(epoch.at.order))
            .address(epoch.address(epoch.at.starts))
            .address(held.codes.at())
            .number(architecture.categorical)
            .address(held.numbers.at())
            .number(width)
            .address(held.labels.at())
            .number(objective.labels)
            .address(optional(&held.weights))
            .address(held.keys.at())
            .address(optional(&held.folds))
            .address(held.shards.at())
            .address(held.places.at())
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
            .flag(self.normalized());
        let gather = self.layers.grid.launch("gather", blocks, arguments);
        let arguments = Arguments::new()
            .address(epoch.address(epoch.at.clock))
            .address(room.partials.at())
            .address(room.checks.at())
            .number(blocks)
            .number(width)
            .address(objective.shift.at())
            .address(room.statistics.at())
            .flag(self.normalized());
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
        let scale = sigmoid_scale(architecture);
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
            .flag(scale.is_some())
            .real(scale.unwrap_or(1.0))
            .number(objective.trained)
            .address(room.losses.at() + 8 * before as u64);
        (grid.launch("losses", blocks, arguments), blocks)
    }

    /// Returns the bytes of a step's values, of its rows and other fixed memory, and of the held rows.
    fn bytes(&self, rows: usize, objective: &Objective<'_>) -> [u64; 3] {
        let architecture = &self.layers.architecture;
        let step = objective.rows.max(1);
        let piece = step.div_ceil(objective.accumulate).min(PIECE);
        let values = |rows| {
            let sketch = &self.layers.sketch;
            sketch.places(architecture, rows, 0, Tensor::NONE).bytes
        };
        let columns = architecture.categorical + architecture.continuous + objective.labels;
        let row = 4 * (columns + 4) + 8 * (1 + architecture.dropouts().len());
        let held = 4 * (columns + 6) + 8;
        let evaluation = values(objective.evaluated) + objective.evaluated * row;
        let tables = rows.div_ceil(step) * (4 + 4 * NUMBERS + size_of::<StepTotal>());
        let fixed = step * row + evaluation + tables;
        [values(piece), fixed, rows * held].map(|bytes| bytes as u64)
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
        if step + held > free {
            return Ok(false);
        }
        let weighted = shards.iter().any(|rows| !rows.weights.is_empty());
        let (mut ids, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut weights = Vec::new();
        for rows in shards {
            let len = rows.keys.len();
            ids.extend(std::iter::repeat_n(rows.shard as u32, len));
            places.extend(0..len as u32);
            if weighted {
                let rest = std::iter::repeat_n(1.0, len - rows.weights.len());
                weights.extend(rows.weights.iter().copied().chain(rest));
            }
        }
        let each = shards.iter();
        let mut codes: Vec<u32> = each.clone().flat_map(|rows| rows.codes).copied().collect();
        let mut numbers: Vec<f32> = each
            .clone()
            .flat_map(|rows| rows.numbers)
            .copied()
            .collect();
        let mut labels: Vec<f32> = each.clone().flat_map(|rows| rows.labels).copied().collect();
        let mut keys: Vec<u64> = each.clone().flat_map(|rows| rows.keys).copied().collect();
        let folds = each
            .flat_map(|rows| rows.folds)
            .map(|fold| u32::from(*fold));
        let folds: Vec<u32> = folds.collect();
        if count == 0 {
            // A rank without rows holds one that fills the places of its steps.
            let tables = architecture.tables().first();
            let widths = tables.map_or(&[][..], |table| &table.widths);
            let firsts = widths.iter().scan(0, |end, (codes, _)| {
                let first = *end;
                *end += *codes as u32;
                Some(first)
            });
            codes = firsts.collect();
            numbers = vec![0.0; architecture.continuous];
            labels = vec![0.0; objective.labels];
            (keys, ids, places) = (vec![0], vec![0], vec![0]);
        }
        let runtime = &self.runtime;
        let some =
            |is_there: bool, make: &dyn Fn() -> Result<Memory>| is_there.then(make).transpose();
        let (kind, parameters) = losses(objective.loss);
        let objective_of = Kept {
            kind,
            parameters: Memory::of(runtime, &[&parameters[..], &[0.0]].concat())?,
            loss_weights: some(!objective.loss_weights.is_empty(), &|| {
                Memory::of(runtime, objective.loss_weights)
            })?,
            labels: objective.labels,
            trained: objective.trained,
            unit: objective.unit,
            rule: objective.rule.clone(),
            averages: objective.averages,
            shift: Memory::of(runtime, objective.shift)?,
        };
        let step = self.step_room(objective)?;
        let held = || {
            Ok(Held {
                codes: Memory::of(runtime, &codes)?,
                numbers: Memory::of(runtime, &numbers)?,
                labels: Memory::of(runtime, &labels)?,
                weights: some(weighted, &|| Memory::of(runtime, &weights))?,
                keys: Memory::of(runtime, &keys)?,
                folds: some(!folds.is_empty(), &|| Memory::of(runtime, &folds))?,
                shards: Memory::of(runtime, &ids)?,
                places: Memory::of(runtime, &places)?,
                count,
                step,
                objective: objective_of,
                epoch: None,
                recorded: None,
            })
        };
        let held = match held() {
            Err(Error::DeviceMemory { .. }) => return Ok(false),
            held => held?,
        };
        self.forget();
        self.held = Some(held);
        Ok(true)
    }

    fn begin(&mut self, epoch: &EpochRows<'_>) -> Result<()> {
        let clear = self.clear();
        self.runtime.run(&[clear])?;
        let numbers = self.layers.architecture.normalized();
        let held = self.held.as_mut().expect("rows are held");
        let steps = epoch.numbers.len();
        assert_eq!(epoch.order.len(), held.count, "an epoch is all rows");
        let (at, bytes) = Offsets::new(steps, held.count, epoch.dropouts.len(), numbers);
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
        put(at.order, bytemuck::cast_slice(epoch.order));
        if held
            .epoch
            .as_ref()
            .is_none_or(|epoch| epoch.at != at || epoch.bytes != bytes)
        {
            held.epoch = Some(Epoch {
                memory: Memory::new(&self.runtime, bytes)?,
                bytes,
                at,
                next: 0,
                steps,
            });
            if let Some(recorded) = held.recorded.take() {
                self.runtime.forget(recorded);
            }
        }
        let tables = held.epoch.as_mut().expect("it was just made");
        tables.next = epoch.step;
        tables.memory.write(0, &table)
    }

    fn run(&mut self, steps: usize, slots: &[Slot]) -> Result<Vec<StepTotal>> {
        let held = self.held.as_ref().expect("rows are held");
        let epoch = held.epoch.as_ref().expect("an epoch has begun");
        let steps = steps.min(epoch.steps - epoch.next);
        let recorded = match held.recorded {
            Some(recorded) => recorded,
            None => self.runtime.record(&self.step(held, epoch, slots))?,
        };
        for _ in 0..steps {
            self.runtime.replay(recorded)?;
        }
        let mut totals: Vec<StepTotal> = vec![bytemuck::Zeroable::zeroed(); steps];
        let from = epoch.at.totals + size_of::<StepTotal>() * epoch.next;
        epoch.memory.read(from, &mut totals)?;
        if let Some(held) = &mut self.held {
            held.recorded = Some(recorded);
            if let Some(epoch) = &mut held.epoch {
                epoch.next += steps;
            }
        }
        Ok(totals)
    }

    fn running(&mut self) -> Result<Normalization> {
        let numbers = self.layers.architecture.normalized();
        let held = self.held.as_ref().expect("rows are held");
        let epoch = held.epoch.as_ref().expect("an epoch has begun");
        let mut running = Normalization::unit(numbers);
        let bytes = 8 * numbers;
        epoch.memory.read(epoch.at.running, &mut running.mean)?;
        let variance = &mut running.variance;
        epoch.memory.read(epoch.at.running + bytes, variance)?;
        Ok(running)
    }

    fn gather(&mut self, step: usize) -> Result<Gathered> {
        let held = self.held.as_ref().expect("rows are held");
        let epoch = held.epoch.as_ref().expect("an epoch has begun");
        epoch.memory.write(epoch.at.clock, &[step as u32])?;
        let [gather, _] = self.rows_of_step(held, epoch);
        self.runtime.run(&[gather])?;
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
        let held = self.held.as_ref().expect("rows are held");
        let numbers = self.layers.architecture.continuous;
        let Normalization { mean, variance } = all.statistics;
        let mut statistics = vec![0.0; 2 * numbers + 2];
        statistics[..mean.len()].copy_from_slice(mean);
        statistics[numbers..numbers + variance.len()].copy_from_slice(variance);
        statistics[2 * numbers + 1] = all.weight;
        held.step.statistics.write(0, &statistics)?;
        let mut work = vec![self.clear()];
        let blocks = self.pieces(held, &mut work);
        self.runtime.run(&work)?;
        let mut losses = vec![0.0_f64; blocks];
        held.step.losses.read(0, &mut losses)?;
        Ok(losses.iter().sum())
    }
}

impl Plan {
    fn forget(&mut self) {
        let recorded = self.held.as_mut().and_then(|held| held.recorded.take());
        if let Some(recorded) = recorded {
            self.runtime.forget(recorded);
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
