//! From a loaded shard to the rows that are trained on: global codes, canonical order, split.

use super::shard::{LocalShard, Part};
use super::vocabulary::Vocabulary;
use crate::random::{Key, Purpose};

/// Encoded rows, one after the other. C categorical and N continuous features. Numbers are `f64` until they are
/// [scaled](super::Scaling::apply), and `f32` from then on.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Rows<Number = f32> {
    /// Rows of the embedding table, `[len × C]`.
    pub(crate) codes: Vec<u32>,
    /// `[len × N]`, null not a number; what enters the network once they are scaled.
    pub(crate) continuous: Vec<Number>,
    /// Transformed, and scaled with them, `[len × L]` of L labels; or the numbers of classes, `[len]`.
    pub(crate) labels: Vec<Number>,
    /// Above 0, `[len]`; none, where all are 1.
    pub(crate) weights: Vec<f32>,
    /// A hash of each row's content: equal rows have equal keys, wherever they are. `[len]`
    pub(crate) keys: Vec<u64>,
    /// The member of the ensemble that holds out each row, `[len]`; none without cross-validation.
    pub(crate) folds: Vec<u8>,
    /// Their weights in evaluation, `[len]`, where these lack those of classes.
    pub(crate) eval_weights: Option<Vec<f32>>,
}

impl<Number> Rows<Number> {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The wrapping sum of the keys: the same in any order.
    pub(crate) fn checksum(&self) -> u64 {
        self.keys.iter().copied().fold(0, u64::wrapping_add)
    }

    /// A row's weight.
    pub(crate) fn weight(&self, row: usize) -> f32 {
        self.weights.get(row).copied().unwrap_or(1.0)
    }

    fn reserve(&mut self, rows: usize, categorical: usize, continuous: usize, labels: usize) {
        self.codes.reserve_exact(rows * categorical);
        self.continuous.reserve_exact(rows * continuous);
        self.labels.reserve_exact(rows * labels);
        self.keys.reserve_exact(rows);
    }
}

impl Rows {
    /// Gives rows their class' weight besides their own.
    pub(crate) fn weigh(&mut self, classes: &[f64]) {
        let weights = (0..self.len()).map(|row| {
            let class = self.labels[row] as usize;
            self.weight(row) * classes.get(class).map_or(1.0, |weight| *weight as f32)
        });
        let weights = weights.collect();
        let own = std::mem::replace(&mut self.weights, weights);
        self.eval_weights = Some(own).filter(|_| !self.folds.is_empty());
    }

    /// So many of the first of them.
    pub(crate) fn first(&self, rows: usize) -> Self {
        fn part<T: Clone>(all: &[T], rows: usize, of: usize) -> Vec<T> {
            all[..all.len().checked_div(of).unwrap_or(0) * rows].to_vec()
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

    /// Adds rows of the same columns behind these.
    pub(crate) fn append(&mut self, mut rows: Self) {
        self.codes.append(&mut rows.codes);
        self.continuous.append(&mut rows.continuous);
        self.labels.append(&mut rows.labels);
        self.weights.append(&mut rows.weights);
        self.keys.append(&mut rows.keys);
        self.folds.append(&mut rows.folds);
    }

    /// A row's codes.
    pub(crate) fn codes_of(&self, row: usize) -> &[u32] {
        let width = self.codes.len() / self.len();
        &self.codes[row * width..(row + 1) * width]
    }

    /// A row's weight in evaluation.
    pub(crate) fn eval_weight(&self, row: usize) -> f32 {
        match &self.eval_weights {
            Some(weights) => weights.get(row).copied().unwrap_or(1.0),
            None => self.weight(row),
        }
    }

    /// Has no member of an ensemble hold out rows any more.
    pub(crate) fn merge_folds(&mut self) {
        (self.folds, self.eval_weights) = (vec![], None);
    }
}

/// A shard ready for training; rows for testing are gone.
#[derive(Debug, PartialEq)]
pub(crate) struct Settled<Number = f32> {
    pub(crate) id: usize,
    pub(crate) train: Rows<Number>,
    pub(crate) eval: Rows<Number>,
}

/// Gives a shard's rows their place in the embedding table, labels that are classes theirs among the classes, and all a
/// canonical order.
///
/// The order is that of a hash of the encoded content; rows that tie are equal. So it does not
/// depend on the order in which rows arrived, nor on which rank has the shard.
pub(crate) fn settle(
    shard: LocalShard,
    vocabularies: &[Vocabulary],
    classes: Option<&Vocabulary>,
) -> Settled<f64> {
    let LocalShard {
        id,
        dictionaries,
        mut codes,
        continuous,
        classes: label_values,
        mut labels,
        weights,
        parts,
        folds,
        ..
    } = shard;
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
        // The first code is of values that are not known, which no label's is.
        let codes = values.codes_in(classes);
        for label in labels.iter_mut().flatten() {
            *label = codes
                .get(*label as usize)
                .map_or(0.0, |code| f64::from(code.saturating_sub(1)));
        }
    }

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

    let evaluated = |row: usize| parts[row] == Part::Eval;
    let mut settled = Settled {
        id,
        train: Rows::default(),
        eval: Rows::default(),
    };
    let eval_rows = order.iter().filter(|(_, row)| evaluated(*row)).count();
    let train_rows = order.len() - eval_rows;
    for (rows, count) in [
        (&mut settled.eval, eval_rows),
        (&mut settled.train, train_rows),
    ] {
        rows.reserve(count, codes.len(), continuous.len(), labels.len());
    }
    for (key, row) in order {
        let rows = if evaluated(row) {
            &mut settled.eval
        } else {
            &mut settled.train
        };
        rows.codes.extend(codes.iter().map(|column| column[row]));
        rows.continuous
            .extend(continuous.iter().map(|column| column[row]));
        rows.labels.extend(labels.iter().map(|column| column[row]));
        rows.weights.extend(weights.get(row));
        rows.keys.push(key);
        rows.folds.extend(folds.get(row));
    }
    settled
}
