//! Inference: a model's weights on a device, and batches of rows through the forward pass.
//!
//! A [`Plan`](super::Plan) trains: it also holds a gradient, and the gradients by values. Here, memory is only for
//! weights and values, and for [paths](super::paths) once rows are explained. A batch is one upload, the forward pass and
//! one read. Who may use the device, and whether its outputs are right, is decided elsewhere.

use std::ops::Range;
use std::rc::Rc;

use super::PlanDevice;
use super::layers::{Batch, Layers, Pass};
use super::paths::Paths;
use crate::device::{Address, Factors, Memory, Runtime};
use crate::network::{Architecture, Attributions, Input};
use crate::{Error, Result};

/// Maximum number of rows that are computed at once.
const MOST: usize = 1 << 14;
/// Number of rows that must fit in the device's memory.
pub(super) const LEAST: usize = 256;
/// Alignment of the numbers behind the codes of a batch, in numbers.
const ALIGN: usize = 64;

/// Network that predicts on a device.
#[derive(Debug)]
pub(crate) struct Inference {
    runtime: Rc<dyn Runtime>,
    factors: Factors,
    layers: Layers,
    /// Layers and memory of explanations, once there was one.
    paths: Option<Paths>,
    weights: Memory,
    room: Option<Room>,
    /// Number of rows that [`Room`] may grow to.
    most: usize,
    /// Upload of a batch; its memory is kept between batches.
    staged: Vec<u32>,
}

/// Memory for a batch of up to `rows` rows.
#[derive(Debug)]
struct Room {
    rows: usize,
    /// Codes, followed by the padded numbers of as many rows as there are.
    inputs: Memory,
    values: Memory,
    outputs: Memory,
}

impl Inference {
    /// Copies these weights, parameter by parameter, to the device.
    ///
    /// # Errors
    /// When they do not fit, or the device fails.
    pub(crate) fn new(
        architecture: &Architecture,
        values: &[Vec<f32>],
        device: &PlanDevice,
    ) -> Result<Self> {
        let PlanDevice { runtime, factors } = device;
        let mut layers = Layers::new(runtime, architecture, *factors)?;
        // Without a backward pass, no gradient needs a place.
        layers.sketch.sought.fill(false);
        fits(&**runtime, 4 * layers.layout.len())?;
        let spread = layers.layout.spread(&values.concat());
        Ok(Self {
            weights: Memory::of(runtime, &spread)?,
            runtime: Rc::clone(runtime),
            factors: *factors,
            layers,
            paths: None,
            room: None,
            most: MOST,
            staged: Vec::new(),
        })
    }

    /// Returns the network's outputs, `[B × K]`: for an ensemble, the mean over its members. Dropout is not applied.
    ///
    /// # Errors
    /// When not even a small batch fits in the device's memory, or the device fails.
    pub(crate) fn predict(&mut self, input: &Input) -> Result<Vec<f32>> {
        let width = self.layers.architecture.outputs;
        let mut outputs = vec![0.0; input.rows * width];
        if outputs.is_empty() {
            return Ok(outputs);
        }
        let most = self.make_room(input.rows)?;
        for (at, outputs) in outputs.chunks_mut(most * width).enumerate() {
            let first = at * most;
            self.piece(input, first..first + outputs.len() / width, outputs)?;
        }
        Ok(outputs)
    }

    /// Attributes each row's `chosen` output, as [`attribute`](crate::network::attribute) does on the host.
    ///
    /// # Errors
    /// The errors of [`predict`](Self::predict).
    ///
    /// # Panics
    /// If the network is [not explained](super::unexplained) on a device.
    pub(crate) fn attribute(
        &mut self,
        input: &Input,
        baseline: &Input,
        chosen: &[usize],
    ) -> Result<Attributions> {
        let paths = match &mut self.paths {
            Some(paths) => paths,
            none => {
                let device = PlanDevice {
                    runtime: Rc::clone(&self.runtime),
                    factors: self.factors,
                };
                none.insert(Paths::new(&self.layers.architecture, &device)?)
            }
        };
        paths.attribute(self.weights.at(), [input, baseline], chosen)
    }

    /// Computes the outputs of some rows.
    fn piece(&mut self, input: &Input, rows: Range<usize>, outputs: &mut [f32]) -> Result<()> {
        let parts = [(input, rows.clone())];
        stage(&self.layers, &parts, &mut self.staged);
        let room = self.room.as_ref().expect("the batch has room");
        room.inputs.write(0, &self.staged)?;
        let batch = batch(&self.layers, room.inputs.at(), rows.len());
        let places = self
            .layers
            .places(room.rows, room.values.at(), batch.numbers);
        let pass = Pass::of(batch, &places, self.weights.at());
        let mut work = self.layers.forward(&pass);
        let z = self.layers.output(&pass);
        let to = room.outputs.at();
        work.push(self.layers.activate(z, rows.len(), true, to));
        self.runtime.run(&work)?;
        room.outputs.read(0, outputs)
    }

