//! The steps of a task's plan that know nothing of the executor that runs it.
//!
//! ```text
//! executor: equip ──► filter ──► rewrite ──► stop :executor
//!                       │          └ operators of Volley's own, and mends
//!                       └ dynamic filters, which tell scans what to skip
//! ```

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::mends::Mended;
use crate::operators::grace_aggregate::grace_aggregate;
use crate::operators::grace_join::grace_join;
use crate::operators::normalized_keys::normalize_keys;
use crate::operators::partitioned_windows::emit_partitions;
use crate::operators::stage_rows::StageRows;
pub use crate::planning::dynamic_filters::push_dynamic_filters as filter;

/// Replaces operators of the plan below a stage's writer by ones that take less time and memory, or return the right
/// rows.
///
/// # Errors
/// When an operator does not accept its inputs again.
pub fn rewrite(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let each = |node| {
        let node = grace_join(normalize_keys(emit_partitions(node))?)?;
        Ok(Transformed::yes(grace_aggregate(node)))
    };
    let mut plan = plan.transform_up(each)?.data;
    for mend in Mended::ALL.task() {
        plan = mend.optimize(plan, config)?;
    }
    Ok(Arc::new(StageRows { plan }))
}
