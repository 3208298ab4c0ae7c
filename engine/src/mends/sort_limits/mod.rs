//! Sorts that keep only some first rows, apart from their limits while orders are settled.
//!
//! DataFusion 55 takes a sort that keeps rows for a merge that does, and then tells an operator below it to keep as few:
//! sorts that a merge join needs of its inputs dropped rows that had yet to find theirs. A limit of its own, which no
//! sort is asked to carry while orders are settled, stays where it was.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::names::ENSURE_REQUIREMENTS;
use crate::rules::physical::{Rewrite, rule};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "sort_limits",
    wrong: "a limit above merge joins cuts off rows of their inputs",
    upstream: Upstream::Thread("apache/datafusion#24932"),
    query: include_str!("query.sql"),
    acts: &[
        Act::Before(ENSURE_REQUIREMENTS, || {
            rule("limits_apart", Rewrite::Each(limit_apart))
        }),
        Act::After(ENSURE_REQUIREMENTS, || {
            rule("limits_within", Rewrite::Each(limit_within))
        }),
    ],
};

type Plan = Arc<dyn ExecutionPlan>;

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
