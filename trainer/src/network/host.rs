//! The network in host memory: forward and backward written out, on the calling thread.
//!
//! Compared with tensors and a tape, nothing is allocated in a step, nothing is filled with zeros
//! that is overwritten, bias and ReLU are applied where the product lies in the cache, and every
//! gradient is computed where it is sent from. What is left is [products of matrices](super::matmul).
//!
//! Shapes: B rows, C categorical and N continuous features, D the embedding's width, W = C·D + N
//! the width of the first layer's input, K outputs.

use volley_proto::spec::{Linear, Output};

use super::matmul::{Epilogue, Matrix, Workspace};
use super::{Architecture, Compute, Input, linear};

/// The network with its weights.
#[derive(Debug)]
pub(crate) struct Host {
    architecture: Architecture,
    /// In the order of [`Architecture::parameters`].
    values: Vec<Vec<f32>>,
    scratch: Scratch,
    /// The gradient by the outputs of the layer at hand, and by those of the one before.
    deltas: [Vec<f32>; 2],
}

/// Memory kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// What each layer was given, `[B × W]` first and then `[B × width]` of each hidden layer.
    pub(super) activations: Vec<Vec<f32>>,
    workspace: Workspace,
}

/// The network's outputs, `[B × K]`, by weights that others may use meanwhile.
pub(crate) fn predict(
    architecture: &Architecture,
    values: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    forward(architecture, values, input, scratch)
}

/// Places of parameters in the order of all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    embedding: Option<usize>,
    /// γ; β is the next.
    norm: Option<usize>,
    /// The first layer's kernel; its bias is the next, then the second layer's kernel.
    dense: usize,
    pub(super) linear: linear::Places,
}

impl Compute for Host {
    type Device = ();

    fn new(architecture: &Architecture, values: Vec<Vec<f32>>, (): &()) -> Self {
        Self {
            architecture: architecture.clone(),
            values,
            scratch: Scratch::default(),
            deltas: [Vec::new(), Vec::new()],
        }
    }

    fn predict(&mut self, input: Input) -> Vec<f32> {
        forward(&self.architecture, &self.values, &input, &mut self.scratch)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        flat: &mut [f32],
    ) {
        let Self {
            architecture,
            values,
            scratch,
            ..
        } = self;
        let predictions = forward(architecture, values, &input, scratch);
        let slopes = slopes(&predictions);
        self.backward(&input, &predictions, slopes, flat);
    }

    fn update(&mut self, mut change: impl FnMut(usize, &mut [f32])) {
        for (at, values) in self.values.iter_mut().enumerate() {
            change(at, values);
        }
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.values.clone()
    }
}

impl Places {
    pub(super) fn of(architecture: &Architecture) -> Self {
        let Architecture {
            categorical,
            continuous,
            batch_norm,
            ..
        } = *architecture;
        let deep = architecture.is_deep();
        let embeddings = usize::from(categorical > 0 && deep);
        let dense = embeddings + 2 * usize::from(batch_norm);
        let mut next = match deep {
            true => dense + 2 * (architecture.hidden.len() + 1),
            false => 0,
        };
        let mut place = |is_there: bool| {
            let at = (is_there && architecture.linear != Linear::None).then_some(next);
            next += usize::from(at.is_some());
            at
        };
        Self {
            embedding: (embeddings > 0).then_some(0),
            norm: batch_norm.then_some(embeddings),
            dense,
            linear: linear::Places {
                values: place(categorical > 0),
                numbers: place(continuous > 0),
                bias: place(!deep),
            },
        }
    }
}

/// Outputs of a batch. The activations stay, for [`Host::backward`].
fn forward(
    architecture: &Architecture,
    values: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let places = Places::of(architecture);
    let mut y_bxk = vec![0.0; input.rows * architecture.outputs];
    if architecture.is_deep() {
        let activations = &mut scratch.activations;
        activations.resize_with(architecture.hidden.len() + 1, Vec::new);
        enter(architecture, places, values, input, &mut activations[0]);
        layers(architecture, places, values, input, scratch, &mut y_bxk);
    }
    linear::add_outputs(architecture, places.linear, values, input, &mut y_bxk);
    if let Some(scale) = sigmoid_scale(architecture) {
        y_bxk
            .iter_mut()
            .for_each(|y| *y = scale / (1.0 + (-*y).exp()));
    }
    y_bxk
}

