//! The network in host memory: forward and backward written out, on the calling thread.
//!
//! Compared with tensors and a tape, nothing is allocated in a step, nothing is filled with zeros
//! that is overwritten, bias and ReLU are applied where the product lies in the cache, and every
//! gradient is computed where it is sent from. What is left is [products of matrices](super::matmul).
//!
//! Each [operation](Operation) has its arithmetic in a file of its own. Shapes: B rows, C categorical features and N
//! numbers, K outputs; a value of width W is `[B × W]`.

mod activation;
mod backward;
mod dense;
mod interactions;
mod layer_norm;
mod linear;
mod periodic;
mod piecewise_linear;
mod tables;
mod update;

use std::ops::Range;

use volley_proto::spec::Output;

pub(super) use self::backward::{Wanted, backward};
use super::graph::{Graph, Node, Operation, Value};
use super::matmul::{Epilogue, Matrix, Workspace};
use super::{Architecture, Compute, CustomBatch, Input, Piece, Update, first_non_finite};
use crate::Result;

/// The network with its weights.
#[derive(Debug)]
pub(crate) struct Host {
    architecture: Architecture,
    /// In the order of [`Architecture::parameters`].
    weights: Vec<Vec<f32>>,
    scratch: Scratch,
    /// The accumulated gradient of a step's micro-batches, while there are more to come.
    sums: Vec<f64>,
}

/// Memory kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The graph's values of a batch.
    pub(super) values: Vec<Vec<f32>>,
    /// The masks of a batch, where there are any.
    masks: Vec<Vec<f32>>,
    /// The gradient of what is sought by each value, as far as it is known.
    pub(super) deltas: Vec<Option<Vec<f32>>>,
    /// Memory for gradients.
    spare: Vec<Vec<f32>>,
    workspace: Workspace,
}

/// The network's outputs, `[B × K]`, by weights that others may use meanwhile.
pub(crate) fn predict(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    enter(architecture, weights, input, scratch);
    forward(architecture, weights, input, scratch, true);
    activated(
        architecture,
        scratch.values[architecture.graph.output].clone(),
    )
}

/// The outputs of each of the M members, `[B × M·K]`.
fn predict_by_member(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    enter(architecture, weights, input, scratch);
    forward(architecture, weights, input, scratch, true);
    let members = &architecture.graph.members;
    let mut outputs = vec![0.0; input.rows * members.len() * architecture.outputs];
    for (row, outputs) in outputs.chunks_exact_mut(architecture.outputs).enumerate() {
        let (row, member) = (row / members.len(), row % members.len());
        let of_member = &scratch.values[members[member]];
        outputs.copy_from_slice(&of_member[row * outputs.len()..][..outputs.len()]);
    }
    activated(architecture, outputs)
}

/// Outputs after the output's activation.
fn activated(architecture: &Architecture, mut outputs: Vec<f32>) -> Vec<f32> {
    if let Some(scale) = sigmoid_scale(architecture) {
        let outputs = outputs.iter_mut();
        outputs.for_each(|y| *y = scale / (1.0 + (-*y).exp()));
    }
    outputs
}

/// What the output's sigmoid is scaled by, if it has one.
pub(in crate::network) fn sigmoid_scale(architecture: &Architecture) -> Option<f32> {
    match architecture.output {
        Output::Identity => None,
        Output::Sigmoid => Some(1.0),
        Output::ScaledSigmoid => Some(architecture.output_scale as f32),
    }
}

/// The values that enter: embeddings, factors, numbers; and the masks.
fn enter(architecture: &Architecture, weights: &[Vec<f32>], input: &Input, scratch: &mut Scratch) {
    let graph = &architecture.graph;
    scratch.masks.resize_with(input.dropout.len(), Vec::new);
    for (mask, drawn) in input.dropout.iter().zip(&mut scratch.masks) {
        match mask {
            Some(mask) => mask.draw(drawn),
            None => drawn.clear(),
        }
    }
    scratch.values.resize_with(graph.widths.len(), Vec::new);
    let picked = [
        ("embedding", graph.embeddings),
        ("factors.values", graph.factors),
    ];
    for (name, value) in picked {
        if let Some(value) = value {
            let table = graph.table(name);
            tables::pick(table, &weights[table.at], input, &mut scratch.values[value]);
        }
    }
    if let Some(numbers) = graph.numbers {
        let value = &mut scratch.values[numbers];
        value.clear();
        value.extend_from_slice(&input.continuous);
    }
}

