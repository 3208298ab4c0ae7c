//! Aggregates and window functions: their replacements, which keep the names of columns, and the options of the latter.
//!
//! The replacing functions are in [`filtered`](crate::codec::filtered), [`running`](crate::operators::running) and
//! [`sliding`](crate::mends::sliding).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Aggregate, AggregateUDF, Expr, LogicalPlan, Window, WindowUDF};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;
use serde::{Deserialize, Serialize};

/// Prefix of the names of aggregates that take the `FILTER` of their window as the last argument.
pub(crate) const FILTERED: &str = "volley_filtered_";

/// Options of a window function, which its message leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowOptions {
    pub(crate) ignore_nulls: bool,
    pub(crate) reversed: bool,
}

/// Replaces the aggregate functions of groups by the ones that `replacement` returns for them, with their arguments over
/// the aggregate's input.
pub(crate) fn replaced_aggregates(
    aggregate: Aggregate,
    replacement: impl Fn(&AggregateUDF, &[Expr], &DFSchema) -> Result<Option<Arc<AggregateUDF>>>,
) -> Result<Transformed<LogicalPlan>> {
    let schema = aggregate.input.schema();
    let mut changed = false;
    let exprs = aggregate.aggr_expr.iter().map(|expr| {
        let name = expr.schema_name().to_string();
        let replaced = expr.clone().transform_up(|expr| {
            let Expr::AggregateFunction(AggregateFunction { func, params }) = &expr else {
                return Ok(Transformed::no(expr));
            };
            Ok(match replacement(func, &params.args, schema)? {
                Some(func) => Transformed::yes(Expr::AggregateFunction(AggregateFunction {
                    func,
                    params: params.clone(),
                })),
                None => Transformed::no(expr),
            })
        })?;
        changed |= replaced.transformed;
        Ok(match replaced.transformed {
            true => replaced.data.alias(name),
            false => replaced.data,
        })
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !changed {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let Aggregate {
        input,
        group_expr,
        schema,
        ..
    } = aggregate;
    let aggregate = Aggregate::try_new_with_schema(input, group_expr, exprs, schema)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

/// Replaces the window functions of a plan by the ones that `replacement` returns for them over the plan's input.
pub(crate) fn replaced(
    plan: LogicalPlan,
    replacement: impl Fn(&WindowFunction, &DFSchema) -> Result<Option<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Window(window) = plan else {
        return Ok(Transformed::no(plan));
    };
    let input = window.input.schema();
    let names = window.schema.fields().iter().skip(input.fields().len());
    let mut changed = false;
    let exprs = window.window_expr.iter().zip(names).map(|(expr, field)| {
        let Expr::WindowFunction(function) = unaliased(expr) else {
            return Ok(expr.clone());
        };
        let replacement = replacement(function, input)?;
        changed |= replacement.is_some();
        Ok(match replacement {
            Some(replacement) => replacement.alias(field.name()),
            None => expr.clone(),
        })
    });
    let window_expr = exprs.collect::<Result<Vec<_>>>()?;
    Ok(match changed {
        true => Transformed::yes(LogicalPlan::Window(Window {
            window_expr,
            ..window
        })),
        false => Transformed::no(LogicalPlan::Window(window)),
    })
}

/// Removes the alias that the optimizer adds when it changes an expression.
pub(crate) fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// Returns the function of a window expression that is not an aggregate.
pub(crate) fn udwf(expr: &Arc<dyn WindowExpr>) -> Option<&WindowUDFExpr> {
    let standard = expr.as_any().downcast_ref::<StandardWindowExpr>()?;
    let function = standard.get_standard_func_expr();
    function.as_any().downcast_ref()
}

/// Returns the options of a window function.
///
/// # Errors
/// When the function's text does not show them.
pub(crate) fn options(expr: &Arc<dyn WindowExpr>) -> Result<WindowOptions> {
    let Some(function) = udwf(expr) else {
        // The messages of aggregates include theirs.
        return Ok(WindowOptions::default());
    };
    let text = format!("{function:?}");
    for reversed in [false, true] {
        for ignore_nulls in [false, true] {
            let end = format!("is_reversed: {reversed}, ignore_nulls: {ignore_nulls} }}");
            if text.ends_with(&end) {
                return Ok(WindowOptions {
                    ignore_nulls,
                    reversed,
                });
            }
        }
    }
    let function: &WindowUDF = function.fun();
    internal_err!("{} does not say how it runs", function.name())
}