/// What the layers put out for what has [entered](enter) the first; of the input, the rows and masks count.
pub(super) fn layers(
    architecture: &Architecture,
    places: Places,
    values: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
    y_bxk: &mut [f32],
) {
    let Scratch {
        activations,
        workspace,
    } = scratch;
    let rows = input.rows;
    let mut width = architecture.width();
    for (layer, to) in architecture.hidden.iter().enumerate() {
        let (before, after) = activations.split_at_mut(layer + 1);
        let x_bxf = Matrix::new(&before[layer], rows, width);
        let y = &mut after[0];
        y.resize(rows * to, 0.0);
        dense(
            workspace,
            &values[places.dense + 2 * layer..],
            x_bxf,
            y,
            true,
        );
        if let Some(mask) = input.mask(layer) {
            y.iter_mut().zip(mask).for_each(|(y, mask)| *y *= mask);
        }
        width = *to;
    }
    let last = &mut activations[architecture.hidden.len()];
    let kernel = &values[places.dense + 2 * architecture.hidden.len()..];
    dense(
        workspace,
        kernel,
        Matrix::new(last, rows, width),
        y_bxk,
        false,
    );
}

/// The gradient of Σ slope·output by what entered the first layer, `[B × W]`, after [`layers`] without masks.
/// `deltas` begin with the slopes, `[B × K]`, and end with it.
pub(super) fn entered_gradient(
    architecture: &Architecture,
    places: Places,
    values: &[Vec<f32>],
    scratch: &mut Scratch,
    deltas: &mut [Vec<f32>; 2],
) {
    let [delta, before] = deltas;
    let mut width = architecture.outputs;
    let rows = delta.len() / width;
    for (layer, x) in scratch.activations.iter().enumerate().rev() {
        let from = x.len() / rows;
        let delta_bxw = Matrix::new(delta, rows, width);
        let kernel_fxw = Matrix::new(&values[places.dense + 2 * layer], from, width);
        before.resize(rows * from, 0.0);
        let plain = Epilogue::default();
        let workspace = &mut scratch.workspace;
        workspace.multiply(before, delta_bxw, kernel_fxw.transposed(), plain);
        if layer > 0 {
            // What ReLU has made zero passes nothing on.
            let terms = before.iter_mut().zip(x);
            terms.for_each(|(d, x)| *d = if *x > 0.0 { *d } else { 0.0 });
        }
        std::mem::swap(delta, before);
        width = from;
    }
}

/// What the output's sigmoid is scaled by, if it has one.
pub(super) fn sigmoid_scale(architecture: &Architecture) -> Option<f32> {
    match architecture.output {
        Output::Identity => None,
        Output::Sigmoid => Some(1.0),
        Output::ScaledSigmoid => Some(architecture.output_scale as f32),
    }
}

/// Gathers the first layer's input: embeddings, then numbers.
pub(super) fn enter(
    architecture: &Architecture,
    places: Places,
    values: &[Vec<f32>],
    input: &Input,
    x: &mut Vec<f32>,
) {
    let Architecture {
        embedding_dim: dim,
        categorical,
        continuous,
        ..
    } = *architecture;
    let width = architecture.width();
    x.resize(input.rows * width, 0.0);
    if let Some(at) = places.embedding {
        let table = &values[at];
        let codes = input.codes.chunks_exact(categorical);
        for (x, codes) in x.chunks_exact_mut(width).zip(codes) {
            for (x, code) in x.chunks_exact_mut(dim).zip(codes) {
                x.copy_from_slice(&table[*code as usize * dim..][..dim]);
            }
        }
    }
    let numbers = input.continuous.chunks_exact(continuous.max(1));
    for (x, numbers) in x.chunks_exact_mut(width).zip(numbers) {
        let x = &mut x[width - continuous..];
        x.copy_from_slice(numbers);
        if let Some(at) = places.norm {
            let scales = values[at].iter().zip(&values[at + 1]);
            for (x, (gamma, beta)) in x.iter_mut().zip(scales) {
                *x = *x * gamma + beta;
            }
        }
    }
}

