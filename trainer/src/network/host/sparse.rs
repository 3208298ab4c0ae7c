//! Sparse steps: the table rows that a step picks are the tables of a smaller network, which computes the step's
//! gradient.
//!
//! ```text
//!  tables of all rows    weights, state ─ catch up with the steps that rows have skipped ─▶ weights of picked rows
//!                              │                                                             forward, backward
//!                              ▼                                                                   │
//!                         catch up, update ◀──────────── gradient of picked rows ──────────────────┘
//!                              │
//!                              └─▶ weights, state
//! ```
//!
//! A step costs only what its data rows touch. Rows that it does not pick are [left behind](History), and catch up when
//! they are picked, or all at once before anything else reads them. Meanwhile the flat gradient holds only the picked
//! rows, after all other weights, and the optimizer state outside holds no tables. The picked rows are those of the
//! global batch, so that ranks stay the same. The training loop decides whether a network's steps are sparse, and
//! exchanges the codes between ranks.
//!
//! A step goes through the rows [twice](super::rows), in ascending order: to read their weights, and to update them.
//! Catching up twice costs less time than keeping what it has found.

use std::ops::Range;

use super::catch_up::{History, MOST_STEPS};
use super::row_set::RowSet;
use super::rows::{self, Rows};
use super::update::{Clip, OfParameter, kinds};
use crate::network::Architecture;
use crate::network::update::Update;
use crate::threads::Threads;

/// Picked rows per part of a loop.
const ROWS: usize = if cfg!(test) { 5 } else { 512 };

/// Tables whose rows steps pick.
#[derive(Debug)]
pub(super) struct Picked {
    /// Network with all rows.
    whole: Architecture,
    /// Ranges of the parameters that are not tables, in the flat parameter order.
    others: Vec<Range<usize>>,
    /// Picked rows of each feature, and its first code.
    rows: Vec<(u32, RowSet)>,
    tables: Vec<Whole>,
    /// Optimizer state of all weights. It is stale for parameters that are not tables.
    slots: Vec<Vec<f32>>,
    /// The smaller network is in use.
    in_use: bool,
}

/// All rows of a table.
#[derive(Debug)]
struct Whole {
    /// Offset of its numbers in the flat parameter order.
    start: usize,
    weights: Vec<f32>,
    /// Steps that each row has had.
    had: Vec<u32>,
    history: History,
}

impl Picked {
    pub(super) fn new(architecture: &Architecture) -> Self {
        let parameters = architecture.parameters();
        let mut start = 0;
        let ranges = parameters.iter().map(|parameter| {
            let range = start..start + parameter.len();
            start = range.end;
            range
        });
        let ranges: Vec<_> = ranges.collect();
        let tables = architecture.tables();
        let is_table = |at: &usize| tables.iter().any(|table| table.at == *at);
        let others = ranges.iter().cloned().enumerate();
        let others = others.filter(|(at, _)| !is_table(at));
        let widths = tables.first().map_or(&[][..], |table| &table.widths);
        let mut codes = 0;
        let rows = widths.iter().map(|(own, _)| {
            let first = codes;
            codes += own;
            (first as u32, RowSet::new(*own))
        });
        let rows = rows.collect();
        Self {
            others: others.map(|(_, range)| range).collect(),
            rows,
            tables: tables
                .iter()
                .map(|table| Whole {
                    start: ranges[table.at].start,
                    weights: Vec::new(),
                    had: vec![0; codes],
                    history: History::new(parameters[table.at].penalized),
                })
                .collect(),
            slots: Vec::new(),
            in_use: false,
            whole: architecture.clone(),
        }
    }

    /// Returns whether the smaller network is in use.
    pub(super) fn in_use(&self) -> bool {
        self.in_use
    }

    fn steps(&self) -> usize {
        self.tables.first().map_or(0, |whole| whole.history.steps())
    }

    /// Returns whether the history has reached its maximum length.
    pub(super) fn is_full(&self) -> bool {
        self.steps() >= MOST_STEPS
    }

