//! Rows to be written with the types of their table.
//!
//! DataFusion casts what is inserted by the types that a query has when it is parsed. A union's are coerced only later,
//! and a dictionary passes for its values: rows could then be of other types than the files that they are written into.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, cast};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

/// Casts the columns of rows to a table's types, in order. Rows that have its types, or another number of columns, stay
/// unchanged.
///
/// # Errors
/// When a type cannot be cast to the table's.
pub fn typed_as(input: Arc<dyn ExecutionPlan>, table: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = input.schema();
    let fields = || schema.fields().iter().zip(table.fields());
    let has_types = fields().all(|(field, due)| field.data_type() == due.data_type());
    if has_types || schema.fields().len() != table.fields().len() {
        return Ok(input);
    }
    let typed = fields().enumerate().map(|(at, (field, due))| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), at));
        let expr = cast(column, &schema, due.data_type().clone())?;
        Ok(ProjectionExpr::new(expr, due.name()))
    });
    let typed = typed.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(typed, input)?))
}
