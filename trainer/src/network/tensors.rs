//! The network as Burn's tensors, with a tape for the gradient: what runs on GPUs, and what the
//! host's network is checked against.
//!
//! Weights are a list of flat tensors in the order of the architecture. Burn's modules, parameter
//! ids and gradient maps are not used: their ids differ between processes and their maps have no
//! order, while all ranks must agree on what each number of a gradient belongs to.
//!
//! Shapes: B rows, C categorical and N continuous features, D the embedding's width, W = C·D + N
//! the width of the first layer's input, H that of a hidden layer, K outputs.

use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::linear;
use burn::tensor::{Int, Tensor, TensorData, Transaction};
use volley_proto::spec::{Linear, Output};

use super::{Architecture, Compute, Input};

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
        let outputs = forward(&self.architecture, &self.weights, input, &self.device);
        floats(&outputs.into_data()).to_vec()
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
        let outputs = forward(&self.architecture, &leaves, input, &self.device);
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

/// The network's outputs, `[B · K]`.
///
/// `parameters` are flat, in the order of [`Architecture::parameters`].
fn forward<B: Backend>(
    architecture: &Architecture,
    parameters: &[Tensor<B, 1>],
    input: Input,
    device: &B::Device,
) -> Tensor<B, 1> {
    let rows = input.rows;
    let outputs = architecture.outputs;
    let mut parameters = parameters.iter().cloned();
    let mut next = || {
        parameters
            .next()
            .expect("parameters are those of the architecture")
    };
    let numbers = (architecture.continuous > 0).then(|| {
        let shape = [rows, architecture.continuous];
        Tensor::<B, 2>::from_data(TensorData::new(input.continuous, shape), device)
    });
    let mut y = None;
    if architecture.is_deep() {
        let mut parts: Vec<Tensor<B, 2>> = Vec::with_capacity(2);
        if architecture.categorical > 0 {
            let embedded = gather(next(), &input.codes, architecture.embedding_dim, device);
            let width = architecture.categorical * architecture.embedding_dim;
            parts.push(embedded.reshape([rows, width]));
        }
        if let Some(x_bn) = numbers.clone() {
            parts.push(match architecture.batch_norm {
                true => x_bn * next().unsqueeze() + next().unsqueeze(),
                false => x_bn,
            });
        }
        let mut x = if parts.len() == 1 {
            parts.remove(0)
        } else {
            Tensor::cat(parts, 1)
        };
        let mut width = architecture.width();
        let mut masks = input.dropout.into_iter();
        for to in &architecture.hidden {
            x = relu(linear(x, next().reshape([width, *to]), Some(next())));
            width = *to;
            if let Some(mask) = masks.next().flatten() {
                x = x * Tensor::from_data(TensorData::new(mask, [rows, width]), device);
            }
        }
        y = Some(linear(x, next().reshape([width, outputs]), Some(next())));
    }
    if architecture.linear != Linear::None {
        let mut add = |part: Tensor<B, 2>| {
            y = Some(match y.take() {
                Some(y) => y + part,
                None => part,
            });
        };
        if architecture.categorical > 0 {
            let weights = gather(next(), &input.codes, outputs, device);
            let weights = weights.reshape([rows, architecture.categorical, outputs]);
            add(weights.sum_dim(1).reshape([rows, outputs]));
        }
        if let Some(x_bn) = numbers {
            add(x_bn.matmul(next().reshape([architecture.continuous, outputs])));
        }
        if !architecture.is_deep() {
            add(next().reshape([1, outputs]).expand([rows, outputs]));
        }
    }
    let y = y.expect("a network has layers, a linear part, or both");
    let y = y.reshape([rows * outputs]);
    match architecture.output {
        Output::Identity => y,
        Output::Sigmoid => sigmoid(y),
        Output::ScaledSigmoid => sigmoid(y).mul_scalar(architecture.output_scale),
    }
}

/// The rows of a flat table that codes pick, one after the other. Gathering single numbers: on a GPU the gradient of
/// gathering rows runs on ten threads.
fn gather<B: Backend>(
    table: Tensor<B, 1>,
    codes: &[u32],
    width: usize,
    device: &B::Device,
) -> Tensor<B, 1> {
    let places = places(codes, width);
    let len = places.len();
    table.gather(
        0,
        Tensor::<B, 1, Int>::from_data(TensorData::new(places, [len]), device),
    )
}

/// The places of each code's embedding in the flat table.
fn places(codes: &[u32], dim: usize) -> Vec<i32> {
    let dim = dim as i32;
    codes
        .iter()
        .flat_map(|code| (0..dim).map(move |at| *code as i32 * dim + at))
        .collect()
}
