//! Vocabulary of a feature: the values that have a code of their own, and the codes of all.
//!
//! ```text
//!  code   0                    1                    2 …
//!         out of vocabulary    null, if it occurs   the values, ascending; or buckets that values are hashed into
//! ```
//!
//! Values are sorted and distinct, so the same data gives the same codes in every world. A vocabulary is saved with the
//! model as JSON, values in their own type. The [`Tally`](super::Tally) decides which values have a code.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::spec::MOST_BUCKETS;
use volley_proto::store::Classes;

use super::categories::{Categories, Class};
use super::index::Index;
use super::memo::{self, Codes};

/// Code of values without a code of their own: not seen in training, or not often enough.
pub(crate) const OUT_OF_VOCABULARY: u32 = 0;

/// Values of a feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vocabulary {
    class: Class,
    /// True if null occurs.
    null: bool,
    values: Values,
}

/// Values in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Values {
    /// Integers, booleans as 0 and 1, dates as days since 1970-01-01.
    Whole(Vec<i64>),
    /// Text.
    Text(Vec<String>),
    /// Number of buckets, chosen by the XXH64 of text's bytes, or of a whole number's eight little-endian bytes.
    Hashed(usize),
}

/// Returns the bucket of a whole number.
pub(super) fn bucket_of_whole(value: i64, buckets: usize) -> usize {
    (XxHash64::oneshot(0, &value.to_le_bytes()) % buckets as u64) as usize
}

/// Returns the bucket of text.
pub(super) fn bucket_of_text(value: &str, buckets: usize) -> usize {
    (XxHash64::oneshot(0, value.as_bytes()) % buckets as u64) as usize
}

