//! `ML.TRAINING_INFO`: a model's training history as rows, also during training.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::scalar::ScalarValue;
use volley_proto::store::{EpochRecord, LabelRecord, Manifest};
use volley_proto::tables::Epoch;

use super::Known;

const NAME: &str = "training_info";

/// Returns the schema of the rows of epochs, which are in order.
fn schema() -> Schema {
    let epoch = Epoch::of("", "", &EpochRecord::default());
    let columns = row(&epoch, None, None, false);
    let columns = columns.map(|(name, value)| Field::new(name, value.data_type(), true));
    Schema::new(columns.to_vec())
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
    let labels = [None].into_iter().chain(epoch.labels.iter().map(Some));
    let rows = labels.map(|label| row(epoch, label, learn_rate, published));
    let values = rows.map(|row| Vec::from(row.map(|(_, value)| value)));
    values.collect()
}

/// Returns the columns of an epoch's row, or of the row for one of its labels. `published` marks the epoch whose weights
/// were kept.
fn row(
    epoch: &Epoch,
    label: Option<&LabelRecord>,
    learn_rate: Option<f64>,
    published: bool,
) -> [(&'static str, ScalarValue); 17] {
    use ScalarValue::{Boolean, Float64, Int64, Utf8};
    let of_epoch = |value: Option<f64>| Float64(value.filter(|_| label.is_none()));
    let metric = |value: Option<f64>, of_label: fn(&LabelRecord) -> Option<f64>| {
        Float64(label.map_or(value, of_label))
    };
    let whole = |number: u64| i64::try_from(number).ok();
    let count = |number: u64| Int64(whole(number).filter(|_| label.is_none()));
    let millis = |seconds: f64| Int64(label.is_none().then(|| (seconds * 1e3).round() as i64));
    [
        ("iteration", Int64(whole(epoch.epoch))),
        ("loss", of_epoch(Some(epoch.loss))),
        ("eval_loss", metric(epoch.eval_loss, |of| of.eval_loss)),
        ("eval_mae", metric(epoch.eval_mae, |of| of.eval_mae)),
        ("eval_rmse", metric(epoch.eval_rmse, |of| of.eval_rmse)),
        ("eval_r2", metric(epoch.eval_r2, |of| of.eval_r2)),
        ("eval_accuracy", of_epoch(epoch.eval_accuracy)),
        ("eval_rmspe", metric(epoch.eval_rmspe, |of| of.eval_rmspe)),
        ("learning_rate", of_epoch(learn_rate)),
        ("duration_ms", millis(epoch.seconds)),
        ("compute_ms", millis(epoch.compute_seconds)),
        ("reduce_ms", millis(epoch.reduce_seconds)),
        ("rows", count(epoch.rows)),
        ("steps", count(epoch.steps)),
        ("published", Boolean(Some(published))),
        (
            "eval_interval_coverage",
            of_epoch(epoch.eval_interval_coverage),
        ),
        ("label", Utf8(label.map(|of| of.label.clone()))),
    ]
}

#[cfg(test)]
mod tests {
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
