//! A published version's manifest: everything about a model but its numbers.

use std::time::SystemTime;

use arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};

use super::WrittenFile;
use super::classes::{Classes, PredictedColumns};
use super::quantiles::Quantiles;
use crate::spec::{
    EmbeddingWidth, Feature, FeatureKind, LabelTransform, RankDevice, TrainSpec, Transform,
    value_type,
};
use crate::{Error, Result, did_you_mean};

/// Everything about a published model but its weights and vocabularies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The layout's version; a reader refuses what it does not know.
    pub format: u32,
    /// The model's version, from 1; 0 until it is published.
    pub version: u32,
    /// When it was published.
    #[serde(with = "humantime_serde")]
    pub published: SystemTime,
    /// The spec it was trained by.
    pub spec: TrainSpec,
    /// What was learnt of each feature's column, in the spec's order.
    pub features: Vec<FeatureSummary>,
    /// Trainable parameters.
    pub parameters: u64,
    /// The number the output is scaled by (1 where it is not).
    pub output_scale: f64,
    /// How each transformed label was scaled; not at all in manifests of old, of one label.
    #[serde(
        default = "unscaled",
        rename = "label_scale",
        with = "crate::one_or_several"
    )]
    pub label_scales: Vec<Scale>,
    /// The classes of a classifier's label.
    #[serde(default)]
    pub classes: Option<Classes>,
    /// Rows trained on in each epoch, by all ranks.
    pub train_rows: u64,
    /// The order-free checksum of their keys, in hexadecimal; empty in manifests of old.
    #[serde(default)]
    pub train_checksum: String,
    /// Rows evaluated after each epoch; with cross-validation, those that are trained on.
    pub eval_rows: u64,
    /// Ranks that trained.
    pub world_size: usize,
    /// Device and precision of each rank; empty in manifests of format 8 and before.
    ///
    /// After an interruption these are the ranks that ended the training; earlier ranks may have had other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_devices: Vec<RankDevice>,
    /// One record an epoch.
    pub history: Vec<EpochRecord>,
    /// The epoch, from 1, whose weights were published; before a refit, the one that was the best.
    pub kept_epoch: usize,
    /// The training on all rows that the published weights are of, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refit: Option<Refitted>,
    /// The version's other files, as they were published; none in manifests of old, whose files are taken as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<WrittenFile>,
}

/// A training anew on all rows, those that were evaluated before too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refitted {
    /// Its first epoch, from 1: those before it are of the training whose metrics are told.
    pub first_epoch: usize,
    /// Rows trained on in each of its epochs, by all ranks.
    pub rows: u64,
}

/// What was learnt of a feature's column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FeatureSummary {
    /// The column.
    pub column: String,
    /// How it enters the network.
    pub kind: FeatureKind,
    /// The Arrow type of the column's values in training, as text; a dictionary's is that of its
    /// values.
    pub data_type: String,
    /// Distinct values, null included where it occurred; `None` for a continuous feature.
    pub vocabulary: Option<usize>,
    /// How a continuous feature was scaled; not at all in manifests of old.
    #[serde(default)]
    pub scale: Scale,
    /// What the numbers of a continuous feature are ranked by, instead of their scale; none where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Quantiles>,
    /// Edges of the bins of its piecewise linear embedding, ascending, of scaled numbers; none without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<f32>,
    /// Statistics of a continuous feature's numbers in training; not at all in manifests of old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Numbers>,
}

/// Statistics of a column's numbers in training. Those of dates and times are days since 1970; mean and deviation are by
/// the rows' weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Rows that have none.
    pub nulls: u64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, of all of them.
    pub stddev: f64,
}

/// How a number of a column becomes one that a network computes with: `(x − shift) / unit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// What null is taken for.
    pub null: f64,
    /// What is subtracted.
    pub shift: f64,
    /// What is divided by then.
    pub unit: f64,
    /// Whether a further input says where null was.
    pub indicator: bool,
}

fn unscaled() -> Vec<Scale> {
    vec![Scale::IDENTITY]
}

impl Scale {
    /// Numbers as they are, null as 0.
    pub const IDENTITY: Self = Self {
        null: 0.0,
        shift: 0.0,
        unit: 1.0,
        indicator: false,
    };

    /// The scaled number.
    pub fn apply(&self, x: f64) -> f64 {
        (x - self.shift) / self.unit
    }

    /// The number of this scaled one.
    pub fn undo(&self, scaled: f64) -> f64 {
        self.shift + self.unit * scaled
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::IDENTITY
    }
}