/// The other values; without those that are given where rows are on their way from a baseline: piecewise linear embeddings,
/// which move as those of categories do, and the linear part.
pub(super) fn forward(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
    whole: bool,
) {
    let graph = &architecture.graph;
    let rows = input.rows;
    let Scratch {
        values,
        masks,
        workspace,
        ..
    } = scratch;
    for node in &graph.nodes {
        let width = graph.widths[node.to];
        let weights = &weights[node.at..];
        let moves = matches!(
            node.operation,
            Operation::Linear { .. } | Operation::PiecewiseLinear(_)
        );
        if moves && !whole {
            continue;
        }
        let mut y = std::mem::take(&mut values[node.to]);
        y.resize(rows * width, 0.0);
        let x = |at: usize| values[node.from[at]].as_slice();
        match &node.operation {
            Operation::Dense {
                bias,
                relu,
                dropout,
            } => {
                let from = graph.widths[node.from[0]];
                let epilogue = Epilogue {
                    bias: bias.then(|| weights[1].as_slice()),
                    relu: *relu,
                };
                let x_bxf = Matrix::new(x(0), rows, from);
                let kernel_fxw = Matrix::new(&weights[0], from, width);
                workspace.multiply(&mut y, x_bxf, kernel_fxw, epilogue);
                if let Some(place) = dropout {
                    mask(&mut y, masks, *place);
                }
            }
            Operation::Activation(function) => {
                let terms = y.iter_mut().zip(x(0));
                terms.for_each(|(y, x)| *y = activation::of(*function, *x));
            }
            Operation::Dropout(place) => {
                y.copy_from_slice(x(0));
                mask(&mut y, masks, *place);
            }
            Operation::LayerNorm => layer_norm::forward(weights, x(0), &mut y),
            Operation::Affine => {
                let rows = y.chunks_exact_mut(width).zip(x(0).chunks_exact(width));
                for (y, x) in rows {
                    let scales = weights[0].iter().zip(&weights[1]);
                    for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(scales) {
                        *y = x * gamma + beta;
                    }
                }
            }
            Operation::Periodic => periodic::forward(weights, x(0), &mut y),
            Operation::PiecewiseLinear(bins) => {
                piecewise_linear::forward(bins, weights, x(0), &mut y);
            }
            Operation::Concat => {
                for (from, columns) in parts(graph, node) {
                    let rows = values[from].chunks_exact(columns.len());
                    for (y, x) in y.chunks_exact_mut(width).zip(rows) {
                        y[columns.clone()].copy_from_slice(x);
                    }
                }
            }
            Operation::Columns(columns) => {
                let rows = x(0).chunks_exact(graph.widths[node.from[0]]);
                for (y, x) in y.chunks_exact_mut(width).zip(rows) {
                    let mut rest = y;
                    for columns in columns {
                        let (part, others) = rest.split_at_mut(columns.len());
                        part.copy_from_slice(&x[columns.clone()]);
                        rest = others;
                    }
                }
            }
            Operation::Add => {
                let terms = y.iter_mut().zip(x(0).iter().zip(x(1)));
                terms.for_each(|(y, (a, b))| *y = a + b);
            }
            Operation::Mean => {
                let share = (node.from.len() as f32).recip();
                y.copy_from_slice(x(0));
                (1..node.from.len()).for_each(|at| add(&mut y, x(at)));
                y.iter_mut().for_each(|y| *y *= share);
            }
            Operation::Multiply => {
                let factors = y.iter_mut().zip(x(0).iter().zip(x(1)));
                factors.for_each(|(y, (a, b))| *y = a * b);
            }
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let of = interactions::Of {
                    outputs: width,
                    factors: *factors,
                    rows,
                    codes: codes.then(|| x(0)),
                    numbers: numbers.then(|| (x(usize::from(*codes)), weights[0].as_slice())),
                };
                of.forward(&mut y);
            }
            Operation::Linear { bias } => {
                y.fill(0.0);
                let places = linear::Places::new(architecture, *bias);
                linear::add_outputs(architecture, places, weights, input, &mut y);
            }
            Operation::Custom(custom) => {
                y.fill(0.0);
                let batch = CustomBatch {
                    rows,
                    x: x(0),
                    parameters: &weights[..custom.parameters],
                };
                custom.operation.forward(batch, &mut y);
            }
        }
        values[node.to] = y;
    }
}

/// Of each value that is put side by side with others, which columns it becomes.
fn parts<'a>(graph: &'a Graph, node: &'a Node) -> impl Iterator<Item = (Value, Range<usize>)> + 'a {
    let mut end = 0;
    node.from.iter().map(move |from| {
        let start = end;
        end += graph.widths[*from];
        (*from, start..end)
    })
}

fn add(sums: &mut [f32], terms: &[f32]) {
    sums.iter_mut().zip(terms).for_each(|(s, t)| *s += t);
}

fn multiply(products: &mut [f32], factors: &[f32]) {
    products.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
}

/// Multiplies by the mask of a dropout, if it has one.
fn mask(x: &mut [f32], masks: &[Vec<f32>], dropout: usize) {
    if let Some(mask) = masks.get(dropout).filter(|mask| !mask.is_empty()) {
        multiply(x, mask);
    }
}

