//! Layer norm (Ba, Kiros & Hinton 2016, arXiv:1607.06450): each row by its own moments, then `γ·x̂ + β`.

use super::add;

/// Keeps a row of equal numbers from dividing by zero.
const EPSILON: f64 = 1e-5;

/// `y`, `[B × W]`, of `x`; γ and β are the first weights.
pub(super) fn forward(weights: &[Vec<f32>], x: &[f32], y: &mut [f32]) {
    let (gamma, beta) = (&weights[0], &weights[1]);
    let width = gamma.len();
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let (mean, scale) = moments(x);
        let scales = gamma.iter().zip(beta);
        for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(scales) {
            *y = (x - mean) * scale * gamma + beta;
        }
    }
}

/// Takes the gradient by what was put out to that by `x`, and writes those of γ and β, if they are wanted.
pub(super) fn backward(
    weights: &[Vec<f32>],
    x: &[f32],
    dy: &mut [f32],
    mut gradients: Option<&mut [&mut [f32]]>,
) {
    let gamma = &weights[0];
    let width = gamma.len();
    if let Some(gradients) = &mut gradients {
        gradients[..2].iter_mut().for_each(|sums| sums.fill(0.0));
    }
    for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact_mut(width)) {
        let (mean, scale) = moments(x);
        if let Some(gradients) = &mut gradients {
            add(gradients[1], dy);
            let terms = gradients[0].iter_mut().zip(&*dy).zip(x);
            terms.for_each(|((sum, d), x)| *sum += d * (x - mean) * scale);
        }
        let (mut sum, mut along) = (0.0_f64, 0.0_f64);
        for ((d, x), gamma) in dy.iter_mut().zip(x).zip(gamma) {
            *d *= gamma;
            sum += f64::from(*d);
            along += f64::from(*d * (x - mean) * scale);
        }
        let (sum, along) = ((sum / width as f64) as f32, (along / width as f64) as f32);
        for (d, x) in dy.iter_mut().zip(x) {
            *d = scale * (*d - sum - (x - mean) * scale * along);
        }
    }
}

/// A row's mean, and what its distances from it are multiplied by.
fn moments(x: &[f32]) -> (f32, f32) {
    let count = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2));
    let variance = squares.sum::<f64>() / count;
    (mean as f32, (variance + EPSILON).sqrt().recip() as f32)
}
