//! Periodic embeddings of numbers: see [`NumericEmbedding::Periodic`](volley_proto::spec::NumericEmbedding::Periodic).
//!
//! For a number x, with F frequencies and D trained columns: `[x, cos(2π·c·x + φ)·W + b]`. Weights are c `[N × F]`,
//! φ `[N × F]`, W `[N × F × D]` and b `[N × D]`.

use std::f32::consts::TAU;

use multiversion::multiversion;
use volley_proto::spec::{FREQUENCIES, PERIODIC_WIDTH};

use super::functions::{MOST_ANGLE, sin_cos};
use crate::threads::Threads;

/// Number of trained columns.
const D: usize = PERIODIC_WIDTH - 1;

/// Returns the ranges of a number's weights in their tensors.
fn of(number: usize) -> [std::ops::Range<usize>; 3] {
    [FREQUENCIES, FREQUENCIES * D, D].map(|len| number * len..(number + 1) * len)
}

/// Computes sin and cos of 2π·c·x + φ, for each frequency of a number.
#[inline(always)]
fn waves(
    frequencies: &[f32; FREQUENCIES],
    phases: &[f32; FREQUENCIES],
    x: f32,
) -> [[f32; FREQUENCIES]; 2] {
    let mut angles = [0.0; FREQUENCIES];
    for (angle, (frequency, phase)) in angles.iter_mut().zip(frequencies.iter().zip(phases)) {
        *angle = TAU * frequency * x + phase;
    }
    let most = angles
        .iter()
        .fold(0.0_f32, |most, angle| most.max(angle.abs()));
    let [mut sines, mut cosines] = [[0.0; FREQUENCIES]; 2];
    let each = sines.iter_mut().zip(&mut cosines).zip(&angles);
    if most <= MOST_ANGLE {
        each.for_each(|((sine, cosine), angle)| (*sine, *cosine) = sin_cos(*angle));
    } else {
        each.for_each(|((sine, cosine), angle)| (*sine, *cosine) = angle.sin_cos());
    }
    [sines, cosines]
}

/// Computes `y`, `[B × N·(1 + D)]`, from `x`, `[B × N]`.
#[multiversion(targets = "simd")]
pub(super) fn forward(weights: &[Vec<f32>], x: &[f32], y: &mut [f32]) {
    let [frequencies, phases] = [0, 1].map(|at| weights[at].as_chunks::<FREQUENCIES>().0);
    let numbers = frequencies.len();
    let embedded = y.as_chunks_mut::<PERIODIC_WIDTH>().0.iter_mut();
    for ((at, x), y) in x.iter().enumerate().zip(embedded) {
        let number = at % numbers;
        let [_, kernel, bias] = of(number);
        let [_, cosines] = waves(&frequencies[number], &phases[number], *x);
        let mut sums = [0.0; D];
        sums.copy_from_slice(&weights[3][bias]);
        let kernel = weights[2][kernel].as_chunks::<D>().0;
        for (cosine, kernel) in cosines.iter().zip(kernel) {
            for (sum, weight) in sums.iter_mut().zip(kernel) {
                *sum += cosine * weight;
            }
        }
        y[0] = *x;
        y[1..].copy_from_slice(&sums);
    }
}

/// Computes the gradient by `x` and, if they are wanted, those by the weights, from that by the output. Each thread
/// computes some of the numbers.
pub(super) fn backward(
    threads: &Threads,
    weights: &[Vec<f32>],
    x: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    gradients: Option<&mut [&mut [f32]]>,
) {
    let [frequencies, phases] = [0, 1].map(|at| weights[at].as_chunks::<FREQUENCIES>().0);
    let numbers = frequencies.len();
    let mut sums = match gradients {
        Some([waves, phases, kernel, bias, ..]) => {
            let parts = waves.chunks_exact_mut(FREQUENCIES);
            let parts = parts.zip(phases.chunks_exact_mut(FREQUENCIES));
            let parts = parts.zip(kernel.chunks_exact_mut(FREQUENCIES * D));
            let parts = parts.zip(bias.chunks_exact_mut(D));
            let parts =
                parts.map(|(((waves, phases), kernel), bias)| Some([waves, phases, kernel, bias]));
            parts.collect()
        }
        _ => (0..numbers).map(|_| None).collect::<Vec<_>>(),
    };
    // Number by number, not row by row.
    let rows = x.len() / numbers;
    let mut by_number = vec![0.0; x.len()];
    let parts = sums.iter_mut().zip(by_number.chunks_exact_mut(rows.max(1)));
    let parts: Vec<_> = parts.enumerate().collect();
    threads.spread(x.len() * FREQUENCIES, parts, |(number, (sums, dx))| {
        let waves = Waves {
            frequencies: &frequencies[number],
            phases: &phases[number],
            kernel: weights[2][of(number)[1].clone()].as_chunks::<D>().0,
        };
        of_number(waves, [number, numbers], x, dy, dx, sums.as_mut());
    });
    for (row, dx) in dx.chunks_exact_mut(numbers).enumerate() {
        for (number, dx) in dx.iter_mut().enumerate() {
            *dx = by_number[number * rows + row];
        }
    }
}

/// Weights of a number.
#[derive(Debug, Clone, Copy)]
struct Waves<'a> {
    frequencies: &'a [f32; FREQUENCIES],
    phases: &'a [f32; FREQUENCIES],
    kernel: &'a [[f32; D]],
}

/// Computes the gradient by one number in each row, `x[number + numbers·row]`, and sums those by its weights.
#[multiversion(targets = "simd")]
fn of_number(
    of: Waves<'_>,
    [number, numbers]: [usize; 2],
    x: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    sums: Option<&mut [&mut [f32]; 4]>,
) {
    let own = x.iter().zip(dy.as_chunks::<PERIODIC_WIDTH>().0);
    let own = own.skip(number).step_by(numbers);
    let [mut by_frequency, mut by_phase] = [[0.0; FREQUENCIES]; 2];
    let mut by_kernel = [[0.0; D]; FREQUENCIES];
    let mut by_bias = [0.0; D];
    for (dx, (x, dy)) in dx.iter_mut().zip(own) {
        let [sines, cosines] = waves(of.frequencies, of.phases, *x);
        let mut by_angle = [0.0; FREQUENCIES];
        for ((by_angle, sine), kernel) in by_angle.iter_mut().zip(&sines).zip(of.kernel) {
            let terms = kernel.iter().zip(&dy[1..]);
            *by_angle = -sine * terms.map(|(weight, d)| weight * d).sum::<f32>();
        }
        *dx = dy[0];
        for (by_angle, frequency) in by_angle.iter().zip(of.frequencies) {
            *dx += by_angle * TAU * frequency;
        }
        for (sum, by_angle) in by_frequency.iter_mut().zip(&by_angle) {
            *sum += by_angle * TAU * x;
        }
        for (sum, by_angle) in by_phase.iter_mut().zip(&by_angle) {
            *sum += by_angle;
        }
        for (sums, cosine) in by_kernel.iter_mut().zip(&cosines) {
            let sums = sums.iter_mut().zip(&dy[1..]);
            sums.for_each(|(sum, d)| *sum += cosine * d);
        }
        let sums = by_bias.iter_mut().zip(&dy[1..]);
        sums.for_each(|(sum, d)| *sum += d);
    }
    if let Some([frequency, phase, kernel, bias]) = sums {
        frequency.copy_from_slice(&by_frequency);
        phase.copy_from_slice(&by_phase);
        kernel.copy_from_slice(by_kernel.as_flattened());
        bias.copy_from_slice(&by_bias);
    }
}
