//! The forward pass of a batch through the graph, in Burn tensors.
//!
//! The tape computes gradients, and the positions of weights are not known here.
//!
//! Shapes: B rows, C categorical features and N numbers, K outputs; a value of width W is `[B × W]`.

use std::f32::consts::TAU;

use burn::tensor::activation::{relu, sigmoid, softplus, tanh};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use volley_proto::spec::{Activation, FREQUENCIES, Output, PERIODIC_WIDTH, PIECEWISE_WIDTH};

use super::constants::{Constants, Picks, floats, ints};
use crate::network::graph::{Graph, Node, Operation, Value};
use crate::network::{Architecture, Input};

/// Added to the variance in layer norm, so that a row of equal numbers does not divide by zero.
const EPSILON: f64 = 1e-5;
/// Maximum number of privatized copies of a table that its gradient is summed in.
const PARTS: usize = 1024;
/// Maximum length of all these copies, in numbers.
const PART_SUMS: usize = 1 << 25;
/// Minimum rows of a group that the gradient of a broadcast is summed in.
const LEAST_OF_GROUP: usize = 64;

/// Computes M values of a batch after the output's activation, side by side: `[B · M·K]`.
///
/// `parameters` are flat, in the order of [`Architecture::parameters`].
pub(super) fn forward<B: Backend>(
    architecture: &Architecture,
    constants: &Constants<B>,
    parameters: &[Tensor<B, 1>],
    input: Input,
    outputs: &[Value],
    device: &B::Device,
) -> Tensor<B, 1> {
    let graph = &architecture.graph;
    let rows = input.rows;
    // Not all backends support empty tensors.
    let codes = (architecture.categorical > 0).then(|| {
        let codes = input.codes.iter().map(|code| *code as i32).collect();
        ints(codes, [rows, architecture.categorical], device)
    });
    let masks = input.dropout.into_iter().enumerate();
    let masks = masks.map(|(at, mask)| Some(constants.masks[at].draw(&mask?, device)));
    let of = Of {
        architecture,
        graph,
        constants,
        parameters,
        rows,
        codes,
        masks: masks.collect(),
    };
    let mut values: Vec<Option<Tensor<B, 2>>> = vec![None; graph.widths.len()];
    for picks in &constants.picks {
        values[picks.value] = Some(of.pick(picks));
    }
    if let Some(numbers) = graph.numbers {
        let shape = [rows, architecture.continuous];
        values[numbers] = Some(floats(input.continuous, shape, device));
    }
    for node in &graph.nodes {
        let from = node.from.iter().map(|from| {
            let value = values[*from].clone();
            value.expect("values are put out before they are read")
        });
        let from = from.collect();
        values[node.to] = Some(of.compute(node, from));
    }
    let outputs = outputs.iter().map(|output| {
        let value = values[*output].clone();
        value.expect("a network has outputs")
    });
    let count = rows * outputs.len() * architecture.outputs;
    let y = Tensor::cat(outputs.collect(), 1).reshape([count]);
    match architecture.output {
        Output::Identity => y,
        Output::Sigmoid => sigmoid(y),
        Output::ScaledSigmoid => sigmoid(y).mul_scalar(architecture.output_scale),
    }
}

/// State of a forward pass.
struct Of<'a, B: Backend> {
    architecture: &'a Architecture,
    graph: &'a Graph,
    constants: &'a Constants<B>,
    parameters: &'a [Tensor<B, 1>],
    rows: usize,
    /// `[B × C]`, if there are categorical features.
    codes: Option<Tensor<B, 2, Int>>,
    /// Mask of each dropout, `[B × W]`, if it is applied.
    masks: Vec<Option<Tensor<B, 2>>>,
}

