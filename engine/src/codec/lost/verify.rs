//! Whether a plan that was encoded arrives as it was meant.
//!
//! Both plans are compared operator by operator: their names, what they say of themselves when asked
//! for everything, the names and types of columns, partitions, and the functions of windows in full.
//! What is known of an order may get lost with the constants and keys that it was concluded from; where
//! an operator needs it, it must be there.

use std::fmt;
use std::sync::Arc;

use datafusion::common::not_impl_err;
use datafusion::error::Result;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, WindowExpr,
};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
};

use super::scan::ScanOptions;
use super::window;

/// Refuses a plan that arrives other than it was sent, and names the operator.
///
/// # Errors
/// Names the first operator that differs, as it was sent and as it arrived.
pub(crate) fn verify(
    sent: &Arc<dyn ExecutionPlan>,
    arrived: &Arc<dyn ExecutionPlan>,
) -> Result<()> {
    let (meant, found) = (describe(sent.as_ref())?, describe(arrived.as_ref())?);
    if meant != found {
        return not_impl_err!(
            "an operator that does not survive its way to an executor: {meant} would arrive as {found}"
        );
    }
    if let (Some(meant), Some(found)) = (
        sent.downcast_ref::<HashJoinExec>(),
        arrived.downcast_ref::<HashJoinExec>(),
    ) {
        // It keeps the order of its right side where it knows of one.
        let [meant, found] = [meant, found].map(|join| join.right().output_ordering().is_some());
        if meant && !found && sent.maintains_input_order()[1] {
            return not_impl_err!(
                "the order of the right side of {}, which does not survive its way to an executor",
                describe(arrived.as_ref())?
            );
        }
    }
    let orders = arrived.required_input_ordering();
    let inputs = sent.children().into_iter().zip(arrived.children());
    for ((sent, arrived), order) in inputs.zip(orders) {
        verify(sent, arrived)?;
        // What has its rows' order from where they come from has it, whether it says so or not.
        let Some(order) = order.filter(|_| !keeps_order(arrived)) else {
            continue;
        };
        let order = order.into_single();
        if !arrived
            .equivalence_properties()
            .ordering_satisfy_requirement(order)?
        {
            return not_impl_err!(
                "the order of {}, which does not survive its way to an executor",
                describe(arrived.as_ref())?
            );
        }
    }
    Ok(())
}

/// Whether rows come in the order in which the operators without inputs have them, such as readers of what
/// other stages have made.
fn keeps_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let kept = plan.maintains_input_order();
    let mut inputs = plan.children().into_iter().zip(kept);
    plan.children().is_empty() || inputs.any(|(input, kept)| kept && keeps_order(input))
}

/// Everything an operator says of itself, without its inputs.
fn describe(plan: &dyn ExecutionPlan) -> Result<String> {
    struct Shown<'a>(&'a dyn ExecutionPlan);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            DisplayAs::fmt_as(self.0, DisplayFormatType::Verbose, f)
        }
    }
    let shown = Shown(plan).to_string();
    // A scan shows little of what its files are read with.
    let options = ScanOptions::of(plan);
    // How an aggregate makes use of an order is decided where it runs.
    let shown = shown.split(", ordering_mode=").next().unwrap_or_default();
    // In which order row groups are read is a matter of speed: rows are sorted above.
    let shown = shown
        .split(", sort_order_for_reorder=")
        .next()
        .unwrap_or_default();
    // Which row groups are read is concluded from the predicate.
    let shown = shown
        .split(", pruning_predicate=")
        .next()
        .unwrap_or_default();
    let windows = window::windows(plan)
        .map(|(exprs, _)| exprs)
        .unwrap_or_default();
    let windows = windows.iter().map(describe_window);
    let windows = windows.collect::<Result<Vec<_>>>()?.join("; ");
    let schema = plan.schema();
    let columns = schema.fields().iter();
    let columns: Vec<_> = columns
        .map(|column| format!("{} {}", column.name(), column.data_type()))
        .collect();
    let partitions = plan.properties().output_partitioning().partition_count();
    let inputs = plan.children().len();
    Ok(format!(
        "{} [{shown}] of {inputs} inputs in {partitions} partitions ({}) {windows} {options:?}",
        plan.name(),
        columns.join(", "),
    ))
}

/// Everything about a window function that its rows depend on.
fn describe_window(expr: &Arc<dyn WindowExpr>) -> Result<String> {
    let any = expr.as_any();
    let plain = any.downcast_ref::<PlainAggregateWindowExpr>();
    let plain = plain.map(|plain| (plain.get_aggregate_expr(), format!("{plain:?}")));
    let sliding = any.downcast_ref::<SlidingAggregateWindowExpr>();
    let sliding = sliding.map(|sliding| (sliding.get_aggregate_expr(), format!("{sliding:?}")));
    let aggregate = plain.or(sliding);
    let function = match &aggregate {
        Some((aggregate, text)) => format!(
            "{} distinct={} ignore_nulls={} filtered={}",
            aggregate.fun().name(),
            aggregate.is_distinct(),
            aggregate.ignore_nulls(),
            // Conditions travel as arguments: see `filtered`.
            !text.ends_with("filter: None }"),
        ),
        None => format!("{:?}", window::options(expr)?),
    };
    Ok(format!(
        "{function} {:?} partition by {:?} order by {:?} {}",
        expr.expressions(),
        expr.partition_by(),
        expr.order_by(),
        expr.get_window_frame(),
    ))
}
