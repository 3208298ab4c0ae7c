//! Manifest of a published version: everything about a model except its numbers.

use std::time::SystemTime;

use arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};

use super::WrittenFile;
use super::classes::{Classes, PredictedColumns};
use super::quantiles::Quantiles;
use crate::spec::{
    EmbeddingWidth, Feature, FeatureKind, LabelTransform, RankDevice, TrainSpec, Transform,
    check_columns, named_field, value_type,
};
use crate::{Error, Result};

/// Everything about a published model except its weights and vocabularies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the layout; a reader refuses unknown ones.
    pub format: u32,
    /// Version of the model, from 1; 0 until it is published.
    pub version: u32,
    /// Time at which it was published.
    #[serde(with = "humantime_serde")]
    pub published: SystemTime,
    /// Time at which the scheduler got the training; none without one.
    #[serde(
        default,
        with = "humantime_serde::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub begun: Option<SystemTime>,
    /// Spec that it was trained by.
    pub spec: TrainSpec,
    /// Summary of each feature's column, in the spec's order.
    pub features: Vec<FeatureSummary>,
    /// Number of trainable parameters.
    pub parameters: u64,
    /// Factor of the output (1 if it is not scaled).
    pub output_scale: f64,
    /// Scale of each transformed label.
    #[serde(rename = "label_scale", with = "crate::one_or_several")]
    pub label_scales: Vec<Scale>,
    /// Classes of a classifier's label.
    pub classes: Option<Classes>,
    /// Rows trained on in each epoch, by all ranks.
    pub train_rows: u64,
    /// Order-independent checksum of their keys, in hexadecimal.
    pub train_checksum: String,
    /// Rows evaluated after each epoch; with cross-validation, the rows that are trained on.
    pub eval_rows: u64,
    /// Number of ranks that trained.
    pub world_size: usize,
    /// Device and precision of each rank.
    ///
    /// After an interruption these are the ranks that ended the training; earlier ranks may have had other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_devices: Vec<RankDevice>,
    /// Records of the epochs, one each.
    pub history: Vec<EpochRecord>,
    /// Epoch, from 1, whose weights were published; before a refit, the best epoch.
    pub kept_epoch: usize,
    /// Refit on all rows that produced the published weights, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit: Option<Refitted>,
    /// The version's other files as published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<WrittenFile>,
}

/// Refit: a second training on all rows, including those evaluated before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refitted {
    /// First epoch of the refit, from 1: earlier ones belong to the training whose metrics are reported.
    pub first_epoch: usize,
    /// Rows trained on in each of its epochs, by all ranks.
    pub rows: u64,
}

/// Summary of a feature's column in training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FeatureSummary {
    /// Name of the column.
    pub column: String,
    /// Kind of the feature.
    pub kind: FeatureKind,
    /// Arrow type of the column's values in training, as text; for a dictionary, the type of its values.
    pub data_type: String,
    /// Number of distinct values, null included if it occurred; `None` for a continuous feature.
    pub vocabulary: Option<usize>,
    /// Scale of a continuous feature.
    pub scale: Scale,
    /// Quantiles by which a continuous feature's numbers are ranked, instead of scaled; none if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Quantiles>,
    /// Bin edges of its piecewise linear embedding, ascending, in scaled numbers; none without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<f32>,
    /// Statistics of a continuous feature's numbers in training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Numbers>,
}

/// Statistics of a column's numbers in training. Dates and times are days since 1970; mean and deviation are weighted
/// by the rows' weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Number of nulls.
    pub nulls: u64,
    /// Smallest number.
    pub min: f64,
    /// Largest number.
    pub max: f64,
    /// Mean of the numbers.
    pub mean: f64,
    /// Population standard deviation of the numbers.
    pub stddev: f64,
}

/// Scale that maps a column's numbers to numbers that a network computes with: `(x − shift) / unit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Number that replaces null.
    pub null: f64,
    /// Number that is subtracted.
    pub shift: f64,
    /// Divisor after that.
    pub unit: f64,
    /// True if an additional input indicates null.
    pub indicator: bool,
}

