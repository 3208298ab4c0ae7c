//! `ML.TRAINING_INFO`: a model's history as rows.
//!
//! A VALUES plan, because it can be sent to the cluster and a table in memory cannot.

use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, col, lit};
use datafusion::scalar::ScalarValue;
use volley_proto::store::{EpochRecord, Manifest};

const COLUMNS: [&str; 12] = [
    "iteration",
    "loss",
    "eval_loss",
    "eval_mae",
    "eval_rmspe",
    "learning_rate",
    "duration_ms",
    "compute_ms",
    "reduce_ms",
    "rows",
    "steps",
    "published",
];

/// One row an epoch, in order; `published` marks the one whose weights were kept.
pub(super) fn rows(manifest: &Manifest) -> Result<LogicalPlan> {
    if manifest.history.is_empty() {
        let message = format!(
            "model {} was published without a history",
            manifest.spec.model
        );
        return Err(DataFusionError::Plan(message));
    }
    let row = |epoch: &EpochRecord| {
        let millis = |seconds: f64| ScalarValue::Int64(Some((seconds * 1e3).round() as i64));
        let whole = |number: u64| ScalarValue::Int64(i64::try_from(number).ok());
        let values: [ScalarValue; COLUMNS.len()] = [
            whole(epoch.epoch as u64),
            ScalarValue::Float64(Some(epoch.loss)),
            ScalarValue::Float64(epoch.eval_loss),
            ScalarValue::Float64(epoch.eval_mae),
            ScalarValue::Float64(epoch.eval_rmspe),
            ScalarValue::Float64(Some(manifest.spec.optimizer.learn_rate)),
            millis(epoch.seconds),
            millis(epoch.compute_seconds),
            millis(epoch.reduce_seconds),
            whole(epoch.rows),
            whole(epoch.steps),
            ScalarValue::Boolean(Some(epoch.epoch == manifest.kept_epoch)),
        ];
        values.map(lit).to_vec()
    };
    let names = COLUMNS.iter().enumerate();
    LogicalPlanBuilder::values(manifest.history.iter().map(row).collect())?
        .project(names.map(|(index, name)| col(format!("column{}", index + 1)).alias(*name)))?
        .build()
}
