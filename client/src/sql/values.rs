//! Rows as a VALUES plan, which can be sent to the cluster; a table in memory cannot.

use arrow::datatypes::Schema;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, col, lit};
use datafusion::scalar::ScalarValue;

/// Returns a plan of rows with a schema's column names; `rows` may be empty.
pub(crate) fn values(schema: &Schema, mut rows: Vec<Vec<ScalarValue>>) -> Result<LogicalPlan> {
    let is_empty = rows.is_empty();
    if is_empty {
        // VALUES needs at least one row: add one for the columns and filter it out.
        let nulls = schema.fields().iter();
        rows.push(
            nulls
                .map(|field| ScalarValue::try_from(field.data_type()))
                .collect::<Result<_>>()?,
        );
    }
    let rows = rows
        .into_iter()
        .map(|row| row.into_iter().map(lit).collect());
    let names = schema.fields().iter().enumerate();
    let columns = names.map(|(at, field)| col(format!("column{}", at + 1)).alias(field.name()));
    let plan = LogicalPlanBuilder::values(rows.collect())?.project(columns)?;
    if is_empty {
        plan.filter(lit(false))?.build()
    } else {
        plan.build()
    }
}