impl Scale {
    /// Identity: numbers are unchanged, null is 0.
    pub const IDENTITY: Self = Self {
        null: 0.0,
        shift: 0.0,
        unit: 1.0,
        indicator: false,
    };

    /// Returns the scaled number.
    pub fn apply(&self, x: f64) -> f64 {
        (x - self.shift) / self.unit
    }

    /// Returns the number for a scaled one.
    pub fn undo(&self, scaled: f64) -> f64 {
        self.shift + self.unit * scaled
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::IDENTITY
    }
}

/// Record of one epoch of training, over all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Optimizer steps done since training began.
    pub steps: u64,
    /// Rows trained on in this epoch.
    pub rows: u64,
    /// Order-independent checksum of their keys, in hexadecimal.
    pub checksum: String,
    /// Rows that each rank of the epoch's last generation trained on in it.
    pub ranks: Vec<RankCoverage>,
    /// Rows that earlier generations trained on in it, if it was interrupted.
    pub earlier: Option<Coverage>,
    /// Mean training loss (without the L2 term), in the transformed label's scale; for several labels, the weighted sum
    /// of their training losses, which have no common scale.
    pub loss: f64,
    /// Mean evaluation loss.
    pub eval_loss: Option<f64>,
    /// Metrics of each of several labels; for one label, the record itself has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelRecord>,
    /// Mean absolute error of evaluation, in the label's own scale.
    pub eval_mae: Option<f64>,
    /// Share of evaluated rows whose class was the likeliest, for a classifier.
    pub eval_accuracy: Option<f64>,
    /// Share of evaluated rows whose class is the most frequent in training: the accuracy of always predicting that
    /// class.
    pub eval_majority: Option<f64>,
    /// With several quantiles, the share of evaluated labels between the outermost quantiles.
    pub eval_interval_coverage: Option<f64>,
    /// Root of the mean squared error of evaluation, in the label's own scale.
    pub eval_rmse: Option<f64>,
    /// Share of the variance of evaluated labels that predictions explain, in the label's own scale: 1 at best, 0 if
    /// they are no better than the mean of these labels. For several labels, the mean.
    pub eval_r2: Option<f64>,
    /// `sqrt(mean(((y − ŷ)/y)²))` of evaluation in the label's own scale, over rows with y > 0.001.
    pub eval_rmspe: Option<f64>,
    /// Learning rate of the epoch's last step.
    pub learn_rate: Option<f64>,
    /// Reason why training ended after it, if it was not the last epoch.
    pub ended: Option<String>,
    /// Seconds that the epoch took, evaluation included (the maximum over ranks).
    pub seconds: f64,
    /// Seconds thereof in forward, backward and optimizer (mean over ranks).
    pub compute_seconds: f64,
    /// Seconds thereof in collectives, waiting for peers included (mean over ranks).
    pub reduce_seconds: f64,
}

/// Evaluation metrics of one of several labels.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelRecord {
    /// Label column.
    pub label: String,
    /// Mean loss, in the transformed label's scale.
    pub eval_loss: Option<f64>,
    /// Mean absolute error, in the label's own scale.
    pub eval_mae: Option<f64>,
    /// Root of the mean squared error, in the label's own scale.
    pub eval_rmse: Option<f64>,
    /// Explained share of the variance: see [`EpochRecord::eval_r2`].
    pub eval_r2: Option<f64>,
    /// Relative error: see [`EpochRecord::eval_rmspe`].
    pub eval_rmspe: Option<f64>,
}

/// Rows that one rank trained on in an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCoverage {
    /// Number of the rank.
    pub rank: usize,
    /// Number of its rows.
    pub rows: u64,
    /// Checksum of their keys, in hexadecimal.
    pub checksum: String,
}

/// Rows that were trained on, and the checksum of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Number of rows.
    pub rows: u64,
    /// Checksum of their keys, in hexadecimal.
    pub checksum: String,
}

impl Manifest {
    /// Version of the layout that this build writes and reads.
    pub const FORMAT: u32 = 12;

