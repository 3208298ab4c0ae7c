//! Integrated gradients on a device: the paths of a batch's rows from a baseline, and the gradients along them.
//!
//! ```text
//!  rows, baseline ──one upload──▶ forward ─ ends ─ [points ─ layers ─ slopes ─ back]* ─ attributions ──one read──▶
//!                                                   a step, recorded once for a number of rows
//! ```
//!
//! The same as [`attribute`](crate::network::attribute) computes on the host. The baseline is one more row, the last, whose
//! own path has no length. Values that move are stored by themselves, and so are the gradients by them, in which those of
//! all steps add up: nothing is read before the end. Members of an ensemble each have a gradient by numbers. The clock
//! counts steps on the device, so that all of them are the same work.

use std::iter::repeat_n;
use std::ops::Range;
use std::rc::Rc;

use super::PlanDevice;
use super::inference::{LEAST, batch, fits, stage, staged_len};
use super::layers::{Layers, Pass};
use super::layout::aligned;
use super::places::Sketch;
use super::words::{Arguments, Tensor};
use crate::Result;
use crate::device::{Address, Memory, Recorded, Runtime, Work};
use crate::network::attribution::{STEPS, entries};
use crate::network::graph::Value;
use crate::network::{Architecture, Attributions, Input};

/// Maximum number of rows that are explained at once.
const MOST: usize = 1 << 11;
/// Alignment of the ends of paths, in numbers.
const ALIGN: usize = 64;

/// Returns the reason why a network is not explained on a device, if there is one.
pub(crate) fn unexplained(architecture: &Architecture) -> Option<&'static str> {
    let has_custom_layers = architecture.graph.has_custom_layers();
    has_custom_layers.then_some("a custom layer is explained in host memory")
}

/// Layers of a network whose weights are on a device, and memory for paths.
#[derive(Debug)]
pub(super) struct Paths {
    runtime: Rc<dyn Runtime>,
    layers: Layers,
    moved: Vec<Moved>,
    room: Option<Room>,
    /// Number of rows that [`Room`] may grow to.
    most: usize,
    /// Upload of a batch; its memory is kept between batches.
    staged: Vec<u32>,
}

/// Value that moves along paths.
#[derive(Debug)]
struct Moved {
    value: Value,
    /// Inputs that it is attributed to; none for the linear part, whose attributions are exact.
    inputs: Option<Inputs>,
}

/// Consecutive inputs of a row, each of which has some columns of a value.
#[derive(Debug)]
struct Inputs {
    first: usize,
    count: usize,
    /// Column at which each begins, then the end.
    bounds: Memory,
}

/// Memory for the paths of up to `rows` rows, one of which is the baseline.
#[derive(Debug)]
struct Room {
    /// Recorded step, with its number of rows.
    step: Option<(usize, Step)>,
    rows: usize,
    /// Codes and numbers as in a prediction, then the chosen output of each row.
    inputs: Memory,
    values: Memory,
    ends: Memory,
    outputs: Memory,
    /// The clock, then the sum of each row's slopes.
    slopes: Memory,
    /// `[rows × (C + N + 2)]`: attributions, the chosen output, and the baseline's.
    attributions: Memory,
}

/// Recorded step, forgotten when it is dropped.
#[derive(Debug)]
struct Step {
    runtime: Rc<dyn Runtime>,
    recorded: Recorded,
}

impl Drop for Step {
    fn drop(&mut self) {
        self.runtime.forget(self.recorded);
    }
}

/// Work of a batch: before the steps, a step, and after them.
struct Walk {
    before: Vec<Work>,
    step: Vec<Work>,
    after: Vec<Work>,
}

impl Paths {
    pub(super) fn new(architecture: &Architecture, device: &PlanDevice) -> Result<Self> {
        assert_eq!(unexplained(architecture), None, "the host explains it");
        let PlanDevice { runtime, factors } = device;
        let mut layers = Layers::new(runtime, architecture, *factors)?;
        layers.sketch = Sketch::of_paths(architecture, &layers.layout);
        let graph = &architecture.graph;
        let entered = entries(graph).filter_map(|value| {
            // Other members' values are lanes of the first one's.
            let (width, lanes) = layers.sketch.shape(value)?;
            Some((value, width, lanes))
        });
        let moved = entered.map(|(value, width, lanes)| {
            let (first, widths): (usize, Vec<usize>) = match graph.table_of(value) {
                Some(table) => {
                    let widths = table.widths.iter().map(|(_, width)| width / lanes);
                    (0, widths.collect())
                }
                None => {
                    let numbers = architecture.continuous;
                    let widths = repeat_n(width / numbers, numbers).collect();
                    (architecture.categorical, widths)
                }
            };
            let ends = widths.iter().scan(0, |end, width| {
                *end += *width as u32;
                Some(*end)
            });
            let bounds: Vec<u32> = std::iter::once(0).chain(ends).collect();
            let inputs = Inputs {
                first,
                count: widths.len(),
                bounds: Memory::of(runtime, &bounds)?,
            };
            Ok(Moved {
                value,
                inputs: Some(inputs),
            })
        });
        let linear = graph.linear_node().map(|(node, _)| {
            Ok(Moved {
                value: node.to,
                inputs: None,
            })
        });
        let moved = moved.chain(linear).collect::<Result<_>>()?;
        Ok(Self {
            runtime: Rc::clone(runtime),
            layers,
            moved,
            room: None,
            most: MOST,
            staged: Vec::new(),
        })
    }

