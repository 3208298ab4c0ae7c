//! Top-k sorts, split into a sort and a limit while orderings are enforced.
//!
//! DataFusion 55 mistakes a sort with a fetch for a merge with one, and then gives an operator below it the same fetch:
//! sorts that a merge join requires of its inputs dropped rows before they could match. A separate limit, which no sort
//! is asked to carry while orderings are enforced, stays where it was.

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

/// Splits a sort with a fetch into a sort and a limit.
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

/// Moves a split limit back into the sort or merge below it, which may have limits of their own.
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
