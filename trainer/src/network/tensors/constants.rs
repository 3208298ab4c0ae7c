//! The constants of a network's tensors, which no batch or step changes, copied to the device once.
//!
//! Weights are not among them.

use std::collections::BTreeMap;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, ElementConversion, Int, Tensor, TensorData};
use volley_proto::splitmix;

use crate::network::graph::{Bins, Operation, Value};
use crate::network::{Architecture, Mask, Table};

/// Constants of a network's tensors.
#[derive(Debug)]
pub(super) struct Constants<B: Backend> {
    pub(super) picks: Vec<Picks<B>>,
    /// Indices of the outputs, `[1 × 1 × K]`.
    pub(super) outputs: Tensor<B, 3, Int>,
    /// Bin edges, by the value that piecewise linear embeddings compute.
    pub(super) bins: BTreeMap<Value, Edges<B>>,
    /// Mask generator of each dropout.
    pub(super) masks: Vec<Draws<B>>,
}

/// Positions of the numbers that codes look up in a table: code · width + offset.
#[derive(Debug)]
pub(super) struct Picks<B: Backend> {
    /// Looked-up value, `[B × W]`.
    pub(super) value: Value,
    /// Index of the table among the parameters.
    pub(super) table: usize,
    /// Feature of each column, `[W]`.
    pub(super) features: Tensor<B, 1, Int>,
    /// Row width of each column's feature, `[1 × W]`.
    pub(super) widths: Tensor<B, 2, Int>,
    /// `[1 × W]`
    pub(super) offsets: Tensor<B, 2, Int>,
}

/// Lower edge and width of each bin of each number, `[1 × N × T]`.
#[derive(Debug)]
pub(super) struct Edges<B: Backend> {
    pub(super) low: Tensor<B, 3>,
    pub(super) wide: Tensor<B, 3>,
}

/// Masks of a dropout, drawn on the device or, where it lacks 64-bit integers, on the host.
#[derive(Debug)]
pub(super) struct Draws<B: Backend>(Option<Generator<B>>);

/// Mask generator of a dropout with W units.
#[derive(Debug)]
struct Generator<B: Backend> {
    /// Increment of a row's key for each pair of units, `[1 × ⌈W/2⌉]`.
    increments: Tensor<B, 2, Int>,
    /// Bits that remain after each right shift of SplitMix64, `[1 × 1]`: not all backends shift in zeros.
    left: [Tensor<B, 2, Int>; 3],
}

impl<B: Backend> Constants<B> {
    pub(super) fn new(architecture: &Architecture, device: &B::Device) -> Self {
        let graph = &architecture.graph;
        let picks = graph.looked_up();
        let picks = picks.map(|(value, table)| Picks::new(value, table, device));
        let bins = graph.nodes.iter().filter_map(|node| match &node.operation {
            Operation::PiecewiseLinear(bins) => Some((node.to, Edges::new(bins, device))),
            _ => None,
        });
        let outputs = (0..architecture.outputs as i32).collect();
        Self {
            picks: picks.collect(),
            outputs: ints(outputs, [1, 1, architecture.outputs], device),
            bins: bins.collect(),
            masks: graph
                .dropouts
                .iter()
                .map(|dropout| Draws::new(dropout.width, device))
                .collect(),
        }
    }
}

impl<B: Backend> Picks<B> {
    fn new(value: Value, table: &Table, device: &B::Device) -> Self {
        let (mut code, mut start) = (0, 0);
        let (mut features, mut widths, mut offsets) = (vec![], vec![], vec![]);
        for (feature, (codes, width)) in table.widths.iter().enumerate() {
            for column in 0..*width {
                features.push(feature as i32);
                widths.push(*width as i32);
                offsets.push(start as i32 - (code * width) as i32 + column as i32);
            }
            code += codes;
            start += codes * width;
        }
        let width = features.len();
        Self {
            value,
            table: table.at,
            features: ints(features, [width], device),
            widths: ints(widths, [1, width], device),
            offsets: ints(offsets, [1, width], device),
        }
    }
}

