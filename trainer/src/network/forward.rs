//! What the network computes of a batch, on any backend.
//!
//! Shapes: B rows, C categorical and N continuous features, D the embedding's width, W = C·D + N
//! the width of the first layer's input, H that of the last hidden layer.

use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::backend::Backend;
use burn::tensor::module::linear;
use burn::tensor::{Int, Tensor, TensorData};
use volley_proto::spec::Output;

use super::Architecture;

/// A batch as the network takes it, in host memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    pub(crate) rows: usize,
    /// Rows of the embedding table, `[B × C]`.
    pub(crate) codes: Vec<u32>,
    /// Normalised where there is batch norm, `[B × N]`.
    pub(crate) continuous: Vec<f32>,
    /// What the last hidden layer's activations are multiplied by, `[B × H]`, if by anything.
    pub(crate) dropout: Option<Vec<f32>>,
}

/// Predictions in the transformed label's scale, `[B]`.
///
/// `parameters` are flat, in the order of [`Architecture::parameters`].
pub(crate) fn forward<B: Backend>(
    architecture: &Architecture,
    parameters: &[Tensor<B, 1>],
    input: Input,
    device: &B::Device,
) -> Tensor<B, 1> {
    let rows = input.rows;
    let mut parameters = parameters.iter().cloned();
    let mut next = || {
        parameters
            .next()
            .expect("parameters are those of the architecture")
    };
    let mut parts: Vec<Tensor<B, 2>> = Vec::with_capacity(2);

    if architecture.categorical > 0 {
        let table = next();
        // Gathering single numbers: on a GPU the gradient of gathering rows runs on ten threads.
        let places = places(&input.codes, architecture.embedding_dim);
        let len = places.len();
        let places = Tensor::<B, 1, Int>::from_data(TensorData::new(places, [len]), device);
        parts.push(table.gather(0, places).reshape([rows, len / rows.max(1)]));
    }
    if architecture.continuous > 0 {
        let shape = [rows, architecture.continuous];
        let mut x_bn = Tensor::from_data(TensorData::new(input.continuous, shape), device);
        if architecture.batch_norm {
            let (gamma, beta) = (next(), next());
            x_bn = x_bn * gamma.unsqueeze() + beta.unsqueeze();
        }
        parts.push(x_bn);
    }
    let mut x = if parts.len() == 1 {
        parts.remove(0)
    } else {
        Tensor::cat(parts, 1)
    };

    let mut width = architecture.width();
    for to in &architecture.hidden {
        x = relu(linear(x, next().reshape([width, *to]), Some(next())));
        width = *to;
    }
    if let Some(mask) = input.dropout {
        x = x * Tensor::from_data(TensorData::new(mask, [rows, width]), device);
    }
    let y_b = linear(x, next().reshape([width, 1]), Some(next())).reshape([rows]);
    match architecture.output {
        Output::Identity => y_b,
        Output::Sigmoid => sigmoid(y_b),
        Output::ScaledSigmoid => sigmoid(y_b).mul_scalar(architecture.output_scale),
    }
}

/// The places of each code's embedding in the flat table.
fn places(codes: &[u32], dim: usize) -> Vec<i32> {
    let dim = dim as i32;
    codes
        .iter()
        .flat_map(|code| (0..dim).map(move |at| *code as i32 * dim + at))
        .collect()
}
