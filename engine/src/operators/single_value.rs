//! The value of a scalar subquery, or an error if it has several rows.
//!
//! The scalar subquery `SELECT x FROM s` becomes `SELECT volley_single_value(x) FROM s`, which always has one row: NULL
//! if `s` is empty, the value of one row, and an error for more. So the subquery can be joined like any relation, in
//! any stage and process. Unlike SQL's `first_value`, it does not accept several rows.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::cast::as_int64_array;
use datafusion::common::{ScalarValue, exec_err, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};

const NAME: &str = "volley_single_value";

/// Aggregate that returns a relation's only value.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SingleValue {
    signature: Signature,
}

/// Creates the aggregate that returns the value of the only row, or NULL without rows.
///
/// It fails when there are several rows.
#[must_use]
pub(crate) fn single_value() -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(SingleValue {
        signature: Signature::any(1, Volatility::Immutable),
    }))
}

/// Returns the function if it has this name.
pub(crate) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
    (name == NAME).then(single_value)
}

impl AggregateUDFImpl for SingleValue {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [value] => Ok(value.clone()),
            _ => internal_err!("{NAME} has one argument"),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(SingleValueAccumulator {
            rows: 0,
            value: ScalarValue::try_from(args.return_field.data_type())?,
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let rows = format_state_name(args.name, "rows");
        let value = format_state_name(args.name, "value");
        let value_type = args.return_field.data_type().clone();
        Ok(vec![
            Arc::new(Field::new(rows, DataType::Int64, false)),
            Arc::new(Field::new(value, value_type, true)),
        ])
    }
}

#[derive(Debug)]
struct SingleValueAccumulator {
    rows: i64,
    value: ScalarValue,
}

impl SingleValueAccumulator {
    fn add(&mut self, rows: i64, values: &ArrayRef, row: usize) -> Result<()> {
        self.rows += rows;
        if self.rows > 1 {
            return exec_err!("Scalar subquery returned more than one row");
        }
        if rows == 1 {
            self.value = ScalarValue::try_from_array(values, row)?;
        }
        Ok(())
    }
}

impl Accumulator for SingleValueAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        match values {
            [values] if values.is_empty() => Ok(()),
            [values] => self.add(i64::try_from(values.len()).unwrap_or(i64::MAX), values, 0),
            _ => internal_err!("{NAME} has one argument"),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [rows, values] = states else {
            return internal_err!("{NAME} has two states");
        };
        for (row, rows) in as_int64_array(rows)?.values().iter().enumerate() {
            self.add(*rows, values, row)?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::from(self.rows), self.value.clone()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.value.size() - size_of::<ScalarValue>()
    }
}
