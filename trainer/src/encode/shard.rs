//! Shards as they stream in: columns of local codes and numbers that grow batch by batch.
//!
//! Rows are in the order of arrival here. Rows that must not be trained on are counted, not refused: see [`Defect`].
//! Rows of weight 0 are only counted, whatever their values.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::{cast, filter, filter_record_batch};
use arrow::datatypes::{DataType, Float64Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use bytemuck::{CheckedBitPattern, NoUninit};
use volley_proto::spec::{LabelTransform, split};

use super::categories::{Categories, Class, numbers};
use super::columns::{Column, Columns, SplitBy};
use super::defect::{Defect, NULL, Rule};
use super::dictionary::Dictionary;
use super::sequence;
use super::spill::Storage;
use super::stored::Stored;
use super::tally::Tally;
use super::vocabulary::Vocabulary;
use crate::{Error, Result};

/// Part of the split that a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit, CheckedBitPattern)]
#[repr(u8)]
pub(super) enum Part {
    /// Trained on.
    Train,
    /// Evaluated.
    Eval,
    /// Read for its categorical values only.
    Test,
}

/// Encoded rows of a shard, in the order of arrival.
#[derive(Debug)]
pub(crate) struct LocalShard {
    /// The shard's global number.
    pub(super) id: usize,
    /// Storage of its columns, and of its rows once they are settled.
    pub(crate) storage: Storage,
    pub(super) dictionaries: Vec<Dictionary>,
    /// Codes per categorical feature and row.
    pub(super) codes: Vec<Stored<u32>>,
    /// Numbers per continuous feature and row; null is NaN.
    pub(super) continuous: Vec<Stored<f64>>,
    /// Values of a classifier's label.
    pub(super) classes: Option<Dictionary>,
    /// Labels per column and row: transformed, or the code of the class; 0 where the row is for testing.
    pub(super) labels: Vec<Stored<f64>>,
    /// Weights of the rows, above 0; empty if all are 1.
    pub(super) weights: Stored<f32>,
    /// Number of rows of weight 0, which are left out.
    pub(super) weightless: u64,
    pub(super) parts: Vec<Part>,
    /// Position of each row in the sequence that splits them, if one does; null comes last.
    pub(super) sequence: Stored<u64>,
    /// Fold of each row, if folds may be needed.
    pub(super) folds: Stored<u8>,
    pub(super) defects: Vec<Defect>,
}

impl LocalShard {
    pub(super) fn new(id: usize, columns: &Columns) -> Self {
        Self {
            id,
            storage: Storage::Memory,
            dictionaries: columns
                .categorical
                .iter()
                .map(|(_, class)| Dictionary::new(*class, columns.buckets))
                .collect(),
            codes: vec![Stored::default(); columns.categorical.len()],
            continuous: vec![Stored::default(); columns.continuous.len()],
            classes: columns.classes.map(|class| Dictionary::new(class, None)),
            labels: vec![Stored::default(); columns.labels.len()],
            weights: Stored::default(),
            weightless: 0,
            parts: Vec::new(),
            sequence: Stored::default(),
            folds: Stored::default(),
            defects: Vec::new(),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of rows of weight 0, which are left out.
    pub(crate) fn weightless(&self) -> u64 {
        self.weightless
    }

    /// Returns the bytes of its rows until they are scaled.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes_by(size_of::<f64>()) + (self.rows() * size_of::<Part>()) as u64
    }

    /// Returns the bytes of its rows from then on.
    pub(super) fn settled_bytes(&self) -> u64 {
        self.bytes_by(size_of::<f32>()) + (self.rows() * size_of::<u32>()) as u64
    }

    /// Returns the bytes of its columns and of its rows' keys, at `number` bytes per number.
    fn bytes_by(&self, number: usize) -> u64 {
        let numbers = self.continuous.len() + self.labels.len();
        let codes = size_of::<u32>() * self.codes.len();
        let row = number * numbers + codes + size_of::<u64>();
        let weights = size_of::<f32>() * self.weights.len();
        let sequence = size_of::<u64>() * self.sequence.len();
        (self.rows() * row + weights + sequence + self.folds.len()) as u64
    }

    /// Returns the tally of each categorical feature, and of a label that is a class.
    pub(super) fn tallies(&self) -> impl Iterator<Item = Tally> {
        let features = self.dictionaries.iter().zip(&self.codes);
        let features = features.map(|(dictionary, codes)| {
            let mut rows = vec![0; dictionary.len()];
            let counted = codes.iter().zip(&self.parts);
            for (code, _) in counted.filter(|(_, part)| **part != Part::Test) {
                rows[*code as usize] += 1;
            }
            dictionary.tally(&rows)
        });
        // Classes are kept however rare they are.
        let classes = self.classes.iter();
        features.chain(classes.map(|classes| classes.tally(&vec![0; classes.len()])))
    }

    /// Returns the defects of its rows, given the classes that labels may have if they are known.
    pub(crate) fn defects_with(&self, label: &str, known: Option<&Vocabulary>) -> Vec<Defect> {
        let mut defects = self.defects.clone();
        let (Some(classes), Some(known)) = (&self.classes, known) else {
            return defects;
        };
        let unknown = classes.unknown_in(known);
        let rows = self.labels[0].iter().zip(&self.parts);
        for (code, _) in rows.filter(|(_, part)| **part != Part::Test) {
            if let Some(class) = unknown.get(&(*code as u32)) {
                Defect::count(&mut defects, label, Rule::KnownClass, || class.clone());
            }
        }
        defects
    }

    /// Encodes a batch's rows.
    ///
    /// # Errors
    /// When a column does not have the type that the schema promised.
    pub(super) fn push(&mut self, batch: &RecordBatch, columns: &Columns) -> Result<()> {
        let weighing;
        let batch = match &columns.weight {
            Some(column) => {
                weighing = self.without_weightless(batch, column)?;
                &weighing
            }
            None => batch,
        };
        let first = self.rows();
        self.push_parts(batch, columns)?;
        for (at, label) in columns.labels.iter().enumerate() {
            let values = batch.column(label.index);
            match columns.classes {
                Some(class) => self.push_classes(values, class, &label.name, first)?,
                None => self.push_labels(values, columns, at, first)?,
            }
        }
        if let Some(column) = &columns.weight {
            let values = numbers(batch.column(column.index), &column.name)?;
            for (value, part) in values.iter().zip(&self.parts[first..]) {
                let weight = value.map(|x| x as f32);
                let fits = weight.is_some_and(|x| x >= 0.0 && x.is_finite());
                if *part != Part::Test && !fits {
                    Defect::count(&mut self.defects, &column.name, Rule::Weight, || {
                        value.map_or(NULL.into(), |value| value.to_string())
                    });
                }
                self.weights.to_mut().push(weight.unwrap_or(0.0));
            }
        }
        for (at, (column, class)) in columns.categorical.iter().enumerate() {
            let values = Categories::read(batch.column(column.index), *class, &column.name)?;
            self.dictionaries[at].encode(&values, self.codes[at].to_mut());
        }
        for (at, column) in columns.continuous.iter().enumerate() {
            let values = numbers(batch.column(column.index), &column.name)?;
            let encoded = self.continuous[at].to_mut();
            for (value, part) in values.iter().zip(&self.parts[first..]) {
                let is_wrong = |x: &f64| *part != Part::Test && !is_finite(*x);
                if let Some(value) = value.filter(is_wrong) {
                    Defect::count(&mut self.defects, &column.name, Rule::Continuous, || {
                        value.to_string()
                    });
                }
                encoded.push(value.unwrap_or(f64::NAN));
            }
        }
        Ok(())
    }

    /// Removes and counts the rows of weight 0; keeps those whose weight is null.
    fn without_weightless(&mut self, batch: &RecordBatch, column: &Column) -> Result<RecordBatch> {
        let weights = numbers(batch.column(column.index), &column.name)?;
        let weighs = weights.iter().map(|x| x.is_none_or(|x| x as f32 != 0.0));
        let weighs = BooleanArray::from(weighs.collect::<Vec<bool>>());
        let kept = filter_record_batch(batch, &weighs);
        let kept = kept.map_err(Error::values(&column.name, "weights"))?;
        self.weightless += (batch.num_rows() - kept.num_rows()) as u64;
        Ok(kept)
    }

    fn push_parts(&mut self, batch: &RecordBatch, columns: &Columns) -> Result<()> {
        let Self {
            parts,
            defects,
            sequence,
            folds,
            ..
        } = self;
        match &columns.split {
            SplitBy::Nothing => parts.resize(parts.len() + batch.num_rows(), Part::Train),
            SplitBy::Hash {
                column,
                draw,
                share,
                folds: count,
            } => {
                let hashes = batch.column(column.index);
                let (actual, role) = (hashes.data_type(), "the rows' hash");
                let fail = || Error::column_type(&column.name, role, actual, "64-bit hashes");
                let hashes = hashes.as_primitive_opt::<UInt64Type>().ok_or_else(fail)?;
                for hash in hashes.values() {
                    let drawn = draw.number(*hash);
                    parts.push(match drawn < *share {
                        true => Part::Eval,
                        false => Part::Train,
                    });
                    if *count > 0 {
                        folds.to_mut().push((drawn * *count as f64) as u8);
                    }
                }
            }
            SplitBy::Sequence(column) => {
                let values = batch.column(column.index);
                sequence::extend(sequence.to_mut(), values, &column.name)?;
                parts.resize(parts.len() + batch.num_rows(), Part::Train);
            }
            SplitBy::Text(column) => {
                let array = batch.column(column.index);
                let Categories::Text(values) =
                    Categories::read_values(array, Class::Text, &column.name)?
                else {
                    unreachable!("the class of text is read as text")
                };
                parts.extend(values.iter().map(|value| match value {
                    Some(split::TRAIN) => Part::Train,
                    Some(split::EVAL) => Part::Eval,
                    Some(split::TEST) => Part::Test,
                    other => {
                        let example = || other.map_or(NULL.into(), |text| format!("{text:?}"));
                        Defect::count(defects, &column.name, Rule::SplitText, example);
                        Part::Test
                    }
                }));
            }
            SplitBy::Flag(column) => {
                let array = batch.column(column.index);
                let Categories::Whole(flags) =
                    Categories::read_values(array, Class::Boolean, &column.name)?
                else {
                    unreachable!("the class of booleans is read as whole numbers")
                };
                parts.extend(flags.iter().map(|flag| match flag {
                    Some(0) => Part::Train,
                    Some(_) => Part::Eval,
                    None => {
                        Defect::count(defects, &column.name, Rule::SplitFlag, || NULL.into());
                        Part::Test
                    }
                }));
            }
        }
        Ok(())
    }

    /// Encodes a label that is a class; labels of rows for testing are not read.
    fn push_classes(
        &mut self,
        array: &ArrayRef,
        class: Class,
        name: &str,
        first: usize,
    ) -> Result<()> {
        let parts = &self.parts[first..];
        let read: BooleanArray = parts.iter().map(|part| Some(*part != Part::Test)).collect();
        let array = filter(array, &read).map_err(Error::values(name, "classes"))?;
        let nulls = array.logical_null_count();
        for _ in 0..nulls {
            Defect::count(&mut self.defects, name, Rule::Class, || NULL.into());
        }
        let values = Categories::read(&array, class, name)?;
        let mut codes = Vec::with_capacity(array.len());
        if let Some(classes) = &mut self.classes {
            classes.encode(&values, &mut codes);
        }
        let mut codes = codes.into_iter();
        let label = |part: &Part| match part {
            Part::Test => 0.0,
            Part::Train | Part::Eval => codes.next().map_or(f64::NAN, f64::from),
        };
        self.labels[0].to_mut().extend(parts.iter().map(label));
        Ok(())
    }

    fn push_labels(
        &mut self,
        array: &ArrayRef,
        columns: &Columns,
        at: usize,
        first: usize,
    ) -> Result<()> {
        let name = &columns.labels[at].name;
        let values = cast(array, &DataType::Float64).map_err(Error::values(name, "numbers"))?;
        let values = values.as_primitive::<Float64Type>();
        let (rule, ln) = (columns.rule, columns.transform == LabelTransform::Ln);
        for (value, part) in values.iter().zip(&self.parts[first..]) {
            let label = match value {
                _ if *part == Part::Test => 0.0,
                // ln of a negative number is NaN, ln of zero −∞.
                Some(value) if ln => value.ln(),
                Some(value) => value,
                None => f64::NAN,
            };
            let fits = match rule {
                _ if *part == Part::Test => true,
                Rule::CountLabel => label >= 0.0,
                Rule::AmountLabel => label as f32 > 0.0,
                _ => true,
            };
            if !(is_finite(label) && fits) {
                Defect::count(&mut self.defects, name, rule, || {
                    value.map_or(NULL.into(), |value| value.to_string())
                });
            }
            self.labels[at].to_mut().push(label);
        }
        Ok(())
    }
}

/// Checks that a number is finite in `f32` too: it may enter the network unscaled, and squares of such numbers can be
/// added up in `f64`.
pub(crate) fn is_finite(x: f64) -> bool {
    (x as f32).is_finite()
}
