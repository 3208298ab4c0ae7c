//! Replacement of window expressions, which keep their names.
//!
//! The replacing functions are in [`filtered`](crate::codec::filtered), [`running`](crate::operators::running) and
//! [`sliding`](crate::mends::sliding).

use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Window};

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