impl Host {
    /// The gradient of Σ slope·output, parameter after parameter.
    fn backward(&mut self, input: &Input, outputs: &[f32], slopes: Vec<f32>, flat: &mut [f32]) {
        let places = Places::of(&self.architecture);
        let mut gradients = split(flat, &self.values);
        let Self {
            architecture,
            values,
            scratch: Scratch {
                activations,
                workspace,
            },
            deltas: [delta, before],
        } = self;
        let rows = input.rows;
        *delta = slopes;
        if let Some(scale) = sigmoid_scale(architecture) {
            for (delta, y) in delta.iter_mut().zip(outputs) {
                *delta *= y * (1.0 - y / scale);
            }
        }
        linear::write_gradients(architecture, places.linear, input, delta, &mut gradients);
        if !architecture.is_deep() {
            return;
        }
        // The gradient of a layer's bias is computed with that of its output.
        let bias = places.dense + 2 * architecture.hidden.len() + 1;
        gradients[bias].fill(0.0);
        let mut width = architecture.outputs;
        for delta in delta.chunks_exact(width) {
            add(gradients[bias], delta);
        }
        for layer in (0..=architecture.hidden.len()).rev() {
            let x = &activations[layer];
            let from = x.len() / rows;
            let at = places.dense + 2 * layer;
            let delta_bxw = Matrix::new(delta, rows, width);
            let x_bxf = Matrix::new(x, rows, from);
            let plain = Epilogue::default();
            workspace.multiply(gradients[at], x_bxf.transposed(), delta_bxw, plain);
            let kernel_fxw = Matrix::new(&values[at], from, width);
            before.resize(rows * from, 0.0);
            workspace.multiply(before, delta_bxw, kernel_fxw.transposed(), plain);
            if layer > 0 {
                if let Some(mask) = input.mask(layer - 1) {
                    before.iter_mut().zip(mask).for_each(|(d, mask)| *d *= mask);
                }
                let sums = &mut *gradients[at - 1];
                sums.fill(0.0);
                let passed = before.chunks_exact_mut(from).zip(x.chunks_exact(from));
                for (passed, x) in passed {
                    // What ReLU or dropout has made zero passes nothing on.
                    let terms = passed.iter_mut().zip(x);
                    for (sum, (d, x)) in sums.iter_mut().zip(terms) {
                        *d = if *x > 0.0 { *d } else { 0.0 };
                        *sum += *d;
                    }
                }
            }
            std::mem::swap(delta, before);
            width = from;
        }
        leave(architecture, places, input, delta, &mut gradients);
    }
}

/// The gradients of what the first layer's input was made of, by that input's.
fn leave(
    architecture: &Architecture,
    places: Places,
    input: &Input,
    delta: &[f32],
    gradients: &mut [&mut [f32]],
) {
    let Architecture {
        embedding_dim: dim,
        categorical,
        continuous,
        ..
    } = *architecture;
    let width = architecture.width();
    if let Some(at) = places.embedding {
        let table = &mut *gradients[at];
        table.fill(0.0);
        let codes = input.codes.chunks_exact(categorical);
        for (delta, codes) in delta.chunks_exact(width).zip(codes) {
            for (delta, code) in delta.chunks_exact(dim).zip(codes) {
                add(&mut table[*code as usize * dim..][..dim], delta);
            }
        }
    }
    if let Some(at) = places.norm {
        let [gamma, beta] = [at, at + 1];
        gradients[gamma].fill(0.0);
        gradients[beta].fill(0.0);
        let numbers = input.continuous.chunks_exact(continuous);
        for (delta, numbers) in delta.chunks_exact(width).zip(numbers) {
            let delta = &delta[width - continuous..];
            add(gradients[beta], delta);
            let terms = gradients[gamma].iter_mut().zip(delta).zip(numbers);
            terms.for_each(|((sum, delta), number)| *sum += delta * number);
        }
    }
}

/// `y = x · kernel + bias` of a batch, and ReLU of it; the kernel and the bias are the first values.
fn dense(
    workspace: &mut Workspace,
    values: &[Vec<f32>],
    x_bxf: Matrix<'_>,
    y: &mut [f32],
    relu: bool,
) {
    let bias = &values[1];
    let kernel = Matrix::new(&values[0], values[0].len() / bias.len(), bias.len());
    let epilogue = Epilogue {
        bias: Some(bias),
        relu,
    };
    workspace.multiply(y, x_bxf, kernel, epilogue);
}

fn add(sums: &mut [f32], terms: &[f32]) {
    sums.iter_mut().zip(terms).for_each(|(s, t)| *s += t);
}

/// The flat gradient by parameter.
fn split<'a>(flat: &'a mut [f32], values: &[Vec<f32>]) -> Vec<&'a mut [f32]> {
    let mut rest = flat;
    let mut parts = Vec::with_capacity(values.len());
    for values in values {
        let (part, tail) = rest.split_at_mut(values.len());
        parts.push(part);
        rest = tail;
    }
    parts
}