    /// Attributes each row's `chosen` output; `weights` are laid out as the network's.
    ///
    /// # Errors
    /// When not even a small batch fits in the device's memory, or the device fails.
    pub(super) fn attribute(
        &mut self,
        weights: Address,
        [input, baseline]: [&Input; 2],
        chosen: &[usize],
    ) -> Result<Attributions> {
        let mut found = Attributions::default();
        if input.rows == 0 {
            return Ok(found);
        }
        let width = self.width() - 2;
        found.inputs.reserve(input.rows * width);
        let most = self.make_room(weights, input.rows)?;
        for first in (0..input.rows).step_by(most) {
            let rows = first..input.rows.min(first + most);
            let chosen = &chosen[rows.clone()];
            let all = self.piece(weights, [input, baseline], rows, chosen)?;
            for row in all.chunks_exact(width + 2) {
                found.inputs.extend_from_slice(&row[..width]);
                found.outputs.push(row[width]);
                found.baselines.push(row[width + 1]);
            }
        }
        Ok(found)
    }

    /// Computes the attributions of some rows, each with its chosen output and the baseline's.
    fn piece(
        &mut self,
        weights: Address,
        [input, baseline]: [&Input; 2],
        rows: Range<usize>,
        chosen: &[usize],
    ) -> Result<Vec<f64>> {
        let mut found = vec![0.0; rows.len() * self.width()];
        let count = rows.len() + 1;
        let parts = [(input, rows), (baseline, 0..1)];
        stage(&self.layers, &parts, &mut self.staged);
        let chosen = chosen.iter().map(|output| *output as u32);
        self.staged.extend(chosen.chain([0]));
        let room = self.room.as_ref().expect("the batch has room");
        room.inputs.write(0, &self.staged)?;
        let walk = self.walk(room, weights, count);
        let room = self.room.as_mut().expect("the batch has room");
        if room.step.as_ref().is_none_or(|(rows, _)| *rows != count) {
            room.step = None;
            // Recording computes the products once, some of which add to the sums: these are cleared afterwards.
            let step = Step {
                runtime: Rc::clone(&self.runtime),
                recorded: self.runtime.record(&walk.step)?,
            };
            room.step = Some((count, step));
        }
        self.runtime.run(&walk.before)?;
        let (_, step) = room.step.as_ref().expect("it is recorded");
        (0..STEPS).try_for_each(|_| self.runtime.replay(step.recorded))?;
        self.runtime.run(&walk.after)?;
        room.attributions.read(0, &mut found)?;
        Ok(found)
    }

