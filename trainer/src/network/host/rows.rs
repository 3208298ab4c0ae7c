//! Loops over rows of a table, which catch up first. Each number is read and written once, in registers between.
//!
//! Rows lie anywhere in memory, so a loop takes as long as the memory does, if it always has rows to fetch while others
//! are computed: each row that is computed has [a later one](AHEAD) prefetched, and rows are in ascending order.

use multiversion::multiversion;

use super::catch_up::{History, Skipped};
use super::update::{KINDS, Numbers, OfParameter};
use crate::network::matmul::prefetch;

/// Rows between the one that is prefetched and the one that is computed.
const AHEAD: usize = if cfg!(test) { 2 } else { 16 };

/// Numbers of a cache line.
const LINE: usize = 16;

/// Some rows of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) history: &'a History,
    /// Numbers per row, of each kind.
    pub(super) width: usize,
    /// In ascending order.
    pub(super) rows: &'a [u32],
    /// Row that the table begins with.
    pub(super) first: usize,
}

/// Calls a function for all numbers of a row: 16, 4 or 1 at a time. Its last argument is the offset in the row.
macro_rules! in_arrays {
    ($width:expr, $function:ident($($argument:expr),*)) => {
        let mut at = 0;
        while at + 16 <= $width {
            $function::<16>($($argument,)* at);
            at += 16;
        }
        while at + 4 <= $width {
            $function::<4>($($argument,)* at);
            at += 4;
        }
        while at < $width {
            $function::<1>($($argument,)* at);
            at += 1;
        }
    };
}

impl Rows<'_> {
    /// Iterates over the rows' indices in the table, each with that of the row to prefetch meanwhile.
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        let of = |row: &u32| *row as usize - self.first;
        let ahead = self.rows.iter().skip(AHEAD).map(move |row| Some(of(row)));
        let ahead = ahead.chain(std::iter::repeat(None));
        self.rows.iter().map(of).zip(ahead)
    }
}

/// Reads the weights of rows, up to date. `had` is the number of steps that each row of the table has had; the table's
/// average of weights may be absent.
#[multiversion(targets = "simd")]
pub(super) fn read(rows: Rows<'_>, had: &[u32], table: [&[f32]; KINDS], weights: &mut [f32]) {
    let width = rows.width;
    for ((row, next), weights) in rows.each().zip(weights.chunks_exact_mut(width)) {
        if let Some(next) = next {
            fetch(had, &table, width, next);
        }
        let skipped = rows.history.skipped(had[row]);
        in_arrays!(width, read_numbers(skipped, &table, row * width, weights));
    }
}

#[inline(always)]
fn read_numbers<const N: usize>(
    skipped: Option<&Skipped>,
    table: &[&[f32]; KINDS],
    start: usize,
    weights: &mut [f32],
    at: usize,
) {
    let mut numbers = load::<N, _>(table, start + at);
    if let Some(skipped) = skipped {
        skipped.apply(&mut numbers, false);
    }
    weights[at..][..N].copy_from_slice(&numbers[0]);
}

/// Updates rows by their gradient; afterwards they have had one step more than the history.
#[multiversion(targets = "simd")]
pub(super) fn update(
    rows: Rows<'_>,
    of: &OfParameter<'_>,
    had: &mut [u32],
    table: [&mut [f32]; KINDS],
    gradient: &[f32],
) {
    let (width, mut table) = (rows.width, table);
    let steps = rows.history.steps() as u32 + 1;
    for ((row, next), gradient) in rows.each().zip(gradient.chunks_exact(width)) {
        if let Some(next) = next {
            fetch(had, &table, width, next);
        }
        let skipped = rows.history.skipped(had[row]);
        had[row] = steps;
        let start = row * width;
        in_arrays!(
            width,
            update_numbers(skipped, Some((of, gradient)), &mut table, start)
        );
    }
}

/// Brings all rows of a table up to date. `had` is the number of steps that each has had.
#[multiversion(targets = "simd")]
pub(super) fn catch_up(history: &History, width: usize, had: &[u32], table: [&mut [f32]; KINDS]) {
    let mut table = table;
    for (row, had) in had.iter().enumerate() {
        let skipped = history.skipped(*had);
        if skipped.is_some() {
            in_arrays!(
                width,
                update_numbers(skipped, None, &mut table, row * width)
            );
        }
    }
}