/// One epoch of training, over all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch, from 1.
    pub epoch: usize,
    /// Optimizer steps done since training began.
    pub steps: u64,
    /// Rows trained on in this epoch.
    pub rows: u64,
    /// The order-free checksum of their keys, in hexadecimal; empty in records of old.
    #[serde(default)]
    pub checksum: String,
    /// What each rank of the generation that ended the epoch trained on in it.
    #[serde(default)]
    pub ranks: Vec<RankCoverage>,
    /// What earlier generations trained on in it, where it was interrupted.
    #[serde(default)]
    pub earlier: Option<Coverage>,
    /// Mean training loss (without the L2 term), in the transformed label's scale; of several labels, the weighted sum of
    /// their losses as they are trained, which have no scale in common.
    pub loss: f64,
    /// Mean evaluation loss.
    pub eval_loss: Option<f64>,
    /// How well each of several labels is predicted; of one, the record says so itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelRecord>,
    /// Mean absolute error of evaluation, in the label's own scale; in records of old, in the transformed label's.
    pub eval_mae: Option<f64>,
    /// The share of evaluated rows whose class was the likeliest, for a classifier.
    #[serde(default)]
    pub eval_accuracy: Option<f64>,
    /// The share of evaluated rows of the class that is the most frequent in training: what always predicting it
    /// comes to.
    #[serde(default)]
    pub eval_majority: Option<f64>,
    /// Of several quantiles, the share of evaluated labels from the outermost quantile to the other.
    #[serde(default)]
    pub eval_interval_coverage: Option<f64>,
    /// Root of the mean squared error of evaluation, in the label's own scale.
    #[serde(default)]
    pub eval_rmse: Option<f64>,
    /// The share of the variance of evaluated labels that predictions explain, in the label's own scale: 1 at best, 0 if
    /// they are no better than the mean of these labels. Of several labels, the mean.
    #[serde(default)]
    pub eval_r2: Option<f64>,
    /// `sqrt(mean(((y − ŷ)/y)²))` of evaluation in the label's own scale, over rows with y > 0.001.
    pub eval_rmspe: Option<f64>,
    /// The learning rate of its last step; not in records of old.
    #[serde(default)]
    pub learn_rate: Option<f64>,
    /// Why training ended after it, where it was not the last of all.
    #[serde(default)]
    pub ended: Option<String>,
    /// Seconds the epoch took, evaluation included (the longest of all ranks').
    pub seconds: f64,
    /// Of these, seconds in forward, backward and optimizer (mean over ranks).
    pub compute_seconds: f64,
    /// Of these, seconds in collectives, waiting for peers included (mean over ranks).
    pub reduce_seconds: f64,
}

/// How well one of several labels is predicted in evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelRecord {
    /// The column.
    pub label: String,
    /// Mean loss, in the transformed label's scale.
    pub eval_loss: Option<f64>,
    /// Mean absolute error, in the label's own scale.
    pub eval_mae: Option<f64>,
    /// Root of the mean squared error, in the label's own scale.
    pub eval_rmse: Option<f64>,
    /// As [`EpochRecord::eval_r2`].
    pub eval_r2: Option<f64>,
    /// As [`EpochRecord::eval_rmspe`].
    pub eval_rmspe: Option<f64>,
}

/// What one rank trained on in an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCoverage {
    /// The rank.
    pub rank: usize,
    /// Its rows.
    pub rows: u64,
    /// The checksum of their keys, in hexadecimal.
    pub checksum: String,
}

/// Rows that were trained on, and the checksum of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// How many rows.
    pub rows: u64,
    /// The checksum of their keys, in hexadecimal.
    pub checksum: String,
}

impl Manifest {
    /// The layout this build writes; it reads those before.
    ///
    /// | | |
    /// |---|---|
    /// | 1 | numbers enter the network as they are |
    /// | 2 | features and labels have a [`Scale`] |
    /// | 3 | features have their [`Numbers`], and weights may be averages |
    /// | 4 | networks are graphs of layers, and features may be computed of the rows' columns by a [`Transform`] |
    /// | 5 | features may have [`Quantiles`] and bins |
    /// | 6 | the other files' lengths and hashes are in it, and the weights may be of a [refit](Refitted) |
    /// | 7 | the other files may be elsewhere: on object stores |
    /// | 8 | networks may be ensembles, and cross-validated |
    /// | 9 | the precision of products is the spec's, and what ranks computed with is in it |
    /// | 10 | [`Quantiles`] are `f64`, some of them as text |
    pub const FORMAT: u32 = 10;

    /// The epochs that one was kept of: all but those of a refit.
    pub fn selection(&self) -> &[EpochRecord] {
        let all = self.refit.map_or(self.history.len(), |refit| {
            refit.first_epoch.saturating_sub(1)
        });
        self.history.get(..all).unwrap_or(&self.history)
    }

    /// The precisions that products of matrices were computed in, with the reason for each; not known of manifests of
    /// old.
    pub fn precision(&self) -> Option<String> {
        let ranks = &self.rank_devices;
        (!ranks.is_empty()).then(|| RankDevice::reasons(ranks, self.spec.precision))
    }

    /// Rows to train on and to evaluate.
    pub fn rows(&self) -> u64 {
        match self.spec.cross_validates() {
            true => self.train_rows,
            false => self.train_rows.saturating_add(self.eval_rows),
        }
    }

    /// The widths that its embeddings have, whatever values another training meets.
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

    /// The columns that prediction adds: `predicted_<label>` of each label and, of a classifier,
    /// `predicted_<label>_probs`, as in BigQuery ML; of several quantiles, `predicted_<label>_quantiles`.
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

    /// The column that a feature is read from in rows that are predicted: its own, or one that a [`Transform`] has
    /// computed beside the rows' own.
    pub fn feature_column(&self, feature: &Feature) -> String {
        match self.spec.transform {
            Some(_) => Transform::feature_column(&feature.column),
            None => feature.column.clone(),
        }
    }

    /// Whether predictions are exponentiated.
    pub fn exponentiates(&self) -> bool {
        self.spec.label.transform == LabelTransform::Ln
    }

    /// Checks that rows of this schema can be predicted.
    ///
    /// # Errors
    /// Names the feature column that is missing or of a type the model was not trained on.
    pub fn check_input(&self, input: &Schema) -> Result<()> {
        for (Feature { column, kind }, summary) in self.spec.features.iter().zip(&self.features) {
            let Ok(field) = input.field_with_name(column) else {
                let names = input.fields().iter().map(|field| field.name().as_str());
                return Err(Error::UnknownColumn {
                    column: column.clone(),
                    role: "the prediction's input (the model was trained on it)",
                    hint: did_you_mean(column, names),
                });
            };
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

/// Whether values of the two types compare as the same categories: all integers do, all texts do.
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
