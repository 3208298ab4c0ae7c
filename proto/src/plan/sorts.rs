//! Sorts of partitions that are merged then, by all that they are merged by.
//!
//! DataFusion 55 leaves out of such a sort what is constant in each partition, which may be another value in each: the
//! parts of a union. That is an order all the same; but sorts that keep only some first rows of each partition tell each
//! other the last of them, and take rows for too late that come first by what was left out. To be dropped when a release
//! compares by all of it.

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that sorts partitions and merges them.
pub(super) const ENSURE_REQUIREMENTS: &str = "EnsureRequirements";

/// A merge of sorted partitions, with all of its keys in the sort.
pub(super) fn sort_as_merged(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() else {
        return Ok(None);
    };
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
