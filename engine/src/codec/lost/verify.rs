//! A check that an encoded plan is decoded unchanged.
//!
//! Both plans are compared operator by operator: names, full descriptions, names and types of columns, partitions, and
//! window functions in full. Known orderings may get lost with the constants and keys that they were derived from; an
//! ordering that an operator requires must be there.

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
use crate::operators::window_exprs::options;

/// Refuses a plan that is not decoded as it was sent, and names the operator.
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
        // A hash join keeps the ordering of its right side if it has one.
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
        // Rows whose order comes from the leaves have it, whether the plan shows it or not.
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

/// Checks whether rows keep the order of a leaf, such as a reader of another stage's output.
fn keeps_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let kept = plan.maintains_input_order();
    let mut inputs = plan.children().into_iter().zip(kept);
    plan.children().is_empty() || inputs.any(|(input, kept)| kept && keeps_order(input))
}

/// Describes an operator in full, without its inputs.
fn describe(plan: &dyn ExecutionPlan) -> Result<String> {
    struct Shown<'a>(&'a dyn ExecutionPlan);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            DisplayAs::fmt_as(self.0, DisplayFormatType::Verbose, f)
        }
    }
    let shown = Shown(plan).to_string();
    // A scan shows little of the options that it reads files with.
    let options = ScanOptions::of(plan);
    // An aggregate decides where it runs how to use an ordering.
    let shown = shown.split(", ordering_mode=").next().unwrap_or_default();
    // The order in which row groups are read affects only speed: rows are sorted above.
    let shown = shown
        .split(", sort_order_for_reorder=")
        .next()
        .unwrap_or_default();
    // A task knows more of an order, since its operations on whole numbers cannot wrap around.
    let shown = shown.split(", sort_prefix=").next().unwrap_or_default();
    // The row groups to read are derived from the predicate.
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

/// Describes everything about a window function that its rows depend on.
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
            // Filter conditions are sent as arguments: see `filtered`.
            !text.ends_with("filter: None }"),
        ),
        None => format!("{:?}", options(expr)?),
    };
    Ok(unchecked(&format!(
        "{function} {:?} partition by {:?} order by {:?} {}",
        expr.expressions(),
        expr.partition_by(),
        expr.order_by(),
        expr.get_window_frame(),
    )))
}

/// Returns the text of expressions without the check for overflow, which they get where a task
/// [decodes](crate::mends::checked_arithmetic) them.
pub(super) fn unchecked(text: &str) -> String {
    text.replace("fail_on_overflow: true", "fail_on_overflow: false")
}
