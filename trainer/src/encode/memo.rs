//! Memo of the codes of a column's values: most columns repeat few values, and a look-up in a dictionary or a vocabulary
//! costs many times as much as a comparison.
//!
//! A direct-mapped cache: each value has one place, which the last value there holds. Text that is within its view is
//! compared as the view, and longer text by its bytes: rows of equal text have copies of it in most columns. A memo
//! lives for one column of one batch. A column with an Arrow dictionary needs none: its keys number the values.

use arrow::array::{Array, Int64Array, StringViewArray};

use super::categories::Categories;

/// Places, a power of two: they fit the first-level cache beside the column.
const PLACES: usize = 256;
/// Length in bytes of the longest text that is within its view.
const IN_VIEW: u32 = 12;

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
        Categories::Keyed { keys, values } => encode_keyed(keys, values, codes, put),
    }
}

fn encode_text(array: &StringViewArray, codes: &mut impl Codes, mut put: impl FnMut(u32)) {
    let (mut short, mut long) = (Memo::new(), None);
    for (row, view) in array.views().iter().enumerate() {
        // The length and the first four bytes, then more of them or a place in a buffer.
        let (head, tail) = (*view as u64, (*view >> 64) as u64);
        put(if array.is_null(row) {
            codes.of_null()
        } else if head as u32 <= IN_VIEW {
            short.code(*view, head ^ tail, || codes.of_text(array.value(row)))
        } else {
            let text = array.value(row);
            let end = text
                .as_bytes()
                .last_chunk::<8>()
                .copied()
                .unwrap_or_default();
            let long = long.get_or_insert_with(Memo::new);
            long.code(text, head ^ u64::from_le_bytes(end), || codes.of_text(text))
        });
    }
}

/// Looks each value of a dictionary up when the first row refers to it: values of no row may not be counted.
fn encode_keyed(
    keys: &Int64Array,
    values: &StringViewArray,
    codes: &mut impl Codes,
    mut put: impl FnMut(u32),
) {
    let mut known: Vec<Option<u32>> = vec![None; values.len()];
    for key in keys {
        let key = key.map(|key| key as usize);
        put(match key.filter(|key| values.is_valid(*key)) {
            Some(key) => *known[key].get_or_insert_with(|| codes.of_text(values.value(key))),
            None => codes.of_null(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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
                let is_once = codes.looked_up <= nulls + distinct;
                assert!(is_once || distinct > 3, "{distinct}");
            }
        }
    }

    #[test]
    fn long_text_is_told_apart_by_all_of_its_bytes() {
        // Equal in length, in their first four and in their last eight bytes: they share a place of the memo.
        let texts = ["same 1 the rest", "same 2 the rest", "same 1 the rest"];
        let texts: StringViewArray = texts.into_iter().map(Some).collect();
        let (mut codes, mut found) = (Numbered::default(), Vec::new());
        encode(&Categories::Text(texts), &mut codes, |code| {
            found.push(code);
        });
        assert_eq!(found, [0, 1, 0]);
    }

    #[test]
    fn values_of_a_dictionary_are_looked_up_once_and_only_if_a_row_has_them() {
        let values = [Some("b"), Some("of no row"), None, Some("a"), Some("b")];
        let keys = [Some(3), Some(0), None, Some(4), Some(2), Some(3), Some(0)];
        let column = Categories::Keyed {
            keys: Int64Array::from(keys.to_vec()),
            values: values.into_iter().collect(),
        };
        let (mut codes, mut found) = (Numbered::default(), Vec::new());
        encode(&column, &mut codes, |code| found.push(code));
        // A, b, null, the other b, null, a, b.
        assert_eq!(found, [0, 1, 2, 1, 2, 0, 1]);
        assert!(!codes.codes.contains_key(&Some("of no row".to_owned())));
        // Three keys of values, and two rows of null.
        assert_eq!(codes.looked_up, 5);
    }
}
