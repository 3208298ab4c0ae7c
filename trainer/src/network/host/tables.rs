//! Table lookups by code: embeddings and factors.
//!
//! A table holds the rows of one feature after those of another, each feature's with its own width; codes count the
//! rows.

use std::ops::Range;

use super::add;
use crate::network::Input;
use crate::network::architecture::Table;
use crate::threads::Threads;

/// Looks up each row's codes, side by side, `[B × ΣW]`.
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

/// Computes the table's gradient from that by the looked-up rows: each thread sums the rows of some features.
pub(super) fn scatter(
    threads: &Threads,
    table: &Table,
    delta: &[f32],
    input: &Input,
    gradient: &mut [f32],
) {
    let width: usize = table.widths.iter().map(|(_, width)| width).sum();
    let mut rest = gradient;
    let mut start = 0;
    let features = Feature::of(table).into_iter().zip(&table.widths);
    let features = features.enumerate().map(|(at, (feature, (codes, _)))| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(codes * feature.width);
        rest = others;
        let columns = start..start + feature.width;
        start = columns.end;
        (at, feature, columns, own)
    });
    let features: Vec<_> = features.collect();
    let add_up = |(at, feature, columns, own): (usize, Feature, Range<usize>, &mut [f32])| {
        own.fill(0.0);
        let codes = input.codes.iter().skip(at).step_by(table.widths.len());
        for (delta, code) in delta.chunks_exact(width).zip(codes) {
            let row = (*code as usize - feature.code) * feature.width;
            add(&mut own[row..][..feature.width], &delta[columns.clone()]);
        }
    };
    let numbers = features
        .iter()
        .map(|(_, _, _, own)| own.len())
        .sum::<usize>();
    threads.spread(numbers + input.rows * width, features, add_up);
}

/// Position of a feature's rows.
struct Feature {
    /// First of its codes.
    code: usize,
    /// Offset of its rows.
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

    /// Returns the offset of a code's row.
    fn row(&self, code: u32) -> usize {
        self.start + (code as usize - self.code) * self.width
    }
}
