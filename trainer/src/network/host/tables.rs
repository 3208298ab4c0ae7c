//! Rows of tables that codes pick: embeddings and factors.
//!
//! A table has the rows of one feature after those of another, each feature's of its own width; codes count the rows.

use super::add;
use crate::network::Input;
use crate::network::architecture::Table;

/// What each row's codes pick, side by side, `[B × ΣW]`.
pub(super) fn pick(table: &Table, weights: &[f32], input: &Input, x: &mut Vec<f32>) {
    let width: usize = table.widths.iter().map(|(_, width)| width).sum();
    x.resize(input.rows * width, 0.0);
    let features = Feature::of(table);
    let codes = input.codes.chunks_exact(table.widths.len());
    for (mut x, codes) in x.chunks_exact_mut(width).zip(codes) {
        for (feature, code) in features.iter().zip(codes) {
            let (to, rest) = x.split_at_mut(feature.width);
            to.copy_from_slice(&weights[feature.row(*code)..][..feature.width]);
            x = rest;
        }
    }
}

/// The table's gradient, by that of what was picked.
pub(super) fn scatter(table: &Table, delta: &[f32], input: &Input, gradient: &mut [f32]) {
    let width: usize = table.widths.iter().map(|(_, width)| width).sum();
    gradient.fill(0.0);
    let features = Feature::of(table);
    let codes = input.codes.chunks_exact(table.widths.len());
    for (mut delta, codes) in delta.chunks_exact(width).zip(codes) {
        for (feature, code) in features.iter().zip(codes) {
            let (from, rest) = delta.split_at(feature.width);
            add(&mut gradient[feature.row(*code)..][..feature.width], from);
            delta = rest;
        }
    }
}

/// Where a feature's rows are.
struct Feature {
    /// The first of its codes.
    code: usize,
    /// Where its rows begin.
    start: usize,
    width: usize,
}

impl Feature {
    fn of(table: &Table) -> Vec<Self> {
        let (mut code, mut start) = (0, 0);
        let features = table.widths.iter().map(|(codes, width)| {
            let feature = Self {
                code,
                start,
                width: *width,
            };
            code += codes;
            start += codes * width;
            feature
        });
        features.collect()
    }

    /// Where the row of a code begins.
    fn row(&self, code: u32) -> usize {
        self.start + (code as usize - self.code) * self.width
    }
}