impl Vocabulary {
    pub(super) fn new(class: Class, null: bool, values: Values) -> Self {
        Self {
            class,
            null,
            values,
        }
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// Returns the values as classes; null is not one.
    pub(crate) fn classes(&self) -> Classes {
        match (&self.values, self.class) {
            (Values::Text(values), _) => Classes::Text(values.clone()),
            (Values::Whole(values), Class::Boolean) => {
                Classes::Boolean(values.iter().map(|value| *value != 0).collect())
            }
            (Values::Whole(values), Class::Date) => {
                Classes::Date(values.iter().map(|days| *days as i32).collect())
            }
            (Values::Whole(values), _) => Classes::Integer(values.clone()),
            (Values::Hashed(_), _) => unreachable!("labels are not hashed"),
        }
    }

    /// Returns the vocabulary whose values are these classes.
    pub(crate) fn of_classes(classes: &Classes) -> Self {
        let (class, values) = match classes {
            Classes::Integer(values) => (Class::Integer, Values::Whole(values.clone())),
            Classes::Text(values) => (Class::Text, Values::Text(values.clone())),
            Classes::Boolean(values) => {
                let values = values.iter().map(|value| i64::from(*value));
                (Class::Boolean, Values::Whole(values.collect()))
            }
            Classes::Date(days) => {
                let days = days.iter().map(|days| i64::from(*days));
                (Class::Date, Values::Whole(days.collect()))
            }
        };
        Self::new(class, false, values)
    }

    /// Returns the number of buckets that values are hashed into, if they are.
    pub(crate) fn buckets(&self) -> Option<usize> {
        match self.values {
            Values::Hashed(buckets) => Some(buckets),
            Values::Whole(_) | Values::Text(_) => None,
        }
    }

    /// Counts the values that have a code, or buckets, and null if it occurs.
    pub(crate) fn distinct(&self) -> usize {
        let values = match &self.values {
            Values::Whole(values) => values.len(),
            Values::Text(values) => values.len(),
            Values::Hashed(buckets) => *buckets,
        };
        values + usize::from(self.null)
    }

    /// Counts the codes: the values, null, and the one for all others.
    pub(crate) fn codes(&self) -> usize {
        1 + self.distinct()
    }

    /// Returns, for each code, the code of the same value in another vocabulary, if it is known there.
    pub(crate) fn codes_in(&self, other: &Self) -> Vec<Option<u32>> {
        let known = |code| Some(code).filter(|code| *code != OUT_OF_VOCABULARY);
        let mut codes = Vec::with_capacity(self.codes());
        codes.push(Some(OUT_OF_VOCABULARY));
        if self.null {
            codes.push(known(other.code_of_null()));
        }
        match &self.values {
            Values::Whole(values) => {
                codes.extend(values.iter().map(|v| known(other.code_of_whole(*v))));
            }
            Values::Text(values) => {
                codes.extend(values.iter().map(|v| known(other.code_of_text(v))));
            }
            Values::Hashed(buckets) => {
                let same = other.values == self.values;
                codes
                    .extend((0..*buckets).map(|at| Some(other.code_at(Some(at))).filter(|_| same)));
            }
        }
        codes
    }

    /// Checks that a [tally](super::Tally) could have made it: read from a file, it may be anything.
    pub(crate) fn is_sound(&self) -> bool {
        match &self.values {
            Values::Whole(values) => {
                self.class != Class::Text && values.windows(2).all(|pair| pair[0] < pair[1])
            }
            Values::Text(values) => {
                self.class == Class::Text && values.windows(2).all(|pair| pair[0] < pair[1])
            }
            Values::Hashed(buckets) => (1..=MOST_BUCKETS).contains(buckets),
        }
    }

    /// Builds the index of the values, which [`encode`](Self::encode) needs.
    pub(crate) fn index(&self) -> Index {
        match &self.values {
            Values::Whole(values) => Index::new(values.iter().map(|value| value.to_le_bytes())),
            Values::Text(values) => Index::new(values.iter()),
            Values::Hashed(_) => Index::new(std::iter::empty::<[u8; 0]>()),
        }
    }

    /// Calls `put` with every row's code; unknown values have [`OUT_OF_VOCABULARY`]. `index` is the vocabulary's own.
    pub(crate) fn encode(&self, index: &Index, column: &Categories, put: impl FnMut(u32)) {
        let vocabulary = self;
        memo::encode(column, &mut Indexed { vocabulary, index }, put);
    }

    pub(super) fn code_of_null(&self) -> u32 {
        if self.null {
            OUT_OF_VOCABULARY + 1
        } else {
            OUT_OF_VOCABULARY
        }
    }

    pub(super) fn code_of_whole(&self, value: i64) -> u32 {
        match &self.values {
            Values::Whole(values) => self.code_at(values.binary_search(&value).ok()),
            Values::Hashed(buckets) => self.code_at(Some(bucket_of_whole(value, *buckets))),
            Values::Text(_) => OUT_OF_VOCABULARY,
        }
    }

    pub(super) fn code_of_text(&self, value: &str) -> u32 {
        match &self.values {
            Values::Text(values) => self.code_at(
                values
                    .binary_search_by(|known| known.as_str().cmp(value))
                    .ok(),
            ),
            Values::Hashed(buckets) => self.code_at(Some(bucket_of_text(value, *buckets))),
            Values::Whole(_) => OUT_OF_VOCABULARY,
        }
    }

    /// Returns the code of a bucket; out of vocabulary if values are not hashed or there is no such bucket.
    pub(super) fn code_of_bucket(&self, bucket: usize) -> u32 {
        match self.values {
            Values::Hashed(buckets) if bucket < buckets => self.code_at(Some(bucket)),
            _ => OUT_OF_VOCABULARY,
        }
    }

    fn code_at(&self, index: Option<usize>) -> u32 {
        index.map_or(OUT_OF_VOCABULARY, |index| {
            (index + 1 + usize::from(self.null)) as u32
        })
    }
}

/// Vocabulary with its index.
struct Indexed<'a> {
    vocabulary: &'a Vocabulary,
    index: &'a Index,
}