    /// Returns the work of a batch of this many rows, with the baseline's.
    fn walk(&self, room: &Room, weights: Address, count: usize) -> Walk {
        let layers = &self.layers;
        let grid = layers.grid;
        let Architecture {
            categorical,
            continuous,
            outputs,
            ..
        } = layers.architecture;
        let batch = batch(layers, room.inputs.at(), count);
        let places = layers.places(room.rows, room.values.at(), batch.numbers);
        let pass = Pass::of(batch, &places, weights);
        let (ends, _) = self.ends(room.rows, room.ends.at());
        let chosen = room.inputs.at() + 4 * staged_len(layers, count) as u64;
        let (clock, slopes) = (room.slopes.at(), room.slopes.at() + 4);
        let base = count - 1;
        let moved = || self.moved.iter().zip(&ends);
        let entered = || moved().filter_map(|(of, ends)| Some((of, of.inputs.as_ref()?, *ends)));

        let z = layers.output(&pass);
        let mut before = layers.forward(&pass);
        before.push(layers.activate(z, count, true, room.outputs.at()));
        for (of, ends) in moved() {
            before.push(layers.copy(layers.value(&pass, of.value), *ends, count));
        }
        before.push(layers.clear(clock, 1 + count));
        for (of, _, _) in entered() {
            let sums = layers.delta(&pass, of.value);
            before.push(layers.clear(sums.at, sums.lanes * room.rows * sums.ld));
        }

        let mut step = Vec::new();
        for (of, ends) in moved() {
            let arguments = Arguments::new()
                .tensor(*ends)
                .tensor(layers.value(&pass, of.value))
                .number(base)
                .address(clock)
                .number(STEPS);
            step.push(grid.rows("path_point", [count, ends.lanes, ends.width], arguments));
        }
        step.extend(layers.forward_from_point(&pass));
        let arguments = Arguments::new()
            .tensor(z)
            .number(layers.sketch.lanes)
            .address(chosen)
            .sigmoid(layers)
            .tensor(layers.output_delta(&pass))
            .address(slopes)
            .address(clock);
        step.push(grid.rows("path_slopes", [count, 1, outputs], arguments));
        step.extend(layers.backward_to_point(&pass, entered().map(|(of, _, _)| of.value)));

        let rows = count - 1;
        let numbers = moved().find(|(of, _)| layers.architecture.graph.numbers == Some(of.value));
        let [of_values, of_numbers] = layers.linear_weights(&pass);
        let arguments = Arguments::new()
            .address(layers.codes(&pass))
            .number(categorical)
            .address(of_values)
            .tensor(numbers.map_or(Tensor::NONE, |(_, ends)| *ends))
            .number(continuous)
            .address(of_numbers)
            .number(outputs)
            .address(chosen)
            .address(slopes)
            .number(STEPS)
            .address(room.outputs.at())
            .number(base)
            .address(room.attributions.at());
        let mut after = vec![grid.rows("path_linear", [rows, 1, self.width()], arguments)];
        for (of, inputs, ends) in entered() {
            let sums = layers.delta(&pass, of.value);
            let arguments = Arguments::new()
                .tensor(ends)
                .tensor(sums)
                .number(sums.lanes)
                .number(base)
                .address(inputs.bounds.at())
                .number(inputs.first)
                .number(self.width())
                .number(STEPS)
                .address(room.attributions.at());
            after.push(grid.rows("path_sums", [rows, 1, inputs.count], arguments));
        }
        Walk {
            before,
            step,
            after,
        }
    }

    /// Allocates memory for this many rows and the baseline, or for as many as fit, unless there is enough. Returns how
    /// many rows there is memory for.
    fn make_room(&mut self, weights: Address, rows: usize) -> Result<usize> {
        let wanted = rows.next_power_of_two().clamp(LEAST, self.most);
        if let Some(room) = &self.room
            && room.rows > wanted
        {
            return Ok(room.rows - 1);
        }
        self.room = None;
        let free = self.runtime.free()?;
        let mut rows = wanted;
        while self.bytes(rows + 1).iter().sum::<usize>() as u64 > free && rows > LEAST {
            rows /= 2;
        }
        if rows < wanted {
            // It is not tried again for each batch.
            self.most = rows;
        }
        let all = self.bytes(rows + 1);
        fits(&*self.runtime, all.iter().sum())?;
        let [inputs, values, ends, outputs, slopes, attributions] =
            all.map(|bytes| Memory::new(&self.runtime, bytes));
        let room = Room {
            step: None,
            rows: rows + 1,
            inputs: inputs?,
            values: values?,
            ends: ends?,
            outputs: outputs?,
            slopes: slopes?,
            attributions: attributions?,
        };
        // Ones behind values stay; those behind numbers come with each batch.
        let batch = batch(&self.layers, room.inputs.at(), room.rows);
        let places = self
            .layers
            .places(room.rows, room.values.at(), batch.numbers);
        let ones = self.layers.ones(&Pass::of(batch, &places, weights));
        self.runtime.run(&ones)?;
        self.room = Some(room);
        Ok(rows)
    }

    /// Returns the bytes of each memory of [`Room`], for this many rows.
    fn bytes(&self, rows: usize) -> [usize; 6] {
        [
            4 * (staged_len(&self.layers, rows) + rows),
            self.layers.values_bytes(rows),
            self.ends(rows, 0).1,
            4 * rows * self.layers.architecture.outputs,
            4 * (1 + rows),
            8 * rows * self.width(),
        ]
    }

    /// Assigns storage to the ends of each moved value's paths. Returns it with its bytes.
    fn ends(&self, rows: usize, at: Address) -> (Vec<Tensor>, usize) {
        let mut end = 0;
        let ends = self.moved.iter().map(|moved| {
            let shape = self.layers.sketch.shape(moved.value);
            let (width, lanes) = shape.expect("values that move are stored");
            let ld = aligned(width);
            let start = end;
            end += (lanes * rows * ld).next_multiple_of(ALIGN);
            Tensor::new(at + 4 * start as Address, [lanes, rows, width], ld)
        });
        (ends.collect(), 4 * end)
    }

    /// Returns the number of inputs and of the two outputs behind their attributions.
    fn width(&self) -> usize {
        let Architecture {
            categorical,
            continuous,
            ..
        } = self.layers.architecture;
        categorical + continuous + 2
    }
}
