//! How much each input of a row has to do with an output: integrated gradients.
//!
//! Sundararajan, Taly & Yan 2017 (arXiv:1703.01365), equation 1: an input's attribution is its distance from the
//! baseline times the output's gradient by it, on average over the straight way from the baseline to the row. Attributions
//! add up to the output less the baseline's, as nearly as the average was taken. The average is that of the middles of
//! equal [`STEPS`].
//!
//! What moves is what enters the first layer: of a categorical feature its embedding, whose entries are added up. The
//! linear part is exact. Not here: which row is the baseline, and what outputs mean.

use super::host::{Places, Scratch, enter, entered_gradient, layers, predict, sigmoid_scale};
use super::{Architecture, Input, linear};

/// Where on the way gradients are taken.
const STEPS: usize = 50;

/// Attributions of a batch of B rows, with C categorical features and N numbers each.
#[derive(Debug)]
pub(crate) struct Attributions {
    /// `[B × (C + N)]`: of the categorical features, then of the numbers.
    pub(crate) inputs: Vec<f64>,
    /// The output of each row, `[B]`.
    pub(crate) outputs: Vec<f64>,
    /// That output of the baseline.
    pub(crate) baselines: Vec<f64>,
}

/// Attributions of the output that is `chosen` of each row, to its difference from a baseline of one row.
pub(crate) fn attribute(
    architecture: &Architecture,
    values: &[Vec<f32>],
    input: &Input,
    baseline: &Input,
    chosen: &[usize],
    scratch: &mut Scratch,
) -> Attributions {
    let (places, outputs) = (Places::of(architecture), architecture.outputs);
    let of_chosen = |all: &[f32]| -> Vec<f64> {
        let rows = chosen.iter().zip(all.chunks_exact(outputs).cycle());
        rows.map(|(at, outputs)| f64::from(outputs[*at])).collect()
    };
    let at_end = of_chosen(&predict(architecture, values, input, scratch));
    let at_start = of_chosen(&predict(architecture, values, baseline, scratch));
    let linear_of = |input: &Input| {
        let mut y = vec![0.0; input.rows * outputs];
        linear::add_outputs(architecture, places.linear, values, input, &mut y);
        of_chosen(&y)
    };
    let (linear_end, linear_start) = (linear_of(input), linear_of(baseline));

    let mut way = Way::of(architecture, places, values, input, baseline);
    // Averages over the way: the activation's slope of each row, and the gradient by what enters.
    let mut slopes = vec![0.0; input.rows];
    let mut gradients = vec![0.0; way.ends.len()];
    let mut deltas = [Vec::new(), Vec::new()];
    for step in 0..STEPS {
        let share = (step as f64 + 0.5) / STEPS as f64;
        let mut y_bxk = vec![0.0; input.rows * outputs];
        if architecture.is_deep() {
            way.at(share, scratch);
            let unmasked = Input {
                rows: input.rows,
                codes: vec![],
                continuous: vec![],
                dropout: vec![],
            };
            layers(architecture, places, values, &unmasked, scratch, &mut y_bxk);
        }
        let layered = of_chosen(&y_bxk);
        let [delta, _] = &mut deltas;
        delta.clear();
        delta.resize(input.rows * outputs, 0.0);
        for (row, delta) in delta.chunks_exact_mut(outputs).enumerate() {
            let linear = linear_start[row] + share * (linear_end[row] - linear_start[row]);
            let slope = match sigmoid_scale(architecture) {
                None => 1.0,
                Some(scale) => {
                    let y = 1.0 / (1.0 + (-(layered[row] + linear)).exp());
                    f64::from(scale) * y * (1.0 - y)
                }
            };
            slopes[row] += slope / STEPS as f64;
            delta[chosen[row]] = slope as f32;
        }
        if architecture.is_deep() {
            entered_gradient(architecture, places, values, scratch, &mut deltas);
            let sums = gradients.iter_mut().zip(&deltas[0]);
            sums.for_each(|(sum, gradient)| *sum += f64::from(*gradient) / STEPS as f64);
        }
    }

    let mut inputs = linear::attributions(
        architecture,
        places.linear,
        values,
        [input, baseline],
        chosen,
    );
    let width = architecture.categorical + architecture.continuous;
    let rows = inputs.chunks_exact_mut(width.max(1)).zip(&slopes);
    rows.for_each(|(row, slope)| row.iter_mut().for_each(|x| *x *= slope));
    way.attribute(architecture, &gradients, &mut inputs);
    Attributions {
        inputs,
        outputs: at_end,
        baselines: at_start,
    }
}

/// From the baseline to rows, as they enter the first layer.
struct Way {
    /// `[1 × W]`.
    start: Vec<f32>,
    /// `[B × W]`.
    ends: Vec<f32>,
}

impl Way {
    fn of(
        architecture: &Architecture,
        places: Places,
        values: &[Vec<f32>],
        input: &Input,
        baseline: &Input,
    ) -> Self {
        let (mut start, mut ends) = (Vec::new(), Vec::new());
        if architecture.is_deep() {
            enter(architecture, places, values, baseline, &mut start);
            enter(architecture, places, values, input, &mut ends);
        }
        Self { start, ends }
    }

    /// Has a share of the way enter the first layer.
    fn at(&mut self, share: f64, scratch: &mut Scratch) {
        let entered = &mut scratch.activations[0];
        entered.clear();
        let ends = self.ends.iter().zip(self.start.iter().cycle());
        entered.extend(ends.map(|(end, start)| start + share as f32 * (end - start)));
    }

    /// Adds what the layers attribute to each input.
    fn attribute(&self, architecture: &Architecture, gradients: &[f64], inputs: &mut [f64]) {
        let Architecture {
            categorical,
            continuous,
            embedding_dim: dim,
            ..
        } = *architecture;
        let width = architecture.width().max(1);
        let rows = self
            .ends
            .chunks_exact(width)
            .zip(gradients.chunks_exact(width));
        let inputs = inputs.chunks_exact_mut((categorical + continuous).max(1));
        for ((ends, gradients), inputs) in rows.zip(inputs) {
            let terms = ends.iter().zip(&self.start).zip(gradients);
            let terms = terms.map(|((end, start), gradient)| f64::from(end - start) * gradient);
            let terms: Vec<f64> = terms.collect();
            let (embeddings, numbers) = terms.split_at(categorical * dim);
            let (of_codes, of_numbers) = inputs.split_at_mut(categorical);
            let embeddings = embeddings.chunks_exact(dim.max(1));
            let embeddings = embeddings.map(|terms| terms.iter().sum::<f64>());
            of_codes
                .iter_mut()
                .zip(embeddings)
                .for_each(|(x, sum)| *x += sum);
            of_numbers
                .iter_mut()
                .zip(numbers)
                .for_each(|(x, term)| *x += term);
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{Linear, Output};

    use super::*;

    const ROWS: usize = 3;

    fn network(linear: Linear, output: Output, outputs: usize) -> Architecture {
        Architecture {
            table_rows: 7,
            embedding_dim: 2,
            categorical: 2,
            continuous: 3,
            batch_norm: linear != Linear::Alone,
            hidden: match linear {
                Linear::Alone => vec![],
                Linear::None | Linear::Beside => vec![16, 8],
            },
            outputs,
            output,
            output_scale: 2.5,
            linear,
        }
    }

    /// Weights that are nowhere zero.
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
        for network in all() {
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
            // The last row's categories are the baseline's.
            assert_eq!(found.inputs[10..12], [0.0, 0.0]);
        }
    }

    /// By differences of outputs instead of gradients, where only numbers move.
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
