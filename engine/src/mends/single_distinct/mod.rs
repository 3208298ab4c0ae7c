//! `count(DISTINCT a)` beside `sum(b)` of decimals.
//!
//! DataFusion 55 splits a distinct count into two aggregates, the lower grouped by `a`, and sums in both: a sum of
//! decimals has ten digits more than its input, and a sum of sums twenty. The operators above were typed for ten, and a
//! comparison fails. Such an aggregate is not split. Remove when a release restores the type of the sum.

use crate::mends::list::{Act, Mend, Upstream};
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "single_distinct",
    wrong: "`count(DISTINCT a)` beside a sum of decimals fails, or has another type",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::AroundLogical(SINGLE_DISTINCT, keep_sums_of_decimals)],
};

/// DataFusion's rule that splits the aggregate in two.
pub(crate) const SINGLE_DISTINCT: &str = "single_distinct_aggregation_to_group_by";

/// Applies the rule unless the aggregate sums decimals.
pub(crate) fn keep_sums_of_decimals(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Aggregate(aggregate) if sums_decimals(aggregate) => Ok(Transformed::no(plan)),
        _ => rule.rewrite(plan, config),
    }
}

fn sums_decimals(aggregate: &Aggregate) -> bool {
    let types = aggregate.schema.fields().iter().rev();
    let mut calls = aggregate.aggr_expr.iter().rev().zip(types);
    calls.any(|(call, field)| {
        matches!(call, Expr::AggregateFunction(call) if call.func.name() == "sum" && !call.params.distinct)
            && field.data_type().is_decimal()
    })
}
