//! The line that ends a `CREATE MODEL`: how good the model is, and what computed it, from the ranks' rows.

use std::collections::BTreeSet;

use arrow::array::{AsArray, PrimitiveArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float64Type, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use volley_proto::limits::{grouped, row_count};

use super::super::transform::Rows;
use crate::sql::{QuantileLevels, SplitMethod, TrainOptions};

/// Ratio of the evaluated loss on training rows to the loss in training above which the two disagree.
const DISAGREES: f64 = 2.0;

/// Options that the quality of a model is judged against.
#[derive(Debug, Default)]
pub(super) struct Asked {
    labels: Vec<String>,
    /// Share of labels between the outermost of several quantiles.
    interval: Option<f64>,
    /// Reason why no rows are evaluated, if none are.
    unevaluated: Option<String>,
}

impl Asked {
    pub(super) fn of(options: &TrainOptions, rows: &Rows) -> Self {
        let interval = match &options.loss.quantile {
            Some(QuantileLevels::Several(levels)) => levels.first().zip(levels.last()),
            _ => None,
        };
        let none = "no rows were evaluated".to_owned();
        let is_flag = |column: &str| {
            let schema = rows.plan.schema();
            let field = schema.field_with_unqualified_name(column);
            field.is_ok_and(|field| *field.data_type() == DataType::Boolean)
        };
        let unevaluated = match (options.split_method, &options.split_column) {
            (Some(SplitMethod::NoSplit), _) => None,
            (None | Some(SplitMethod::Custom), Some(column)) if is_flag(column) => {
                Some(format!("{none}: {column:?} is false in all rows"))
            }
            (None | Some(SplitMethod::Custom), Some(column)) => {
                Some(format!("{none}: {column:?} is 'EVAL' in no row"))
            }
            _ => Some(none),
        };
        Self {
            labels: options.labels.clone(),
            interval: interval.map(|(low, high)| high - low),
            unevaluated,
        }
    }
}

/// Returns a column of the ranks' rows.
fn column<'a, T: ArrowPrimitiveType>(
    rows: &'a RecordBatch,
    name: &str,
) -> Option<&'a PrimitiveArray<T>> {
    rows.column_by_name(name)?.as_primitive_opt::<T>()
}

/// Returns the number of the first rank that has one.
fn first(rows: &RecordBatch, name: &str) -> Option<f64> {
    column::<Float64Type>(rows, name)?.iter().flatten().next()
}

/// Returns a warning if the model's loss on training rows disagrees with the loss of training.
pub(super) fn disagreement(rows: &RecordBatch) -> Option<String> {
    let (trained, evaluated) = first(rows, "loss").zip(first(rows, "eval_train_loss"))?;
    let disagrees = evaluated > DISAGREES * trained && evaluated > f64::from(f32::EPSILON);
    disagrees.then(|| {
        format!(
            "; warning: training ended at a loss of {trained:.5}, but the published model's loss on training rows \
             is {evaluated:.5}: more steps (epochs, or a smaller global_batch_size) let its statistics settle, or use \
             batch_norm = false"
        )
    })
}

