//! Attributions of an output to a row's inputs, by integrated gradients.
//!
//! Sundararajan, Taly & Yan 2017 (arXiv:1703.01365), equation 1: an input's attribution is its distance from the
//! baseline times the average gradient of the output by it, over the straight path from the baseline to the row.
//! Attributions add up to the output minus the baseline's, up to the error of the average, which is taken at the
//! midpoints of [`STEPS`] equal intervals.
//!
//! The path moves the network's inputs: the embedding and the factors of a categorical feature, whose entries are added
//! up, and numbers. Piecewise linear embeddings move too, since a bin may be too narrow for the steps between numbers
//! to fall into it. The linear part is exact. The choice of the baseline and the meaning of outputs are elsewhere.

use super::graph::Graph;
use super::host::{
    Scratch, Wanted, backward, forward, linear_attributions, linear_outputs, predict, sigmoid_scale,
};
use super::{Architecture, Input};

/// Number of intervals of the path.
pub(super) const STEPS: usize = 50;

/// Attributions of a batch of B rows, with C categorical features and N numbers each.
#[derive(Debug, Default)]
pub(crate) struct Attributions {
    /// `[B × (C + N)]`: categorical features, then numbers.
    pub(crate) inputs: Vec<f64>,
    /// Chosen output of each row, `[B]`.
    pub(crate) outputs: Vec<f64>,
    /// The same output of the baseline, `[B]`.
    pub(crate) baselines: Vec<f64>,
}

/// Attributes each row's `chosen` output, in its difference from that of a one-row baseline.
pub(crate) fn attribute(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    baseline: &Input,
    chosen: &[usize],
    scratch: &mut Scratch,
) -> Attributions {
    let graph = &architecture.graph;
    let outputs = architecture.outputs;
    let of_chosen = |all: &[f32]| -> Vec<f64> {
        let rows = chosen.iter().zip(all.chunks_exact(outputs).cycle());
        rows.map(|(at, outputs)| f64::from(outputs[*at])).collect()
    };
    let at_start = of_chosen(&predict(architecture, weights, baseline, scratch));
    let starts: Vec<_> = entries(graph)
        .map(|value| scratch.values[value].clone())
        .collect();
    let at_end = of_chosen(&predict(architecture, weights, input, scratch));
    let linear = Path {
        start: linear_outputs(architecture, weights, baseline),
        ends: linear_outputs(architecture, weights, input),
    };
    let paths: Vec<_> = entries(graph)
        .zip(starts)
        .map(|(value, start)| {
            let ends = scratch.values[value].clone();
            (value, Path { start, ends })
        })
        .collect();
    // Averages over the path: the slope of each row's activation, and the gradients by the inputs.
    let mut slopes = vec![0.0; input.rows];
    let mut gradients: Vec<_> = paths
        .iter()
        .map(|(_, path)| vec![0.0; path.ends.len()])
        .collect();
    for step in 0..STEPS {
        let share = (step as f64 + 0.5) / STEPS as f64;
        for (value, path) in &paths {
            path.at(share, &mut scratch.values[*value]);
        }
        if let Some((node, _)) = graph.linear_node() {
            linear.at(share, &mut scratch.values[node.to]);
        }
        // Only the row count of `input` is used: codes and numbers are at their point of the path.
        forward(architecture, weights, input, scratch, false);
        let y_b = of_chosen(&scratch.values[graph.output]);
        let mut deltas = vec![0.0; input.rows * outputs];
        for (row, delta) in deltas.chunks_exact_mut(outputs).enumerate() {
            let slope = match sigmoid_scale(architecture) {
                None => 1.0,
                Some(scale) => {
                    let y = 1.0 / (1.0 + (-y_b[row]).exp());
                    f64::from(scale) * y * (1.0 - y)
                }
            };
            slopes[row] += slope / STEPS as f64;
            delta[chosen[row]] = slope as f32;
        }
        backward(
            architecture,
            weights,
            input,
            scratch,
            [(graph.output, deltas)],
            Wanted::Entered,
        );
        for ((value, _), sums) in paths.iter().zip(&mut gradients) {
            let gradient = scratch.deltas[*value].as_deref().unwrap_or_default();
            let sums = sums.iter_mut().zip(gradient);
            sums.for_each(|(sum, gradient)| *sum += f64::from(*gradient) / STEPS as f64);
        }
    }

    let mut inputs = linear_attributions(architecture, weights, [input, baseline], chosen);
    let width = architecture.categorical + architecture.continuous;
    let rows = inputs.chunks_exact_mut(width.max(1)).zip(&slopes);
    rows.for_each(|(row, slope)| row.iter_mut().for_each(|x| *x *= slope));
    for ((value, path), gradients) in paths.iter().zip(&gradients) {
        // First input of the value, and the width of each input in it.
        let (first, widths) = match graph.table_of(*value) {
            Some(table) => (0, table.widths.iter().map(|(_, width)| *width).collect()),
            None => {
                let of_number = graph.widths[*value] / architecture.continuous.max(1);
                let widths = vec![of_number; architecture.continuous];
                (architecture.categorical, widths)
            }
        };
        path.attribute(gradients, first, &widths, &mut inputs, width);
    }
    Attributions {
        inputs,
        outputs: at_end,
        baselines: at_start,
    }
}

