//! Memo of the codes of a column's values: most columns repeat few values, and a look-up in a dictionary or a vocabulary
//! costs many times as much as a comparison.
//!
//! A direct-mapped cache: each value has one place, which the last value there holds. It lives for one column of one
//! batch, so that equal views of text mean equal text.

use arrow::array::{Array, StringViewArray};

use super::categories::Categories;

/// Places, a power of two: 8 KiB of views fit the first-level cache beside the column.
const PLACES: usize = 256;

/// Codes of values.
pub(super) trait Codes {
    fn of_null(&mut self) -> u32;
    fn of_whole(&mut self, value: i64) -> u32;
    fn of_text(&mut self, value: &str) -> u32;
}

/// Recent values with their codes.
struct Memo<K> {
    places: Vec<Option<(K, u32)>>,
}

impl<K: Copy + Eq> Memo<K> {
    fn new() -> Self {
        Self {
            places: vec![None; PLACES],
        }
    }

    /// Returns the code of a key, given 64 bits of it.
    fn code(&mut self, key: K, bits: u64, look_up: impl FnOnce() -> u32) -> u32 {
        // Fibonacci hashing: Knuth, The Art of Computer Programming 3, section 6.4.
        let hash = bits.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = &mut self.places[(hash >> (u64::BITS - PLACES.ilog2())) as usize];
        match place {
            Some((of, code)) if *of == key => *code,
            _ => {
                let code = look_up();
                *place = Some((key, code));
                code
            }
        }
    }
}

/// Calls `put` with the code of every row, in their order. A value is looked up when it is first met, and again where
/// others have taken its place.
pub(super) fn encode(column: &Categories, codes: &mut impl Codes, mut put: impl FnMut(u32)) {
    match column {
        Categories::Whole(array) => {
            let mut memo = Memo::new();
            for value in array {
                put(match value {
                    Some(value) => memo.code(value, value as u64, || codes.of_whole(value)),
                    None => codes.of_null(),
                });
            }
        }
        Categories::Text(array) => encode_text(array, codes, put),
    }
}

fn encode_text(array: &StringViewArray, codes: &mut impl Codes, mut put: impl FnMut(u32)) {
    let mut memo = Memo::new();
    for (row, view) in array.views().iter().enumerate() {
        put(match array.is_null(row) {
            true => codes.of_null(),
            // The length and the first bytes, then more of them or a place in a buffer.
            false => memo.code(*view, *view as u64 ^ (*view >> 64) as u64, || {
                codes.of_text(array.value(row))
            }),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::Int64Array;

    use super::*;

    /// Numbers values in the order in which they are first looked up.
    #[derive(Default)]
    struct Numbered {
        codes: HashMap<Option<String>, u32>,
        looked_up: usize,
    }

    impl Numbered {
        fn code(&mut self, value: Option<String>) -> u32 {
            self.looked_up += 1;
            let next = self.codes.len() as u32;
            *self.codes.entry(value).or_insert(next)
        }
    }

    impl Codes for Numbered {
        fn of_null(&mut self) -> u32 {
            self.code(None)
        }

        fn of_whole(&mut self, value: i64) -> u32 {
            self.code(Some(value.to_string()))
        }

        fn of_text(&mut self, value: &str) -> u32 {
            self.code(Some(value.to_owned()))
        }
    }

    #[test]
    fn codes_are_those_of_each_value() {
        for distinct in [1_usize, 3, 700, 5_000] {
            let value = |row: usize| (row % 11 != 10).then_some(row * 7919 % distinct);
            let text = |row: usize| {
                // Text of up to twelve bytes is within its view; longer text with the same start is not.
                let value = value(row)?;
                Some(match value % 2 {
                    0 => format!("v{value}"),
                    _ => format!("a long prefix that all share {value}"),
                })
            };
            let rows = 0..10_000;
            let texts: StringViewArray = rows.clone().map(text).collect();
            let wholes: Int64Array = rows
                .clone()
                .map(|row| value(row).map(|v| v as i64))
                .collect();
            let mut expected = Numbered::default();
            let expected: Vec<_> = rows.clone().map(|row| expected.code(text(row))).collect();
            for column in [Categories::Text(texts), Categories::Whole(wholes)] {
                let (mut codes, mut found) = (Numbered::default(), Vec::new());
                encode(&column, &mut codes, |code| found.push(code));
                assert_eq!(found, expected, "{distinct}");
                let nulls = rows.clone().filter(|row| value(*row).is_none()).count();
                // Each row has its own copy of a long text, at another place of the buffer.
                let is_short = distinct == 1 || matches!(column, Categories::Whole(_));
                let is_once = codes.looked_up <= nulls + distinct;
                assert!(is_once || distinct > 3 || !is_short, "{distinct}");
            }
        }
    }
}
