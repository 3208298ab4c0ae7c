//! The network in host memory: forward and backward written out, on the calling thread.
//!
//! Compared with tensors and a tape, nothing is allocated in a step, nothing is filled with zeros
//! that is overwritten, bias and ReLU are applied where the product lies in the cache, and every
//! gradient is computed where it is sent from. What is left is [products of matrices](super::matmul).
//!
//! Each [operation](Operation) has its arithmetic in a file of its own. Shapes: B rows, C categorical features and N
//! numbers, K outputs; a value of width W is `[B × W]`.

mod activation;
mod dense;
mod interactions;
mod layer_norm;
mod linear;
mod periodic;
mod piecewise_linear;
mod tables;

use std::ops::Range;

use volley_proto::spec::Output;

use super::graph::{Graph, Node, Operation, Value};
use super::matmul::{Epilogue, Matrix, Workspace};
use super::{Architecture, Compute, CustomBatch, Input};

/// The network with its weights.
#[derive(Debug)]
pub(crate) struct Host {
    architecture: Architecture,
    /// In the order of [`Architecture::parameters`].
    weights: Vec<Vec<f32>>,
    scratch: Scratch,
}

/// Memory kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The graph's values of a batch.
    pub(super) values: Vec<Vec<f32>>,
    /// The gradient of what is sought by each value, as far as it is known.
    pub(super) deltas: Vec<Option<Vec<f32>>>,
    /// Memory for gradients.
    spare: Vec<Vec<f32>>,
    workspace: Workspace,
}

/// Which gradients [`backward`] computes.
#[derive(Debug)]
pub(super) enum Wanted<'a, 'b> {
    /// Those by parameters, in their order.
    Parameters(&'a mut [&'b mut [f32]]),
    /// Those by what has entered, embeddings, factors and numbers, and by piecewise linear embeddings; but through the
    /// linear part, and by numbers through these.
    Entered,
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

/// Outputs after the output's activation.
fn activated(architecture: &Architecture, mut outputs: Vec<f32>) -> Vec<f32> {
    if let Some(scale) = sigmoid_scale(architecture) {
        let outputs = outputs.iter_mut();
        outputs.for_each(|y| *y = scale / (1.0 + (-*y).exp()));
    }
    outputs
}

/// What the output's sigmoid is scaled by, if it has one.
pub(super) fn sigmoid_scale(architecture: &Architecture) -> Option<f32> {
    match architecture.output {
        Output::Identity => None,
        Output::Sigmoid => Some(1.0),
        Output::ScaledSigmoid => Some(architecture.output_scale as f32),
    }
}

