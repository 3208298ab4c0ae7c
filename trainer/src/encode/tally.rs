//! Tallies: how often each value of a categorical feature occurs, as ranks tell each other.
//!
//! A tally crosses between ranks as one Arrow stream of all features, and is merged once. The spec's rule then makes
//! the [`Vocabulary`] from it, which decides which values have a code.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, LargeStringArray, RecordBatch, UInt32Array, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use volley_proto::spec::VocabularyRule;

use super::categories::Class;
use super::vocabulary::{Values, Vocabulary};

/// Rows in a batch sent between ranks.
const BATCH: usize = 1 << 16;

/// Values of a categorical feature, ascending, each with the number of its rows that are not for testing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    class: Class,
    /// True if null occurs.
    null: bool,
    values: Counted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Counted {
    Whole(Vec<(i64, u64)>),
    Text(Vec<(String, u64)>),
}

impl Tally {
    pub(super) fn new(class: Class, null: bool, values: Counted) -> Self {
        Self {
            class,
            null,
            values,
        }
    }

    /// Returns the tally of no rows.
    fn empty(class: Class) -> Self {
        let values = match class {
            Class::Text => Counted::Text(vec![]),
            _ => Counted::Whole(vec![]),
        };
        Self::new(class, false, values)
    }

    /// Merges the tallies of several parts.
    pub(crate) fn merge(class: Class, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut merged = Self::empty(class);
        for part in parts {
            merged.null |= part.null;
            match (&mut merged.values, part.values) {
                (Counted::Whole(all), Counted::Whole(part)) => all.extend(part),
                (Counted::Text(all), Counted::Text(part)) => all.extend(part),
                _ => unreachable!("one schema gives a feature one class on every rank"),
            }
        }
        match &mut merged.values {
            Counted::Whole(all) => add_up(all),
            Counted::Text(all) => add_up(all),
        }
        merged
    }

    /// Returns the number of values.
    fn len(&self) -> usize {
        match &self.values {
            Counted::Whole(values) => values.len(),
            Counted::Text(values) => values.len(),
        }
    }

    /// Returns the vocabulary that a rule makes of the values.
    pub(crate) fn vocabulary(self, rule: &VocabularyRule) -> Vocabulary {
        let Self {
            class,
            null,
            values,
        } = self;
        let values = match (*rule, values) {
            (VocabularyRule::Buckets(buckets), _) => Values::Hashed(buckets),
            (
                VocabularyRule::Values {
                    min_frequency,
                    most,
                },
                Counted::Whole(values),
            ) => Values::Whole(frequent(values, min_frequency, most)),
            (
                VocabularyRule::Values {
                    min_frequency,
                    most,
                },
                Counted::Text(values),
            ) => Values::Text(frequent(values, min_frequency, most)),
        };
        Vocabulary::new(class, null, values)
    }

    /// Encodes the tallies of all features as an Arrow stream.
    pub(crate) fn encode(all: &[Self]) -> Result<Vec<u8>, ArrowError> {
        let mut writer = StreamWriter::try_new(Vec::new(), &schema())?;
        for (feature, tally) in all.iter().enumerate() {
            tally.write(feature as u32, &mut writer)?;
        }
        writer.into_inner()
    }

    fn write(&self, feature: u32, writer: &mut StreamWriter<Vec<u8>>) -> Result<(), ArrowError> {
        let mut batch = |whole: Int64Array, text: LargeStringArray, rows: UInt64Array| {
            let features = UInt32Array::from_value(feature, rows.len());
            let columns: Vec<ArrayRef> = vec![
                Arc::new(features),
                Arc::new(whole),
                Arc::new(text),
                Arc::new(rows),
            ];
            writer.write(&RecordBatch::try_new(schema(), columns)?)
        };
        if self.null {
            let rows = UInt64Array::from_value(0, 1);
            batch(Int64Array::new_null(1), LargeStringArray::new_null(1), rows)?;
        }
        match &self.values {
            Counted::Whole(values) => values.chunks(BATCH).try_for_each(|part| {
                let whole = Int64Array::from_iter_values(part.iter().map(|(value, _)| *value));
                let rows = UInt64Array::from_iter_values(part.iter().map(|(_, rows)| *rows));
                batch(whole, LargeStringArray::new_null(part.len()), rows)
            }),
            Counted::Text(values) => values.chunks(BATCH).try_for_each(|part| {
                let text = LargeStringArray::from_iter_values(part.iter().map(|(value, _)| value));
                let rows = UInt64Array::from_iter_values(part.iter().map(|(_, rows)| *rows));
                batch(Int64Array::new_null(part.len()), text, rows)
            }),
        }
    }

    /// Decodes a rank's tallies, one for each feature of these classes.
    ///
    /// # Errors
    /// When the bytes are not such a stream, or contain other features.
    pub(crate) fn decode(bytes: &[u8], classes: &[Class]) -> Result<Vec<Self>, ArrowError> {
        let mut all: Vec<Self> = classes.iter().map(|class| Self::empty(*class)).collect();
        for batch in StreamReader::try_new(bytes, None)? {
            let batch = batch?;
            if batch.schema() != schema() {
                return Err(ArrowError::SchemaError("not that of tallies".to_owned()));
            }
            let features = batch.column(0).as_primitive::<UInt32Type>();
            let whole = batch.column(1).as_primitive::<Int64Type>();
            let text = batch.column(2).as_string::<i64>();
            let rows = batch.column(3).as_primitive::<UInt64Type>();
            for row in 0..batch.num_rows() {
                let tally = all.get_mut(features.value(row) as usize);
                let tally = tally.ok_or_else(|| {
                    ArrowError::SchemaError("values of a feature that there is not".to_owned())
                })?;
                let count = rows.value(row);
                match &mut tally.values {
                    _ if whole.is_null(row) && text.is_null(row) => tally.null = true,
                    Counted::Whole(values) if whole.is_valid(row) => {
                        values.push((whole.value(row), count));
                    }
                    Counted::Text(values) if text.is_valid(row) => {
                        values.push((text.value(row).to_owned(), count));
                    }
                    _ => {
                        let problem = "values of another class".to_owned();
                        return Err(ArrowError::SchemaError(problem));
                    }
                }
            }
        }
        Ok(all)
    }
}