#[inline(always)]
fn update_numbers<const N: usize>(
    skipped: Option<&Skipped>,
    by: Option<(&OfParameter<'_>, &[f32])>,
    table: &mut [&mut [f32]; KINDS],
    start: usize,
    at: usize,
) {
    let mut numbers = load::<N, _>(table, start + at);
    if let Some(skipped) = skipped {
        skipped.apply(&mut numbers, true);
    }
    if let Some((of, gradient)) = by {
        let gradient = gradient[at..].first_chunk().expect("rows are whole");
        of.apply_to(&mut numbers, gradient);
    }
    for (kind, numbers) in table.iter_mut().zip(&numbers) {
        if !kind.is_empty() {
            kind[start + at..][..N].copy_from_slice(numbers);
        }
    }
}

/// Returns N numbers of each kind from `at`; 0 for absent kinds.
#[inline(always)]
fn load<const N: usize, S: AsRef<[f32]>>(table: &[S; KINDS], at: usize) -> Numbers<N> {
    // Not `map`: it is not inlined here, and moves arrays through memory.
    let mut numbers = [[0.0; N]; KINDS];
    for (numbers, kind) in numbers.iter_mut().zip(table) {
        if !kind.as_ref().is_empty() {
            numbers.copy_from_slice(&kind.as_ref()[at..][..N]);
        }
    }
    numbers
}

/// Prefetches a row.
#[inline(always)]
fn fetch<S: AsRef<[f32]>>(had: &[u32], table: &[S; KINDS], width: usize, row: usize) {
    prefetch(&raw const had[row]);
    for kind in table.iter().map(S::as_ref) {
        if !kind.is_empty() {
            let numbers = &kind[row * width..][..width];
            numbers.iter().step_by(LINE).for_each(|x| prefetch(x));
            // Rows need not begin with a line.
            prefetch(&raw const numbers[width - 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{AdamForm, Rule};
    use volley_proto::splitmix;

    use super::super::update::{self, Clip, kinds};
    use super::*;
    use crate::network::Update;

    /// Row that the table begins with, and its number of rows.
    const FIRST: usize = 5;
    const COUNT: usize = 9;

    /// Checks numbers up to rounding and the approximation of Adam's ε.
    #[track_caller]
    fn assert_near(found: &[f32], due: &[f32]) {
        assert_eq!(found.len(), due.len());
        for (found, due) in found.iter().zip(due) {
            assert!(
                (found - due).abs() <= 1e-4 * due.abs() + 1e-7,
                "{found} {due}"
            );
        }
    }

    #[test]
    fn picked_rows_are_read_and_updated_as_those_of_whole_tables() {
        let rule = Rule::Adam {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            form: AdamForm::Keras,
            weight_decay: 0.1,
        };
        let steps: [&[u32]; 4] = [
            &[5, 7, 13],
            &[6, 7, 8, 9, 10, 11, 12, 13],
            &[],
            &[5, 6, 7, 13],
        ];
        for width in [1, 4, 21] {
            let len = COUNT * width;
            let number =
                |seed: u64, at: usize| splitmix::unit(splitmix::at(seed, at as u64)) as f32;
            let start = |kind: u64| (0..len).map(|at| number(kind, at)).collect::<Vec<f32>>();
            // Weights, moments and average; the second moment is positive.
            let mut due: [Vec<f32>; KINDS] = [0, 1, 2, 3].map(start);
            let (mut found, mut had) = (due.clone(), [0; COUNT]);
            let mut history = History::new(true);
            for (step, picked) in (1..).zip(steps) {
                let update = Update {
                    rule: &rule,
                    learn_rate: 0.01,
                    steps: 20 + step,
                    l1: 0.0,
                    l2: 0.0,
                    clip_norm: None,
                    clip_value: None,
                    kept: Some(0.9),
                };
                let of = OfParameter::new(&update, Clip::NONE, true);
                let rows = Rows {
                    history: &history,
                    width,
                    rows: picked,
                    first: FIRST,
                };
                let all = picked.iter().map(|row| (*row as usize - FIRST) * width);
                let of_picked = |all_of: &[f32]| -> Vec<f32> {
                    let rows = all.clone().map(|start| &all_of[start..start + width]);
                    rows.flatten().copied().collect()
                };
                let [weights, first, second, _] = found.each_ref().map(Vec::as_slice);
                let mut read_weights = vec![0.0; picked.len() * width];
                read(rows, &had, [weights, first, second, &[]], &mut read_weights);
                assert_near(&read_weights, &of_picked(&due[0]));
                let mut gradient = vec![0.0; len];
                for at in all.clone().flat_map(|start| start..start + width) {
                    gradient[at] = number(10 + step as u64, at) - 0.5;
                }
                let table = found.each_mut().map(Vec::as_mut_slice);
                super::update(rows, &of, &mut had, table, &of_picked(&gradient));
                let whole = due.each_mut().map(Vec::as_mut_slice);
                update::apply(&of, whole, &gradient);
                history.add(&update);
                for (found, due) in found.iter().zip(&due) {
                    assert_near(&of_picked(found), &of_picked(due));
                }
            }
            assert_eq!(had, [4, 4, 4, 2, 2, 2, 2, 2, 4]);
            let [weights, slots @ ..] = found.each_mut().map(Vec::as_mut_slice);
            catch_up(&history, width, &had, kinds(weights, slots, true));
            for (found, due) in found.iter().zip(&due) {
                assert_near(found, due);
            }
        }
    }
}
