//! Options of window functions that their messages leave out: `IGNORE NULLS`, and whether a function is reversed.
//!
//! DataFusion keeps both private, and shows them only in the text of [`WindowUDFExpr`]; tests fail when that changes.
//! `FILTER` is not here: see [`filtered`](crate::codec::filtered).

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::ReversedUDWF;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::{
    BoundedWindowAggExec, WindowAggExec, create_udwf_window_expr,
};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};

use crate::operators::window_exprs::{WindowOptions, options, udwf};

/// Returns the options of an operator's window functions, if any differ from those that would be decoded.
pub(super) fn options_of(plan: &dyn ExecutionPlan) -> Result<Option<Vec<WindowOptions>>> {
    let Some((exprs, _)) = windows(plan) else {
        return Ok(None);
    };
    let options = exprs.iter().map(options).collect::<Result<Vec<_>>>()?;
    let lost = options
        .iter()
        .any(|options| *options != WindowOptions::default());
    Ok(lost.then_some(options))
}

/// Restores these options of an operator.
pub(super) fn restore(
    plan: &Arc<dyn ExecutionPlan>,
    options: &[WindowOptions],
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some((exprs, mode)) = windows(plan.as_ref()) else {
        return internal_err!("{} has no window functions", plan.name());
    };
    if exprs.len() != options.len() {
        return internal_err!("{} windows with {} options", exprs.len(), options.len());
    }
    let input = Arc::clone(plan.children()[0]);
    let schema = input.schema();
    let with = |(expr, options): (&Arc<dyn WindowExpr>, &WindowOptions)| {
        let Some(function) = udwf(expr).filter(|_| *options != WindowOptions::default()) else {
            return Ok(Arc::clone(expr));
        };
        // A reversed function is created by reversing its own reverse.
        let forward = match (options.reversed, function.fun().reverse_expr()) {
            (false, _) => Arc::clone(function.fun()),
            (true, ReversedUDWF::Reversed(forward)) => forward,
            (true, ReversedUDWF::Identical) => Arc::clone(function.fun()),
            (true, ReversedUDWF::NotSupported) => {
                return internal_err!("{} has no reverse", function.fun().name());
            }
        };
        let name = expr.name().to_owned();
        let made = create_udwf_window_expr(
            &forward,
            function.args(),
            &schema,
            name,
            options.ignore_nulls,
        )?;
        let made = match options.reversed {
            true => made.reverse_expr(),
            false => Some(made),
        };
        let Some(made) = made else {
            return internal_err!("{} has no reverse", forward.name());
        };
        let (partition_by, order_by) = (expr.partition_by(), expr.order_by());
        let frame = Arc::clone(expr.get_window_frame());
        let made = StandardWindowExpr::new(made, partition_by, order_by, frame);
        Ok(Arc::new(made) as Arc<dyn WindowExpr>)
    };
    let exprs = exprs
        .iter()
        .zip(options)
        .map(with)
        .collect::<Result<Vec<_>>>()?;
    Ok(match mode {
        Mode::Whole { partitioned } => Arc::new(WindowAggExec::try_new(exprs, input, partitioned)?),
        Mode::Streamed { mode, partitioned } => Arc::new(BoundedWindowAggExec::try_new(
            exprs,
            input,
            mode,
            partitioned,
        )?),
    })
}

/// Execution mode of a window operator.
pub(super) enum Mode {
    Whole {
        partitioned: bool,
    },
    Streamed {
        mode: InputOrderMode,
        partitioned: bool,
    },
}

/// Returns the functions of a window operator, and its execution mode.
pub(super) fn windows(plan: &dyn ExecutionPlan) -> Option<(&[Arc<dyn WindowExpr>], Mode)> {
    if let Some(whole) = plan.downcast_ref::<WindowAggExec>() {
        let partitioned = !whole.partition_keys().is_empty();
        return Some((whole.window_expr(), Mode::Whole { partitioned }));
    }
    let streamed = plan.downcast_ref::<BoundedWindowAggExec>()?;
    let mode = Mode::Streamed {
        mode: streamed.input_order_mode.clone(),
        partitioned: !streamed.partition_keys().is_empty(),
    };
    Some((streamed.window_expr(), mode))
}
