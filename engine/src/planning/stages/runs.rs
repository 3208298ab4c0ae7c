//! Sorted runs: fewer and longer ones where a session's batch size is tiny.
//!
//! Each input batch of DataFusion's sort is a run, and one merge has all of them: for each output batch it visits every
//! run, once for each column and each field of a struct. That is quadratic in the rows where batches are tiny. To be
//! dropped when a release bounds the fan-in of a merge.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

/// Minimum rows of a run; batches of as many are sorted as they come.
const LEAST_ROWS: usize = 512;

/// The plan of a session with batches of so many rows, with longer runs in its sorts.
#[expect(
    deprecated,
    reason = "what replaces it works inside of an operator, and is none to put into a plan"
)]
pub(super) fn lengthen_runs(
    plan: Arc<dyn ExecutionPlan>,
    batch_rows: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    use datafusion::physical_plan::coalesce_batches::CoalesceBatchesExec;

    if batch_rows >= LEAST_ROWS {
        return Ok(plan);
    }
    plan.transform_up(|node| {
        // One that keeps its first rows holds no more than those, in a heap.
        let sort = node.downcast_ref::<SortExec>();
        let Some(sort) = sort.filter(|sort| sort.fetch().is_none()) else {
            return Ok(Transformed::no(node));
        };
        let runs = CoalesceBatchesExec::new(Arc::clone(sort.input()), LEAST_ROWS);
        replace_children_if_necessary(Arc::clone(&node), vec![Arc::new(runs)]).map(Transformed::yes)
    })
    .data()
}