    /// Turns a network into the smaller one of these codes' rows, and its optimizer state into that of the parameters
    /// that are not tables. Each list has the codes of data rows, one row after the other.
    pub(super) fn pick(
        &mut self,
        codes: &[Vec<u32>],
        architecture: &mut Architecture,
        weights: &mut [Vec<f32>],
        slots: &mut [Vec<f32>],
        threads: &Threads,
    ) {
        if !self.in_use {
            self.take_apart(weights, slots);
        }
        self.choose(codes, threads);
        let mut parts = Vec::new();
        let tables = architecture.graph.tables.iter_mut().zip(&self.tables);
        let mut of_tables: Vec<_> = weights.iter_mut().map(Some).collect();
        for (at, (table, whole)) in tables.enumerate() {
            let widths = table.widths.iter_mut().zip(&self.rows);
            widths.for_each(|((codes, _), (_, set))| *codes = set.rows().len());
            let len = table.widths.iter().map(|(rows, width)| rows * width).sum();
            architecture.graph.parameters[table.at].shape = vec![len];
            let weights = of_tables[table.at].take();
            let weights = weights.expect("a parameter is one table");
            weights.resize(len, 0.0);
            let mut weights = weights.as_mut_slice();
            for of in self.of_features(at) {
                for rows in self.rows[of.feature].1.rows().chunks(ROWS) {
                    let weights = weights.split_off_mut(..rows.len() * of.width);
                    parts.push((whole, of.clone(), rows, weights.unwrap_or_default()));
                }
            }
        }
        threads.each_of(parts, |_, (whole, of, rows, weights)| {
            whole.read(&of, rows, &self.slots, weights);
        });
    }

    /// Sets the tables of all rows aside.
    fn take_apart(&mut self, weights: &mut [Vec<f32>], slots: &mut [Vec<f32>]) {
        for (table, whole) in self.whole.tables().iter().zip(&mut self.tables) {
            whole.weights = std::mem::take(&mut weights[table.at]);
        }
        self.slots = slots.iter_mut().map(std::mem::take).collect();
        for (slot, all) in slots.iter_mut().zip(&self.slots) {
            let others = self.others.iter().cloned();
            others.for_each(|range| slot.extend_from_slice(&all[range]));
        }
        self.in_use = true;
    }

    /// Lists the rows of these codes.
    fn choose(&mut self, codes: &[Vec<u32>], threads: &Threads) {
        let features = self.rows.len();
        let count = codes.iter().map(Vec::len).sum();
        let of_features = self.rows.iter_mut().enumerate().collect();
        threads.spread(count, of_features, |(feature, (first, set))| {
            let own = codes
                .iter()
                .flat_map(|codes| codes.iter().skip(feature).step_by(features));
            set.replace(own.map(|code| code - *first));
        });
    }

    /// Iterates over the rows of each feature in a table.
    fn of_features(&self, table: usize) -> impl Iterator<Item = OfFeature> {
        let widths = self.whole.tables()[table].widths.iter().enumerate();
        let (mut code, mut start) = (0, 0);
        widths.map(move |(feature, (codes, width))| {
            let own = OfFeature {
                feature,
                codes: code..code + codes,
                start,
                width: *width,
            };
            code += codes;
            start += codes * width;
            own
        })
    }

    /// Renames the codes of data rows, one row after the other, to those of the smaller network.
    pub(super) fn rename(&self, codes: &mut [u32], threads: &Threads) {
        let mut start = 0;
        let features = self.rows.iter().map(|(first, set)| {
            let own = start;
            start += set.rows().len() as u32;
            (own, *first, set)
        });
        let features: Vec<_> = features.collect();
        threads.rows(codes, features.len().max(1), 4, |_, codes| {
            for codes in codes.chunks_exact_mut(features.len()) {
                for (code, (start, first, set)) in codes.iter_mut().zip(&features) {
                    *code = start + set.place(*code - first);
                }
            }
        });
    }

