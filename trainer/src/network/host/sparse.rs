//! Rows of tables that a step's gradient has: all rows of a feature with few codes, and those that the step's batch picks of
//! one with many.
//!
//! ```text
//!  a table's gradient    all rows of feature 0 │ picked rows of 1 │ all rows of 2 │ picked rows of 3
//! ```
//!
//! Rows that are not picked are [left behind](History) by the step, and catch up before they are read: when a batch picks
//! them, or all of them at once. Picked are the rows of the global batch, so that what ranks have stays the same.
//! Which features have many codes is for the training loop to say, and how picks get around.

use super::catch_up::{History, MOST_STEPS, catch_up};
use super::update;
use crate::network::architecture::Table;
use crate::network::update::Update;
use crate::network::{Architecture, Parameter};
use crate::threads::Threads;

/// The place of a row that is not picked.
const NOWHERE: u32 = u32::MAX;

/// Rows of a feature that a thread has at least, where picked ones are spread over threads.
const BLOCK: usize = if cfg!(test) { 2 } else { 1 << 14 };

/// Weights of picked rows that are changed at once: their numbers of all kinds fit into a first-level cache.
const UPDATED: usize = 1 << 11;

/// Weights that a thread changes at once: their numbers of all kinds fit into a second-level cache.
const CHUNK: usize = 1 << 15;

/// Of each feature, the rows of its codes.
#[derive(Debug)]
pub(in crate::network) struct Rows {
    features: Vec<Feature>,
    /// Of each table; empty where all features have few codes.
    histories: Vec<History>,
}

/// The rows of one feature.
#[derive(Debug)]
struct Feature {
    /// The first of its codes.
    first: usize,
    codes: usize,
    picked: Option<Picked>,
}

/// Rows that a step has picked.
#[derive(Debug)]
struct Picked {
    /// In the order of the gradient.
    rows: Vec<u32>,
    /// Of each row, its place among those, or [`NOWHERE`].
    places: Vec<u32>,
    /// Steps that each row has had.
    had: Vec<u32>,
}

/// Consecutive weights that are changed as a whole, with what the optimizer keeps of each.
pub(super) struct Whole<'a> {
    pub(super) penalized: bool,
    pub(super) weights: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) slots: Vec<&'a mut [f32]>,
}

/// Consecutive rows of a table, of which some are changed.
pub(super) struct Block<'a> {
    width: usize,
    /// The first row, counted within its feature.
    first: usize,
    weights: &'a mut [f32],
    slots: Vec<&'a mut [f32]>,
    /// The gradient of the feature's picked rows.
    gradient: &'a [f32],
    picked: &'a Picked,
    history: &'a History,
}

/// Weights by how a step changes them.
pub(super) struct Weights<'a> {
    pub(super) wholes: Vec<Whole<'a>>,
    pub(super) blocks: Vec<Block<'a>>,
}

/// What is not split yet.
struct Rest<'a> {
    gradient: &'a [f32],
    slots: Vec<&'a mut [f32]>,
    wholes: Vec<Whole<'a>>,
}

impl<'a> Rest<'a> {
    fn gradient(&mut self, len: usize) -> &'a [f32] {
        self.gradient.split_off(..len).unwrap_or_default()
    }

    fn slots(&mut self, len: usize) -> Vec<&'a mut [f32]> {
        let slots = self.slots.iter_mut();
        let own = slots.map(|slot| slot.split_off_mut(..len).unwrap_or_default());
        own.collect()
    }

    fn whole(&mut self, penalized: bool, weights: &'a mut [f32]) {
        for weights in weights.chunks_mut(CHUNK) {
            let whole = Whole {
                penalized,
                gradient: self.gradient(weights.len()),
                slots: self.slots(weights.len()),
                weights,
            };
            self.wholes.push(whole);
        }
    }
}

impl Rows {
    /// All rows of all features.
    pub(super) fn new(architecture: &Architecture) -> Self {
        let mut first = 0;
        let tables = architecture.tables().first();
        let widths = tables.into_iter().flat_map(|table| &table.widths);
        let features = widths.map(|(codes, _)| {
            let feature = Feature {
                first,
                codes: *codes,
                picked: None,
            };
            first += codes;
            feature
        });
        Self {
            features: features.collect(),
            histories: Vec::new(),
        }
    }

