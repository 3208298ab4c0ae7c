//! The backward pass in host memory: gradients from the outputs back through the graph, operation by operation.
//!
//! [`forward`](super::forward) must run first: it computes the values that are read here. The choice of trained values
//! and the loss are not known here.

use std::ops::Range;

use super::buckets::Gradients;
use super::{
    FUNCTION, Scratch, activation, add, dense, interactions, layer_norm, linear, mask, multiply,
    of_rows, parts, periodic, piecewise_linear, tables,
};
use crate::network::graph::{Operation, Value};
use crate::network::matmul::{Epilogue, Matrix};
use crate::network::{Architecture, CustomBatch, Input};
use crate::threads::Threads;

/// Gradients that [`backward`] computes.
pub(in crate::network) enum Wanted<'a> {
    /// Gradients by the parameters, each complete as soon as it can be.
    Parameters(&'a mut dyn Gradients),
    /// Gradients by the inputs, which are embeddings, factors and numbers, and by piecewise linear embeddings, except
    /// those through the linear part, and those by numbers through these embeddings.
    Entered,
}

/// Computes the wanted gradients of Σ δ·y, after [`forward`](super::forward). `deltas` are values y with their δ,
/// `[B × W]`. Gradients by inputs stay in the scratch memory, and so do those by piecewise linear embeddings if those
/// by parameters are not wanted.
pub(in crate::network) fn backward(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
    deltas: impl IntoIterator<Item = (Value, Vec<f32>)>,
    mut wanted: Wanted<'_>,
) {
    let graph = &architecture.graph;
    let rows = input.rows;
    let trains = matches!(wanted, Wanted::Parameters(_));
    let seeks = graph.sought(trains);
    let mut spare = std::mem::take(&mut scratch.spare);
    let mut known = std::mem::take(&mut scratch.deltas);
    // Buffers of the last batch.
    spare.extend(known.iter_mut().filter_map(Option::take));
    known.resize_with(graph.widths.len(), || None);
    for (value, delta) in deltas {
        // A copy: buffers that callers allocate for each batch would pile up among the spare ones.
        let mut own = room(&mut spare, delta.len());
        own.copy_from_slice(&delta);
        known[value] = Some(own);
    }
    let Scratch {
        values,
        masks,
        workspace,
        threads,
        ..
    } = scratch;
    let threads = &*threads;
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        if !trains && matches!(node.operation, Operation::PiecewiseLinear(_)) {
            continue;
        }
        let Some(mut dy) = known[node.to].take() else {
            assert!(
                !trains || !node.operation.has_parameters(),
                "every parameter has a gradient"
            );
            continue;
        };
        let weights = &weights[node.at..];
        let own = graph.parameters_of(at);
        let mut slices = match &mut wanted {
            Wanted::Parameters(all) => Some(all.of(own.clone())),
            Wanted::Entered => None,
        };
        let mut gradients = slices.as_deref_mut();
        let width = graph.widths[node.to];
        let x = |at: usize| values[node.from[at]].as_slice();
        let mut give = |at: usize, dx: Vec<f32>, spare: &mut Vec<Vec<f32>>| {
            let from = node.from[at];
            match &mut known[from] {
                _ if !seeks[from] => spare.push(dx),
                Some(sum) => {
                    threads.rows(sum, 1, 1, |own, sum| add(sum, &dx[own]));
                    spare.push(dx);
                }
                none => *none = Some(dx),
            }
        };
        match &node.operation {
            Operation::Dense {
                bias,
                relu,
                dropout,
            } => {
                if let Some(place) = dropout {
                    mask(threads, &mut dy, masks, *place);
                }
                let y = relu.then_some(values[node.to].as_slice());
                let sums = gradients.as_mut().filter(|_| *bias).map(|all| &mut *all[1]);
                dense::pass(threads, &mut dy, y, sums, width);
                let from = graph.widths[node.from[0]];
                let delta_bxw = Matrix::new(&dy, rows, width);
                let plain = Epilogue::default();
                if let Some(gradients) = &mut gradients {
                    let x_bxf = Matrix::new(x(0), rows, from);
                    let x_fxb = x_bxf.transposed();
                    workspace.multiply(threads, gradients[0], x_fxb, delta_bxw, plain);
                }
                // Its sum can begin before the gradient by the inputs is computed.
                if let Wanted::Parameters(all) = &mut wanted {
                    all.complete(own.clone());
                }
                if seeks[node.from[0]] {
                    let mut dx = room(&mut spare, rows * from);
                    let kernel_fxw = Matrix::new(&weights[0], from, width);
                    let kernel_wxf = kernel_fxw.transposed();
                    workspace.multiply(threads, &mut dx, delta_bxw, kernel_wxf, plain);
                    give(0, dx, &mut spare);
                }
                spare.push(dy);
            }
            Operation::Activation(function) => {
                threads.rows(&mut dy, 1, FUNCTION, |own, dy| {
                    activation::backward(*function, &x(0)[own], dy);
                });
                give(0, dy, &mut spare);
            }
            Operation::Dropout(place) => {
                mask(threads, &mut dy, masks, *place);
                give(0, dy, &mut spare);
            }
            Operation::LayerNorm => {
                layer_norm::backward(threads, weights, x(0), &mut dy, gradients);
                give(0, dy, &mut spare);
            }
            Operation::Affine => {
                if let Some(gradients) = &mut gradients {
                    let [by_gamma, by_beta] = &mut gradients[..2] else {
                        unreachable!("it has two parameters")
                    };
                    sum_rows(threads, rows, by_gamma, |row, columns, sums| {
                        let [dy, x] = [&dy, x(0)].map(|all| &all[row * width..][columns.clone()]);
                        let terms = sums.iter_mut().zip(dy.iter().zip(x));
                        terms.for_each(|(sum, (d, x))| *sum += d * x);
                    });
                    sum_rows(threads, rows, by_beta, |row, columns, sums| {
                        add(sums, &dy[row * width..][columns.clone()]);
                    });
                }
                threads.rows(&mut dy, width, 1, |_, dy| {
                    let rows = dy.chunks_exact_mut(width);
                    rows.for_each(|dy| multiply(dy, &weights[0]));
                });
                give(0, dy, &mut spare);
            }
            Operation::Periodic => {
                let mut dx = room(&mut spare, x(0).len());
                periodic::backward(threads, weights, x(0), &dy, &mut dx, gradients);
                give(0, dx, &mut spare);
                spare.push(dy);
            }
            Operation::PiecewiseLinear(bins) => {
                if let Some(gradients) = gradients {
                    piecewise_linear::backward(threads, bins, x(0), &dy, gradients);
                }
                spare.push(dy);
            }
            Operation::Concat => {
                for (at, (from, columns)) in parts(graph, node).enumerate() {
                    if seeks[from] {
                        let mut dx = room(&mut spare, rows * columns.len());
                        threads.rows(&mut dx, columns.len(), 1, |own, dx| {
                            let dy = of_rows(&dy, own, width).chunks_exact(width);
                            for (dx, dy) in dx.chunks_exact_mut(columns.len()).zip(dy) {
                                dx.copy_from_slice(&dy[columns.clone()]);
                            }
                        });
                        give(at, dx, &mut spare);
                    }
                }
                spare.push(dy);
            }
            Operation::Columns(columns) => {
                let from = graph.widths[node.from[0]];
                let mut dx = room(&mut spare, rows * from);
                threads.rows(&mut dx, from, 1, |own, dx| {
                    dx.fill(0.0);
                    let dy = of_rows(&dy, own, width).chunks_exact(width);
                    for (dx, dy) in dx.chunks_exact_mut(from).zip(dy) {
                        let mut rest = dy;
                        for columns in columns {
                            let (part, others) = rest.split_at(columns.len());
                            dx[columns.clone()].copy_from_slice(part);
                            rest = others;
                        }
                    }
                });
                give(0, dx, &mut spare);
                spare.push(dy);
            }
            Operation::Add => {
                let mut copy = room(&mut spare, dy.len());
                copy.copy_from_slice(&dy);
                give(0, copy, &mut spare);
                give(1, dy, &mut spare);
            }
            Operation::Mean => {
                let share = (node.from.len() as f32).recip();
                for at in 0..node.from.len() {
                    let mut copy = room(&mut spare, dy.len());
                    threads.rows(&mut copy, 1, 1, |own, copy| {
                        let terms = copy.iter_mut().zip(&dy[own]);
                        terms.for_each(|(copy, d)| *copy = share * d);
                    });
                    give(at, copy, &mut spare);
                }
                spare.push(dy);
            }
            Operation::Multiply => {
                let mut other = room(&mut spare, dy.len());
                let terms = other.iter_mut().zip(dy.iter().zip(x(0)));
                terms.for_each(|(other, (d, x))| *other = d * x);
                multiply(&mut dy, x(1));
                give(0, dy, &mut spare);
                give(1, other, &mut spare);
            }
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let at = usize::from(*codes);
                let of = interactions::Of {
                    outputs: width,
                    factors: *factors,
                    rows,
                    codes: codes.then(|| x(0)),
                    numbers: numbers.then(|| (x(at), weights[0].as_slice())),
                };
                let mut of_codes = codes.then(|| room(&mut spare, x(0).len()));
                let mut of_numbers = numbers.then(|| room(&mut spare, x(at).len()));
                let sums = match (&mut gradients, numbers) {
                    (Some(gradients), true) => Some(&mut *gradients[0]),
                    _ => None,
                };
                of.backward(
                    &dy,
                    of_codes.as_deref_mut(),
                    of_numbers.as_deref_mut(),
                    sums,
                );
                if let Some(dx) = of_codes {
                    give(0, dx, &mut spare);
                }
                if let Some(dx) = of_numbers {
                    give(at, dx, &mut spare);
                }
                spare.push(dy);
            }
            Operation::Linear { bias } => {
                if let Some(gradients) = gradients {
                    let places = linear::Places::new(architecture, *bias);
                    linear::write_gradients(architecture, places, input, &dy, gradients);
                }
                spare.push(dy);
            }
            Operation::Custom(custom) => {
                let mut dx = room(&mut spare, x(0).len());
                dx.fill(0.0);
                let own = gradients.map(|all| {
                    let own = &mut all[..custom.parameters];
                    own.iter_mut().for_each(|sums| sums.fill(0.0));
                    own
                });
                let batch = CustomBatch {
                    rows,
                    x: x(0),
                    parameters: &weights[..custom.parameters],
                };
                let y = values[node.to].as_slice();
                custom.operation.backward(batch, y, &dy, &mut dx, own);
                give(0, dx, &mut spare);
                spare.push(dy);
            }
        }
        if let Wanted::Parameters(all) = &mut wanted
            && !matches!(node.operation, Operation::Dense { .. })
        {
            all.complete(own);
        }
    }
    if let Wanted::Parameters(gradients) = &mut wanted {
        for value in [graph.embeddings, graph.factors].into_iter().flatten() {
            let (Some(table), Some(delta)) = (graph.table_of(value), &known[value]) else {
                continue;
            };
            let own = table.at..table.at + 1;
            for gradient in gradients.of(own.clone()) {
                tables::scatter(threads, table, delta, input, gradient);
            }
            gradients.complete(own);
        }
    }
    (scratch.spare, scratch.deltas) = (spare, known);
}

