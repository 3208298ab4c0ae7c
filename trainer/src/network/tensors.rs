//! The network as Burn's tensors, with a tape for the gradient: what runs on GPUs, and what the
//! host's network is checked against.
//!
//! Weights are a list of flat tensors in the order of the architecture. Burn's modules, parameter
//! ids and gradient maps are not used: their ids differ between processes and their maps have no
//! order, while all ranks must agree on what each number of a gradient belongs to.
//!
//! Shapes: B rows, C categorical features and N numbers, K outputs; a value of width W is `[B × W]`.

use std::f32::consts::TAU;

use burn::tensor::activation::{relu, sigmoid, softplus, tanh};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::linear;
use burn::tensor::{Int, Tensor, TensorData, Transaction};
use volley_proto::spec::{Activation, FREQUENCIES, Output, PERIODIC_WIDTH, PIECEWISE_WIDTH};

use super::architecture::Table;
use super::graph::{Bins, Graph, Node, Operation, Value};
use super::{Architecture, Compute, Input};

/// Keeps a row of equal numbers from dividing by zero, in layer norm.
const EPSILON: f64 = 1e-5;

/// The network with its weights.
#[derive(Debug)]
pub(crate) struct Tensors<B: AutodiffBackend> {
    architecture: Architecture,
    weights: Vec<Tensor<B::InnerBackend, 1>>,
    device: B::Device,
}

impl<B: AutodiffBackend> Compute for Tensors<B> {
    type Device = B::Device;

    fn new(architecture: &Architecture, values: Vec<Vec<f32>>, device: &B::Device) -> Self {
        let weights = values
            .into_iter()
            .map(|values| tensor::<B::InnerBackend>(values, device));
        Self {
            architecture: architecture.clone(),
            weights: weights.collect(),
            device: device.clone(),
        }
    }

    fn predict(&mut self, input: Input) -> Vec<f32> {
        self.outputs(input, &[self.architecture.graph.output])
    }

    fn predict_by_member(&mut self, input: Input) -> Vec<f32> {
        self.outputs(input, &self.architecture.graph.members)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        flat: &mut [f32],
    ) {
        let leaf =
            |tensor: &Tensor<_, 1>| Tensor::<B, 1>::from_inner(tensor.clone()).require_grad();
        let leaves: Vec<_> = self.weights.iter().map(leaf).collect();
        let members = &self.architecture.graph.members;
        let outputs = forward(&self.architecture, &leaves, input, members, &self.device);
        let slopes = slopes(floats(&outputs.clone().inner().into_data()));
        let slopes = tensor::<B>(slopes, &self.device);
        write_gradient(leaves, (outputs * slopes).sum(), flat);
    }

    fn update(&mut self, mut change: impl FnMut(usize, &mut [f32])) {
        let mut reads = Transaction::default();
        for tensor in self.weights.drain(..) {
            reads = reads.register(tensor);
        }
        for (at, mut data) in reads.execute().into_iter().enumerate() {
            change(at, data.as_mut_slice().expect("parameters are f32"));
            self.weights.push(Tensor::from_data(data, &self.device));
        }
    }

    fn values(&self) -> Vec<Vec<f32>> {
        let data = self.weights.iter().map(|tensor| tensor.to_data());
        data.map(|data| floats(&data).to_vec()).collect()
    }
}

impl<B: AutodiffBackend> Tensors<B> {
    /// These values of a batch, side by side.
    fn outputs(&self, input: Input, values: &[Value]) -> Vec<f32> {
        let (architecture, device) = (&self.architecture, &self.device);
        let outputs = forward(architecture, &self.weights, input, values, device);
        floats(&outputs.into_data()).to_vec()
    }
}

