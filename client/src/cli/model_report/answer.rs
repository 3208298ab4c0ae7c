//! Small result of a query, read by the names of its columns.

use anyhow::Context;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::array_value_to_string;

/// Result rows in one batch; `None` if the query returned none.
#[derive(Debug)]
pub(super) struct Answer(pub(super) Option<RecordBatch>);

impl Answer {
    fn column(&self, name: &str) -> anyhow::Result<Option<&ArrayRef>> {
        let Some(batch) = &self.0 else {
            return Ok(None);
        };
        let column = batch.column_by_name(name);
        let column = column.with_context(|| format!("the answer has no column {name:?}"))?;
        Ok(Some(column))
    }

    /// Returns a column's numbers.
    pub(super) fn numbers(&self, name: &str) -> anyhow::Result<Vec<Option<f64>>> {
        self.column(name)?.map_or_else(|| Ok(Vec::new()), numbers)
    }

    /// Returns a column's values as text.
    pub(super) fn texts(&self, name: &str) -> anyhow::Result<Vec<String>> {
        self.column(name)?.map_or_else(|| Ok(Vec::new()), texts)
    }

    /// Maps each row with a finite number in all of these columns, and leaves out the others.
    pub(super) fn rows<T, const N: usize>(
        &self,
        names: [&str; N],
        row: impl Fn([f64; N]) -> T,
    ) -> anyhow::Result<Vec<T>> {
        let mut columns = Vec::with_capacity(N);
        for name in names {
            columns.push(self.numbers(name)?);
        }
        let count = columns.first().map_or(0, Vec::len);
        let rows = (0..count).filter_map(|at| {
            let mut numbers = [0.0; N];
            for (number, column) in numbers.iter_mut().zip(&columns) {
                *number = column[at].filter(|number| number.is_finite())?;
            }
            Some(row(numbers))
        });
        Ok(rows.collect())
    }
}

/// Returns a column's numbers.
pub(super) fn numbers(column: &ArrayRef) -> anyhow::Result<Vec<Option<f64>>> {
    let floats = cast(column, &DataType::Float64)?;
    Ok(floats.as_primitive::<Float64Type>().iter().collect())
}

/// Returns a column's values as text.
pub(super) fn texts(column: &ArrayRef) -> anyhow::Result<Vec<String>> {
    let text = |row| match column.is_null(row) {
        true => Ok("NULL".to_owned()),
        false => array_value_to_string(column, row),
    };
    let texts = (0..column.len()).map(text).collect::<Result<_, _>>()?;
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringArray};

    use super::*;

    #[test]
    fn rows_without_a_number_are_left_out() {
        let counts = Int64Array::from(vec![Some(3), None, Some(5), Some(7)]);
        let shares = Float64Array::from(vec![0.5, 0.1, f64::NAN, 0.25]);
        let names = StringArray::from(vec![Some("a"), None, Some("c"), Some("d")]);
        let columns: [(&str, ArrayRef); 3] = [
            ("n", Arc::new(counts)),
            ("share", Arc::new(shares)),
            ("name", Arc::new(names)),
        ];
        let answer = Answer(Some(RecordBatch::try_from_iter(columns).unwrap()));
        let rows = answer.rows(["share", "n"], |[share, n]| share * n);
        assert_eq!(rows.unwrap(), [1.5, 1.75]);
        assert_eq!(answer.texts("name").unwrap(), ["a", "NULL", "c", "d"]);
        assert_eq!(answer.numbers("n").unwrap()[1], None);
        assert!(answer.numbers("m").is_err());
        assert!(Answer(None).numbers("m").unwrap().is_empty());
    }
}