impl<B: Backend> Edges<B> {
    fn new(bins: &Bins, device: &B::Device) -> Self {
        let most = bins.most();
        // `none` pads the bins that a number lacks: its share of these is 0.
        let of = |none: f32, of: fn(f32, f32) -> f32| {
            let padded = bins.0.iter().flat_map(|edges| {
                let own = edges.windows(2).map(move |edges| of(edges[0], edges[1]));
                own.chain(std::iter::repeat(none)).take(most)
            });
            floats(padded.collect(), [1, bins.0.len(), most], device)
        };
        Self {
            low: of(f32::MAX, |low, _| low),
            wide: of(1.0, |low, high| high - low),
        }
    }
}

impl<B: Backend> Draws<B> {
    fn new(units: usize, device: &B::Device) -> Self {
        let is_able = B::supports_dtype(device, DType::U64);
        Self(is_able.then(|| Generator::new(units, device)))
    }

    /// Draws the mask, `[B × W]`.
    pub(super) fn draw(&self, mask: &Mask, device: &B::Device) -> Tensor<B, 2> {
        if let Some(generator) = &self.0 {
            return generator.draw(mask, device);
        }
        let rows = mask.keys.len();
        let mut drawn = vec![0.0; rows * mask.units];
        mask.draw(0..rows, &mut drawn);
        floats(drawn, [rows, mask.units], device)
    }
}

impl<B: Backend> Generator<B> {
    fn new(units: usize, device: &B::Device) -> Self {
        let pairs = units.div_ceil(2);
        let increments = (1..=pairs as u64).map(|pair| pair.wrapping_mul(splitmix::INCREMENT));
        Self {
            increments: unsigned(increments.collect(), [1, pairs], device),
            left: splitmix::SHIFTS.map(|bits| unsigned(vec![u64::MAX >> bits], [1, 1], device)),
        }
    }

    /// Draws the mask, `[B × W]`: the same as [`Mask::draw`]'s, by a second implementation of [SplitMix64](splitmix).
    fn draw(&self, mask: &Mask, device: &B::Device) -> Tensor<B, 2> {
        let (rows, pairs) = (mask.keys.len(), self.increments.dims()[1]);
        let keys = mask.keys.iter().map(|key| key.hash()).collect();
        let keys: Tensor<B, 2, Int> = unsigned(keys, [rows, 1], device);
        let mixed = |z: Tensor<B, 2, Int>, at: usize| {
            let bits = i64::from(splitmix::SHIFTS[at]).elem();
            let shifted = z.clone().bitwise_right_shift_scalar(bits);
            z.bitwise_xor(shifted.bitwise_and(self.left[at].clone()))
        };
        let [first, second] = splitmix::FACTORS;
        let z = mixed(keys + self.increments.clone(), 0).mul_scalar(first);
        let z = mixed(mixed(z, 1).mul_scalar(second), 2);
        let low = z.clone().bitwise_left_shift_scalar(32.elem());
        // The upper bits of both decide.
        let dropped_below = u64::from(mask.dropped_below()) << 32;
        let kept = [low, z].map(|z| z.greater_equal_elem(dropped_below).float());
        let kept: Tensor<B, 3> = Tensor::stack(kept.to_vec(), 2);
        let kept = kept.reshape([rows, 2 * pairs]);
        kept.slice([0..rows, 0..mask.units])
            .mul_scalar(mask.scale())
    }
}

/// Builds a tensor of numbers.
pub(super) fn floats<B: Backend, const D: usize>(
    numbers: Vec<f32>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// Builds a tensor of integers.
pub(super) fn ints<B: Backend, const D: usize>(
    numbers: Vec<i32>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D, Int> {
    Tensor::from_data(TensorData::new(numbers, shape), (device, DType::I32))
}

/// Builds a tensor of unsigned 64-bit integers.
fn unsigned<B: Backend, const D: usize>(
    numbers: Vec<u64>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D, Int> {
    Tensor::from_data(TensorData::new(numbers, shape), (device, DType::U64))
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::random::{Key, Purpose};

    #[test]
    fn a_device_draws_the_host_s_masks() {
        let device = Default::default();
        for units in [1, 2, 7] {
            let mask = Mask {
                keys: (0..50)
                    .map(|row| Key::new(3, Purpose::Sample).with(row))
                    .collect(),
                units,
                share: 0.3,
            };
            let drawn = |draws: Draws<Flex>| draws.draw(&mask, &device).into_data();
            let generated = Draws::new(units, &device);
            assert!(generated.0.is_some(), "Flex has 64-bit integers");
            assert_eq!(drawn(generated), drawn(Draws(None)));
        }
    }
}
