//! A training's result in a line for people: `sales version 3: r² 0.93 on 1200 held-out rows, 2 ranks, 41 s`.
//!
//! The rows have a column for every figure, which other formats and `\x` print.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{ArrowPrimitiveType, Float64Type, Schema, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use volley_engine::train_schema;

/// Checks for a result of `CREATE MODEL`.
pub(super) fn is_training(schema: &Schema) -> bool {
    let due = train_schema();
    let names = |schema: &Schema| -> Vec<String> {
        let fields = schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    };
    names(schema) == names(&due)
}

/// Describes the ranks' rows, of which there is at least one.
///
/// # Errors
/// When the batches differ.
pub(super) fn line(ranks: &[RecordBatch]) -> Result<String, ArrowError> {
    let schema = ranks.first().map_or_else(train_schema, RecordBatch::schema);
    let ranks = concat_batches(&schema, ranks)?;
    Ok(match ranks.num_rows() {
        0 => String::new(),
        _ => tell(&ranks),
    })
}

fn tell(ranks: &RecordBatch) -> String {
    let model = ranks
        .column_by_name("model")
        .map(|column| column.as_string::<i32>().value(0));
    let whole = |name| number::<UInt32Type>(ranks, name).unwrap_or(0);
    let metric = |name| number::<Float64Type>(ranks, name);
    let sum = |name: &str| {
        let column = ranks.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<UInt64Type>());
        column.map_or(0, |column| column.iter().flatten().sum::<u64>())
    };
    let quality = match (
        metric("eval_accuracy"),
        metric("eval_r2"),
        metric("eval_loss"),
    ) {
        (Some(accuracy), ..) => Some(format!("accuracy {}", short(accuracy))),
        (_, Some(r2), _) => Some(format!("r² {}", short(r2))),
        (.., Some(loss)) => Some(format!("loss {}", short(loss))),
        _ => None,
    };
    let mut parts = vec![match quality {
        Some(quality) => format!("{quality} on {} held-out rows", sum("eval_rows")),
        None => format!(
            "loss {} on the rows that it has learned from",
            short(metric("loss").unwrap_or(f64::NAN))
        ),
    }];
    parts.push(format!("{} training rows", sum("train_rows")));
    parts.push(match whole("world_size") {
        1 => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    });
    let seconds = ["load_seconds", "train_seconds"].map(|name| {
        let column = ranks.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<Float64Type>());
        column.map_or(0.0, |column| column.iter().flatten().fold(0.0, f64::max))
    });
    parts.push(format!("{} s", short(seconds[0] + seconds[1])));
    let model = model.unwrap_or_default();
    format!(
        "{model} version {}: {}\n",
        whole("version"),
        parts.join(", ")
    )
}

/// Returns the first rank's value of a column.
fn number<T: ArrowPrimitiveType>(ranks: &RecordBatch, name: &str) -> Option<T::Native> {
    let column = ranks.column_by_name(name)?.as_primitive_opt::<T>()?;
    column.is_valid(0).then(|| column.value(0))
}

/// Returns a number with three digits, or all digits before its point.
fn short(number: f64) -> String {
    let magnitude = number.abs();
    let decimals = match magnitude {
        _ if !number.is_finite() || magnitude >= 100.0 => 0,
        _ if magnitude >= 10.0 => 1,
        _ if magnitude >= 1.0 || magnitude == 0.0 => 2,
        _ => (2.0 - magnitude.log10().floor()).min(6.0) as usize,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array, new_null_array,
    };

    use super::*;

    fn ranks(values: &[(&str, ArrayRef)]) -> RecordBatch {
        let schema = train_schema();
        let rows = values[0].1.len();
        let column = |name: &str, of: &arrow::datatypes::DataType| -> ArrayRef {
            let known = values.iter().find(|(known, _)| *known == name);
            known.map_or_else(
                || new_null_array(of, rows),
                |(_, column)| Arc::clone(column),
            )
        };
        let fields = schema.fields().iter();
        let columns = fields.map(|field| {
            let column = column(field.name(), field.data_type());
            (field.name().clone(), column, true)
        });
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn a_training_is_a_line() {
        let figures = |accuracy: Option<f64>, r2: Option<f64>| {
            let rows = ranks(&[
                ("model", Arc::new(StringArray::from(vec!["sales", "sales"]))),
                ("version", Arc::new(UInt32Array::from(vec![3, 3]))),
                ("world_size", Arc::new(UInt32Array::from(vec![2, 2]))),
                ("train_rows", Arc::new(UInt64Array::from(vec![5000, 5001]))),
                ("eval_rows", Arc::new(UInt64Array::from(vec![600, 600]))),
                ("loss", Arc::new(Float64Array::from(vec![0.01234, 0.01234]))),
                (
                    "eval_accuracy",
                    Arc::new(Float64Array::from(vec![accuracy; 2])),
                ),
                ("eval_r2", Arc::new(Float64Array::from(vec![r2; 2]))),
                (
                    "load_seconds",
                    Arc::new(Float64Array::from(vec![1.0, 1.25])),
                ),
                (
                    "train_seconds",
                    Arc::new(Float64Array::from(vec![39.5, 39.25])),
                ),
            ]);
            super::tell(&rows)
        };
        let rest = "10001 training rows, 2 ranks, 40.8 s\n";
        assert_eq!(
            figures(None, Some(0.9312)),
            format!("sales version 3: r² 0.931 on 1200 held-out rows, {rest}")
        );
        assert_eq!(
            figures(Some(1.0), Some(0.5)),
            format!("sales version 3: accuracy 1.00 on 1200 held-out rows, {rest}")
        );
        assert_eq!(
            figures(None, None),
            format!("sales version 3: loss 0.0123 on the rows that it has learned from, {rest}")
        );
    }
}
