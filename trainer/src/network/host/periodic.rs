//! Periodic embeddings of numbers: see [`NumericEmbedding::Periodic`](volley_proto::spec::NumericEmbedding::Periodic).
//!
//! Of a number x, with F frequencies and a width of D: `[x, cos(2π·c·x + φ)·W + b]`. Weights are c `[N × F]`, φ `[N × F]`,
//! W `[N × F × (D − 1)]` and b `[N × (D − 1)]`.

use std::f32::consts::TAU;

use volley_proto::spec::{FREQUENCIES, PERIODIC_WIDTH};

/// Width of what is trained.
const D: usize = PERIODIC_WIDTH - 1;

/// Places of a number's weights in each of their tensors.
fn of(number: usize) -> [std::ops::Range<usize>; 3] {
    [FREQUENCIES, FREQUENCIES * D, D].map(|len| number * len..(number + 1) * len)
}

/// `y`, `[B × N·D]`, of `x`, `[B × N]`.
pub(super) fn forward(weights: &[Vec<f32>], x: &[f32], y: &mut [f32]) {
    let numbers = weights[0].len() / FREQUENCIES;
    let embedded = y.as_chunks_mut::<PERIODIC_WIDTH>().0.iter_mut();
    for ((at, x), y) in x.iter().enumerate().zip(embedded) {
        let [waves, kernel, bias] = of(at % numbers);
        y[0] = *x;
        y[1..].copy_from_slice(&weights[3][bias]);
        let waves = weights[0][waves.clone()].iter().zip(&weights[1][waves]);
        let kernel = weights[2][kernel].as_chunks::<D>().0;
        for ((frequency, phase), kernel) in waves.zip(kernel) {
            let cosine = (TAU * frequency * x + phase).cos();
            for (y, weight) in y[1..].iter_mut().zip(kernel) {
                *y += cosine * weight;
            }
        }
    }
}

/// The gradient by `x`, and those by the weights, if they are wanted, by that of what was put out.
pub(super) fn backward(
    weights: &[Vec<f32>],
    x: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    mut gradients: Option<&mut [&mut [f32]]>,
) {
    let numbers = weights[0].len() / FREQUENCIES;
    if let Some(gradients) = &mut gradients {
        gradients[..4].iter_mut().for_each(|sums| sums.fill(0.0));
    }
    let rows = dx.iter_mut().zip(dy.as_chunks::<PERIODIC_WIDTH>().0);
    for ((at, x), (dx, dy)) in x.iter().enumerate().zip(rows) {
        let [waves, kernel, bias] = of(at % numbers);
        *dx = dy[0];
        for wave in 0..FREQUENCIES {
            let place = waves.start + wave;
            let frequency = weights[0][place];
            let (sine, cosine) = (TAU * frequency * x + weights[1][place]).sin_cos();
            let kernel = kernel.start + wave * D..kernel.start + (wave + 1) * D;
            let terms = weights[2][kernel.clone()].iter().zip(&dy[1..]);
            let by_angle = -sine * terms.map(|(weight, d)| weight * d).sum::<f32>();
            *dx += by_angle * TAU * frequency;
            if let Some(gradients) = &mut gradients {
                gradients[0][place] += by_angle * TAU * x;
                gradients[1][place] += by_angle;
                let sums = gradients[2][kernel].iter_mut().zip(&dy[1..]);
                sums.for_each(|(sum, d)| *sum += cosine * d);
            }
        }
        if let Some(gradients) = &mut gradients {
            let sums = gradients[3][bias].iter_mut().zip(&dy[1..]);
            sums.for_each(|(sum, d)| *sum += d);
        }
    }
}
