//! The linear part of a network in host memory: a weight of each code and of each number, for each output.
//!
//! It is added to the layers' outputs, before the output's activation. Sums over rows are `f64`: a linear model is
//! trained by gradients of all rows at once, to more digits than `f32` sums have.

use crate::network::{Architecture, Input};

/// Indices of the linear part's parameters among its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// `[codes × K]`.
    pub(super) values: Option<usize>,
    /// `[N × K]`.
    pub(super) numbers: Option<usize>,
    /// `[K]`, only where there are no layers, which have one.
    pub(super) bias: Option<usize>,
}

impl Places {
    pub(super) fn new(architecture: &Architecture, bias: bool) -> Self {
        let mut next = 0;
        let mut place = |is_there: bool| {
            let at = is_there.then_some(next);
            next += usize::from(is_there);
            at
        };
        Self {
            values: place(architecture.categorical > 0),
            numbers: place(architecture.continuous > 0),
            bias: place(bias),
        }
    }
}

/// Adds the linear part to outputs, `[B × K]`.
pub(super) fn add_outputs(
    architecture: &Architecture,
    places: Places,
    values: &[Vec<f32>],
    input: &Input,
    y_bxk: &mut [f32],
) {
    let outputs = architecture.outputs;
    if let Some(at) = places.bias {
        let rows = y_bxk.chunks_exact_mut(outputs);
        rows.for_each(|y| add(y, &values[at], 1.0));
    }
    if let Some(at) = places.values {
        let codes = input.codes.chunks_exact(architecture.categorical);
        for (y, codes) in y_bxk.chunks_exact_mut(outputs).zip(codes) {
            for code in codes {
                add(y, &values[at][*code as usize * outputs..][..outputs], 1.0);
            }
        }
    }
    if let Some(at) = places.numbers {
        let numbers = input.continuous.chunks_exact(architecture.continuous);
        for (y, numbers) in y_bxk.chunks_exact_mut(outputs).zip(numbers) {
            for (x, weights) in numbers.iter().zip(values[at].chunks_exact(outputs)) {
                add(y, weights, *x);
            }
        }
    }
}

/// Computes the linear part's attributions to each input, `[B × (C + N)]`: its term of the chosen output for each row
/// of `input`, minus that for the one row of `baseline`.
pub(super) fn attributions(
    architecture: &Architecture,
    places: Places,
    values: &[Vec<f32>],
    [input, baseline]: [&Input; 2],
    chosen: &[usize],
) -> Vec<f64> {
    let Architecture {
        outputs,
        categorical,
        continuous,
        ..
    } = *architecture;
    let mut all = Vec::with_capacity(input.rows * (categorical + continuous));
    for (row, output) in chosen.iter().enumerate() {
        let codes = input.codes.iter().skip(row * categorical);
        for (code, base) in codes.zip(&baseline.codes) {
            let weight =
                |at: usize, code: u32| f64::from(values[at][code as usize * outputs + output]);
            let term = |at| weight(at, *code) - weight(at, *base);
            all.push(places.values.map_or(0.0, term));
        }
        let numbers = input.continuous.iter().skip(row * continuous);
        for (number, (x, base)) in numbers.zip(&baseline.continuous).enumerate() {
            let term =
                |at: usize| f64::from(values[at][number * outputs + output]) * f64::from(x - base);
            all.push(places.numbers.map_or(0.0, term));
        }
    }
    all
}

/// Writes the gradients by the linear part's parameters, from those by the outputs, `[B × K]`.
pub(super) fn write_gradients(
    architecture: &Architecture,
    places: Places,
    input: &Input,
    deltas: &[f32],
    gradients: &mut [&mut [f32]],
) {
    let outputs = architecture.outputs;
    let mut write = |at: usize, add: &dyn Fn(&mut [f64])| {
        let mut sums = vec![0.0; gradients[at].len()];
        add(&mut sums);
        let sums = gradients[at].iter_mut().zip(sums);
        sums.for_each(|(gradient, sum)| *gradient = sum as f32);
    };
    let deltas = deltas.chunks_exact(outputs);
    if let Some(at) = places.bias {
        write(at, &|sums| {
            deltas.clone().for_each(|delta| sum(sums, delta, 1.0))
        });
    }
    if let Some(at) = places.values {
        write(at, &|sums| {
            let codes = input.codes.chunks_exact(architecture.categorical);
            for (delta, codes) in deltas.clone().zip(codes) {
                for code in codes {
                    sum(&mut sums[*code as usize * outputs..][..outputs], delta, 1.0);
                }
            }
        });
    }
    if let Some(at) = places.numbers {
        write(at, &|sums| {
            let numbers = input.continuous.chunks_exact(architecture.continuous);
            for (delta, numbers) in deltas.clone().zip(numbers) {
                for (x, sums) in numbers.iter().zip(sums.chunks_exact_mut(outputs)) {
                    sum(sums, delta, *x);
                }
            }
        });
    }
}

fn add(y: &mut [f32], weights: &[f32], x: f32) {
    y.iter_mut().zip(weights).for_each(|(y, w)| *y += x * w);
}

fn sum(sums: &mut [f64], delta: &[f32], x: f32) {
    let terms = sums.iter_mut().zip(delta);
    terms.for_each(|(sum, delta)| *sum += f64::from(x) * f64::from(*delta));
}