/// Iterates over the inputs, except for the linear part's, and the values that move like inputs.
pub(super) fn entries(graph: &Graph) -> impl Iterator<Item = usize> {
    let entries = [graph.embeddings, graph.factors, graph.numbers];
    entries.into_iter().flatten().chain(graph.piecewise())
}

/// Path from the baseline to rows.
struct Path {
    /// `[1 × W]`.
    start: Vec<f32>,
    /// `[B × W]`.
    ends: Vec<f32>,
}

impl Path {
    /// Writes the values at this share of the path.
    fn at(&self, share: f64, to: &mut Vec<f32>) {
        to.clear();
        let ends = self.ends.iter().zip(self.start.iter().cycle());
        to.extend(ends.map(|(end, start)| start + share as f32 * (end - start)));
    }

    /// Adds the attributions to the inputs from `first` on: the terms of the first width to the first one, and so on.
    /// Rows of `inputs` are `all` wide.
    fn attribute(
        &self,
        gradients: &[f64],
        first: usize,
        widths: &[usize],
        inputs: &mut [f64],
        all: usize,
    ) {
        let width = self.start.len().max(1);
        let ends = self.ends.chunks_exact(width);
        let rows = ends.zip(gradients.chunks_exact(width));
        for ((ends, gradients), inputs) in rows.zip(inputs.chunks_exact_mut(all.max(1))) {
            let terms = ends.iter().zip(&self.start).zip(gradients);
            let mut terms = terms.map(|((end, start), gradient)| f64::from(end - start) * gradient);
            for (input, width) in inputs[first..].iter_mut().zip(widths) {
                *input += terms.by_ref().take(*width).sum::<f64>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{
        Activation, EmbeddingWidth, EnsembleSize, Layer, Linear, Network, NumericEmbedding, Output,
    };

    use super::*;
    use crate::network::Sizes;
    use crate::testing::{custom_layers, squash};

    const ROWS: usize = 3;

    fn network(linear: Linear, output: Output, outputs: usize) -> Architecture {
        let network = Network {
            embedding_dim: EmbeddingWidth::Columns(vec![("a".into(), 2), ("b".into(), 3)]),
            batch_norm: true,
            numeric_embedding: match linear {
                Linear::Beside => NumericEmbedding::Periodic,
                Linear::None | Linear::Alone => NumericEmbedding::None,
            },
            layers: [
                Layer::stack(&[16, 8], Activation::Mish, &[0.5]),
                vec![squash(6, 1.5)],
            ]
            .concat(),
            output,
            linear,
            factors: if linear == Linear::Alone { 0 } else { 2 },
            ensemble_size: match linear {
                Linear::Beside => EnsembleSize::Of(3),
                Linear::None | Linear::Alone => EnsembleSize::ONE,
            },
        };
        of_sizes(&network, outputs)
    }

    fn of_sizes(network: &Network, outputs: usize) -> Architecture {
        let sizes = Sizes {
            codes: vec![4, 3],
            continuous: 3,
            bins: vec![
                vec![-2.0, 0.0, 0.001, 1.0, 3.0],
                vec![-1.5, 0.5],
                vec![-0.1, 0.25, 0.5],
            ],
            outputs,
            rows: 0,
        };
        Architecture::of(network, &["a", "b"], &sizes, 2.5, &custom_layers()).unwrap()
    }

    /// Builds a network with piecewise linear embeddings.
    fn binned(layers: Vec<Layer>, output: Output, factors: usize) -> Architecture {
        let network = Network {
            embedding_dim: EmbeddingWidth::Same(2),
            batch_norm: false,
            numeric_embedding: NumericEmbedding::PiecewiseLinear,
            layers,
            output,
            linear: Linear::Beside,
            factors,
            ensemble_size: EnsembleSize::Of(2),
        };
        of_sizes(&network, 1)
    }

    /// Returns weights without zeros.
    fn weights(architecture: &Architecture) -> Vec<Vec<f32>> {
        let mut values = architecture.initial_values(5);
        for (at, value) in values.iter_mut().flatten().enumerate() {
            *value += 0.2 * ((at * 7 % 11) as f32 / 5.0 - 1.0);
        }
        values
    }

    fn input(codes: &[u32], continuous: &[f32]) -> Input {
        Input {
            rows: codes.len() / 2,
            codes: codes.to_vec(),
            continuous: continuous.to_vec(),
            dropout: vec![],
        }
    }

    fn all() -> impl Iterator<Item = Architecture> {
        let linear = [Linear::None, Linear::Beside, Linear::Alone];
        let outputs = [
            (Output::Identity, 1),
            (Output::Identity, 3),
            (Output::ScaledSigmoid, 1),
            (Output::Sigmoid, 1),
        ];
        let of = move |linear| outputs.map(|(output, count)| network(linear, output, count));
        linear.into_iter().flat_map(of)
    }

    #[test]
    fn they_add_up_to_the_difference_from_the_baseline() {
        let layers = Layer::stack(&[16, 8], Activation::Mish, &[0.5]);
        let binned = binned(layers, Output::ScaledSigmoid, 2);
        for network in all().chain([binned]) {
            let values = weights(&network);
            let rows = input(
                &[1, 5, 2, 6, 0, 4],
                &[0.5, -1.0, 2.0, -0.25, 0.0, 1.0, 0.0, 0.0, 0.0],
            );
            let baseline = input(&[0, 4], &[0.1, 0.0, -0.2]);
            let chosen = [0, network.outputs - 1, network.outputs / 2];
            let mut scratch = Scratch::default();
            let found = attribute(&network, &values, &rows, &baseline, &chosen, &mut scratch);
            let outputs = predict(&network, &values, &rows, &mut scratch);
            for row in 0..ROWS {
                assert_eq!(
                    found.outputs[row],
                    f64::from(outputs[row * network.outputs + chosen[row]])
                );
                let inputs = &found.inputs[row * 5..][..5];
                let due = found.outputs[row] - found.baselines[row];
                let sum: f64 = inputs.iter().sum();
                assert!(
                    (sum - due).abs() < 0.02 * (1.0 + due.abs()),
                    "{network:?}: {sum} {due}"
                );
                assert!(inputs.iter().any(|x| x.abs() > 1e-3), "{inputs:?}");
            }
            // The last row has the baseline's categories.
            assert_eq!(found.inputs[10..12], [0.0, 0.0]);
        }
    }

    /// For a sum of functions of numbers, each number has its own difference, however narrow its bins are.
    #[test]
    fn numbers_that_are_binned_have_what_they_add() {
        let network = binned(vec![], Output::Identity, 0);
        let values = weights(&network);
        let (start, end) = ([0.1, 0.0, -0.2], [-0.5, -1.0, 2.0]);
        let mut scratch = Scratch::default();
        let mut at =
            |x: &[f32]| f64::from(predict(&network, &values, &input(&[1, 5], x), &mut scratch)[0]);
        let from = at(&start);
        let due = [0, 1, 2].map(|number| {
            let mut moved = start;
            moved[number] = end[number];
            at(&moved) - from
        });
        let (rows, baseline) = (input(&[1, 5], &end), input(&[1, 5], &start));
        let found = attribute(&network, &values, &rows, &baseline, &[0], &mut scratch);
        assert_eq!(found.inputs[..2], [0.0, 0.0]);
        for (is, due) in found.inputs[2..].iter().zip(due) {
            assert!((is - due).abs() < 1e-4 && due.abs() > 1e-3, "{is} {due}");
        }
    }

    /// The reference is finite differences instead of gradients, where only numbers move.
    #[test]
    fn they_are_the_integral_of_the_gradient() {
        for network in all() {
            let values = weights(&network);
            let codes = [1, 5];
            let (start, end) = ([0.1, 0.0, -0.2], [0.5, -1.0, 2.0]);
            let baseline = input(&codes, &start);
            let output = network.outputs - 1;
            let mut scratch = Scratch::default();
            let rows = input(&codes, &end);
            let found = attribute(&network, &values, &rows, &baseline, &[output], &mut scratch);
            assert_eq!(found.inputs[..2], [0.0, 0.0]);
            for number in 0..3 {
                const STEPS: usize = 400;
                const H: f32 = 1e-2;
                let mut sum = 0.0;
                for step in 0..STEPS {
                    let share = (step as f32 + 0.5) / STEPS as f32;
                    let mut at = |shift: f32| {
                        let mut x: Vec<f32> = start
                            .iter()
                            .zip(&end)
                            .map(|(s, e)| s + share * (e - s))
                            .collect();
                        x[number] += shift;
                        f64::from(
                            predict(&network, &values, &input(&codes, &x), &mut scratch)[output],
                        )
                    };
                    sum += (at(H) - at(-H)) / f64::from(2.0 * H) / STEPS as f64;
                }
                let due = sum * f64::from(end[number] - start[number]);
                let is = found.inputs[2 + number];
                assert!(
                    (is - due).abs() < 0.03 * (1.0 + due.abs()),
                    "{network:?} {number}: {is} {due}"
                );
            }
        }
    }
}