    /// Allocates memory for this many rows, or for as many as fit, unless there is enough. Returns how many there is
    /// memory for.
    fn make_room(&mut self, rows: usize) -> Result<usize> {
        let wanted = rows.next_power_of_two().clamp(LEAST, self.most);
        if let Some(room) = &self.room
            && room.rows >= wanted
        {
            return Ok(room.rows);
        }
        self.room = None;
        let free = self.runtime.free()?;
        let mut rows = wanted;
        while self.bytes(rows).iter().sum::<usize>() as u64 > free && rows > LEAST {
            rows /= 2;
        }
        let [inputs, values, outputs] = self.bytes(rows);
        fits(&*self.runtime, inputs + values + outputs)?;
        if rows < wanted {
            // It is not tried again for each batch.
            self.most = rows;
        }
        let memory = |bytes| Memory::new(&self.runtime, bytes);
        let room = Room {
            rows,
            inputs: memory(inputs)?,
            values: memory(values)?,
            outputs: memory(outputs)?,
        };
        // Ones behind values stay; those behind numbers come with each batch.
        let batch = batch(&self.layers, room.inputs.at(), rows);
        let places = self.layers.places(rows, room.values.at(), batch.numbers);
        let pass = Pass::of(batch, &places, self.weights.at());
        self.runtime.run(&self.layers.ones(&pass))?;
        self.room = Some(room);
        Ok(rows)
    }

    /// Returns the bytes of the inputs, values and outputs of this many rows.
    fn bytes(&self, rows: usize) -> [usize; 3] {
        let inputs = staged_len(&self.layers, rows);
        let values = self.layers.values_bytes(rows);
        [
            4 * inputs,
            values,
            4 * rows * self.layers.architecture.outputs,
        ]
    }
}

/// Lays out the upload of some rows of each input: their codes, then their numbers, padded, with a one behind each row.
pub(super) fn stage(layers: &Layers, parts: &[(&Input, Range<usize>)], staged: &mut Vec<u32>) {
    let Architecture {
        categorical,
        continuous: width,
        ..
    } = layers.architecture;
    let ld = layers.sketch.numbers_ld(&layers.architecture);
    staged.clear();
    for (input, rows) in parts {
        let codes = &input.codes[rows.start * categorical..rows.end * categorical];
        staged.extend_from_slice(codes);
    }
    let rows = parts.iter().map(|(_, rows)| rows.len()).sum();
    staged.resize(staged_len(layers, rows), 0);
    if ld == 0 {
        return;
    }
    let numbers = parts.iter().flat_map(|(input, rows)| {
        input.continuous[rows.start * width..rows.end * width].chunks_exact(width)
    });
    let start = numbers_from(rows, categorical);
    for (to, from) in staged[start..].chunks_exact_mut(ld).zip(numbers) {
        to.iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = from.to_bits());
        if let Some(one) = to.get_mut(width) {
            *one = 1_f32.to_bits();
        }
    }
}

/// Returns the length of the upload of this many rows, in numbers.
pub(super) fn staged_len(layers: &Layers, rows: usize) -> usize {
    let ld = layers.sketch.numbers_ld(&layers.architecture);
    numbers_from(rows, layers.architecture.categorical) + rows * ld
}

/// Returns the batch of this many rows that were uploaded to this address.
pub(super) fn batch(layers: &Layers, codes: Address, rows: usize) -> Batch {
    let from = numbers_from(rows, layers.architecture.categorical);
    Batch {
        codes,
        numbers: layers.numbers_at(codes + 4 * from as u64),
        keys: 0,
        rows,
    }
}

/// Returns the offset of the numbers behind the codes of this many rows, in numbers.
fn numbers_from(rows: usize, categorical: usize) -> usize {
    (rows * categorical).next_multiple_of(ALIGN)
}

/// Checks that this many bytes can be allocated.
pub(super) fn fits(runtime: &dyn Runtime, bytes: usize) -> Result<()> {
    let (bytes, free) = (bytes as u64, runtime.free()?);
    match bytes <= free {
        true => Ok(()),
        false => Err(Error::DeviceMemory {
            device: runtime.name(),
            bytes,
            free,
        }),
    }
}
