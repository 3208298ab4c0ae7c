//! Limits that no number of rows reaches, which an offset without a limit has when it is decoded.

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Limit, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;

/// Removes limits that no number of rows reaches: operators would allocate memory for as many rows.
pub(crate) fn drop_endless_limits(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::Limit(limit)
            if matches!(
                limit.fetch.as_deref(),
                Some(Expr::Literal(ScalarValue::Int64(Some(i64::MAX)), _))
            ) =>
        {
            Transformed::yes(LogicalPlan::Limit(Limit {
                fetch: None,
                ..limit
            }))
        }
        other => Transformed::no(other),
    })
}
