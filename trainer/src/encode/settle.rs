//! From a loaded shard to the rows that are trained on: global codes, canonical order, split.

use volley_proto::spec::Split;

use super::shard::{LocalShard, Part};
use super::vocabulary::Vocabulary;
use crate::random::{Key, Purpose};

/// Encoded rows, one after the other. C categorical and N continuous features.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Rows {
    /// Rows of the embedding table, `[len × C]`.
    pub(crate) codes: Vec<u32>,
    /// `[len × N]`.
    pub(crate) continuous: Vec<f32>,
    /// Transformed, `[len]`.
    pub(crate) labels: Vec<f32>,
    /// A hash of each row's content: equal rows have equal keys, wherever they are. `[len]`
    pub(crate) keys: Vec<u64>,
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The wrapping sum of the keys: the same in any order.
    pub(crate) fn checksum(&self) -> u64 {
        self.keys.iter().copied().fold(0, u64::wrapping_add)
    }

    fn reserve(&mut self, rows: usize, categorical: usize, continuous: usize) {
        self.codes.reserve_exact(rows * categorical);
        self.continuous.reserve_exact(rows * continuous);
        self.labels.reserve_exact(rows);
        self.keys.reserve_exact(rows);
    }
}

/// A shard ready for training; rows for testing are gone.
#[derive(Debug, PartialEq)]
pub(crate) struct Settled {
    pub(crate) id: usize,
    pub(crate) train: Rows,
    pub(crate) eval: Rows,
}

/// Gives a shard's rows their place in the embedding table and in a canonical order.
///
/// The order is that of a hash of the encoded content; rows that tie are equal. So it does not
/// depend on the order in which rows arrived, nor on which rank has the shard.
pub(crate) fn settle(
    shard: LocalShard,
    vocabularies: &[Vocabulary],
    split: &Split,
    seed: u64,
) -> Settled {
    let LocalShard {
        id,
        dictionaries,
        mut codes,
        continuous,
        labels,
        parts,
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

    let content = Key::new(0, Purpose::Content);
    let hash = |row: usize| {
        let key = codes
            .iter()
            .fold(content, |key, column| key.with(u64::from(column[row])));
        let numbers = continuous
            .iter()
            .map(|column| column[row])
            .chain([labels[row]]);
        let key = numbers.fold(key, |key, number| key.with(u64::from(number.to_bits())));
        key.with(parts[row] as u64).hash()
    };
    let mut order: Vec<(u64, usize)> = (0..parts.len())
        .filter(|row| parts[*row] != Part::Test)
        .map(|row| (hash(row), row))
        .collect();
    order.sort_unstable();

    let draw = Key::new(seed, Purpose::Split).with(id as u64);
    let evaluated = |position: usize, row: usize| match split {
        Split::Random(fraction) => draw.with(position as u64).unit() < *fraction,
        Split::None | Split::Column(_) => parts[row] == Part::Eval,
    };
    let mut settled = Settled {
        id,
        train: Rows::default(),
        eval: Rows::default(),
    };
    let eval_rows = order
        .iter()
        .enumerate()
        .filter(|(p, (_, row))| evaluated(*p, *row))
        .count();
    settled
        .eval
        .reserve(eval_rows, codes.len(), continuous.len());
    settled
        .train
        .reserve(order.len() - eval_rows, codes.len(), continuous.len());
    for (position, (key, row)) in order.into_iter().enumerate() {
        let rows = if evaluated(position, row) {
            &mut settled.eval
        } else {
            &mut settled.train
        };
        rows.codes.extend(codes.iter().map(|column| column[row]));
        rows.continuous
            .extend(continuous.iter().map(|column| column[row]));
        rows.labels.push(labels[row]);
        rows.keys.push(key);
    }
    settled
}
