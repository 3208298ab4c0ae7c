//! Layer norm (Ba, Kiros & Hinton 2016, arXiv:1607.06450): rows normalised by their own moments, then `γ·x̂ + β`.

use super::backward::sum_rows;
use super::{add, of_rows};
use crate::threads::Threads;

/// Added to the variance, so that a row of equal numbers does not divide by zero.
const EPSILON: f64 = 1e-5;

/// Computes `y`, `[B × W]`, from `x`; γ and β are the first weights.
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

/// Replaces the gradient by the output with that by `x`, and writes those by γ and β, if they are wanted.
pub(super) fn backward(
    threads: &Threads,
    weights: &[Vec<f32>],
    x: &[f32],
    dy: &mut [f32],
    gradients: Option<&mut [&mut [f32]]>,
) {
    let gamma = &weights[0];
    let width = gamma.len();
    let rows = x.len() / width;
    let mut all_moments = vec![(0.0, 0.0); rows];
    threads.rows(&mut all_moments, 1, width, |own, found| {
        let rows = of_rows(x, own, width).chunks_exact(width);
        found
            .iter_mut()
            .zip(rows)
            .for_each(|(to, x)| *to = moments(x));
    });
    if let Some([by_gamma, by_beta, ..]) = gradients {
        sum_rows(threads, rows, by_gamma, |row, columns, sums| {
            let (mean, scale) = all_moments[row];
            let [dy, x] = [&*dy, x].map(|all| &all[row * width..][columns.clone()]);
            let terms = sums.iter_mut().zip(dy.iter().zip(x));
            terms.for_each(|(sum, (d, x))| *sum += d * (x - mean) * scale);
        });
        sum_rows(threads, rows, by_beta, |row, columns, sums| {
            add(sums, &dy[row * width..][columns]);
        });
    }
    threads.rows(dy, width, 4, |own, dy| {
        let of_rows = of_rows(x, own.clone(), width).chunks_exact(width);
        let of_rows = of_rows.zip(&all_moments[own]);
        for ((x, (mean, scale)), dy) in of_rows.zip(dy.chunks_exact_mut(width)) {
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
    });
}

/// Returns a row's mean, and the factor of its distances from the mean.
fn moments(x: &[f32]) -> (f32, f32) {
    let count = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2));
    let variance = squares.sum::<f64>() / count;
    (mean as f32, (variance + EPSILON).sqrt().recip() as f32)
}
