//! Null-safe joins, in which NULL equals NULL, kept apart from other joins.
//!
//! `a JOIN b ON a.k IS NOT DISTINCT FROM b.k` is a join whose keys are all null-safe. DataFusion 55's rule that splits
//! chains of inner joins and joins their relations anew gives all new joins the same null equality: that of the last
//! join of the chain. So rows with NULL are lost, or appear where they should not, without an error. Here the rule does
//! not see null-safe joins as inner joins. Remove when a release tracks null equality per key.

use crate::mends::list::{Act, Mend, Upstream};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::{Join, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "null_safe_joins",
    wrong: "beside another inner join, NULL is not equal to NULL, or is where it should not be",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::AroundLogical(
        ELIMINATE_CROSS_JOIN,
        keep_null_safe_joins,
    )],
};

/// DataFusion's rule that rebuilds chains of inner joins.
pub(crate) const ELIMINATE_CROSS_JOIN: &str = "eliminate_cross_join";

/// Applies the rule to a plan whose null-safe joins are hidden.
pub(crate) fn keep_null_safe_joins(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let hidden = plan.transform_down_with_subqueries(|plan| match plan {
        LogicalPlan::Join(join) if is_null_safe(&join) => {
            let hidden = Join {
                join_type: HIDDEN,
                null_aware: true,
                ..join
            };
            Ok(Transformed::yes(LogicalPlan::Join(hidden)))
        }
        plan => Ok(Transformed::no(plan)),
    })?;
    let rewritten = rule.rewrite(hidden.data, config)?;
    if !hidden.transformed {
        return Ok(rewritten);
    }
    let shown = rewritten
        .data
        .transform_up_with_subqueries(|plan| match plan {
            LogicalPlan::Join(join) if join.join_type == HIDDEN && join.null_aware => {
                let shown = Join::try_new(
                    join.left,
                    join.right,
                    join.on,
                    join.filter,
                    JoinType::Inner,
                    join.join_constraint,
                    join.null_equality,
                    false,
                )?;
                Ok(Transformed::yes(LogicalPlan::Join(shown)))
            }
            plan => plan.recompute_schema().map(Transformed::no),
        });
    let transformed = rewritten.transformed;
    Ok(Transformed::new(
        shown.data()?,
        transformed,
        TreeNodeRecursion::Continue,
    ))
}

/// Join type of hidden joins, which are also null-aware; no real full join is, since only anti and mark joins are
/// null-aware.
const HIDDEN: JoinType = JoinType::Full;

fn is_null_safe(join: &Join) -> bool {
    join.join_type == JoinType::Inner
        && !join.on.is_empty()
        && join.null_equality == NullEquality::NullEqualsNull
}