impl<B: Backend> Of<'_, B> {
    fn masked(&self, x: Tensor<B, 2>, dropout: usize) -> Tensor<B, 2> {
        match self.masks.get(dropout) {
            Some(Some(mask)) => x * mask.clone(),
            _ => x,
        }
    }

    fn codes(&self) -> Tensor<B, 2, Int> {
        self.codes.clone().expect("tables are of categories")
    }

    /// Computes the value of a node from its inputs `x`.
    fn compute(&self, node: &Node, mut x: Vec<Tensor<B, 2>>) -> Tensor<B, 2> {
        let rows = self.rows;
        let width = self.graph.widths[node.to];
        let parameter = |at: usize| self.parameters[node.at + at].clone();
        let mut next = || x.remove(0);
        match &node.operation {
            Operation::Dense {
                bias,
                relu: activates,
                dropout,
            } => {
                let from = self.graph.widths[node.from[0]];
                let bias = bias.then(|| parameter(1));
                let mut y = next().matmul(parameter(0).reshape([from, width]));
                if let Some(bias) = bias {
                    y = y + broadcast(bias, [rows, width]);
                }
                if *activates {
                    y = relu(y);
                }
                match dropout {
                    Some(place) => self.masked(y, *place),
                    None => y,
                }
            }
            Operation::Activation(function) => activated(*function, next()),
            Operation::Dropout(place) => self.masked(next(), *place),
            Operation::LayerNorm => {
                let x = next();
                let centered = x.clone() - x.mean_dim(1);
                let variance = centered.clone().powi_scalar(2).mean_dim(1);
                let scaled = centered / variance.add_scalar(EPSILON).sqrt();
                let [scale, shift] = [0, 1].map(|at| broadcast(parameter(at), [rows, width]));
                scaled * scale + shift
            }
            Operation::Affine => {
                let [scale, shift] = [0, 1].map(|at| broadcast(parameter(at), [rows, width]));
                next() * scale + shift
            }
            Operation::Periodic => {
                let (k, d) = (FREQUENCIES, PERIODIC_WIDTH - 1);
                let numbers = width / PERIODIC_WIDTH;
                let x_bn1 = next().reshape([rows, numbers, 1]);
                let waves = |at: usize| broadcast(parameter(at), [rows, numbers, k]);
                let angles = x_bn1.clone() * waves(0).mul_scalar(TAU) + waves(1);
                // Each number has its own product.
                let cosines_nbk = angles.cos().swap_dims(0, 1);
                let products = cosines_nbk.matmul(parameter(2).reshape([numbers, k, d]));
                let bias = broadcast(parameter(3), [rows, numbers, d]);
                let trained = products.swap_dims(0, 1) + bias;
                Tensor::cat(vec![x_bn1, trained], 2).reshape([rows, width])
            }
            Operation::PiecewiseLinear(bins) => {
                let (numbers, most, d) = (bins.0.len(), bins.most(), PIECEWISE_WIDTH);
                let x_bn1 = next().reshape([rows, numbers, 1]);
                let edges = self.constants.bins.get(&node.to);
                let edges = edges.expect("bins have edges");
                let above = x_bn1.clone() - edges.low.clone();
                let shares_bnt = (above / edges.wide.clone()).clamp(0.0, 1.0);
                let kernel = parameter(2).reshape([numbers, most, d]);
                let binned = shares_bnt.swap_dims(0, 1).matmul(kernel).swap_dims(0, 1);
                let terms = |at: usize| broadcast(parameter(at), [rows, numbers, d]);
                let straight = x_bn1 * terms(0) + terms(1);
                (straight + binned).reshape([rows, width])
            }
            Operation::Concat => Tensor::cat(x, 1),
            Operation::Columns(columns) => {
                let x = next();
                let parts = columns
                    .iter()
                    .map(|columns| x.clone().slice([0..rows, columns.clone()]));
                Tensor::cat(parts.collect(), 1)
            }
            Operation::Add => next() + next(),
            Operation::Mean => {
                let members = x.len() as f64;
                let sum = x.into_iter().reduce(|sum, member| sum + member);
                sum.expect("a mean is of something").div_scalar(members)
            }
            Operation::Multiply => next() * next(),
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let of_row = width * factors;
                let mut terms = Vec::with_capacity(2);
                if *codes {
                    let count = self.architecture.categorical;
                    terms.push(next().reshape([rows, count, of_row]));
                }
                if *numbers {
                    let count = self.architecture.continuous;
                    let x_bn1 = next().reshape([rows, count, 1]);
                    terms.push(x_bn1 * broadcast(parameter(0), [rows, count, of_row]));
                }
                let terms = Tensor::cat(terms, 1);
                let sums = terms.clone().sum_dim(1).powi_scalar(2);
                let squares = terms.powi_scalar(2).sum_dim(1);
                let pairs = (sums - squares).reshape([rows, width, *factors]);
                pairs.sum_dim(2).reshape([rows, width]).mul_scalar(0.5)
            }
            Operation::Linear { bias } => {
                let mut at = 0;
                let mut parameter = || {
                    at += 1;
                    parameter(at - 1)
                };
                let mut parts = Vec::with_capacity(3);
                if self.architecture.categorical > 0 {
                    let count = self.architecture.categorical;
                    let first = self.codes().mul_scalar(width as i32);
                    let first = first.reshape([rows, count, 1]);
                    let places = first + self.constants.outputs.clone();
                    let weights = pick(parameter(), places.reshape([rows, count * width]));
                    let weights = weights.reshape([rows, count, width]);
                    parts.push(weights.sum_dim(1).reshape([rows, width]));
                }
                if self.architecture.continuous > 0 {
                    let count = self.architecture.continuous;
                    parts.push(next().matmul(parameter().reshape([count, width])));
                }
                if *bias {
                    parts.push(broadcast(parameter(), [rows, width]));
                }
                let sum = parts.into_iter().reduce(|sum, part| sum + part);
                sum.expect("a linear part has weights")
            }
            Operation::Custom(custom) => {
                panic!("custom layers compute in host memory: {custom:?}")
            }
        }
    }

    /// Looks up a table's numbers by each row's codes, side by side.
    fn pick(&self, picks: &Picks<B>) -> Tensor<B, 2> {
        let codes = self.codes().select(1, picks.features.clone());
        let places = codes * picks.widths.clone() + picks.offsets.clone();
        pick(self.parameters[picks.table].clone(), places)
    }
}

