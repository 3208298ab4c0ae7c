//! Piecewise linear embeddings of numbers: see
//! [`NumericEmbedding::PiecewiseLinear`](volley_proto::spec::NumericEmbedding::PiecewiseLinear).
//!
//! For a number x, with T bins and a width of D: `x·w + b + Σ_t share_t(x)·W_t`. Weights are w `[N × D]`, b `[N × D]`
//! and W `[N × T × D]`, where T is the largest bin count; weights of bins that a number lacks stay 0. There is no
//! gradient by x: numbers are inputs, and attributions are of embeddings.

use volley_proto::spec::PIECEWISE_WIDTH;

use crate::network::graph::Bins;
use crate::threads::Threads;

const D: usize = PIECEWISE_WIDTH;

/// Returns the bin of a number, and the number's share of it. Numbers outside all bins get the first or the last.
fn bin(edges: &[f32], x: f32) -> (usize, f32) {
    let inner = &edges[1..edges.len() - 1];
    let at = inner.partition_point(|edge| *edge <= x);
    let [low, high] = [edges[at], edges[at + 1]];
    (at, ((x - low) / (high - low)).clamp(0.0, 1.0))
}

/// Computes `y`, `[B × N·D]`, from `x`, `[B × N]`.
pub(super) fn forward(bins: &Bins, weights: &[Vec<f32>], x: &[f32], y: &mut [f32]) {
    let most = bins.most();
    let [weight, bias, kernel] = [0, 1, 2].map(|at: usize| weights[at].as_chunks::<D>().0);
    let numbers = bins.0.iter().enumerate().cycle();
    for ((x, y), (number, edges)) in x.iter().zip(y.as_chunks_mut::<D>().0).zip(numbers) {
        let terms = weight[number].iter().zip(&bias[number]);
        for (y, (w, b)) in y.iter_mut().zip(terms) {
            *y = x * w + b;
        }
        let (at, share) = bin(edges, *x);
        let kernel = &kernel[number * most..];
        for of_bin in &kernel[..at] {
            y.iter_mut().zip(of_bin).for_each(|(y, w)| *y += w);
        }
        let terms = y.iter_mut().zip(&kernel[at]);
        terms.for_each(|(y, w)| *y += share * w);
    }
}

/// Computes the gradients by the weights from that by the output. Each thread computes some of the numbers.
pub(super) fn backward(
    threads: &Threads,
    bins: &Bins,
    x: &[f32],
    dy: &[f32],
    gradients: &mut [&mut [f32]],
) {
    let [weight, bias, kernel, ..] = gradients else {
        unreachable!("it has three parameters")
    };
    let sums = weight.chunks_exact_mut(D).zip(bias.chunks_exact_mut(D));
    let sums = sums.zip(kernel.chunks_exact_mut(bins.most() * D));
    let numbers: Vec<_> = bins.0.iter().zip(sums).enumerate().collect();
    let count = numbers.len();
    threads.spread(
        dy.len() * 4,
        numbers,
        |(number, (edges, ((weight, bias), kernel)))| {
            let own = x.iter().zip(dy.as_chunks::<D>().0).skip(number);
            let add = |sums: &mut [f32], dy: &[f32; D], factor: f32| {
                let sums = sums.iter_mut().zip(dy);
                sums.for_each(|(sum, d)| *sum += factor * d);
            };
            for sums in [&mut *weight, &mut *bias, &mut *kernel] {
                sums.fill(0.0);
            }
            for (x, dy) in own.step_by(count) {
                add(weight, dy, *x);
                add(bias, dy, 1.0);
                let (at, share) = bin(edges, *x);
                let (below, from) = kernel.split_at_mut(at * D);
                below
                    .chunks_exact_mut(D)
                    .for_each(|sums| add(sums, dy, 1.0));
                add(&mut from[..D], dy, share);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_bin_that_a_number_is_in() {
        let edges = [-1.0, 0.0, 2.0, 2.5];
        let due = [
            (-9.0, (0, 0.0)),
            (-1.0, (0, 0.0)),
            (-0.25, (0, 0.75)),
            (0.0, (1, 0.0)),
            (1.0, (1, 0.5)),
            (2.0, (2, 0.0)),
            (2.5, (2, 1.0)),
            (9.0, (2, 1.0)),
        ];
        for (x, due) in due {
            assert_eq!(bin(&edges, x), due, "{x}");
        }
        assert_eq!(bin(&[0.0, 4.0], 1.0), (0, 0.25));
    }
}
