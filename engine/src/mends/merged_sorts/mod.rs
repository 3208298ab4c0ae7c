//! Partitions sorted by the same keys as they are merged by.
//!
//! When sorted partitions are merged, DataFusion 55 drops from their sorts the keys that are constant within each
//! partition, even if the constants differ between partitions, as in a union. Each partition is in order all the same;
//! but the top-k sorts of the partitions share a threshold, and drop rows that come first by the dropped key.
//!
//! And a sort by more keys than a top-k sort below it replaces that sort: the partitions are then sorted by all keys,
//! but merged by fewer, those of the lower sort.
//! `SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 10) ORDER BY n, k` was not in that order. Here they are
//! merged by all keys, and finally the ordering of a query's output is checked again.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::names::ENSURE_REQUIREMENTS;
use crate::rules::physical::{Rewrite, rule};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::OrderingRequirements;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "merged_sorts",
    wrong: "an order by more than a limited one below it is lost, and the first rows of a union of constants are others",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[
        Act::After(ENSURE_REQUIREMENTS, || {
            rule("sort_as_merged", Rewrite::Each(sort_as_merged))
        }),
        Act::After(ENSURE_REQUIREMENTS, || {
            rule("sort_output", Rewrite::Each(sort_output))
        }),
    ],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Sorts by all keys of a merge above the sort, and merges by all keys of the sort if the merge has a limit.
pub(crate) fn sort_as_merged(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() else {
        return Ok(None);
    };
    let order = merge.input().output_ordering();
    let by_more = order.filter(|order| {
        let (all, less) = (order.iter(), merge.expr().iter());
        order.len() > merge.expr().len() && all.zip(less).all(|(key, other)| key == other)
    });
    if let (Some(order), Some(fetch)) = (by_more, merge.fetch()) {
        let merged = SortPreservingMergeExec::new(order.clone(), Arc::clone(merge.input()));
        return Ok(Some(Arc::new(merged.with_fetch(Some(fetch)))));
    }
    let Some(sort) = merge.input().downcast_ref::<SortExec>() else {
        return Ok(None);
    };
    if !sort.preserve_partitioning() || sort.expr() == merge.expr() {
        return Ok(None);
    }
    let sorted = SortExec::new(merge.expr().clone(), Arc::clone(sort.input()))
        .with_preserve_partitioning(true)
        .with_fetch(sort.fetch());
    let merged = SortPreservingMergeExec::new(merge.expr().clone(), Arc::new(sorted));
    Ok(Some(Arc::new(merged.with_fetch(merge.fetch()))))
}

/// Sorts the output of a query if it does not satisfy the required ordering.
pub(crate) fn sort_output(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(output) = node.downcast_ref::<OutputRequirementExec>() else {
        return Ok(None);
    };
    let asked = output
        .required_input_ordering()
        .into_iter()
        .next()
        .flatten();
    let Some(asked) = asked.map(OrderingRequirements::into_single) else {
        return Ok(None);
    };
    let rows = output.input();
    if rows
        .equivalence_properties()
        .ordering_satisfy_requirement(asked.iter().cloned())?
    {
        return Ok(None);
    }
    let sorted = SortExec::new(asked.into(), Arc::clone(&rows));
    replace_children_if_necessary(Arc::clone(node), vec![Arc::new(sorted)]).map(Some)
}
