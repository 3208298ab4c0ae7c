//! A shard's own numbering of a feature's values, in the order of their first occurrence.
//!
//! It only grows while the shard streams, and ends as a [`Vocabulary`]'s contribution. The
//! numbering means nothing outside the shard.

use std::collections::HashMap;

use super::categories::{Categories, Class};
use super::vocabulary::{Values, Vocabulary};

/// Values and their local codes.
#[derive(Debug)]
pub(crate) struct Dictionary {
    class: Class,
    whole: HashMap<i64, u32>,
    text: HashMap<Box<str>, u32>,
    null: Option<u32>,
    len: u32,
}

impl Dictionary {
    pub(super) fn new(class: Class) -> Self {
        Self {
            class,
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
        match column {
            Categories::Whole(array) => codes.extend(array.iter().map(|value| {
                match value {
                    Some(value) => *self
                        .whole
                        .entry(value)
                        .or_insert_with(|| next(&mut self.len)),
                    None => *self.null.get_or_insert_with(|| next(&mut self.len)),
                }
            })),
            Categories::Text(array) => codes.extend(array.iter().map(|value| match value {
                Some(value) => match self.text.get(value) {
                    Some(code) => *code,
                    None => {
                        let code = next(&mut self.len);
                        self.text.insert(value.into(), code);
                        code
                    }
                },
                None => *self.null.get_or_insert_with(|| next(&mut self.len)),
            })),
        }
    }

    /// The values, sorted.
    pub(crate) fn vocabulary(&self) -> Vocabulary {
        let values = if self.class == Class::Text {
            let mut values: Vec<String> = self.text.keys().map(|v| v.to_string()).collect();
            values.sort_unstable();
            Values::Text(values)
        } else {
            let mut values: Vec<i64> = self.whole.keys().copied().collect();
            values.sort_unstable();
            Values::Whole(values)
        };
        Vocabulary::new(self.class, self.null.is_some(), values)
    }

    /// For every local code, the code in a vocabulary that holds all of this one's values.
    pub(super) fn codes_in(&self, vocabulary: &Vocabulary) -> Vec<u32> {
        let mut codes = vec![0; self.len as usize];
        for (value, local) in &self.whole {
            codes[*local as usize] = vocabulary.code_of_whole(*value);
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

fn next(len: &mut u32) -> u32 {
    let code = *len;
    *len = len
        .checked_add(1)
        .expect("a column has fewer than 2^32 distinct values");
    code
}
