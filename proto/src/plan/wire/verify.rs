//! Whether a plan that was encoded arrives as it was meant.
//!
//! Both plans are compared operator by operator: their names, what they say of themselves when asked
//! for everything, schemas, partitions, orders, and the functions of windows in full.

use std::sync::Arc;

use datafusion::common::not_impl_err;
use datafusion::error::Result;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

/// Refuses a plan that arrives other than it was sent, and names the operator.
///
/// # Errors
/// Names the first operator that differs, as it was sent and as it arrived.
pub(in crate::plan) fn verify(sent: &Arc<dyn ExecutionPlan>, arrived: &Arc<dyn ExecutionPlan>) -> Result<()> {
    let (meant, found) = (describe(sent.as_ref()), describe(arrived.as_ref()));
    if meant != found {
        return not_impl_err!(
            "an operator that does not survive its way to an executor: {meant} would arrive as {found}"
        );
    }
    let (sent, arrived) = (sent.children(), arrived.children());
    for (sent, arrived) in sent.into_iter().zip(arrived) {
        verify(sent, arrived)?;
    }
    Ok(())
}

/// Everything an operator says of itself, without its inputs.
fn describe(plan: &dyn ExecutionPlan) -> String {
    struct Shown<'a>(&'a dyn ExecutionPlan);
    impl std::fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            DisplayAs::fmt_as(self.0, DisplayFormatType::Verbose, f)
        }
    }
    let windows = if let Some(windows) = plan.downcast_ref::<WindowAggExec>() {
        format!("{:?}", windows.window_expr())
    } else if let Some(windows) = plan.downcast_ref::<BoundedWindowAggExec>() {
        format!("{:?}", windows.window_expr())
    } else {
        String::new()
    };
    let partitions = plan.properties().output_partitioning().partition_count();
    format!(
        "{} [{}] {} inputs, {partitions} partitions, {:?}, order {:?} {windows}",
        plan.name(),
        Shown(plan),
        plan.children().len(),
        plan.schema(),
        plan.properties().output_ordering(),
    )
}
