//! A network compiled for a device: a step as a list of kernels and products, over memory that stays allocated.
//!
//! ```text
//!  Graph ──sketch──▶ nodes that are lanes of one another, storage of values
//!        ──layers──▶ [kernel │ product]*   forward, backward
//!        ──step────▶ gather ─ forward ─ losses ─ backward ─ check ─ update   recorded once, replayed for every step
//! ```
//!
//! The members of an ensemble are lanes of the same kernels and products. Weights, gradient, optimizer state and
//! rows stay on the device; the host sends the row order of an epoch and reads the totals of its steps.
//! [`Host`](super::Host) and [`Tensors`](super::Tensors) compute the same. The host computes custom layers, in
//! [calls](self::calls) between recorded parts of a step; L-BFGS steps are left to the training loop.

mod buckets;
mod calls;
mod evaluated;
mod inference;
mod layers;
mod layout;
mod paths;
mod places;
mod rows;
mod step;
#[cfg(test)]
mod tests;
mod windows;
mod words;

use std::cell::{Ref, RefCell};
use std::ops::{DerefMut, Range};
use std::rc::Rc;

use volley_proto::spec::Rule;

use self::buckets::Buckets;
pub(crate) use self::evaluated::Part;
pub(crate) use self::inference::Inference;
use self::layers::{Batch, Layers, Pass};
pub(crate) use self::paths::unexplained;
use self::places::Places;
use self::step::Held;
pub(crate) use self::step::{
    AllRows, EpochRows, Gathered, Objective, Resident, ShardRows, StepTotal,
};
pub(crate) use self::windows::{RowSource, RowsMut};
use self::words::{Arguments, Tensor};
use super::{Architecture, Compute, Input, Piece, Update};
use crate::Result;
use crate::device::{Address, Factors, Memory, Runtime, Work};

/// Maximum number of blocks that each leave a partial sum.
const PARTIALS: usize = 1024;
/// Length of a step's numbers: see [`Update::numbers`].
const NUMBERS: usize = 16;

/// Device, with the precision of products on it.
#[derive(Debug, Clone)]
pub(crate) struct PlanDevice {
    pub(crate) runtime: Rc<dyn Runtime>,
    pub(crate) factors: Factors,
}

/// Returns the reason why the host computes a part of a network, if it does: a plan trains it nevertheless, but is not
/// linked with peers, and predictions and Burn leave it to the host.
pub(crate) fn uncovered(architecture: &Architecture) -> Option<&'static str> {
    let has_custom_layers = architecture.graph.has_custom_layers();
    has_custom_layers.then_some("a custom layer is computed in host memory")
}

/// Network with its weights on a device.
#[derive(Debug)]
pub(crate) struct Plan {
    runtime: Rc<dyn Runtime>,
    layers: Rc<Layers>,
    weights: Memory,
    gradient: Memory,
    flags: Memory,
    /// Clock of single steps, laid out as an epoch's: next step, running step, and a flag for a step that was not
    /// taken.
    clock: Memory,
    /// [`Update::numbers`] of a single step.
    numbers: Memory,
    /// Partial sums of the gradient check.
    checks: Memory,
    room: RefCell<Option<Room>>,
    held: Option<Held>,
    /// Once [prepared](Plan::prepare_buckets).
    buckets: Option<Buckets>,
}

/// Memory for a piece of up to `rows` rows.
#[derive(Debug)]
struct Room {
    rows: usize,
    _values: Memory,
    places: Places,
    batch: Batch,
    codes: Memory,
    numbers: Memory,
    keys: Memory,
    /// Outputs or slopes of all lanes, side by side.
    outputs: Memory,
}

/// One number per weight, on the device.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    memory: Rc<Memory>,
    layers: Rc<Layers>,
}

