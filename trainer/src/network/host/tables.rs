//! Rows of tables that codes pick: embeddings and factors.
//!
//! A table has the rows of one feature after those of another, each feature's of its own width; codes count the rows.

use std::ops::Range;

use super::add;
use super::sparse::Rows;
use crate::network::Input;
use crate::network::architecture::Table;
use crate::threads::Threads;

/// What each row's codes pick, side by side, `[B × ΣW]`.
pub(super) fn pick(
    table: &Table,
    weights: &[f32],
    input: &Input,
    x: &mut Vec<f32>,
    threads: &Threads,
) {
    let width: usize = table.widths.iter().map(|(_, width)| width).sum();
    x.resize(input.rows * width, 0.0);
    let features = Feature::of(table);
    threads.rows(x, width, 4, |rows, x| {
        let codes = input.codes.chunks_exact(features.len());
        let codes = codes.skip(rows.start);
        for (mut x, codes) in x.chunks_exact_mut(width).zip(codes) {
            for (feature, code) in features.iter().zip(codes) {
                let (to, rest) = x.split_at_mut(feature.width);
                to.copy_from_slice(&weights[feature.row(*code)..][..feature.width]);
                x = rest;
            }
        }
    });
}

/// The gradient of a table's rows, by that of what was picked: a thread adds up the rows of some features.
pub(super) fn scatter(
    threads: &Threads,
    table: &Table,
    rows: &Rows,
    delta: &[f32],
    input: &Input,
    gradient: &mut [f32],
) {
    let all: usize = table.widths.iter().map(|(_, width)| width).sum();
    let mut rest = gradient;
    let mut start = 0;
    let features = rows.counts().zip(&table.widths);
    let features = features.enumerate().map(|(at, (rows, (_, width)))| {
        let own = rest.split_off_mut(..rows * width).unwrap_or_default();
        let columns = start..start + width;
        start = columns.end;
        (at, columns, own)
    });
    let features: Vec<_> = features.collect();
    let add_up = |(at, columns, own): (usize, Range<usize>, &mut [f32])| {
        own.fill(0.0);
        let codes = input.codes.iter().skip(at).step_by(table.widths.len());
        for (delta, code) in delta.chunks_exact(all).zip(codes) {
            let row = rows.place(at, *code) * columns.len();
            add(&mut own[row..][..columns.len()], &delta[columns.clone()]);
        }
    };
    let numbers = features.iter().map(|(_, _, own)| own.len()).sum::<usize>();
    threads.spread(numbers + input.rows * all, features, add_up);
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