impl Compute for Host {
    type Device = ();
    type Numbers = Vec<f32>;

    fn new(architecture: &Architecture, weights: Vec<Vec<f32>>, (): &()) -> Result<Self> {
        Ok(Self {
            architecture: architecture.clone(),
            weights,
            scratch: Scratch::default(),
            sums: Vec::new(),
        })
    }

    fn predict(&mut self, input: Input) -> Result<Vec<f32>> {
        let Self {
            architecture,
            weights,
            scratch,
            ..
        } = self;
        Ok(predict(architecture, weights, &input, scratch))
    }

    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>> {
        let Self {
            architecture,
            weights,
            scratch,
            ..
        } = self;
        Ok(predict_by_member(architecture, weights, &input, scratch))
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        flat: &mut [f32],
    ) -> Result<()> {
        let Self {
            architecture,
            weights,
            scratch,
            sums,
        } = self;
        let outputs = predict_by_member(architecture, weights, &input, scratch);
        let mut slopes = slopes(&outputs);
        if let Some(scale) = sigmoid_scale(architecture) {
            let terms = slopes.iter_mut().zip(&outputs);
            terms.for_each(|(delta, y)| *delta *= y * (1.0 - y / scale));
        }
        let members = &architecture.graph.members;
        let deltas = members.iter().enumerate().map(|(at, member)| {
            let rows = slopes.chunks_exact(architecture.outputs);
            let own = rows.skip(at).step_by(members.len());
            (*member, own.flatten().copied().collect())
        });
        let mut gradients = split(flat, weights);
        let wanted = Wanted::Parameters(&mut gradients);
        backward(architecture, weights, &input, scratch, deltas, wanted);
        if piece == Piece::WHOLE {
            return Ok(());
        }
        if piece.first {
            sums.clear();
            sums.resize(flat.len(), 0.0);
        }
        let terms = sums.iter_mut().zip(&*flat);
        terms.for_each(|(sum, g)| *sum += f64::from(*g));
        if piece.last {
            let sums = std::mem::take(sums);
            let gradient = flat.iter_mut().zip(sums);
            gradient.for_each(|(g, sum)| *g = sum as f32);
        }
        Ok(())
    }

    fn zero_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        flat.fill(0.0);
        Ok(())
    }

    fn read_gradient(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn write_gradient(&mut self, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn non_finite_gradient(&mut self, flat: &[f32]) -> Result<Option<f64>> {
        Ok(first_non_finite(flat))
    }

    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Vec<f32>],
        flat: &mut [f32],
    ) -> Result<()> {
        update::clip(update, flat);
        let mut start = 0;
        let parameters = self.architecture.parameters().iter();
        for (parameter, weights) in parameters.zip(&mut self.weights) {
            let span = start..start + weights.len();
            start = span.end;
            let own = slots.iter_mut().map(|slot| &mut slot[span.clone()]);
            update::apply(
                update,
                parameter.penalized,
                weights,
                &flat[span.clone()],
                own,
            );
        }
        Ok(())
    }

    fn upload(&self, numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn download(numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        Ok(self.weights.clone())
    }

    fn put(&mut self, values: &[Vec<f32>]) -> Result<()> {
        self.weights.clone_from_slice(values);
        Ok(())
    }
}

/// The flat gradient by parameter.
fn split<'a>(flat: &'a mut [f32], weights: &[Vec<f32>]) -> Vec<&'a mut [f32]> {
    let mut rest = flat;
    let mut parts = Vec::with_capacity(weights.len());
    for weights in weights {
        let (part, tail) = rest.split_at_mut(weights.len());
        parts.push(part);
        rest = tail;
    }
    parts
}

/// What the linear part adds to outputs, `[B × K]`; nothing if there is none.
pub(super) fn linear_outputs(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
) -> Vec<f32> {
    let mut y_bxk = vec![0.0; input.rows * architecture.outputs];
    if let Some((node, bias)) = architecture.graph.linear_node() {
        let places = linear::Places::new(architecture, bias);
        linear::add_outputs(architecture, places, &weights[node.at..], input, &mut y_bxk);
    }
    y_bxk
}

/// What the linear part attributes to each input: see [`linear::attributions`].
pub(super) fn linear_attributions(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    ends: [&Input; 2],
    chosen: &[usize],
) -> Vec<f64> {
    match architecture.graph.linear_node() {
        Some((node, bias)) => {
            let places = linear::Places::new(architecture, bias);
            linear::attributions(architecture, places, &weights[node.at..], ends, chosen)
        }
        None => {
            let inputs = architecture.categorical + architecture.continuous;
            vec![0.0; chosen.len() * inputs]
        }
    }
}