/// Merges tallies one after the other, in little more memory than twice that of the result.
#[derive(Debug)]
pub(super) struct Merged {
    class: Class,
    /// The merged tally, then those that are not yet: they have fewer values together.
    parts: Vec<Tally>,
    /// Number of values of the latter.
    waiting: usize,
}

impl Merged {
    pub(super) fn of(class: Class) -> Self {
        Self {
            class,
            parts: vec![Tally::empty(class)],
            waiting: 0,
        }
    }

    pub(super) fn add(&mut self, tally: Tally) {
        self.waiting += tally.len();
        self.parts.push(tally);
        if self.waiting >= self.parts[0].len() {
            self.merge();
        }
    }

    fn merge(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        self.parts.push(Tally::merge(self.class, parts));
        self.waiting = 0;
    }

    pub(super) fn finish(mut self) -> Tally {
        self.merge();
        self.parts.remove(0)
    }
}

/// Returns the stream's schema: a value is in one of `whole` and `text`, null in neither.
fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("feature", DataType::UInt32, false),
        Field::new("whole", DataType::Int64, true),
        Field::new("text", DataType::LargeUtf8, true),
        Field::new("rows", DataType::UInt64, false),
    ]))
}

/// Sorts values and adds up the rows of equal ones.
fn add_up<T: Ord>(values: &mut Vec<(T, u64)>) {
    values.sort_by(|left, right| left.0.cmp(&right.0)); // Stable, so that it merges the sorted runs.
    values.dedup_by(|later, kept| {
        let equal = later.0 == kept.0;
        if equal {
            kept.1 += later.1;
        }
        equal
    });
}

/// Returns, in ascending order, the values with at least `least` rows, or only the `most` most frequent of these.
fn frequent<T: Ord>(mut values: Vec<(T, u64)>, least: u64, most: Option<usize>) -> Vec<T> {
    values.retain(|(_, rows)| *rows >= least);
    if let Some(most) = most.filter(|most| *most < values.len()) {
        // A stable sort: of equally frequent values, the smallest come first.
        values.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        values.truncate(most);
        values.sort_by(|left, right| left.0.cmp(&right.0));
    }
    values.into_iter().map(|(value, _)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(null: bool, values: &[(&str, u64)]) -> Tally {
        let values = values.iter().map(|(v, rows)| ((*v).to_owned(), *rows));
        Tally::new(Class::Text, null, Counted::Text(values.collect()))
    }

    #[test]
    fn merging_sorts_adds_up_and_does_not_depend_on_order() {
        let parts = [
            text(false, &[("b", 2), ("d", 1)]),
            text(true, &[("a", 5), ("b", 3)]),
            text(false, &[]),
        ];
        let merge =
            |order: [usize; 3]| Tally::merge(Class::Text, order.map(|at| parts[at].clone()));
        let due = text(true, &[("a", 5), ("b", 5), ("d", 1)]);
        assert_eq!(merge([0, 1, 2]), due);
        assert_eq!(merge([2, 1, 0]), due);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut merged = Merged::of(Class::Text);
            for at in order {
                merged.add(parts[at].clone());
            }
            assert_eq!(merged.finish(), due);
        }
    }

    #[test]
    fn tallies_cross_as_arrow() {
        let whole = Counted::Whole(vec![(i64::MIN, 1), (-1, 0), (i64::MAX, 1 << 40)]);
        let whole = Tally::new(Class::Integer, true, whole);
        let all = [whole, text(true, &[("", 1), ("ü", 2)]), text(false, &[])];
        let classes = [Class::Integer, Class::Text, Class::Text];
        let bytes = Tally::encode(&all).unwrap();
        assert_eq!(Tally::decode(&bytes, &classes).unwrap(), all);
        assert!(Tally::decode(&bytes, &classes[..1]).is_err());
        assert!(Tally::decode(&bytes, &[Class::Text, Class::Text]).is_err());
        assert!(Tally::decode(b"nonsense", &classes).is_err());
    }

    #[test]
    fn a_rule_keeps_what_is_frequent() {
        let tally = || text(true, &[("a", 1), ("b", 5), ("c", 0), ("d", 5), ("e", 7)]);
        let kept = |min_frequency, most| {
            let rule = VocabularyRule::Values {
                min_frequency,
                most,
            };
            let vocabulary = tally().vocabulary(&rule);
            assert!(vocabulary.is_sound());
            ["a", "b", "c", "d", "e"].map(|value| vocabulary.code_of_text(value))
        };
        // Null has code 1; values without a code of their own have 0.
        assert_eq!(kept(0, None), [2, 3, 4, 5, 6]);
        assert_eq!(kept(1, None), [2, 3, 0, 4, 5]);
        assert_eq!(kept(0, Some(2)), [0, 2, 0, 0, 3]);
        assert_eq!(kept(6, Some(2)), [0, 0, 0, 0, 2]);
    }
}