/// Writes the gradients of `objective` with regard to `leaves` into one flat buffer.
fn write_gradient<B: AutodiffBackend>(
    leaves: Vec<Tensor<B, 1>>,
    objective: Tensor<B, 1>,
    flat: &mut [f32],
) {
    let mut gradients = objective.backward();
    let mut present = Vec::with_capacity(leaves.len());
    let mut reads = Transaction::default();
    for leaf in leaves {
        let gradient = leaf.grad_remove(&mut gradients);
        present.push((leaf.shape().num_elements(), gradient.is_some()));
        if let Some(gradient) = gradient {
            reads = reads.register(gradient);
        }
    }
    let mut read = reads.execute().into_iter();
    let mut rest = flat;
    for (len, present) in present {
        let (part, tail) = rest.split_at_mut(len);
        rest = tail;
        match present.then(|| read.next()).flatten() {
            Some(data) => part.copy_from_slice(floats(&data)),
            None => part.fill(0.0),
        }
    }
}

fn tensor<B: Backend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let shape = [values.len()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A tensor's numbers; both backends compute in `f32`.
fn floats(data: &TensorData) -> &[f32] {
    data.as_slice().expect("the backend computes in f32")
}

/// These values of so many rows after the output's activation, side by side: `[B · M·K]` of M.
///
/// `parameters` are flat, in the order of [`Architecture::parameters`].
fn forward<B: Backend>(
    architecture: &Architecture,
    parameters: &[Tensor<B, 1>],
    input: Input,
    outputs: &[Value],
    device: &B::Device,
) -> Tensor<B, 1> {
    let graph = &architecture.graph;
    let of = Of {
        architecture,
        graph,
        parameters,
        input: &input,
        device,
    };
    let mut values: Vec<Option<Tensor<B, 2>>> = vec![None; graph.widths.len()];
    let picked = [
        ("embedding", graph.embeddings),
        ("factors.values", graph.factors),
    ];
    for (name, value) in picked {
        if let Some(value) = value {
            values[value] = Some(of.pick(graph.table(name)));
        }
    }
    if let Some(numbers) = graph.numbers {
        values[numbers] = Some(of.matrix(input.continuous.clone(), architecture.continuous));
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
    let count = input.rows * outputs.len() * architecture.outputs;
    let y = Tensor::cat(outputs.collect(), 1).reshape([count]);
    match architecture.output {
        Output::Identity => y,
        Output::Sigmoid => sigmoid(y),
        Output::ScaledSigmoid => sigmoid(y).mul_scalar(architecture.output_scale),
    }
}

/// A batch on its way through the network.
struct Of<'a, B: Backend> {
    architecture: &'a Architecture,
    graph: &'a Graph,
    parameters: &'a [Tensor<B, 1>],
    input: &'a Input,
    device: &'a B::Device,
}

impl<B: Backend> Of<'_, B> {
    fn matrix(&self, numbers: Vec<f32>, width: usize) -> Tensor<B, 2> {
        let shape = [self.input.rows, width];
        Tensor::from_data(TensorData::new(numbers, shape), self.device)
    }

    fn masked(&self, x: Tensor<B, 2>, dropout: usize) -> Tensor<B, 2> {
        match self.input.mask(dropout) {
            Some(mask) => x * self.matrix(mask.to_vec(), self.graph.dropouts[dropout].width),
            None => x,
        }
    }

    /// A node's value; `x` are those that it is from.
    fn compute(&self, node: &Node, mut x: Vec<Tensor<B, 2>>) -> Tensor<B, 2> {
        let rows = self.input.rows;
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
                let mut y = linear(next(), parameter(0).reshape([from, width]), bias);
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
                scaled * parameter(0).unsqueeze() + parameter(1).unsqueeze()
            }
            Operation::Affine => next() * parameter(0).unsqueeze() + parameter(1).unsqueeze(),
            Operation::Periodic => {
                let (k, d) = (FREQUENCIES, PERIODIC_WIDTH - 1);
                let numbers = width / PERIODIC_WIDTH;
                let x_bn1 = next().reshape([rows, numbers, 1]);
                let waves = |at: usize| parameter(at).reshape([1, numbers, k]);
                let angles = x_bn1.clone() * waves(0).mul_scalar(TAU) + waves(1);
                // Of each number, a product of its own.
                let cosines_nbk = angles.cos().swap_dims(0, 1);
                let products = cosines_nbk.matmul(parameter(2).reshape([numbers, k, d]));
                let trained = products.swap_dims(0, 1) + parameter(3).reshape([1, numbers, d]);
                Tensor::cat(vec![x_bn1, trained], 2).reshape([rows, width])
            }
            Operation::PiecewiseLinear(bins) => {
                let (numbers, most, d) = (bins.0.len(), bins.most(), PIECEWISE_WIDTH);
                let x_bn1 = next().reshape([rows, numbers, 1]);
                // Of bins that a number does not have, the share is 0.
                let low = self.of_bins(bins, f32::MAX, |low, _| low);
                let wide = self.of_bins(bins, 1.0, |low, high| high - low);
                let shares_bnt = ((x_bn1.clone() - low) / wide).clamp(0.0, 1.0);
                let kernel = parameter(2).reshape([numbers, most, d]);
                let binned = shares_bnt.swap_dims(0, 1).matmul(kernel).swap_dims(0, 1);
                let terms = |at: usize| parameter(at).reshape([1, numbers, d]);
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
                    terms.push(x_bn1 * parameter(0).reshape([1, count, of_row]));
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
                    let weights =
                        gather(parameter(), &places(&self.input.codes, width), self.device);
                    let weights = weights.reshape([rows, self.architecture.categorical, width]);
                    parts.push(weights.sum_dim(1).reshape([rows, width]));
                }
                if self.architecture.continuous > 0 {
                    let count = self.architecture.continuous;
                    parts.push(next().matmul(parameter().reshape([count, width])));
                }
                if *bias {
                    parts.push(parameter().reshape([1, width]).expand([rows, width]));
                }
                let sum = parts.into_iter().reduce(|sum, part| sum + part);
                sum.expect("a linear part has weights")
            }
            Operation::Custom(custom) => {
                panic!("custom layers compute in host memory: {custom:?}")
            }
        }
    }

    /// A number of each bin from its edges, `[1 × N × T]`; `none` of bins that a number does not have.
    fn of_bins(&self, bins: &Bins, none: f32, of: fn(f32, f32) -> f32) -> Tensor<B, 3> {
        let most = bins.most();
        let padded = bins.0.iter().flat_map(|edges| {
            let own = edges.windows(2).map(move |edges| of(edges[0], edges[1]));
            own.chain(std::iter::repeat(none)).take(most)
        });
        tensor::<B>(padded.collect(), self.device).reshape([1, bins.0.len(), most])
    }

    /// What each row's codes pick of a table, side by side.
    fn pick(&self, table: &Table) -> Tensor<B, 2> {
        let width = table.widths.iter().map(|(_, width)| width).sum();
        let (mut code, mut start) = (0, 0);
        let features = table.widths.iter().map(|(codes, width)| {
            let of = (code as i32, start as i32, *width as i32);
            code += codes;
            start += codes * width;
            of
        });
        let features: Vec<_> = features.collect();
        let codes = self.input.codes.iter().zip(features.iter().cycle());
        let places = codes.flat_map(|(code, (first, start, width))| {
            let row = start + (*code as i32 - first) * width;
            row..row + width
        });
        let picked = gather(
            self.parameters[table.at].clone(),
            &places.collect::<Vec<_>>(),
            self.device,
        );
        picked.reshape([self.input.rows, width])
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

/// Numbers of a flat table, by their places. Gathering single numbers: on a GPU the gradient of
/// gathering rows runs on ten threads.
fn gather<B: Backend>(table: Tensor<B, 1>, places: &[i32], device: &B::Device) -> Tensor<B, 1> {
    let data = TensorData::new(places.to_vec(), [places.len()]);
    table.gather(0, Tensor::<B, 1, Int>::from_data(data, device))
}

/// The places of each code's row in a flat table.
fn places(codes: &[u32], width: usize) -> Vec<i32> {
    let width = width as i32;
    let codes = codes.iter();
    codes
        .flat_map(|code| (0..width).map(move |at| *code as i32 * width + at))
        .collect()
}