/// Sums over rows, in order: `add` gets a row, some columns, and the sums of these.
pub(super) fn sum_rows(
    threads: &Threads,
    rows: usize,
    sums: &mut [f32],
    add: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) {
    threads.rows(sums, 1, rows, |columns, sums| {
        sums.fill(0.0);
        (0..rows).for_each(|row| add(row, columns.clone(), sums));
    });
}

/// Returns a buffer of a length with unspecified contents: the best fit of the spare ones.
fn room(spare: &mut Vec<Vec<f32>>, len: usize) -> Vec<f32> {
    let buffers = spare.iter().enumerate();
    let fitting = buffers.filter(|(_, buffer)| buffer.capacity() >= len);
    let best = fitting.min_by_key(|(_, buffer)| buffer.capacity());
    let best = best.map(|(at, _)| at);
    let mut buffer = best.map_or_else(Vec::new, |at| spare.swap_remove(at));
    buffer.resize(len, 0.0);
    buffer
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{
        Activation, EmbeddingWidth, EnsembleSize, Layer, Linear, Network, NumericEmbedding, Output,
    };

    use super::super::Host;
    use super::*;
    use crate::network::{Compute, Piece, Sizes};
    use crate::testing::custom_layers;

    #[test]
    fn memory_does_not_grow_by_batches() {
        let sizes = Sizes {
            codes: vec![5; 2],
            continuous: 3,
            bins: vec![vec![-1.0, 0.0, 2.0]; 3],
            outputs: 1,
            rows: 0,
        };
        let network = Network {
            embedding_dim: EmbeddingWidth::Same(4),
            batch_norm: true,
            numeric_embedding: NumericEmbedding::None,
            layers: Layer::stack(&[8, 32, 16], Activation::Relu, &[]),
            output: Output::Identity,
            linear: Linear::Beside,
            factors: 2,
            ensemble_size: EnsembleSize::Of(2),
        };
        let of = Architecture::of(&network, &["a", "b"], &sizes, 1.0, &custom_layers()).unwrap();
        let mut host = Host::new(
            &of,
            of.initial_values(1),
            &super::super::HostDevice::default(),
        )
        .unwrap();
        let mut gradient = vec![0.0; host.values().unwrap().iter().map(Vec::len).sum()];
        let mut held = Vec::new();
        for batch in 0..60 {
            // The last batch of an epoch is small.
            let rows = if batch % 10 == 9 { 7 } else { 64 };
            let input = Input {
                rows,
                codes: [1, 6].repeat(rows),
                continuous: vec![0.5; 3 * rows],
                dropout: vec![],
            };
            let slopes = |y: &[f32]| vec![1.0; y.len()];
            host.gradient(input, slopes, Piece::WHOLE, &mut gradient)
                .unwrap();
            let Scratch { deltas, spare, .. } = &host.scratch;
            let buffers = spare.iter().chain(deltas.iter().flatten());
            held.push(buffers.map(Vec::capacity).sum::<usize>());
        }
        assert!(held[19] > 0);
        assert_eq!(held[19], held[59]);
    }
}