    /// Updates the picked rows by their part of the flat gradient, in the tables of all rows, and records the step.
    pub(super) fn update(
        &mut self,
        step: &Update<'_>,
        clip: Clip,
        mut gradient: &[f32],
        threads: &Threads,
    ) {
        let layout: Vec<Vec<OfFeature>> = (0..self.tables.len())
            .map(|table| self.of_features(table).collect())
            .collect();
        let mut parts = Vec::new();
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        let mut passed = 0;
        for (whole, layout) in self.tables.iter_mut().zip(layout) {
            take(&mut slots, whole.start - passed);
            passed = whole.start + whole.weights.len();
            let mut weights = whole.weights.as_mut_slice();
            let mut had = whole.had.as_mut_slice();
            for of in layout {
                let mut first = 0;
                let mut chunks = self.rows[of.feature].1.rows().chunks(ROWS).peekable();
                while first < of.codes.len() {
                    // A part has the rows of the table from one of its own to the next part's.
                    let rows = chunks.next().unwrap_or_default();
                    let end = chunks
                        .peek()
                        .map_or(of.codes.len(), |next| next[0] as usize);
                    let len = (end - first) * of.width;
                    let rows = Rows {
                        history: &whole.history,
                        width: of.width,
                        rows,
                        first,
                    };
                    let had = had.split_off_mut(..end - first).unwrap_or_default();
                    let weights = weights.split_off_mut(..len).unwrap_or_default();
                    let table = kinds(weights, take(&mut slots, len), step.kept.is_some());
                    let gradient = gradient.split_off(..rows.rows.len() * of.width);
                    parts.push((rows, had, table, gradient.unwrap_or_default()));
                    first = end;
                }
            }
        }
        threads.each_of(parts, |_, (rows, had, table, gradient)| {
            let of = OfParameter::new(step, clip, rows.history.penalized());
            rows::update(rows, &of, had, table, gradient);
        });
        for whole in &mut self.tables {
            whole.history.add(step);
        }
    }

    /// Turns a network back into the whole one, with all rows up to date, and with its optimizer state.
    pub(super) fn put_together(
        &mut self,
        architecture: &mut Architecture,
        weights: &mut [Vec<f32>],
        slots: &mut [Vec<f32>],
        threads: &Threads,
    ) {
        if !self.in_use {
            return;
        }
        self.in_use = false;
        let layout: Vec<Vec<OfFeature>> = (0..self.tables.len())
            .map(|table| self.of_features(table).collect())
            .collect();
        let mut parts = Vec::new();
        let mut all_slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        let mut passed = 0;
        for (whole, layout) in self.tables.iter_mut().zip(layout) {
            take(&mut all_slots, whole.start - passed);
            passed = whole.start + whole.weights.len();
            let mut rest = whole.weights.as_mut_slice();
            for of in layout {
                for had in whole.had[of.codes.clone()].chunks(1 << 12) {
                    let len = had.len() * of.width;
                    let slots = take(&mut all_slots, len);
                    let weights = rest.split_off_mut(..len).unwrap_or_default();
                    let table = kinds(weights, slots, whole.history.averages());
                    parts.push((&whole.history, of.width, had, table));
                }
            }
        }
        threads.each_of(parts, |_, (history, width, had, table)| {
            rows::catch_up(history, width, had, table);
        });
        for (slot, mut all) in slots.iter_mut().zip(std::mem::take(&mut self.slots)) {
            let mut rest = slot.as_slice();
            for range in self.others.iter().cloned() {
                let own = rest.split_off(..range.len()).unwrap_or_default();
                all[range].copy_from_slice(own);
            }
            *slot = all;
        }
        for (table, whole) in self.whole.tables().iter().zip(&mut self.tables) {
            weights[table.at] = std::mem::take(&mut whole.weights);
            whole.history.clear();
            whole.had.fill(0);
        }
        architecture.clone_from(&self.whole);
    }
}

/// Takes the first `len` numbers of the rest of each slot.
pub(super) fn take<'a>(slots: &mut [&'a mut [f32]], len: usize) -> Vec<&'a mut [f32]> {
    let slots = slots.iter_mut();
    slots
        .map(|slot| slot.split_off_mut(..len).unwrap_or_default())
        .collect()
}

/// Rows of a feature in a table.
#[derive(Debug, Clone)]
struct OfFeature {
    feature: usize,
    codes: Range<usize>,
    /// Offset of its rows.
    start: usize,
    width: usize,
}

impl Whole {
    /// Reads the weights of a feature's rows, up to date. `slots` is the optimizer state of all weights.
    fn read(&self, of: &OfFeature, rows: &[u32], slots: &[Vec<f32>], weights: &mut [f32]) {
        let all = slots.iter().map(|slot| &slot[self.start + of.start..]);
        let [all_weights, state @ .., _] =
            kinds(&self.weights[of.start..], all, self.history.averages());
        let rows = Rows {
            history: &self.history,
            width: of.width,
            rows,
            first: 0,
        };
        let [first, second] = state;
        let table = [all_weights, first, second, &[]];
        rows::read(rows, &self.had[of.codes.clone()], table, weights);
    }
}
