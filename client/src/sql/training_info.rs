//! `ML.TRAINING_INFO`: a model's training history as rows, also during training.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::scalar::ScalarValue;
use volley_proto::store::{EpochRecord, Manifest};
use volley_proto::tables::Epoch;

use super::Known;

const NAME: &str = "training_info";

/// Returns the schema of the epoch rows, which are in order. `published` marks the epoch whose weights were kept;
/// `label` is set in rows for one of several labels.
fn schema() -> Schema {
    let columns = [
        ("iteration", DataType::Int64),
        ("loss", DataType::Float64),
        ("eval_loss", DataType::Float64),
        ("eval_mae", DataType::Float64),
        ("eval_rmse", DataType::Float64),
        ("eval_r2", DataType::Float64),
        ("eval_accuracy", DataType::Float64),
        ("eval_rmspe", DataType::Float64),
        ("learning_rate", DataType::Float64),
        ("duration_ms", DataType::Int64),
        ("compute_ms", DataType::Int64),
        ("reduce_ms", DataType::Int64),
        ("rows", DataType::Int64),
        ("steps", DataType::Int64),
        ("published", DataType::Boolean),
        ("eval_interval_coverage", DataType::Float64),
        ("label", DataType::Utf8),
    ];
    Schema::new(
        columns
            .map(|(name, kind)| Field::new(name, kind, true))
            .to_vec(),
    )
}

/// Returns the training history of a published model.
pub(super) fn published(manifest: &Manifest) -> Result<LogicalPlan> {
    if manifest.history.is_empty() {
        let message = format!(
            "model {} was published without a history",
            manifest.spec.model
        );
        return Err(DataFusionError::Plan(message));
    }
    let old = manifest.spec.optimizer.learn_rate;
    let of = |record: &EpochRecord| {
        let epoch = Epoch::of("", "", record);
        let is_published = record.epoch == manifest.kept_epoch;
        rows(&epoch, record.learn_rate.or(Some(old)), is_published)
    };
    plan(manifest.history.iter().flat_map(of))
}

/// Returns the epochs so far of a running training, of which there may be none.
pub(super) fn under_way(epochs: &[Epoch]) -> Result<LogicalPlan> {
    plan(epochs.iter().flat_map(|epoch| rows(epoch, None, false)))
}

fn plan(rows: impl Iterator<Item = Vec<ScalarValue>>) -> Result<LogicalPlan> {
    let rows: Vec<_> = rows.collect();
    let schema = Arc::new(schema());
    if rows.is_empty() {
        return Known::plan(NAME, RecordBatch::new_empty(schema));
    }
    let column = |at: usize| ScalarValue::iter_to_array(rows.iter().map(|row| row[at].clone()));
    let columns = (0..schema.fields().len()).map(column);
    let rows = RecordBatch::try_new(schema, columns.collect::<Result<_>>()?)?;
    Known::plan(NAME, rows)
}

/// Returns the row of an epoch and, if there are several labels, one more row per label with its name and metrics.
fn rows(epoch: &Epoch, learn_rate: Option<f64>, published: bool) -> Vec<Vec<ScalarValue>> {
    let millis = |seconds: f64| ScalarValue::Int64(Some((seconds * 1e3).round() as i64));
    let whole = |number: u64| ScalarValue::Int64(i64::try_from(number).ok());
    let all = vec![
        whole(epoch.epoch),
        ScalarValue::Float64(Some(epoch.loss)),
        ScalarValue::Float64(epoch.eval_loss),
        ScalarValue::Float64(epoch.eval_mae),
        ScalarValue::Float64(epoch.eval_rmse),
        ScalarValue::Float64(epoch.eval_r2),
        ScalarValue::Float64(epoch.eval_accuracy),
        ScalarValue::Float64(epoch.eval_rmspe),
        ScalarValue::Float64(learn_rate),
        millis(epoch.seconds),
        millis(epoch.compute_seconds),
        millis(epoch.reduce_seconds),
        whole(epoch.rows),
        whole(epoch.steps),
        ScalarValue::Boolean(Some(published)),
        ScalarValue::Float64(epoch.eval_interval_coverage),
        ScalarValue::Utf8(None),
    ];
    let of_labels = epoch.labels.iter().map(|of| {
        vec![
            whole(epoch.epoch),
            ScalarValue::Float64(None),
            ScalarValue::Float64(of.eval_loss),
            ScalarValue::Float64(of.eval_mae),
            ScalarValue::Float64(of.eval_rmse),
            ScalarValue::Float64(of.eval_r2),
            ScalarValue::Float64(None),
            ScalarValue::Float64(of.eval_rmspe),
            ScalarValue::Float64(None),
            ScalarValue::Int64(None),
            ScalarValue::Int64(None),
            ScalarValue::Int64(None),
            ScalarValue::Int64(None),
            ScalarValue::Int64(None),
            ScalarValue::Boolean(Some(published)),
            ScalarValue::Float64(None),
            ScalarValue::Utf8(Some(of.label.clone())),
        ]
    });
    [all].into_iter().chain(of_labels).collect()
}

#[cfg(test)]
mod tests {
    use volley_proto::store::LabelRecord;

    use super::*;

    #[test]
    fn several_labels_have_a_row_each() {
        let record = EpochRecord {
            epoch: 2,
            loss: 0.5,
            eval_interval_coverage: Some(0.75),
            labels: vec![LabelRecord {
                label: "y".into(),
                eval_mae: Some(3.0),
                ..LabelRecord::default()
            }],
            ..EpochRecord::default()
        };
        let rows = rows(&Epoch::of("", "", &record), None, true);
        let schema = schema();
        for row in &rows {
            let types: Vec<_> = row.iter().map(ScalarValue::data_type).collect();
            let due = schema
                .fields()
                .iter()
                .map(|field| field.data_type().clone());
            assert_eq!(types, due.collect::<Vec<_>>());
        }
        let of = |row: usize, column: &str| rows[row][schema.index_of(column).unwrap()].clone();
        assert_eq!(rows.len(), 2);
        assert_eq!(of(0, "eval_interval_coverage"), ScalarValue::from(0.75));
        assert_eq!(of(0, "label"), ScalarValue::Utf8(None));
        assert_eq!(of(1, "iteration"), of(0, "iteration"));
        assert_eq!(of(1, "label"), ScalarValue::from("y"));
        assert_eq!(of(1, "eval_mae"), ScalarValue::from(3.0));
        assert_eq!(of(1, "loss"), ScalarValue::Float64(None));
    }
}
