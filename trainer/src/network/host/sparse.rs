//! Sparse steps: the table rows that a step picks are the tables of a smaller network, which the step computes and
//! updates.
//!
//! ```text
//!  tables of all rows        ─ pick ─▶ catch up with the steps that rows have skipped ──▶ tables of picked rows
//!  weights, optimizer's state                                                           forward, backward, update
//!                            ◀─────────────────────────── changed rows ─────────────────┘
//! ```
//!
//! A step costs only what its data rows touch. Rows that it does not pick are [left behind](History), and catch up when
//! they are picked, or all at once before anything else reads them. Meanwhile the flat gradient and the optimizer state
//! hold only the picked rows, after all other weights. The picked rows are those of the global batch, so that ranks
//! stay the same. The training loop decides whether a network's steps are sparse, and exchanges the codes between
//! ranks.

use std::ops::Range;

use super::catch_up::{History, MOST_STEPS, catch_up};
use crate::network::Architecture;
use crate::network::update::Update;
use crate::threads::Threads;

/// Place of a row that is not picked.
const NOWHERE: u32 = u32::MAX;

/// Rows per part of the loop that gathers them.
const ROWS: usize = if cfg!(test) { 2 } else { 256 };

/// Minimum number of picked rows of a feature per thread that puts them back.
const PUT_BACK: usize = if cfg!(test) { 2 } else { 1024 };

