//! Conditions above aggregates that have a row even where there is none to aggregate.
//!
//! `SELECT count(*) FROM t`, and a `ROLLUP` or `CUBE`, have the empty grouping set, whose row is there for no rows as
//! well. A condition without columns that stands above keeps that row or not; below, it would keep rows from it and not
//! the group itself. DataFusion 55 pushes such a condition down, since all of its columns, none, are keys. No other condition
//! can be pushed below such an aggregate, so none is. To be dropped when a release looks for the empty grouping set.

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

/// That rule, but for conditions right above an empty grouping set.
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
