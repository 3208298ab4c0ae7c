//! Metrics of a model on labelled rows.

use super::answer::Answer;
use crate::Result;

/// Metrics of a model on labelled rows, weighted if the rows have the model's weight column.
///
/// A metric is `None` if it is not of the model's task, or undefined for the rows.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Number of rows with a label and a weight above 0; for several labels, of the label that has the most.
    pub rows: u64,
    /// Mean absolute error of a regression, in the label's own scale.
    pub mean_absolute_error: Option<f64>,
    /// Mean squared error of a regression, in the label's own scale, squared.
    pub mean_squared_error: Option<f64>,
    /// Share of the label's variance that predictions explain (R²): 1 at best, 0 if they are no better than the mean.
    pub r2_score: Option<f64>,
    /// Root of the mean squared relative error of a regression, over labels above 0.001.
    pub rmspe: Option<f64>,
    /// Mean absolute error of a regression, in the scale of training: of logarithms with a label transform `ln`.
    pub transformed_mae: Option<f64>,
    /// Mean pinball loss over rows and quantiles, for a model of several quantiles.
    pub mean_pinball_loss: Option<f64>,
    /// Share of labels between the outermost two of several quantiles.
    pub interval_coverage: Option<f64>,
    /// Mean distance of the outermost two of several quantiles, in the label's own scale.
    pub mean_interval_width: Option<f64>,
    /// Precision of a classification, the mean over the classes that occur as labels.
    pub precision: Option<f64>,
    /// Recall of a classification, the mean over the classes that occur as labels.
    pub recall: Option<f64>,
    /// Share of rows whose likeliest class is the label.
    pub accuracy: Option<f64>,
    /// F1 score of a classification, the mean over the classes that occur as labels.
    pub f1_score: Option<f64>,
    /// Mean of −ln of the probability of the row's class, which is clipped to at least 1e-15.
    pub log_loss: Option<f64>,
    /// Area under the ROC curve of two classes, by the probability of the second.
    pub roc_auc: Option<f64>,
    /// Each of several labels with its metrics, in the model's order; for one label, the evaluation itself has them.
    pub labels: Vec<(String, Evaluation)>,
}

impl Evaluation {
    /// Reads the result of `ML.EVALUATE`, which has a row for each of several labels.
    pub(super) fn of(answer: &Answer, several: &[String]) -> Result<Self> {
        let mut labels = Vec::new();
        for row in 0..answer.rows() {
            let metrics = Self::of_row(answer, row)?;
            if several.is_empty() {
                return Ok(metrics);
            }
            labels.push((answer.text("label", row)?, metrics));
        }
        labels.sort_by_key(|(label, _)| several.iter().position(|name| name == label));
        Ok(Self {
            rows: labels.iter().map(|(_, of)| of.rows).max().unwrap_or(0),
            labels,
            ..Self::default()
        })
    }

    fn of_row(answer: &Answer, row: usize) -> Result<Self> {
        let metric = |name: &str| answer.number(name, row);
        Ok(Self {
            rows: answer.count("rows", row)?,
            mean_absolute_error: metric("mean_absolute_error")?,
            mean_squared_error: metric("mean_squared_error")?,
            r2_score: metric("r2_score")?,
            rmspe: metric("rmspe")?,
            transformed_mae: metric("transformed_mae")?,
            mean_pinball_loss: metric("mean_pinball_loss")?,
            interval_coverage: metric("interval_coverage")?,
            mean_interval_width: metric("mean_interval_width")?,
            precision: metric("precision")?,
            recall: metric("recall")?,
            accuracy: metric("accuracy")?,
            f1_score: metric("f1_score")?,
            log_loss: metric("log_loss")?,
            roc_auc: metric("roc_auc")?,
            labels: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};

    use super::*;

    fn answer() -> Answer {
        let labels: ArrayRef = Arc::new(StringArray::from(vec!["visits", "sales"]));
        let rows: ArrayRef = Arc::new(Int64Array::from(vec![7, 9]));
        let scores: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 0.75]));
        let columns = [("label", labels), ("rows", rows), ("r2_score", scores)];
        Answer(RecordBatch::try_from_iter(columns).unwrap())
    }

    #[test]
    fn several_labels_come_in_the_models_order() {
        let several = ["sales".to_owned(), "visits".to_owned()];
        let evaluation = Evaluation::of(&answer(), &several).unwrap();
        assert_eq!((evaluation.rows, evaluation.r2_score), (9, None));
        let labels = evaluation.labels.iter();
        let labels: Vec<_> = labels.map(|(name, of)| (&**name, of.r2_score)).collect();
        assert_eq!(labels, [("sales", Some(0.75)), ("visits", Some(0.5))]);
    }

    #[test]
    fn one_label_is_the_evaluation() {
        let evaluation = Evaluation::of(&answer(), &[]).unwrap();
        let due = Evaluation {
            rows: 7,
            r2_score: Some(0.5),
            ..Evaluation::default()
        };
        assert_eq!(evaluation, due);
    }
}
