//! Roles of a stream's columns: a spec resolved against a schema, once.

use arrow::datatypes::{DataType, Schema};
use volley_proto::spec::{
    FeatureKind, LabelTransform, Loss, Split, Task, TrainSpec, is_ordered, split,
};
use volley_proto::store::{FeatureSummary, Scale};

use super::categories::{Class, value_type};
use super::defect::Rule;
use crate::{Error, Result};

/// Role of the column that a split reads.
const SPLIT: &str = "the split column";

/// Columns that training reads, by index.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) categorical: Vec<(Column, Class)>,
    /// Number of buckets that categorical values are hashed into, if they are.
    pub(super) buckets: Option<usize>,
    pub(super) continuous: Vec<Column>,
    /// Label columns: one, or several of a regressor.
    pub(super) labels: Vec<Column>,
    /// Class of the label's values, for a classifier.
    pub(super) classes: Option<Class>,
    pub(super) transform: LabelTransform,
    /// Rule that numeric labels must satisfy.
    pub(super) rule: Rule,
    /// Column of the rows' weights.
    pub(super) weight: Option<Column>,
    pub(super) split: SplitBy,
    /// Summary of each feature, in the spec's order; vocabularies are not known yet.
    pub(super) features: Vec<FeatureSummary>,
}

/// A column of the stream.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) index: usize,
}

/// Source of a row's part in the split.
#[derive(Debug)]
pub(super) enum SplitBy {
    /// No split: all rows are trained on.
    Nothing,
    /// Column of hashes, from which the evaluated share or the folds are drawn.
    Hash {
        column: Column,
        draw: split::Draw,
        share: f64,
        /// Number of folds, 0 if none can be needed.
        folds: usize,
    },
    /// Column whose values decide once those of all ranks are known.
    Sequence(Column),
    /// Column of text.
    Text(Column),
    /// Column of booleans.
    Flag(Column),
}

impl Columns {
    pub(super) fn try_new(spec: &TrainSpec, schema: &Schema) -> Result<Self> {
        let (mut categorical, mut continuous, mut features) = (Vec::new(), Vec::new(), Vec::new());
        for feature in &spec.features {
            let (column, data_type) = find(&feature.column, "a feature", schema)?;
            features.push(FeatureSummary {
                column: feature.column.clone(),
                kind: feature.kind,
                data_type: value_type(data_type).to_string(),
                vocabulary: None,
                scale: Scale::IDENTITY,
                quantiles: None,
                bins: vec![],
                numbers: None,
            });
            match feature.kind {
                FeatureKind::Continuous => continuous.push(column),
                FeatureKind::Categorical => {
                    let class = class_of(&column, "a categorical feature", data_type)?;
                    categorical.push((column, class));
                }
            }
        }
        let labels = spec.label.columns.iter();
        let labels = labels.map(|column| find(column, "the label", schema));
        let labels = labels.collect::<Result<Vec<_>>>()?;
        let classes = match (spec.task, labels.first()) {
            (Task::Classification, Some((column, label_type))) => {
                Some(class_of(column, "the label", label_type)?)
            }
            _ => None,
        };
        let labels = labels.into_iter().map(|(column, _)| column).collect();
        let split = match &spec.split {
            Split::None => SplitBy::Nothing,
            Split::Random(share) | Split::CrossValidation(share) => {
                let (column, _) = find(split::HASH, "the rows' hash", schema)?;
                SplitBy::Hash {
                    column,
                    draw: split::Draw::of(spec.seed),
                    share: *share,
                    folds: spec.folds(0).unwrap_or_default(),
                }
            }
            Split::Sequential { column, .. } => {
                let (found, data_type) = find(column, SPLIT, schema)?;
                if !is_ordered(value_type(data_type)) {
                    let expected = "a number, a date or a time";
                    return Err(Error::column_type(column, SPLIT, data_type, expected));
                }
                SplitBy::Sequence(found)
            }
            Split::Column(name) => {
                let (column, data_type) = find(name, SPLIT, schema)?;
                match Class::of(data_type) {
                    Some(Class::Text) => SplitBy::Text(column),
                    Some(Class::Boolean) => SplitBy::Flag(column),
                    _ => {
                        let expected = "text or a boolean";
                        return Err(Error::column_type(name, SPLIT, data_type, expected));
                    }
                }
            }
        };
        let transform = spec.label.transform;
        let rule = match (transform, &spec.loss) {
            (LabelTransform::Ln, _) => Rule::PositiveLabel,
            (_, Loss::Tweedie { power: 2.0 }) => Rule::AmountLabel,
            (_, Loss::Tweedie { .. }) => Rule::CountLabel,
            _ => Rule::Label,
        };
        let weight = spec.sample_weight.as_ref();
        let weight = weight.map(|column| find(column, "the rows' weight", schema));
        let weight = weight.transpose()?.map(|(column, _)| column);
        Ok(Self {
            categorical,
            buckets: spec.vocabulary.buckets(),
            continuous,
            labels,
            classes,
            transform,
            rule,
            weight,
            split,
            features,
        })
    }
}

impl Columns {
    /// Returns the class of each categorical feature.
    pub(super) fn classes_of_features(&self) -> Vec<Class> {
        let categorical = self.categorical.iter();
        categorical.map(|(_, class)| *class).collect()
    }
}

/// Returns the class of a column's type.
fn class_of(column: &Column, role: &'static str, data_type: &DataType) -> Result<Class> {
    let expected = "a whole number, text, a boolean or a date";
    let fail = || Error::column_type(&column.name, role, data_type, expected);
    Class::of(data_type).ok_or_else(fail)
}

fn find<'s>(name: &str, role: &'static str, schema: &'s Schema) -> Result<(Column, &'s DataType)> {
    let (index, field) = schema
        .column_with_name(name)
        .ok_or_else(|| Error::MissingColumn {
            column: name.to_owned(),
            role,
        })?;
    Ok((
        Column {
            name: name.to_owned(),
            index,
        },
        field.data_type(),
    ))
}
