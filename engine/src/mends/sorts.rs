//! Sorts: what DataFusion's rule of orders spoils about those that keep only some first rows.
//!
//! DataFusion 55 takes a sort that keeps rows for a merge that does, and then tells an operator below it to keep as few:
//! sorts that a merge join needs of its inputs dropped rows that had yet to find theirs. A limit of its own, which no
//! sort is asked to carry while orders are settled, stays where it was.
//!
//! And it leaves out of the sort of partitions that are merged then what is constant in each partition, which may be
//! another value in each: the parts of a union. That is an order all the same; but sorts that keep only some first rows
//! of each partition tell each other the last of them, and take rows for too late that come first by what was left out.
//!
//! A sort by more than one below it that keeps only some first rows takes its place: their partitions are sorted by all of
//! it then, and merged by less, as the sort below was. `SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 10) ORDER BY
//! n, k` was not in that order. What a query's rows are sorted by is looked at once more at last.
//!
//! To be dropped when a release keeps limits where they are, and compares by all that is merged by.

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::OrderingRequirements;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that sorts partitions and merges them.
pub(crate) const ENSURE_REQUIREMENTS: &str = "EnsureRequirements";

/// A sort that keeps its first rows, as a sort and a limit.
pub(crate) fn limit_apart(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(sort) = node.downcast_ref::<SortExec>() else {
        return Ok(None);
    };
    let Some(fetch) = sort.fetch().filter(|_| !sort.preserve_partitioning()) else {
        return Ok(None);
    };
    let whole = SortExec::new(sort.expr().clone(), Arc::clone(sort.input()));
    let mut limit = GlobalLimitExec::new(Arc::new(whole), 0, Some(fetch));
    limit.set_required_ordering(Some(sort.expr().clone()));
    Ok(Some(Arc::new(limit)))
}

/// A limit set apart from a sort, in the sort and the merge again that it is above of, which may have limits of their own.
pub(crate) fn limit_within(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(limit) = node.downcast_ref::<GlobalLimitExec>() else {
        return Ok(None);
    };
    if limit.skip() > 0 || limit.required_ordering().is_none() {
        return Ok(None);
    }
    let input = limit.input();
    let least = |own: Option<usize>| own.into_iter().chain(limit.fetch()).min();
    let Some(merge) = input.downcast_ref::<SortPreservingMergeExec>() else {
        let is_sort = input.is::<SortExec>();
        return Ok(input.with_fetch(least(input.fetch())).filter(|_| is_sort));
    };
    let sort = merge.input().downcast_ref::<SortExec>();
    let sorted = sort.map_or_else(
        || Arc::clone(merge.input()),
        |sort| Arc::new(sort.with_fetch(least(sort.fetch()))),
    );
    let merged = replace_children_if_necessary(Arc::clone(input), vec![sorted])?;
    Ok(merged.with_fetch(least(merge.fetch())))
}

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