/// Compares the model with predicting the mean or the most frequent class, on the held-out rows; or says why there is
/// nothing to compare.
pub(super) fn judged(rows: &RecordBatch, asked: &Asked) -> Option<String> {
    let held_out = arrow::compute::sum(column::<UInt64Type>(rows, "eval_rows")?)?;
    if held_out == 0 {
        return asked.unevaluated.as_ref().map(|why| format!("; {why}"));
    }
    let on = format!("on {} held-out rows", grouped(held_out));
    let first = |column: &str| first(rows, column);
    if let Some((accuracy, majority)) = first("eval_accuracy").zip(first("eval_majority")) {
        return Some(match accuracy > majority {
            true => format!(
                "; accuracy {accuracy:.3} {on}, where always predicting the most frequent class gives {majority:.3}"
            ),
            false => format!(
                "; accuracy {accuracy:.3} {on}: no better than always predicting the most frequent class \
                 ({majority:.3}). Try other features or another learn_rate"
            ),
        });
    }
    // Rows that weigh nothing have no metrics.
    first("eval_loss")?;
    let covered = first("eval_interval_coverage").zip(asked.interval);
    let covered = covered.map(|(covered, expected)| {
        format!(", interval coverage {covered:.2} (expected {expected:.2}),")
    });
    let covered = covered.unwrap_or_default();
    Some(match (first("eval_r2"), asked.labels.as_slice()) {
        (Some(r2), _) if r2 > 0.0 => {
            format!("; r² {r2:.3}{covered} {on}, where predicting their mean gives 0")
        }
        (Some(r2), _) => format!(
            "; r² {r2:.3}{covered} {on}: {} than predicting their mean (0). Try more epochs, another learn_rate or other \
             features",
            if r2 < 0.0 { "worse" } else { "no better" }
        ),
        (None, [label]) => {
            format!(
                "; label {label:?} has the same value in all evaluated rows, so r² is undefined"
            )
        }
        (None, _) => {
            "; a label has the same value in all evaluated rows, so r² is undefined".to_owned()
        }
    })
}

/// Returns a message about the refit that followed.
pub(super) fn refit(rows: &RecordBatch) -> Option<String> {
    let rows = arrow::compute::sum(column::<UInt64Type>(rows, "refit_rows")?)?;
    Some(format!("; then refit on all {}", row_count(rows)))
}

