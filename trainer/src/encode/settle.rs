//! Settling: turns a loaded shard into training rows with global codes, canonical order and split.

use std::ops::Range;

use bytemuck::Pod;

use super::shard::{LocalShard, Part};
use super::spill::Storage;
use super::stored::Stored;
use super::vocabulary::Vocabulary;
use crate::random::{Key, Purpose};

/// Encoded rows, one after the other, of C categorical and N continuous features. Numbers are `f64` until they are
/// [scaled](super::Scaling::apply), and `f32` from then on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rows<Number: Pod = f32> {
    /// Rows of the embedding table, `[len × C]`.
    pub(crate) codes: Stored<u32>,
    /// Continuous features, `[len × N]`, null as NaN; the network's inputs once they are scaled.
    pub(crate) continuous: Stored<Number>,
    /// Labels, transformed, and scaled with the features, `[len × L]` of L labels; or class numbers, `[len]`.
    pub(crate) labels: Stored<Number>,
    /// Weights above 0, `[len]`; empty if all are 1.
    pub(crate) weights: Stored<f32>,
    /// Hash of each row's content, `[len]`: equal rows have equal keys, wherever they are.
    pub(crate) keys: Stored<u64>,
    /// Ensemble member that holds out each row, `[len]`; empty without cross-validation.
    pub(crate) folds: Stored<u8>,
    /// Weights in evaluation, `[len]`, without class weights; `None` if they equal `weights`.
    pub(crate) eval_weights: Option<Stored<f32>>,
}

impl<Number: Pod> Default for Rows<Number> {
    fn default() -> Self {
        Self {
            codes: Stored::default(),
            continuous: Stored::default(),
            labels: Stored::default(),
            weights: Stored::default(),
            keys: Stored::default(),
            folds: Stored::default(),
            eval_weights: None,
        }
    }
}

impl<Number: Pod> Rows<Number> {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the wrapping sum of the keys: the same in any order.
    pub(crate) fn checksum(&self) -> u64 {
        self.keys.iter().copied().fold(0, u64::wrapping_add)
    }

    /// Returns a row's weight.
    pub(crate) fn weight(&self, row: usize) -> f32 {
        self.weights.get(row).copied().unwrap_or(1.0)
    }

    /// Asks the system to read rows from their file ahead of use.
    pub(crate) fn will_need(&self, rows: Range<usize>) {
        fn of<T: Pod>(column: &Stored<T>, rows: &Range<usize>, of: usize) {
            let width = column.len() / of;
            column.will_need(rows.start * width..rows.end * width);
        }
        if rows.is_empty() {
            return;
        }
        of(&self.codes, &rows, self.len());
        of(&self.continuous, &rows, self.len());
        of(&self.labels, &rows, self.len());
        of(&self.weights, &rows, self.len());
        of(&self.keys, &rows, self.len());
        of(&self.folds, &rows, self.len());
    }

    /// Returns the bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        let numbers = size_of::<Number>() * (self.continuous.len() + self.labels.len());
        let others = size_of::<u32>() * self.codes.len() + size_of::<u64>() * self.keys.len();
        let optional = size_of::<f32>() * self.weights.len() + self.folds.len();
        (numbers + others + optional) / self.len().max(1)
    }
}

impl Rows {
    /// Multiplies the rows' weights by their class weights.
    pub(crate) fn weigh(&mut self, classes: &[f64]) {
        let weights = (0..self.len()).map(|row| {
            let class = self.labels[row] as usize;
            self.weight(row) * classes.get(class).map_or(1.0, |weight| *weight as f32)
        });
        let weights: Stored<f32> = weights.collect();
        let own = std::mem::replace(&mut self.weights, weights);
        self.eval_weights = Some(own).filter(|_| !self.folds.is_empty());
    }

    /// Copies the first `rows` rows.
    pub(crate) fn first(&self, rows: usize) -> Self {
        fn part<T: Pod>(all: &[T], rows: usize, of: usize) -> Stored<T> {
            all[..all.len().checked_div(of).unwrap_or(0) * rows]
                .to_vec()
                .into()
        }
        let of = self.len();
        Self {
            codes: part(&self.codes, rows, of),
            continuous: part(&self.continuous, rows, of),
            labels: part(&self.labels, rows, of),
            weights: part(&self.weights, rows, of),
            keys: part(&self.keys, rows, of),
            folds: part(&self.folds, rows, of),
            eval_weights: self.eval_weights.as_ref().map(|all| part(all, rows, of)),
        }
    }

    /// Appends rows of the same columns.
    pub(crate) fn append(&mut self, rows: &Self) {
        self.codes.to_mut().extend_from_slice(&rows.codes);
        self.continuous.to_mut().extend_from_slice(&rows.continuous);
        self.labels.to_mut().extend_from_slice(&rows.labels);
        self.weights.to_mut().extend_from_slice(&rows.weights);
        self.keys.to_mut().extend_from_slice(&rows.keys);
        self.folds.to_mut().extend_from_slice(&rows.folds);
    }

    /// Returns a row's codes.
    pub(crate) fn codes_of(&self, row: usize) -> &[u32] {
        let width = self.codes.len() / self.len();
        &self.codes[row * width..(row + 1) * width]
    }