/// The values that enter: embeddings, factors, numbers.
fn enter(architecture: &Architecture, weights: &[Vec<f32>], input: &Input, scratch: &mut Scratch) {
    let graph = &architecture.graph;
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
        values, workspace, ..
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
                if let Some(mask) = dropout.and_then(|place| input.mask(place)) {
                    multiply(&mut y, mask);
                }
            }
            Operation::Activation(function) => {
                let terms = y.iter_mut().zip(x(0));
                terms.for_each(|(y, x)| *y = activation::of(*function, *x));
            }
            Operation::Dropout(place) => {
                y.copy_from_slice(x(0));
                if let Some(mask) = input.mask(*place) {
                    multiply(&mut y, mask);
                }
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

/// The gradients that are wanted of Σ δ·y, after [`forward`]. `deltas` are values y with their δ, `[B × W]`; deltas of what
/// has entered stay, and of piecewise linear embeddings where those by parameters are not wanted.
pub(super) fn backward(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
    deltas: impl IntoIterator<Item = (Value, Vec<f32>)>,
    mut wanted: Wanted<'_, '_>,
) {
    let graph = &architecture.graph;
    let rows = input.rows;
    let trains = matches!(wanted, Wanted::Parameters(_));
    let seeks = sought(graph, trains);
    let mut spare = std::mem::take(&mut scratch.spare);
    let mut known = std::mem::take(&mut scratch.deltas);
    // What was left of the batch before.
    spare.extend(known.iter_mut().filter_map(Option::take));
    known.resize_with(graph.widths.len(), || None);
    for (value, delta) in deltas {
        known[value] = Some(delta);
    }
    let Scratch {
        values, workspace, ..
    } = scratch;
    for node in graph.nodes.iter().rev() {
        if !trains && matches!(node.operation, Operation::PiecewiseLinear(_)) {
            continue;
        }
        let Some(mut dy) = known[node.to].take() else {
            continue;
        };
        let weights = &weights[node.at..];
        let mut gradients = match &mut wanted {
            Wanted::Parameters(all) => Some(&mut all[node.at..]),
            Wanted::Entered => None,
        };
        let width = graph.widths[node.to];
        let x = |at: usize| values[node.from[at]].as_slice();
        let mut give = |at: usize, dx: Vec<f32>, spare: &mut Vec<Vec<f32>>| {
            let from = node.from[at];
            match &mut known[from] {
                _ if !seeks[from] => spare.push(dx),
                Some(sum) => {
                    add(sum, &dx);
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
                if let Some(mask) = dropout.and_then(|place| input.mask(place)) {
                    multiply(&mut dy, mask);
                }
                let y = relu.then_some(values[node.to].as_slice());
                let sums = gradients.as_mut().filter(|_| *bias).map(|all| &mut *all[1]);
                dense::pass(&mut dy, y, sums, width);
                let from = graph.widths[node.from[0]];
                let delta_bxw = Matrix::new(&dy, rows, width);
                let plain = Epilogue::default();
                if let Some(gradients) = &mut gradients {
                    let x_bxf = Matrix::new(x(0), rows, from);
                    workspace.multiply(gradients[0], x_bxf.transposed(), delta_bxw, plain);
                }
                if seeks[node.from[0]] {
                    let mut dx = room(&mut spare, rows * from);
                    let kernel_fxw = Matrix::new(&weights[0], from, width);
                    workspace.multiply(&mut dx, delta_bxw, kernel_fxw.transposed(), plain);
                    give(0, dx, &mut spare);
                }
                spare.push(dy);
            }
            Operation::Activation(function) => {
                let terms = dy.iter_mut().zip(x(0));
                terms.for_each(|(d, x)| *d *= activation::slope(*function, *x));
                give(0, dy, &mut spare);
            }
            Operation::Dropout(place) => {
                if let Some(mask) = input.mask(*place) {
                    multiply(&mut dy, mask);
                }
                give(0, dy, &mut spare);
            }
            Operation::LayerNorm => {
                layer_norm::backward(weights, x(0), &mut dy, gradients);
                give(0, dy, &mut spare);
            }
            Operation::Affine => {
                if let Some(gradients) = &mut gradients {
                    gradients[..2].iter_mut().for_each(|sums| sums.fill(0.0));
                    for (dy, x) in dy.chunks_exact(width).zip(x(0).chunks_exact(width)) {
                        add(gradients[1], dy);
                        let terms = gradients[0].iter_mut().zip(dy).zip(x);
                        terms.for_each(|((sum, d), x)| *sum += d * x);
                    }
                }
                for dy in dy.chunks_exact_mut(width) {
                    multiply(dy, &weights[0]);
                }
                give(0, dy, &mut spare);
            }
            Operation::Periodic => {
                let mut dx = room(&mut spare, x(0).len());
                periodic::backward(weights, x(0), &dy, &mut dx, gradients);
                give(0, dx, &mut spare);
                spare.push(dy);
            }
            Operation::PiecewiseLinear(bins) => {
                if let Some(gradients) = gradients {
                    piecewise_linear::backward(bins, x(0), &dy, gradients);
                }
                spare.push(dy);
            }
            Operation::Concat => {
                for (at, (from, columns)) in parts(graph, node).enumerate() {
                    if seeks[from] {
                        let mut dx = room(&mut spare, rows * columns.len());
                        let rows = dx.chunks_exact_mut(columns.len());
                        for (dx, dy) in rows.zip(dy.chunks_exact(width)) {
                            dx.copy_from_slice(&dy[columns.clone()]);
                        }
                        give(at, dx, &mut spare);
                    }
                }
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
                dy.iter_mut().for_each(|d| *d *= share);
                for at in 0..node.from.len() {
                    let mut copy = room(&mut spare, dy.len());
                    copy.copy_from_slice(&dy);
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
    }
    if let Wanted::Parameters(gradients) = &mut wanted {
        let picked = [
            ("embedding", graph.embeddings),
            ("factors.values", graph.factors),
        ];
        for (name, value) in picked {
            if let Some(delta) = value.and_then(|value| known[value].as_deref()) {
                let table = graph.table(name);
                tables::scatter(table, delta, input, gradients[table.at]);
            }
        }
    }
    (scratch.spare, scratch.deltas) = (spare, known);
}

/// Of each value, whether the gradient by it is sought: where something that is trained has had a part in it, or what
/// has entered.
fn sought(graph: &Graph, trains: bool) -> Vec<bool> {
    let mut sought = vec![false; graph.widths.len()];
    let entered = [
        graph.embeddings,
        graph.factors,
        graph.numbers.filter(|_| !trains),
    ];
    for value in entered.into_iter().flatten() {
        sought[value] = true;
    }
    for node in &graph.nodes {
        let is_trained = trains && node.operation.has_parameters();
        sought[node.to] = is_trained || node.from.iter().any(|from| sought[*from]);
    }
    sought
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

/// Memory of a length, of what was last in it.
fn room(spare: &mut Vec<Vec<f32>>, len: usize) -> Vec<f32> {
    let mut buffer = spare.pop().unwrap_or_default();
    buffer.resize(len, 0.0);
    buffer
}

fn add(sums: &mut [f32], terms: &[f32]) {
    sums.iter_mut().zip(terms).for_each(|(s, t)| *s += t);
}

fn multiply(products: &mut [f32], factors: &[f32]) {
    products.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
}

impl Compute for Host {
    type Device = ();

    fn new(architecture: &Architecture, weights: Vec<Vec<f32>>, (): &()) -> Self {
        Self {
            architecture: architecture.clone(),
            weights,
            scratch: Scratch::default(),
        }
    }

    fn predict(&mut self, input: Input) -> Vec<f32> {
        predict(&self.architecture, &self.weights, &input, &mut self.scratch)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        flat: &mut [f32],
    ) {
        let Self {
            architecture,
            weights,
            scratch,
        } = self;
        enter(architecture, weights, &input, scratch);
        forward(architecture, weights, &input, scratch, true);
        let members = &architecture.graph.members;
        let mut outputs = vec![0.0; input.rows * members.len() * architecture.outputs];
        for (row, outputs) in outputs.chunks_exact_mut(architecture.outputs).enumerate() {
            let (row, member) = (row / members.len(), row % members.len());
            let of_member = &scratch.values[members[member]];
            outputs.copy_from_slice(&of_member[row * outputs.len()..][..outputs.len()]);
        }
        let outputs = activated(architecture, outputs);
        let mut slopes = slopes(&outputs);
        if let Some(scale) = sigmoid_scale(architecture) {
            let terms = slopes.iter_mut().zip(&outputs);
            terms.for_each(|(delta, y)| *delta *= y * (1.0 - y / scale));
        }
        let deltas = members.iter().enumerate().map(|(at, member)| {
            let rows = slopes.chunks_exact(architecture.outputs);
            let own = rows.skip(at).step_by(members.len());
            (*member, own.flatten().copied().collect())
        });
        let mut gradients = split(flat, weights);
        let wanted = Wanted::Parameters(&mut gradients);
        backward(architecture, weights, &input, scratch, deltas, wanted);
    }

    fn update(&mut self, mut change: impl FnMut(usize, &mut [f32])) {
        for (at, weights) in self.weights.iter_mut().enumerate() {
            change(at, weights);
        }
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.weights.clone()
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