impl Plan {
    /// Returns the memory of the last batch.
    fn last_room(&self) -> Ref<'_, Room> {
        Ref::map(self.room.borrow(), |room| {
            room.as_ref().expect("the batch had room")
        })
    }

    /// Returns memory for this many rows, with its columns of ones; allocates it unless there is enough.
    fn room(&self, rows: usize) -> Result<Ref<'_, Room>> {
        let last = self.room.borrow().as_ref().map(|room| room.rows);
        if last.is_none_or(|last| last < rows) {
            *self.room.borrow_mut() = None;
            let room = self.allocate(rows)?;
            *self.room.borrow_mut() = Some(room);
        }
        Ok(self.last_room())
    }

    fn allocate(&self, rows: usize) -> Result<Room> {
        let architecture = &self.layers.architecture;
        let ld = self.layers.sketch.numbers_ld(architecture);
        let memory = |numbers: usize| Memory::new(&self.runtime, 4 * numbers);
        let (codes, numbers) = (memory(rows * architecture.categorical)?, memory(rows * ld)?);
        let keys = memory(2 * rows * architecture.dropouts().len())?;
        let outputs = memory(rows * architecture.members * architecture.outputs)?;
        let tensor = self.layers.numbers_at(numbers.at());
        let (values, places) = self.place_values(rows, tensor)?;
        let batch = Batch {
            codes: codes.at(),
            numbers: tensor,
            keys: keys.at(),
            rows,
        };
        let pass = Pass::of(batch, &places, self.weights.at());
        self.runtime.run(&self.layers.ones(&pass))?;
        Ok(Room {
            rows,
            _values: values,
            places,
            batch,
            codes,
            numbers,
            keys,
            outputs,
        })
    }

    /// Allocates memory for the values of this many rows. Returns it with their places.
    fn place_values(&self, rows: usize, numbers: Tensor) -> Result<(Memory, Places)> {
        let values = Memory::new(&self.runtime, self.layers.values_bytes(rows))?;
        let places = self.layers.places(rows, values.at(), numbers);
        Ok((values, places))
    }

    /// Returns the pass over a batch in this memory.
    fn pass_over<'a>(&self, room: &'a Room, input: &Input) -> Pass<'a> {
        Pass {
            rows: input.rows,
            drops: input.dropout.iter().any(Option::is_some),
            ..Pass::of(room.batch, &room.places, self.weights.at())
        }
    }

    /// Copies a batch to the device and queues the forward pass, followed by the result of `work`.
    fn forward(
        &self,
        input: &Input,
        work: impl FnOnce(&Room, &Pass<'_>) -> Vec<Work>,
    ) -> Result<()> {
        let room = self.room(input.rows)?;
        let architecture = &self.layers.architecture;
        room.codes.write(0, &input.codes)?;
        let (width, ld) = (architecture.continuous, room.batch.numbers.ld);
        if width > 0 {
            let mut padded = vec![0.0; input.rows * ld];
            let rows = padded
                .chunks_exact_mut(ld)
                .zip(input.continuous.chunks_exact(width));
            for (to, from) in rows {
                to[..width].copy_from_slice(from);
                if let Some(one) = to.get_mut(width) {
                    *one = 1.0;
                }
            }
            room.numbers.write(0, &padded)?;
        }
        for (place, mask) in input.dropout.iter().enumerate() {
            if let Some(mask) = mask {
                let keys: Vec<u64> = mask.keys.iter().map(|key| key.hash()).collect();
                room.keys.write(8 * place * room.batch.rows, &keys)?;
            }
        }
        let pass = self.pass_over(&room, input);
        let mut all = self.layers.forward(&pass);
        all.extend(work(&room, &pass));
        self.runtime.run(&all)
    }

    /// Computes the outputs of a batch, of each lane or their mean.
    fn outputs(&self, input: &Input, mean: bool) -> Result<Vec<f32>> {
        let Architecture {
            members, outputs, ..
        } = self.layers.architecture;
        let each = if mean { 1 } else { members };
        let mut found = vec![0.0; input.rows * each * outputs];
        if found.is_empty() {
            return Ok(found);
        }
        self.forward(input, |room, pass| {
            let z = self.layers.output(pass);
            vec![self.layers.activate(z, pass.rows, mean, room.outputs.at())]
        })?;
        self.last_room().outputs.read(0, &mut found)?;
        Ok(found)
    }

    /// Copies to the device the slopes of a batch's outputs, which must be the last ones that were computed. Returns the
    /// work from them to the gradient, and the number of its parts after which the gradient by each parameter is complete.
    fn back_work(
        &self,
        input: &Input,
        slopes: &[f32],
        piece: Piece,
    ) -> Result<(Vec<Work>, Vec<usize>)> {
        let room = self.last_room();
        room.outputs.write(0, slopes)?;
        let pass = self.pass_over(&room, input);
        let arguments = Arguments::new()
            .tensor(self.layers.output(&pass))
            .address(room.outputs.at())
            .number(self.layers.sketch.lanes)
            .sigmoid(&self.layers)
            .tensor(self.layers.output_delta(&pass));
        let of = [pass.rows, 1, self.layers.architecture.outputs];
        let mut work = Vec::new();
        if piece.first {
            work.push(self.clear());
        }
        work.push(self.layers.grid.rows("slopes", of, arguments));
        let gradient = self.gradient.at();
        let ends = self
            .layers
            .backward(&mut work, &pass, gradient, !piece.first);
        Ok((work, ends))
    }

    /// Returns the launch that sets the gradient to zero.
    fn clear(&self) -> Work {
        let len = self.layers.layout.len();
        self.layers.clear(self.gradient.at(), len)
    }

    /// Returns the launch that checks the gradient, and the number of partial sums that it leaves.
    fn check(&self) -> (Work, usize) {
        let len = self.layers.layout.len();
        let grid = self.layers.grid;
        let blocks = len.div_ceil(4 * grid.threads).min(2 * grid.blocks);
        let blocks = blocks.clamp(1, PARTIALS);
        let arguments = Arguments::new().address(self.gradient.at()).number(len);
        let arguments = arguments.address(self.checks.at());
        (grid.launch("check", blocks, arguments), blocks)
    }

    /// Returns the launch that updates the weights; `step` holds the arguments for the step's losses, statistics and
    /// totals.
    fn update(
        &self,
        [clock, numbers]: [Address; 2],
        rule: &Rule,
        slots: &[Slot],
        averages: bool,
        checks: usize,
        step: Arguments,
    ) -> Work {
        let len = self.layers.layout.len();
        let grid = self.layers.grid;
        let own = &slots[..slots.len() - usize::from(averages)];
        let slot = |at: usize| own.get(at).map_or(0, |slot| slot.memory.at());
        let average = slots.last().filter(|_| averages);
        let arguments = Arguments::new()
            .address(clock)
            .address(numbers)
            .number(rule_number(rule))
            .address(self.weights.at())
            .address(self.gradient.at())
            .address(self.flags.at())
            .number(len)
            .address(slot(0))
            .address(slot(1))
            .address(average.map_or(0, |slot| slot.memory.at()))
            .address(self.checks.at())
            .number(checks)
            .then(step);
        let blocks = len.div_ceil(4 * grid.threads).min(8 * grid.blocks);
        grid.launch("update", blocks, arguments)
    }
}

