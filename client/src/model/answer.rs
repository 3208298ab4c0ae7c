//! Small result of an `ML` function, read by the names of its columns.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::error::DataFusionError;

use crate::Result;

/// Result rows in one batch.
#[derive(Debug)]
pub(super) struct Answer(pub(super) RecordBatch);

impl Answer {
    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.0.num_rows()
    }

    /// Returns a column's number in a row; `None` for NULL, and for a column that the function does not return.
    pub(super) fn number(&self, column: &str, row: usize) -> Result<Option<f64>> {
        let value = self.value(column, row, &DataType::Float64)?;
        Ok(value.map(|value| value.as_primitive::<Float64Type>().value(0)))
    }

    /// Returns a column's count in a row.
    ///
    /// # Errors
    /// When there is no such column, or the value is NULL.
    pub(super) fn count(&self, column: &str, row: usize) -> Result<u64> {
        let count = self.number(column, row)?;
        Ok(count.ok_or_else(|| missing(column))? as u64)
    }

    /// Returns a column's text in a row.
    ///
    /// # Errors
    /// When there is no such column, or the value is NULL.
    pub(super) fn text(&self, column: &str, row: usize) -> Result<String> {
        let value = self.value(column, row, &DataType::Utf8)?;
        let value = value.ok_or_else(|| missing(column))?;
        Ok(value.as_string::<i32>().value(0).to_owned())
    }

    fn value(&self, column: &str, row: usize, kind: &DataType) -> Result<Option<ArrayRef>> {
        let Some(column) = self.0.column_by_name(column) else {
            return Ok(None);
        };
        let value = cast(&column.slice(row, 1), kind).map_err(DataFusionError::from)?;
        Ok(value.is_valid(0).then_some(value))
    }
}

fn missing(column: &str) -> DataFusionError {
    DataFusionError::Internal(format!("the result has no value of {column}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn values_are_read_by_name() {
        let counts: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let batch = RecordBatch::try_from_iter([("n", counts), ("name", names)]).unwrap();
        let answer = Answer(batch);
        assert_eq!(answer.rows(), 2);
        assert_eq!(answer.count("n", 0).unwrap(), 3);
        assert!(answer.count("n", 1).is_err() && answer.count("m", 0).is_err());
        assert_eq!(answer.number("n", 1).unwrap(), None);
        assert_eq!(answer.number("m", 0).unwrap(), None);
        assert_eq!(answer.text("name", 0).unwrap(), "a");
        assert!(answer.text("name", 1).is_err());
    }
}