    /// Returns the epochs from which one was kept: all except those of a refit.
    pub fn selection(&self) -> &[EpochRecord] {
        let all = self.refit.map_or(self.history.len(), |refit| {
            refit.first_epoch.saturating_sub(1)
        });
        self.history.get(..all).unwrap_or(&self.history)
    }

    /// Returns the precisions of matrix products, with the reason for each; `None` if there are no ranks.
    pub fn precision(&self) -> Option<String> {
        let ranks = &self.rank_devices;
        (!ranks.is_empty()).then(|| RankDevice::reasons(ranks, self.spec.precision))
    }

    /// Returns the number of rows to train on and to evaluate.
    pub fn rows(&self) -> u64 {
        match self.spec.cross_validates() {
            true => self.train_rows,
            false => self.train_rows.saturating_add(self.eval_rows),
        }
    }

    /// Returns the widths of its embeddings, independent of the values in another training.
    pub fn embedding_dim(&self) -> EmbeddingWidth {
        let given = &self.spec.network.embedding_dim;
        if let EmbeddingWidth::Same(_) = given {
            return given.clone();
        }
        let widths = self.features.iter().filter_map(|feature| {
            let width = given.of(&feature.column, feature.vocabulary?);
            Some((feature.column.clone(), width))
        });
        EmbeddingWidth::Columns(widths.collect())
    }

    /// Returns the columns that prediction adds: `predicted_<label>` for each label; for a classifier, also
    /// `predicted_<label>_probs`, as in BigQuery ML; for several quantiles, `predicted_<label>_quantiles`.
    pub fn predicted(&self) -> PredictedColumns {
        let predicted = |column: &str| format!("predicted_{column}");
        let further = self.spec.label.columns.iter().skip(1);
        let further = further.map(|column| predicted(column));
        PredictedColumns {
            name: predicted(self.spec.label.column()),
            further: further.collect(),
            class: self.classes.as_ref().map(Classes::class_type),
            has_quantiles: self.spec.loss.shares().is_some(),
            explained_by: None,
        }
    }

    /// Returns the column that a feature is read from in rows for prediction: its own, or one that a [`Transform`] has
    /// computed beside the rows' own.
    pub fn feature_column(&self, feature: &Feature) -> String {
        match self.spec.transform {
            Some(_) => Transform::feature_column(&feature.column),
            None => feature.column.clone(),
        }
    }

    /// Checks whether predictions are exponentiated.
    pub fn exponentiates(&self) -> bool {
        self.spec.label.transform == LabelTransform::Ln
    }

    /// Checks that rows of this schema can be predicted.
    ///
    /// # Errors
    /// Names all feature columns that are missing, else the first with a type that the model was not trained on.
    pub fn check_input(&self, input: &Schema) -> Result<()> {
        let columns = self.spec.features.iter().map(|feature| &*feature.column);
        check_columns(
            columns,
            input,
            "the prediction's input",
            "that the model was trained on",
        )?;
        for (Feature { column, kind }, summary) in self.spec.features.iter().zip(&self.features) {
            let role = "the prediction's input (the model was trained on it)";
            let field = named_field(input, column, role)?;
            kind.check(column, input)?;
            if *kind == FeatureKind::Categorical
                && !same_values(field.data_type(), &summary.data_type)
            {
                return Err(Error::ColumnType {
                    column: column.clone(),
                    role: "the prediction's input",
                    actual: field.data_type().to_string(),
                    expected: format!("{} as in training", summary.data_type),
                });
            }
        }
        Ok(())
    }
}

/// Checks whether values of the two types compare as the same categories: all integers do, all texts do.
fn same_values(actual: &DataType, trained: &str) -> bool {
    fn class(data_type: &str) -> &str {
        match data_type {
            "Int8" | "Int16" | "Int32" | "Int64" | "UInt8" | "UInt16" | "UInt32" | "UInt64" => {
                "integer"
            }
            "Utf8" | "LargeUtf8" | "Utf8View" => "text",
            other => other,
        }
    }
    class(&value_type(actual).to_string()) == class(trained)
}