impl Codes for Indexed<'_> {
    fn of_null(&mut self) -> u32 {
        self.vocabulary.code_of_null()
    }

    fn of_whole(&mut self, value: i64) -> u32 {
        let Self { vocabulary, index } = self;
        match &vocabulary.values {
            Values::Whole(values) => {
                vocabulary.code_at(index.find(&value.to_le_bytes(), |at| values[at] == value))
            }
            Values::Text(_) | Values::Hashed(_) => vocabulary.code_of_whole(value),
        }
    }

    fn of_text(&mut self, value: &str) -> u32 {
        let Self { vocabulary, index } = self;
        match &vocabulary.values {
            Values::Text(values) => {
                vocabulary.code_at(index.find(value.as_bytes(), |at| values[at] == value))
            }
            Values::Whole(_) | Values::Hashed(_) => vocabulary.code_of_text(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(null: bool, values: &[&str]) -> Vocabulary {
        let values = Values::Text(values.iter().map(|v| (*v).to_owned()).collect());
        Vocabulary::new(Class::Text, null, values)
    }

    #[test]
    fn null_has_a_code_of_its_own_only_where_it_occurs() {
        let (with, without) = (text(true, &["a", "b"]), text(false, &["a", "b"]));
        assert_eq!(
            [
                with.code_of_null(),
                with.code_of_text("a"),
                with.code_of_text("b")
            ],
            [1, 2, 3]
        );
        assert_eq!(
            [without.code_of_null(), without.code_of_text("a")],
            [OUT_OF_VOCABULARY, 1]
        );
        assert_eq!(with.code_of_text("zz"), OUT_OF_VOCABULARY);
    }

    #[test]
    fn an_index_finds_the_codes_that_a_search_finds() {
        let texts: Vec<_> = (0..300).map(|n| format!("{n:04}")).collect();
        let whole = Values::Whole((-300..300).step_by(2).collect());
        for null in [false, true] {
            let texts = Vocabulary::new(Class::Text, null, Values::Text(texts.clone()));
            let whole = Vocabulary::new(Class::Integer, null, whole.clone());
            let hashed = Vocabulary::new(Class::Text, null, Values::Hashed(7));
            for vocabulary in [&texts, &whole, &hashed] {
                let index = &vocabulary.index();
                let mut indexed = Indexed { vocabulary, index };
                assert_eq!(indexed.of_null(), vocabulary.code_of_null());
                for n in -400..400_i64 {
                    let text = format!("{n:04}");
                    assert_eq!(indexed.of_text(&text), vocabulary.code_of_text(&text));
                    assert_eq!(indexed.of_whole(n), vocabulary.code_of_whole(n));
                }
            }
        }
    }

    #[test]
    fn codes_are_found_again_by_value() {
        let (old, new) = (text(true, &["a", "c"]), text(true, &["a", "b", "c"]));
        assert_eq!(
            new.codes_in(&old),
            [Some(0), Some(1), Some(2), None, Some(3)]
        );
        assert_eq!(old.codes_in(&new), [Some(0), Some(1), Some(2), Some(4)]);
        assert_eq!(
            old.codes_in(&text(false, &["a"])),
            [Some(0), None, Some(1), None]
        );
    }

    #[test]
    fn hashed_values_have_the_codes_of_their_buckets() {
        let hashed = |null, buckets| Vocabulary::new(Class::Text, null, Values::Hashed(buckets));
        let vocabulary = hashed(true, 5);
        assert_eq!((vocabulary.codes(), vocabulary.distinct()), (7, 6));
        let codes: Vec<_> = (0..100)
            .map(|n| vocabulary.code_of_text(&n.to_string()))
            .collect();
        assert!((2..7).all(|code| codes.contains(&code)), "{codes:?}");
        assert!(codes.iter().all(|code| (2..7).contains(code)), "{codes:?}");
        assert_eq!(vocabulary.code_of_null(), 1);
        assert_eq!(
            vocabulary.codes_in(&vocabulary)[1..],
            (1..7).map(Some).collect::<Vec<_>>()
        );
        // Without null, codes begin one earlier; with another number of buckets, no code matches.
        assert_eq!(hashed(false, 5).codes_in(&vocabulary)[1], Some(2));
        assert!(
            vocabulary.codes_in(&hashed(true, 6))[2..]
                .iter()
                .all(Option::is_none)
        );
        assert!(!hashed(false, 0).is_sound());
        assert!(!hashed(true, usize::MAX).is_sound());
    }

    #[test]
    fn classes_have_their_vocabulary_again() {
        for classes in [
            Classes::Integer(vec![-3, 0, 7]),
            Classes::Text(vec!["a".into(), "b".into()]),
            Classes::Boolean(vec![false, true]),
            Classes::Date(vec![-1, 20_000]),
        ] {
            let vocabulary = Vocabulary::of_classes(&classes);
            assert!(vocabulary.is_sound());
            assert_eq!(vocabulary.classes(), classes);
        }
    }

    #[test]
    fn json_keeps_types_and_soundness_is_checked() {
        let values = Values::Whole(vec![i64::MIN, -1, i64::MAX]);
        let vocabulary = Vocabulary::new(Class::Integer, false, values);
        let json = serde_json::to_string(&vocabulary).unwrap();
        assert_eq!(
            serde_json::from_str::<Vocabulary>(&json).unwrap(),
            vocabulary
        );
        assert!(vocabulary.is_sound());
        let hashed = Vocabulary::new(Class::Date, true, Values::Hashed(9));
        let json = serde_json::to_string(&hashed).unwrap();
        assert_eq!(serde_json::from_str::<Vocabulary>(&json).unwrap(), hashed);
        assert!(!text(false, &["b", "a"]).is_sound());
        assert!(!Vocabulary::new(Class::Text, false, Values::Whole(vec![])).is_sound());
    }
}