/// Tells the ranks, the devices that computed, and the time of the slowest rank.
pub(super) fn took(rows: &RecordBatch) -> Option<String> {
    let most = |name: &str| arrow::compute::max(column::<Float64Type>(rows, name)?);
    let seconds = most("load_seconds")? + most("train_seconds")?;
    let ranks = rows.num_rows();
    let plural = if ranks == 1 { "rank" } else { "ranks" };
    let distinct = |name: &str| -> Option<BTreeSet<String>> {
        let texts = rows.column_by_name(name)?.as_string_opt::<i32>()?;
        Some(texts.iter().flatten().map(str::to_owned).collect())
    };
    let join = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join(" and ");
    // GPUs of one kind are not told apart.
    let kind = |device: String| device.split(':').next().unwrap_or_default().to_owned();
    let devices: BTreeSet<_> = distinct("device")?.into_iter().map(kind).collect();
    let on_cpu = devices.contains("cpu");
    let devices = match devices.len() {
        1 if on_cpu => "the CPU".to_owned(),
        _ => join(devices),
    };
    let threads = column::<UInt32Type>(rows, "threads").filter(|_| on_cpu);
    let threads = threads.and_then(|threads| {
        let [least, most] = [arrow::compute::min(threads)?, arrow::compute::max(threads)?];
        let plural = if most == 1 { "thread" } else { "threads" };
        let count = match least == most {
            true => most.to_string(),
            false => format!("{least} to {most}"),
        };
        let each = if ranks == 1 { "" } else { " each" };
        Some(format!(", {count} {plural}{each}"))
    });
    Some(format!(
        "; {ranks} {plural} on {devices}, {}{}, {seconds:.1} s",
        join(distinct("precision")?),
        threads.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array};

    use super::*;

    fn numbers(numbers: [Option<f64>; 2]) -> ArrayRef {
        Arc::new(Float64Array::from(numbers.to_vec()))
    }

    /// Returns the rows of two ranks, which hold out 1,572 rows together, with these metrics.
    fn rows(metrics: &[(&str, f64)]) -> RecordBatch {
        let held_out: ArrayRef = Arc::new(UInt64Array::from(vec![786, 786]));
        let metrics = metrics.iter();
        let metrics = metrics.map(|(name, value)| (*name, numbers([Some(*value); 2])));
        let columns = [("eval_rows", held_out)].into_iter().chain(metrics);
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn a_model_that_does_other_than_was_trained_is_told_of() {
        let said = |trained: f64, evaluated: f64| {
            disagreement(&rows(&[("loss", trained), ("eval_train_loss", evaluated)]))
        };
        assert_eq!(said(2.1, 2.5), None);
        assert_eq!(said(0.0, 1e-12), None);
        let warning = said(2.1, 26.0).unwrap();
        assert!(
            warning.contains("2.10000") && warning.contains("batch_norm = false"),
            "{warning}"
        );
    }

    #[test]
    fn quality_is_told_with_what_it_is_compared_to() {
        let asked = Asked {
            labels: vec!["y".into()],
            interval: Some(0.9),
            unevaluated: Some("no rows were evaluated: \"ev\" is false in all rows".into()),
        };
        let said = |metrics: &[(&str, f64)]| {
            let metrics = [&[("eval_loss", 0.1)], metrics].concat();
            judged(&rows(&metrics), &asked).unwrap()
        };
        // Rows that weigh nothing have no metrics.
        assert_eq!(judged(&rows(&[]), &asked), None);
        assert_eq!(
            said(&[("eval_r2", 0.983)]),
            "; r² 0.983 on 1,572 held-out rows, where predicting their mean gives 0"
        );
        assert_eq!(
            said(&[("eval_r2", 0.983), ("eval_interval_coverage", 0.981)]),
            "; r² 0.983, interval coverage 0.98 (expected 0.90), on 1,572 held-out rows, where predicting their mean gives 0"
        );
        assert_eq!(
            said(&[("eval_r2", -0.547)]),
            "; r² -0.547 on 1,572 held-out rows: worse than predicting their mean (0). Try more epochs, another learn_rate \
             or other features"
        );
        assert_eq!(
            said(&[]),
            "; label \"y\" has the same value in all evaluated rows, so r² is undefined"
        );
        let classes = |accuracy| said(&[("eval_accuracy", accuracy), ("eval_majority", 0.5)]);
        assert!(classes(0.75).ends_with("the most frequent class gives 0.500"));
        assert!(
            classes(0.5)
                .contains(": no better than always predicting the most frequent class (0.500).")
        );
        let none: ArrayRef = Arc::new(UInt64Array::from(vec![0, 0]));
        let none = RecordBatch::try_from_iter([("eval_rows", none)]).unwrap();
        assert_eq!(
            judged(&none, &asked).unwrap(),
            "; no rows were evaluated: \"ev\" is false in all rows"
        );
        // With data_split_method = 'no_split', that is as asked.
        assert_eq!(judged(&none, &Asked::default()), None);
        // Rows that were lost say nothing.
        assert_eq!(judged(&none.slice(0, 0), &asked), None);
    }

    #[test]
    fn what_computed_is_told() {
        let said = |devices: [&str; 2], threads: [u32; 2]| {
            let texts =
                |texts: [&str; 2]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
            let rows = RecordBatch::try_from_iter([
                ("device", texts(devices)),
                ("precision", texts(["f32"; 2])),
                (
                    "threads",
                    Arc::new(UInt32Array::from(threads.to_vec())) as ArrayRef,
                ),
                ("load_seconds", numbers([Some(0.25), Some(0.5)])),
                ("train_seconds", numbers([Some(2.0), Some(1.0)])),
            ]);
            took(&rows.unwrap()).unwrap()
        };
        let due = "; 2 ranks on the CPU, f32, 1 thread each, 2.5 s";
        assert_eq!(said(["cpu"; 2], [1, 1]), due);
        let due = "; 2 ranks on cpu and cuda, f32, 1 to 4 threads each, 2.5 s";
        assert_eq!(said(["cpu", "cuda:1"], [4, 1]), due);
        let due = "; 2 ranks on cuda, f32, 2.5 s";
        assert_eq!(said(["cuda:0", "cuda:1"], [4, 1]), due);
    }
}