fn activated<B: Backend>(function: Activation, x: Tensor<B, 2>) -> Tensor<B, 2> {
    // eˣ − 1 where x is below 0, and 0 above.
    let below = |x: &Tensor<B, 2>| x.clone().clamp_max(0.0).exp().sub_scalar(1.0);
    match function {
        Activation::Relu => relu(x),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::LeakyRelu => relu(x.clone()).mul_scalar(0.99) + x.mul_scalar(0.01),
        Activation::Elu => below(&x) + relu(x),
        Activation::Selu => {
            below(&x).mul_scalar(1.758_099_340_847_376_6)
                + relu(x).mul_scalar(1.050_700_987_355_480_5)
        }
        Activation::Gelu => {
            let cube = x.clone().powi_scalar(3).mul_scalar(0.044_715);
            let argument = (x.clone() + cube).mul_scalar(0.797_884_560_802_865_4);
            x.mul_scalar(0.5) * tanh(argument).add_scalar(1.0)
        }
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::Mish => x.clone() * tanh(softplus(x, 1.0)),
        Activation::Tanh => tanh(x),
        Activation::Sigmoid => sigmoid(x),
    }
}

/// Broadcasts numbers, the same for every row, to a shape whose first dimension is the rows.
///
/// Many rows are broadcast in groups, since a device sums a column of the gradient on one thread. A broadcast tensor is
/// not reshaped before it is written out: where its last dimension is 1, Burn 0.21 gives it another stride on devices,
/// and reads the wrong memory.
fn broadcast<B: Backend, const D: usize>(numbers: Tensor<B, 1>, shape: [usize; D]) -> Tensor<B, D> {
    let (rows, count) = (shape[0], numbers.dims()[0]);
    // Groups divide the rows evenly and have at least `LEAST_OF_GROUP` rows each.
    let most = (rows / LEAST_OF_GROUP).max(1).ilog2();
    let groups = 1 << rows.trailing_zeros().min(most);
    if groups < 2 {
        let mut of_row = shape;
        of_row[0] = 1;
        return numbers.reshape(of_row).expand(shape);
    }
    // A reshape to no more dimensions writes the tensor out.
    let of_groups = numbers.reshape([1, 1, count]);
    of_groups
        .expand([groups, rows / groups, count])
        .reshape(shape)
}

/// Looks up numbers of a flat table by their positions, `[B × W]`.
///
/// The gradient is summed in privatized copies of the table, one for each part of the rows, since a device sums the
/// gradient of a table on one thread.
fn pick<B: Backend>(table: Tensor<B, 1>, places: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let (len, [rows, width]) = (table.dims()[0], places.dims());
    let parts = (PART_SUMS / len).clamp(1, PARTS.min(rows));
    let of_part = rows.div_ceil(parts);
    // Parts have equally many rows: the end is padded with the first rows, whose results are dropped.
    let more = of_part * parts - rows;
    let places = match more {
        0 => places,
        _ => Tensor::cat(vec![places.clone(), places.slice([0..more, 0..width])], 0),
    };
    let tables = table.reshape([1, len]).expand([parts, len]);
    let picked = tables.gather(1, places.reshape([parts, of_part * width]));
    let picked = picked.reshape([rows + more, width]);
    match more {
        0 => picked,
        _ => picked.slice([0..rows, 0..width]),
    }
}
