//! Dictionary of a shard: its own numbering of a feature's values, in the order of their first occurrence.
//!
//! It only grows while the shard streams, and ends as the shard's contribution to a [`Tally`]. The numbering means
//! nothing outside the shard. If values are hashed, it numbers their buckets.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::categories::{Categories, Class};
use super::memo::{self, Codes};
use super::tally::{Counted, Tally};
use super::vocabulary::{OUT_OF_VOCABULARY, Values, Vocabulary, bucket_of_text, bucket_of_whole};

/// Values and their local codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dictionary {
    class: Class,
    /// Number of buckets that values are hashed into, if they are.
    buckets: Option<usize>,
    /// Integers, or buckets.
    whole: HashMap<i64, u32>,
    text: HashMap<Box<str>, u32>,
    null: Option<u32>,
    len: u32,
}

impl Dictionary {
    /// Creates a dictionary of plain values, or of values hashed into `buckets` buckets.
    pub(super) fn new(class: Class, buckets: Option<usize>) -> Self {
        Self {
            class,
            buckets,
            whole: HashMap::new(),
            text: HashMap::new(),
            null: None,
            len: 0,
        }
    }

    /// Appends the local code of every row.
    ///
    /// # Panics
    /// If there are 2³² distinct values.
    pub(super) fn encode(&mut self, column: &Categories, codes: &mut Vec<u32>) {
        codes.reserve(column.len());
        memo::encode(column, self, |code| codes.push(code));
    }

    fn code_of(&mut self, value: i64) -> u32 {
        let len = &mut self.len;
        *self.whole.entry(value).or_insert_with(|| next(len))
    }

    /// Returns the number of local codes.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Tallies the values, given the rows of each local code; without values if they are hashed.
    pub(super) fn tally(&self, rows: &[u64]) -> Tally {
        let rows_of = |code: &u32| rows[*code as usize];
        let values = match self.class {
            Class::Text => {
                let values = self.text.iter();
                let values = values.map(|(value, code)| (value.to_string(), rows_of(code)));
                let mut values: Vec<_> = values.collect();
                values.sort_unstable();
                Counted::Text(values)
            }
            _ => {
                let values = self.whole.iter().filter(|_| self.buckets.is_none());
                let values = values.map(|(value, code)| (*value, rows_of(code)));
                let mut values: Vec<_> = values.collect();
                values.sort_unstable();
                Counted::Whole(values)
            }
        };
        Tally::new(self.class, self.null.is_some(), values)
    }

    /// Returns the values that a vocabulary lacks, as text, by their local codes. Null is none of them.
    pub(super) fn unknown_in(&self, vocabulary: &Vocabulary) -> BTreeMap<u32, String> {
        let as_text = |value: i64| {
            let alone = Vocabulary::new(self.class, false, Values::Whole(vec![value]));
            alone.classes().texts().concat()
        };
        let whole = self.whole.iter();
        let whole =
            whole.filter(|(value, _)| vocabulary.code_of_whole(**value) == OUT_OF_VOCABULARY);
        let whole = whole.map(|(value, local)| (*local, as_text(*value)));
        let text = self.text.iter();
        let text = text.filter(|(value, _)| vocabulary.code_of_text(value) == OUT_OF_VOCABULARY);
        let text = text.map(|(value, local)| (*local, value.to_string()));
        whole.chain(text).collect()
    }

    /// Returns the code in a vocabulary for every local code.
    pub(super) fn codes_in(&self, vocabulary: &Vocabulary) -> Vec<u32> {
        let mut codes = vec![0; self.len as usize];
        for (value, local) in &self.whole {
            codes[*local as usize] = match self.buckets {
                Some(_) => vocabulary.code_of_bucket(*value as usize),
                None => vocabulary.code_of_whole(*value),
            };
        }
        for (value, local) in &self.text {
            codes[*local as usize] = vocabulary.code_of_text(value);
        }
        if let Some(local) = self.null {
            codes[local as usize] = vocabulary.code_of_null();
        }
        codes
    }
}

impl Codes for Dictionary {
    fn of_null(&mut self) -> u32 {
        let len = &mut self.len;
        *self.null.get_or_insert_with(|| next(len))
    }

    fn of_whole(&mut self, value: i64) -> u32 {
        self.code_of(match self.buckets {
            Some(buckets) => bucket_of_whole(value, buckets) as i64,
            None => value,
        })
    }

    fn of_text(&mut self, value: &str) -> u32 {
        if let Some(buckets) = self.buckets {
            return self.code_of(bucket_of_text(value, buckets) as i64);
        }
        if let Some(code) = self.text.get(value) {
            return *code;
        }
        let code = next(&mut self.len);
        self.text.insert(value.into(), code);
        code
    }
}

fn next(len: &mut u32) -> u32 {
    let code = *len;
    *len = len
        .checked_add(1)
        .expect("a column has fewer than 2^32 distinct values");
    code
}