    /// Has steps pick rows of these features.
    pub(super) fn pick_of(&mut self, many: &[bool], architecture: &Architecture) {
        for (feature, many) in self.features.iter_mut().zip(many) {
            feature.picked = many.then(|| Picked {
                rows: Vec::new(),
                places: vec![NOWHERE; feature.codes],
                had: vec![0; feature.codes],
            });
        }
        let parameters = architecture.parameters();
        let tables = architecture.tables().iter();
        let histories = tables.map(|table| History::new(parameters[table.at].penalized));
        self.histories = histories.collect();
    }

    /// Rows of each feature in a gradient.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> {
        let features = self.features.iter();
        features.map(|feature| match &feature.picked {
            Some(picked) => picked.rows.len(),
            None => feature.codes,
        })
    }

    /// Where the row of a code of a feature is among the feature's in a gradient.
    ///
    /// # Panics
    /// If it is not the feature's, or was not picked.
    pub(super) fn place(&self, feature: usize, code: u32) -> usize {
        let feature = &self.features[feature];
        let row = code as usize - feature.first;
        match &feature.picked {
            Some(picked) => picked.places[row] as usize,
            None => row,
        }
    }

    /// Numbers of a parameter in a gradient.
    pub(super) fn len(&self, at: usize, parameter: &Parameter, tables: &[Table]) -> usize {
        match tables.iter().find(|table| table.at == at) {
            Some(table) => {
                let widths = table.widths.iter().map(|(_, width)| width);
                self.counts().zip(widths).map(|(rows, width)| rows * width).sum()
            }
            None => parameter.len(),
        }
    }

    /// Picks the rows of these codes: of one feature that has many after the other, in each of these.
    pub(super) fn pick(&mut self, picks: &[Vec<u32>], threads: &Threads) {
        let many = self.features.iter_mut();
        let many = many.filter_map(|feature| Some((feature.first, feature.picked.as_mut()?)));
        let many: Vec<_> = many.enumerate().collect();
        let count = many.len();
        let codes = picks.iter().map(Vec::len).sum();
        threads.spread(codes, many, |(at, (first, picked))| {
            for row in picked.rows.drain(..) {
                picked.places[row as usize] = NOWHERE;
            }
            for code in picks.iter().flat_map(|codes| codes.iter().skip(at).step_by(count)) {
                let row = code - first as u32;
                let place = &mut picked.places[row as usize];
                if *place == NOWHERE {
                    *place = picked.rows.len() as u32;
                    picked.rows.push(row);
                }
            }
        });
    }

    /// Splits a network's weights, with what the optimizer keeps of them and the gradient, which may be left out, between
    /// so many threads.
    pub(super) fn split<'a>(
        &'a self,
        architecture: &Architecture,
        weights: &'a mut [Vec<f32>],
        slots: &'a mut [Vec<f32>],
        gradient: &'a [f32],
        threads: usize,
    ) -> Weights<'a> {
        let mut rest = Rest {
            gradient,
            slots: slots.iter_mut().map(Vec::as_mut_slice).collect(),
            wholes: Vec::new(),
        };
        let mut blocks = Vec::new();
        let parameters = architecture.parameters().iter().zip(weights).enumerate();
        for (at, (parameter, weights)) in parameters {
            let mut tables = architecture.tables().iter().zip(&self.histories);
            let Some((table, history)) = tables.find(|(table, _)| table.at == at) else {
                rest.whole(parameter.penalized, weights);
                continue;
            };
            let mut weights = weights.as_mut_slice();
            for (feature, (codes, width)) in self.features.iter().zip(&table.widths) {
                let mut own = weights.split_off_mut(..codes * width).unwrap_or_default();
                let Some(picked) = &feature.picked else {
                    rest.whole(parameter.penalized, own);
                    continue;
                };
                let gradient = rest.gradient(picked.rows.len() * width);
                let rows = codes.div_ceil(threads).max(BLOCK);
                for first in (0..*codes).step_by(rows) {
                    let len = rows.min(codes - first) * width;
                    blocks.push(Block {
                        width: *width,
                        first,
                        weights: own.split_off_mut(..len).unwrap_or_default(),
                        slots: rest.slots(len),
                        gradient,
                        picked,
                        history,
                    });
                }
            }
        }
        Weights {
            wholes: rest.wholes,
            blocks,
        }
    }

    /// Whether rows are to catch up before there are more steps.
    pub(super) fn is_full(&self) -> bool {
        self.steps() >= MOST_STEPS
    }

    /// Steps since all rows were up to date.
    fn steps(&self) -> usize {
        self.histories.first().map_or(0, History::steps)
    }

    /// Counts a step that was taken, which the picked rows have had.
    pub(super) fn add(&mut self, step: &Update<'_>) {
        self.histories.iter_mut().for_each(|history| history.add(step));
        self.picked_are_up_to_date();
    }

    /// The picked rows have had all steps.
    pub(super) fn picked_are_up_to_date(&mut self) {
        let steps = self.steps() as u32;
        for picked in self.features.iter_mut().filter_map(|f| f.picked.as_mut()) {
            picked.rows.iter().for_each(|row| picked.had[*row as usize] = steps);
        }
    }

    /// All rows have had all steps.
    pub(super) fn all_are_up_to_date(&mut self) {
        self.histories.iter_mut().for_each(History::clear);
        for picked in self.features.iter_mut().filter_map(|f| f.picked.as_mut()) {
            picked.had.fill(0);
        }
    }
}