/// Tables whose rows steps pick.
#[derive(Debug)]
pub(super) struct Picked {
    /// Network with all rows.
    whole: Architecture,
    /// Ranges of the parameters that are not tables, in the flat parameter order.
    others: Vec<Range<usize>>,
    /// Place of each code's row among the picked ones of its feature, or [`NOWHERE`].
    places: Vec<u32>,
    /// Steps that the rows of each code have had.
    had: Vec<u32>,
    /// Picked rows of each feature, in the order of the smaller network.
    rows: Vec<Vec<u32>>,
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
        let codes = widths.iter().map(|(codes, _)| codes).sum();
        Self {
            others: others.map(|(_, range)| range).collect(),
            places: vec![NOWHERE; codes],
            had: vec![0; codes],
            rows: vec![Vec::new(); widths.len()],
            tables: tables
                .iter()
                .map(|table| Whole {
                    start: ranges[table.at].start,
                    weights: Vec::new(),
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

    /// Turns a network into the smaller one of these codes' rows, with its optimizer state. Each list has the codes of
    /// data rows, one row after the other.
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
        let mut numbers = 0;
        for table in architecture.graph.tables.iter_mut() {
            let widths = table.widths.iter_mut().zip(&self.rows);
            widths.for_each(|((codes, _), rows)| *codes = rows.len());
            let len = table.widths.iter().map(|(rows, width)| rows * width).sum();
            architecture.graph.parameters[table.at].shape = vec![len];
            weights[table.at].resize(len, 0.0);
            numbers += len;
        }
        let others = self.others();
        for slot in slots.iter_mut() {
            slot.resize(others + numbers, 0.0);
        }
        let mut parts = Vec::new();
        let mut rest: Vec<&mut [f32]> = slots.iter_mut().map(|slot| &mut slot[others..]).collect();
        let mut next = 0;
        for (at, weights) in weights.iter_mut().enumerate() {
            let table = self.whole.tables().iter().position(|table| table.at == at);
            let Some(table) = table else {
                continue;
            };
            // Tables are in parameter order.
            assert_eq!(table, next);
            next += 1;
            let mut weights = weights.as_mut_slice();
            for of_feature in self.of_features(table) {
                for rows in self.rows[of_feature.feature].chunks(ROWS) {
                    let len = rows.len() * of_feature.width;
                    let slots = take(&mut rest, len);
                    let weights = weights.split_off_mut(..len).unwrap_or_default();
                    parts.push((of_feature.clone(), rows, weights, slots));
                }
            }
        }
        let this = &*self;
        threads.each_of(parts, |_, (of_feature, rows, weights, slots)| {
            this.gather(of_feature, rows, weights, slots);
        });
    }

    /// Returns the length of the parameters that are not tables, in numbers.
    fn others(&self) -> usize {
        self.others.iter().map(Range::len).sum()
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
        let mut places = self.places.as_mut_slice();
        let mut first = 0;
        let widths = self.whole.tables().first().map(|table| &table.widths);
        let of_features = widths.into_iter().flatten().zip(&mut self.rows);
        let of_features = of_features
            .enumerate()
            .map(|(feature, ((codes, _), rows))| {
                let places = places.split_off_mut(..*codes).unwrap_or_default();
                let start = first;
                first += codes;
                (feature, start, places, rows)
            });
        let of_features = of_features.collect();
        let count = codes.iter().map(Vec::len).sum();
        threads.spread(count, of_features, |(feature, first, places, rows)| {
            for row in rows.drain(..) {
                places[row as usize] = NOWHERE;
            }
            let own = codes
                .iter()
                .flat_map(|codes| codes.iter().skip(feature).step_by(features));
            for code in own {
                let row = *code as usize - first;
                if places[row] == NOWHERE {
                    places[row] = rows.len() as u32;
                    rows.push(row as u32);
                }
            }
        });
    }

    /// Iterates over the rows of each feature in a table.
    fn of_features(&self, table: usize) -> impl Iterator<Item = OfFeature> {
        let widths = self.whole.tables()[table].widths.iter().enumerate();
        let (mut code, mut start) = (0, 0);
        widths.map(move |(feature, (codes, width))| {
            let own = OfFeature {
                table,
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

    /// Copies rows out of the full tables, and brings them up to date.
    fn gather(&self, of: OfFeature, rows: &[u32], weights: &mut [f32], mut slots: Vec<&mut [f32]>) {
        let whole = &self.tables[of.table];
        let copy = |from: &[f32], to: &mut [f32]| {
            for (row, to) in rows.iter().zip(to.chunks_exact_mut(of.width)) {
                let start = of.start + *row as usize * of.width;
                to.copy_from_slice(&from[start..][..of.width]);
            }
        };
        copy(&whole.weights, weights);
        for (slot, all) in slots.iter_mut().zip(&self.slots) {
            copy(&all[whole.start..], slot);
        }
        let had = &self.had[of.codes.clone()];
        let had = rows.iter().map(|row| had[*row as usize]);
        catch_up(&whole.history, of.width, had, weights, &mut slots);
    }

    /// Renames the codes of data rows, one row after the other, to those of the smaller network.
    pub(super) fn rename(&self, codes: &mut [u32], threads: &Threads) {
        let mut starts = Vec::with_capacity(self.rows.len());
        let mut start = 0;
        for rows in &self.rows {
            starts.push(start);
            start += rows.len() as u32;
        }
        threads.rows(codes, starts.len().max(1), 4, |_, codes| {
            for codes in codes.chunks_exact_mut(starts.len()) {
                for (code, start) in codes.iter_mut().zip(&starts) {
                    *code = start + self.places[*code as usize];
                }
            }
        });
    }

    /// Copies the rows that a step has changed back into the full tables, and records the step.
    pub(super) fn put_back(
        &mut self,
        step: &Update<'_>,
        weights: &[Vec<f32>],
        slots: &[Vec<f32>],
        threads: &Threads,
    ) {
        let mut parts = Vec::new();
        let mut changed: Vec<&[f32]> = slots.iter().map(|slot| &slot[self.others()..]).collect();
        let layout: Vec<Vec<OfFeature>> = (0..self.tables.len())
            .map(|table| self.of_features(table).collect())
            .collect();
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        let mut passed = 0;
        for ((table, whole), layout) in self.whole.tables().iter().zip(&mut self.tables).zip(layout)
        {
            let mut changed_weights = weights[table.at].as_slice();
            let mut all = whole.weights.as_mut_slice();
            take(&mut slots, whole.start - passed);
            passed = whole.start + all.len();
            for of in layout {
                let rows = &self.rows[of.feature];
                let len = rows.len() * of.width;
                let changed_weights = changed_weights.split_off(..len).unwrap_or_default();
                let changed = changed.iter_mut();
                let changed: Vec<_> = changed
                    .map(|slot| slot.split_off(..len).unwrap_or_default())
                    .collect();
                // Each thread puts back the rows of some codes, if there are enough for several threads.
                let codes = of.codes.len();
                let sharing = threads.count().min(rows.len() / PUT_BACK).max(1);
                let block = codes.div_ceil(sharing).max(1);
                for first in (0..codes).step_by(block) {
                    let len = block.min(codes - first) * of.width;
                    let mut to = take(&mut slots, len);
                    to.push(all.split_off_mut(..len).unwrap_or_default());
                    let mut from = changed.clone();
                    from.push(changed_weights);
                    parts.push((first, of.width, rows, from, to));
                }
            }
        }
        threads.each_of(parts, |_, (first, width, rows, from, to)| {
            for (from, to) in from.into_iter().zip(to) {
                let own = first..first + to.len() / width;
                for (row, from) in rows.iter().zip(from.chunks_exact(width)) {
                    let row = *row as usize;
                    if own.contains(&row) {
                        to[(row - first) * width..][..width].copy_from_slice(from);
                    }
                }
            }
        });
        for whole in &mut self.tables {
            whole.history.add(step);
        }
        let steps = self.steps() as u32;
        let mut had = self.had.as_mut_slice();
        let widths = self.whole.tables().first().map(|table| &table.widths);
        for ((codes, _), rows) in widths.into_iter().flatten().zip(&self.rows) {
            let had = had.split_off_mut(..*codes).unwrap_or_default();
            rows.iter().for_each(|row| had[*row as usize] = steps);
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
                for had in self.had[of.codes.clone()].chunks(1 << 12) {
                    let len = had.len() * of.width;
                    let slots = take(&mut all_slots, len);
                    let weights = rest.split_off_mut(..len).unwrap_or_default();
                    parts.push((&whole.history, of.width, had, weights, slots));
                }
            }
        }
        threads.each_of(parts, |_, (history, width, had, weights, mut slots)| {
            catch_up(history, width, had.iter().copied(), weights, &mut slots);
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
        }
        architecture.clone_from(&self.whole);
        self.had.fill(0);
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
    table: usize,
    feature: usize,
    codes: Range<usize>,
    /// Offset of its rows.
    start: usize,
    width: usize,
}
