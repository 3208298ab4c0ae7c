//! Importance of features, and their values in rows.

use super::answer::Answer;
use crate::Result;

/// Permutation importance of a feature (Breiman 2001).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FeatureImportance {
    /// Column of the feature, or the column that `TRANSFORM` computes features from.
    pub feature: String,
    /// Mean drop of the score when the column's values are permuted among the rows: of R² for a regression, of accuracy
    /// for a classification. `None` if the score is undefined: no rows, or equal labels.
    pub attribution: Option<f64>,
    /// Standard deviation of the drop over five permutations.
    pub attribution_stddev: Option<f64>,
}

/// Values of a feature in rows, beside those of training.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FeatureInfo {
    /// Column of the feature.
    pub feature: String,
    /// Arrow type of the column in training.
    pub data_type: String,
    /// Smallest number of a continuous feature; dates and times are days since 1970-01-01.
    pub min: Option<f64>,
    /// Largest number of a continuous feature.
    pub max: Option<f64>,
    /// Mean of a continuous feature.
    pub mean: Option<f64>,
    /// Population standard deviation of a continuous feature.
    pub stddev: Option<f64>,
    /// Number of distinct values of a categorical feature, without NULL.
    pub category_count: Option<u64>,
    /// Number of rows where it is NULL.
    pub null_count: u64,
    /// Distance of a continuous feature's mean from that in training, in standard deviations of training.
    pub drift: Option<f64>,
}

impl FeatureImportance {
    /// Reads the result of `ML.GLOBAL_EXPLAIN`, and sorts it by attribution.
    pub(super) fn of(answer: &Answer) -> Result<Vec<Self>> {
        let mut features = Vec::with_capacity(answer.rows());
        for row in 0..answer.rows() {
            features.push(Self {
                feature: answer.text("feature", row)?,
                attribution: answer.number("attribution", row)?,
                attribution_stddev: answer.number("attribution_stddev", row)?,
            });
        }
        features.sort_by(|a: &Self, b| {
            let drop = |of: &Self| of.attribution.unwrap_or(f64::NEG_INFINITY);
            let by_drop = drop(b).total_cmp(&drop(a));
            by_drop.then_with(|| a.feature.cmp(&b.feature))
        });
        Ok(features)
    }
}

impl FeatureInfo {
    /// Reads the result of `ML.FEATURE_INFO` over rows, in the order of the names.
    pub(super) fn of(answer: &Answer, names: &[&str]) -> Result<Vec<Self>> {
        let mut features = Vec::with_capacity(answer.rows());
        for row in 0..answer.rows() {
            let categories = answer.number("category_count", row)?;
            features.push(Self {
                feature: answer.text("input", row)?,
                data_type: answer.text("data_type", row)?,
                min: answer.number("min", row)?,
                max: answer.number("max", row)?,
                mean: answer.number("mean", row)?,
                stddev: answer.number("stddev", row)?,
                category_count: categories.map(|count| count as u64),
                null_count: answer.count("null_count", row)?,
                drift: answer.number("drift", row)?,
            });
        }
        features.sort_by_key(|of: &Self| names.iter().position(|name| *name == of.feature));
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray};

    use super::*;

    #[test]
    fn the_most_important_feature_is_first() {
        let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
        let drops: ArrayRef = Arc::new(Float64Array::from(vec![None, Some(0.1), Some(0.5)]));
        let batch = RecordBatch::try_from_iter([("feature", names), ("attribution", drops)]);
        let features = FeatureImportance::of(&Answer(batch.unwrap())).unwrap();
        let names: Vec<_> = features.iter().map(|of| of.feature.as_str()).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }
}
