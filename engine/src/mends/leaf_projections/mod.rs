//! Pushdown of expressions that scans compute, such as `input_file_name()`.
//!
//! DataFusion 55 fails if a projection on the way gives a column the name of another. Then the expressions stay in
//! place. Remove when a release does not fail.

use crate::mends::list::{Act, Mend, Upstream};
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "leaf_projections",
    wrong: "parts of structs are not found where a projection renames columns",
    upstream: Upstream::Thread("apache/datafusion#25446"),
    query: include_str!("query.sql"),
    acts: &[Act::AroundLogical(
        PUSH_DOWN_LEAF_PROJECTIONS,
        push_where_it_can,
    )],
};

/// DataFusion's rule that pushes them down.
pub(crate) const PUSH_DOWN_LEAF_PROJECTIONS: &str = "push_down_leaf_projections";

/// Applies the rule, and keeps the plan where it fails.
pub(crate) fn push_where_it_can(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    if !config.options().optimizer.enable_leaf_expression_pushdown {
        return Ok(Transformed::no(plan));
    }
    let pushed = rule.rewrite(plan.clone(), config);
    Ok(pushed.unwrap_or(Transformed::no(plan)))
}
