//! Conditions of `LATERAL` on relations that are not the other side of its join.
//!
//! `FROM a, (b CROSS JOIN LATERAL (SELECT … WHERE x = a.y + b.z))` becomes a join of `b` whose condition reads `a`. In one
//! process, later rules push it to where `a` is; a plan that is sent must make sense before.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;

/// Asks what an inner join asks of relations that it does not have in the inner join around it instead.
///
/// # Errors
/// Where no inner join around it has them.
pub(super) fn lift_lateral_conditions(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let lifted = plan.transform_up(|plan| match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => lift_into(join),
        plan => Ok(Transformed::no(plan)),
    })?;
    lifted.data.apply_with_subqueries(|plan| {
        let LogicalPlan::Join(join) = plan else {
            return Ok(TreeNodeRecursion::Continue);
        };
        match join.filter.as_ref().filter(|filter| !is_of(filter, join)) {
            Some(filter) => not_impl_err!(
                "not supported: LATERAL whose condition {filter} reads a relation that neither its own join has nor an \
                 inner join right around that"
            ),
            None => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(lifted)
}

/// Takes the conditions over that the inner joins right below cannot ask.
fn lift_into(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut lifted = vec![];
    for side in [&mut join.left, &mut join.right] {
        let LogicalPlan::Join(below) = side.as_ref() else {
            continue;
        };
        let Some(filter) = below.filter.clone() else {
            continue;
        };
        let (own, others): (Vec<_>, Vec<_>) = split_conjunction_owned(filter)
            .into_iter()
            .partition(|condition| is_of(condition, below));
        if below.join_type != JoinType::Inner || others.is_empty() {
            continue;
        }
        let below = Join {
            filter: conjunction(own),
            ..below.clone()
        };
        *side = Arc::new(LogicalPlan::Join(below));
        lifted.extend(others);
    }
    if lifted.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    join.filter = conjunction(join.filter.into_iter().chain(lifted));
    Ok(Transformed::yes(LogicalPlan::Join(join)))
}

/// Whether a join has all columns that a condition reads.
fn is_of(condition: &Expr, join: &Join) -> bool {
    let sides = [join.left.schema(), join.right.schema()];
    let mut columns = condition.column_refs().into_iter();
    columns.all(|column| sides.iter().any(|side| side.has_column(column)))
}
