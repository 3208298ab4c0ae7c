//! Index of the values of a vocabulary: finds a value's position by one hash and about one comparison, where a binary
//! search of text takes a comparison of strings, each in memory of its own, for every doubling of the vocabulary.
//!
//! A hash table of positions with linear probing, at most two thirds full, of up to twelve bytes per value. It is built
//! with a model that predicts. Training needs none: it looks each distinct value up once. The values themselves stay
//! with the vocabulary.

use std::hash::{BuildHasher, Hasher, RandomState};

use twox_hash::XxHash64;

/// A place without a position.
const EMPTY: u32 = u32::MAX;

/// Positions of distinct values, found by the hash of their bytes.
#[derive(Debug)]
pub(crate) struct Index {
    /// A power of two of places, at least one of them [`EMPTY`].
    places: Vec<u32>,
    /// Random, so that nobody can choose values whose hashes collide.
    seed: u64,
}

impl Index {
    /// Indexes distinct values by their positions.
    pub(super) fn new(values: impl ExactSizeIterator<Item = impl AsRef<[u8]>>) -> Self {
        let len = values.len();
        let mut index = Self {
            places: vec![EMPTY; (len + len / 2 + 1).next_power_of_two()],
            seed: RandomState::new().build_hasher().finish(),
        };
        for (position, value) in values.enumerate() {
            let mut place = index.first(value.as_ref());
            while index.places[place] != EMPTY {
                place = index.next(place);
            }
            index.places[place] = position as u32;
        }
        index
    }

    /// Returns the position of a value, where `is_it` says whether the value at a position is it.
    pub(super) fn find(&self, value: &[u8], is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mut place = self.first(value);
        loop {
            let position = self.places[place];
            if position == EMPTY {
                return None;
            }
            if is_it(position as usize) {
                return Some(position as usize);
            }
            place = self.next(place);
        }
    }

    fn first(&self, value: &[u8]) -> usize {
        XxHash64::oneshot(self.seed, value) as usize & (self.places.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_found_at_its_position_and_no_other_is() {
        for len in [0, 1, 2, 3, 5, 10, 85, 1_000] {
            let values: Vec<String> = (0..len).map(|value| format!("value {value}")).collect();
            let index = Index::new(values.iter());
            assert!(index.places.len() > len && index.places.len() <= 3 * len + 1);
            let find = |value: &str| index.find(value.as_bytes(), |at| values[at] == value);
            for (position, value) in values.iter().enumerate() {
                assert_eq!(find(value), Some(position), "{value} of {len}");
            }
            for unknown in [String::new(), "value".into(), format!("value {len}")] {
                assert_eq!(find(&unknown), None, "{unknown} of {len}");
            }
        }
    }
}
