//! `LATERAL` conditions on relations outside the lateral join.
//!
//! `FROM a, (b CROSS JOIN LATERAL (SELECT … WHERE x = a.y + b.z))` becomes a join of `b` whose condition reads `a`. In
//! one process, later rules push the condition to a place that has `a`; a plan that is sent must be valid before that.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{JoinType, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;

/// Lifts inner join conditions that read other relations into the enclosing inner join.
///
/// # Errors
/// When no enclosing inner join has these relations.
pub(crate) fn lift_lateral_conditions(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let lifted = plan.transform_up_with_subqueries(|plan| match plan {
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
                 inner join directly around that"
            ),
            None => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(lifted)
}

/// Takes over the foreign conditions of the inner joins directly below.
fn lift_into(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut lifted = vec![];
    for side in [&mut join.left, &mut join.right] {
        if let Some((below, conditions)) = without_foreign_conditions(side)? {
            *side = Arc::new(below);
            lifted.extend(conditions);
        }
    }
    if lifted.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    join.filter = conjunction(join.filter.into_iter().chain(lifted));
    Ok(Transformed::yes(LogicalPlan::Join(join)))
}

/// Splits an inner join, possibly below a filter, into the join without its foreign conditions (on columns that neither
/// side has) and these conditions.
fn without_foreign_conditions(plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Vec<Expr>)>> {
    match plan {
        LogicalPlan::Filter(filter) => {
            let Some((below, conditions)) = without_foreign_conditions(&filter.input)? else {
                return Ok(None);
            };
            let filter = Filter::try_new(filter.predicate.clone(), Arc::new(below))?;
            Ok(Some((LogicalPlan::Filter(filter), conditions)))
        }
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let conditions = join
                .filter
                .iter()
                .cloned()
                .flat_map(split_conjunction_owned);
            let (own, foreign): (Vec<_>, Vec<_>) =
                conditions.partition(|condition| is_of(condition, join));
            if foreign.is_empty() {
                return Ok(None);
            }
            let join = Join {
                filter: conjunction(own),
                ..join.clone()
            };
            Ok(Some((LogicalPlan::Join(join), foreign)))
        }
        _ => Ok(None),
    }
}

/// Checks whether a join has all columns that a condition reads.
fn is_of(condition: &Expr, join: &Join) -> bool {
    let sides = [join.left.schema(), join.right.schema()];
    let mut columns = condition.column_refs().into_iter();
    columns.all(|column| {
        let mut sides = sides.iter();
        sides.any(|side| side.is_column_from_schema(column))
    })
}
