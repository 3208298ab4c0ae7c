//! `input_file_name()`, which scans compute and nothing else can.
//!
//! DataFusion takes it to the scan by the rule that takes parts of structs there. That rule mistakes columns of joins and
//! unions, and is off; for a statement that asks for a file's name, and has neither, it is on. Above a join or a union, and
//! in their conditions, names of files can be selected below and nowhere else.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

const FUNCTION: &str = "input_file_name";

/// Sets what a plan needs of the job that it becomes.
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