impl Block<'_> {
    /// Its picked rows, and where they are in the gradient.
    fn picked(&self) -> impl Iterator<Item = (usize, usize)> {
        let rows = self.first..self.first + self.weights.len() / self.width;
        let picked = self.picked.rows.iter().map(|row| *row as usize).enumerate();
        let picked = picked.filter(move |(_, row)| rows.contains(row));
        picked.map(|(place, row)| (row - self.first, place))
    }

    /// Brings the picked rows up to date.
    pub(super) fn catch_up_picked(mut self) {
        let had = |row| self.picked.had[self.first + row];
        let rows: Vec<_> = self.picked().map(|(row, _)| (row as u32, had(row))).collect();
        catch_up(self.history, self.width, &rows, self.weights, &mut self.slots);
    }

    /// Brings all rows up to date.
    pub(super) fn catch_up_all(mut self) {
        let rows = self.weights.len() / self.width;
        let had = &self.picked.had[self.first..][..rows];
        let rows: Vec<_> = (0..).zip(had).map(|(row, had)| (row, *had)).collect();
        catch_up(self.history, self.width, &rows, self.weights, &mut self.slots);
    }

    /// Changes the picked rows by a step, as many at once as fit into a first-level cache.
    pub(super) fn apply(mut self, step: &Update<'_>) {
        let width = self.width;
        let rows: Vec<_> = self.picked().collect();
        let (mut weights, mut gradient) = (Vec::new(), Vec::new());
        let mut slots = vec![Vec::new(); self.slots.len()];
        for rows in rows.chunks((UPDATED / width).max(1)) {
            let gather = |numbers: &[f32], into: &mut Vec<f32>| {
                into.clear();
                let rows = rows.iter().map(|(row, _)| &numbers[row * width..][..width]);
                rows.for_each(|row| into.extend_from_slice(row));
            };
            gather(self.weights, &mut weights);
            let of_slots = self.slots.iter().zip(&mut slots);
            of_slots.for_each(|(slot, into)| gather(slot, into));
            gradient.clear();
            let places = rows.iter().map(|(_, place)| place * width);
            places.for_each(|place| gradient.extend_from_slice(&self.gradient[place..][..width]));
            let changed = slots.iter_mut().map(Vec::as_mut_slice).collect();
            let penalized = self.history.penalized;
            update::apply(step, penalized, &mut weights, &gradient, changed);
            let scatter = |from: &[f32], numbers: &mut [f32]| {
                for ((row, _), from) in rows.iter().zip(from.chunks_exact(width)) {
                    numbers[row * width..][..width].copy_from_slice(from);
                }
            };
            scatter(&weights, self.weights);
            let of_slots = self.slots.iter_mut().zip(&slots);
            of_slots.for_each(|(slot, from)| scatter(from, slot));
        }
    }
}