/// Returns the number of a rule in `kernels.cu`.
fn rule_number(rule: &Rule) -> usize {
    match rule {
        Rule::Adam { .. } => 0,
        Rule::Sgd { momentum: 0.0, .. } => 1,
        Rule::Sgd {
            nesterov: false, ..
        } => 2,
        Rule::Sgd { .. } => 3,
        Rule::Adagrad { .. } => 4,
        Rule::RmsProp { momentum: 0.0, .. } => 5,
        Rule::RmsProp { .. } => 6,
        Rule::Ftrl { .. } => 7,
        Rule::Lbfgs { .. } => unreachable!("its steps are of all weights at once"),
    }
}

impl Compute for Plan {
    type Device = PlanDevice;
    type Numbers = Slot;

    fn new(
        architecture: &Architecture,
        values: Vec<Vec<f32>>,
        device: &PlanDevice,
    ) -> Result<Self> {
        let PlanDevice { runtime, factors } = device;
        let layers = Layers::new(runtime, architecture, *factors)?;
        let spread = layers.layout.spread(&values.concat());
        let flags = layers.layout.flags(|parameter| layers.adds_up(parameter));
        Ok(Self {
            weights: Memory::of(runtime, &spread)?,
            gradient: Memory::new(runtime, 4 * spread.len())?,
            flags: Memory::of(runtime, &flags)?,
            clock: Memory::new(runtime, 3 * 4)?,
            numbers: Memory::new(runtime, 4 * NUMBERS)?,
            checks: Memory::new(runtime, 2 * 8 * PARTIALS)?,
            room: RefCell::default(),
            held: None,
            buckets: None,
            layers: Rc::new(layers),
            runtime: Rc::clone(runtime),
        })
    }

