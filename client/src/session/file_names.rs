//! `input_file_name()`, which only scans can compute.
//!
//! DataFusion moves it to the scan by the rule that moves struct fields there. That rule confuses columns of joins and
//! unions, and is off; it is on for a statement that asks for a file's name and has neither. A statement with a join or
//! a union can select file names only below it, not above it or in its conditions.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

const FUNCTION: &str = "input_file_name";

/// Adjusts the settings of a plan's job.
///
/// # Errors
/// None of its own.
pub(super) fn settle(plan: &LogicalPlan, config: &mut ConfigOptions) -> Result<()> {
    let (mut asks, mut combines) = (false, false);
    plan.apply_with_subqueries(|node| {
        combines |= matches!(
            node,
            LogicalPlan::Join(_)
                | LogicalPlan::Union(_)
                | LogicalPlan::RecursiveQuery(_)
                | LogicalPlan::Subquery(_)
                | LogicalPlan::Unnest(_)
        );
        node.apply_expressions(|expr| {
            asks |= expr.exists(|expr| Ok(is_file_name(expr)))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    if asks && !combines {
        config.optimizer.enable_leaf_expression_pushdown = true;
    }
    Ok(())
}

fn is_file_name(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == FUNCTION)
}
