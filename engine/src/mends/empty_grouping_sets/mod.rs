//! Conditions above aggregates that have a row even for an empty input.
//!
//! `SELECT count(*) FROM t`, `ROLLUP` and `CUBE` have the empty grouping set, which has a row even for an empty input.
//! A condition without columns above the aggregate keeps or drops that row; below, it would drop the group's input but
//! not the group itself. DataFusion 55 pushes such a condition down, since all of its columns (it has none) are keys.
//! No other condition can be pushed below such an aggregate, so none is. Remove when a release checks for the empty
//! grouping set.

use crate::mends::list::{Act, Mend, Upstream};
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "empty_grouping_sets",
    wrong: "a condition that is never true leaves the row of an empty grouping set",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::AroundLogical(
        PUSH_DOWN_FILTER,
        keep_above_empty_grouping_sets,
    )],
};

/// DataFusion's rule that pushes conditions down.
pub(crate) const PUSH_DOWN_FILTER: &str = "push_down_filter";

/// Applies the rule except to conditions directly above an empty grouping set.
pub(crate) fn keep_above_empty_grouping_sets(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::Filter(filter) = &plan
        && let LogicalPlan::Aggregate(aggregate) = filter.input.as_ref()
        && has_empty_grouping_set(aggregate)
    {
        return Ok(Transformed::no(plan));
    }
    rule.rewrite(plan, config)
}

fn has_empty_grouping_set(aggregate: &Aggregate) -> bool {
    match &aggregate.group_expr[..] {
        [] => true,
        [Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_))] => true,
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().any(Vec::is_empty),
        _ => false,
    }
}