    fn predict(&mut self, input: Input) -> Result<Vec<f32>> {
        self.outputs(&input, true)
    }

    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>> {
        self.outputs(&input, false)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        _: &mut [f32],
    ) -> Result<()> {
        let slopes = slopes(&self.outputs(&input, false)?);
        let (work, _) = self.back_work(&input, &slopes, piece)?;
        self.runtime.run(&work)
    }

    fn buckets(&mut self) -> Vec<Range<usize>> {
        self.prepare_buckets()
    }

    fn leaves_processor(&self) -> bool {
        true
    }

    fn gradient_in_buckets<B: DerefMut<Target = [f32]>>(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        buckets: Vec<B>,
        done: &mut dyn FnMut(B),
    ) -> Result<()> {
        let slopes = slopes(&self.outputs(&input, false)?);
        self.back_in_buckets(&input, &slopes, piece, buckets, done)
    }

    fn zero_gradient(&mut self, _: &mut [f32]) -> Result<()> {
        self.runtime.run(&[self.clear()])
    }

    fn read_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        let mut spread = vec![0.0; self.layers.layout.len()];
        self.gradient.read(0, &mut spread)?;
        self.layers.layout.gather(&spread, flat);
        Ok(())
    }

    fn write_gradient(&mut self, flat: &[f32]) -> Result<()> {
        match &self.buckets {
            Some(buckets) => self.send_gradient(buckets, flat),
            None => self.gradient.write(0, &self.layers.layout.spread(flat)),
        }
    }

    fn non_finite_gradient(&mut self, _: &[f32]) -> Result<Option<f64>> {
        let (check, blocks) = self.check();
        self.runtime.run(&[check])?;
        let mut partials = vec![0.0_f64; 2 * blocks];
        self.checks.read(0, &mut partials)?;
        let mut found = partials.chunks_exact(2).map(|partial| partial[1]);
        Ok(found.find(|number| *number != 0.0))
    }

    fn apply(&mut self, update: &Update<'_>, slots: &mut [Slot], _: &mut [f32]) -> Result<()> {
        self.clock.write(0, &[0_u32, 0, 0])?;
        self.numbers.write(0, &update.numbers())?;
        let (check, checks) = self.check();
        let averages = update.kept.is_some();
        // A single step has no losses, statistics or totals on the device.
        let step = (0..6).fold(Arguments::new(), |all, _| all.number(0));
        let update = self.update(
            [self.clock.at(), self.numbers.at()],
            update.rule,
            slots,
            averages,
            checks,
            step.precise(0.0),
        );
        self.runtime.run(&[check, update])
    }

    fn upload(&self, numbers: Vec<f32>) -> Result<Slot> {
        let spread = self.layers.layout.spread(&numbers);
        Ok(Slot {
            memory: Rc::new(Memory::of(&self.runtime, &spread)?),
            layers: Rc::clone(&self.layers),
        })
    }

    fn download(slot: Slot) -> Result<Vec<f32>> {
        let layout = &slot.layers.layout;
        let (mut spread, mut flat) = (vec![0.0; layout.len()], vec![0.0; layout.count()]);
        slot.memory.read(0, &mut spread)?;
        layout.gather(&spread, &mut flat);
        Ok(flat)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        let mut spread = vec![0.0; self.layers.layout.len()];
        self.weights.read(0, &mut spread)?;
        Ok(self.layers.layout.split(&spread))
    }

    fn put(&mut self, values: &[Vec<f32>]) -> Result<()> {
        let spread = self.layers.layout.spread(&values.concat());
        self.weights.write(0, &spread)
    }

    fn resident(&mut self) -> Option<&mut dyn Resident<Slot>> {
        Some(self)
    }
}