    /// Returns a row's weight in evaluation.
    pub(crate) fn eval_weight(&self, row: usize) -> f32 {
        match &self.eval_weights {
            Some(weights) => weights.get(row).copied().unwrap_or(1.0),
            None => self.weight(row),
        }
    }

    /// Drops the folds: no member of an ensemble holds out rows any more.
    pub(crate) fn merge_folds(&mut self) {
        (self.folds, self.eval_weights) = (Stored::default(), None);
    }
}

/// Shard ready for training; rows for testing are gone.
#[derive(Debug, PartialEq)]
pub(crate) struct Settled<Number: Pod = f32> {
    pub(crate) id: usize,
    /// Storage its rows belong in.
    pub(crate) storage: Storage,
    pub(crate) train: Rows<Number>,
    pub(crate) eval: Rows<Number>,
}

/// Maps a shard's codes to rows of the embedding table and class labels to class numbers, and sorts its rows into
/// canonical order.
///
/// The order is that of a hash of the encoded content; rows that tie are equal. So it depends neither on the order in
/// which rows arrived nor on which rank has the shard. The result's rows are on the heap, until they are
/// [stored](Settled::stored).
pub(crate) fn settle(
    shard: LocalShard,
    vocabularies: &[Vocabulary],
    classes: Option<&Vocabulary>,
) -> Settled<f64> {
    let LocalShard {
        id,
        storage,
        dictionaries,
        codes,
        mut continuous,
        classes: label_values,
        mut labels,
        weights,
        parts,
        folds,
        ..
    } = shard;
    // Columns are read in any order. If memory is short, the system may drop their file's pages meanwhile.
    let numbers = continuous.iter_mut().chain(&mut labels);
    match &storage {
        Storage::Memory => numbers.for_each(|column| column.will_need(0..column.len())),
        Storage::Files(_) => numbers.for_each(|column| {
            column.to_mut();
        }),
    }
    let mut codes: Vec<_> = codes.into_iter().map(Stored::into_vec).collect();
    let (weights, folds) = (weights.into_vec(), folds.into_vec());
    let mut offset = 0;
    for ((column, dictionary), vocabulary) in codes.iter_mut().zip(&dictionaries).zip(vocabularies)
    {
        let table_rows: Vec<u32> = dictionary
            .codes_in(vocabulary)
            .into_iter()
            .map(|code| code + offset)
            .collect();
        column
            .iter_mut()
            .for_each(|code| *code = table_rows[*code as usize]);
        offset += vocabulary.codes() as u32;
    }
    drop(dictionaries);
    if let Some((values, classes)) = label_values.zip(classes) {
        // The first code is that of unknown values; no label has it.
        let codes = values.codes_in(classes);
        for label in labels.iter_mut().flat_map(|column| column.to_mut()) {
            *label = codes
                .get(*label as usize)
                .map_or(0.0, |code| f64::from(code.saturating_sub(1)));
        }
    }

    fn slices<T: Pod>(columns: &[Stored<T>]) -> Vec<&[T]> {
        columns.iter().map(|column| &**column).collect()
    }
    let codes: Vec<&[u32]> = codes.iter().map(Vec::as_slice).collect();
    let (continuous, labels) = (slices(&continuous), slices(&labels));
    let content = Key::new(0, Purpose::Content);
    let hash = |row: usize| {
        let key = codes
            .iter()
            .fold(content, |key, column| key.with(u64::from(column[row])));
        let numbers = continuous
            .iter()
            .chain(&labels)
            .map(|column| column[row])
            .chain(weights.get(row).copied().map(f64::from));
        let key = numbers.fold(key, |key, number| key.with(number.to_bits()));
        let key = key.with(parts[row] as u64);
        let key = folds
            .get(row)
            .map_or(key, |fold| key.with(u64::from(*fold)));
        key.hash()
    };
    let mut order: Vec<(u64, usize)> = (0..parts.len())
        .filter(|row| parts[*row] != Part::Test)
        .map(|row| (hash(row), row))
        .collect();
    order.sort_unstable();

    let part = |due: Part| {
        let of_part = || order.iter().filter(|(_, row)| parts[*row] == due);
        let count = of_part().count();
        fn gathered<'r, T: Copy + 'r>(
            columns: &[&[T]],
            rows: impl Iterator<Item = &'r (u64, usize)>,
            count: usize,
        ) -> Stored<T> {
            let mut all = Vec::with_capacity(count * columns.len());
            rows.for_each(|(_, row)| all.extend(columns.iter().map(|column| column[*row])));
            all.into()
        }
        Rows {
            codes: gathered(&codes, of_part(), count),
            continuous: gathered(&continuous, of_part(), count),
            labels: gathered(&labels, of_part(), count),
            weights: of_part()
                .filter_map(|(_, row)| weights.get(*row).copied())
                .collect(),
            keys: of_part().map(|(key, _)| *key).collect(),
            folds: of_part()
                .filter_map(|(_, row)| folds.get(*row).copied())
                .collect(),
            eval_weights: None,
        }
    };
    Settled {
        id,
        train: part(Part::Train),
        eval: part(Part::Eval),
        storage,
    }
}
