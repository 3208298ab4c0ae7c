//! Partitions that are sorted by what they are merged by.
//!
//! DataFusion 55 leaves out of the sort of partitions that are merged then what is constant in each partition, which may be
//! another value in each: the parts of a union. That is an order all the same; but sorts that keep only some first rows
//! of each partition tell each other the last of them, and take rows for too late that come first by what was left out.
//!
//! And a sort by more than one below it that keeps only some first rows takes its place: their partitions are sorted by all
//! of it then, and merged by less, as the sort below was.
//! `SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 10) ORDER BY n, k` was not in that order. They are merged by all
//! of it here, and what a query's rows are sorted by is looked at once more at last.

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

/// A merge of sorted partitions, with all of its keys in the sort, and by all keys of the sort where it has a limit.
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

/// The rows of a query in the order that is asked for, if they are not.
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
