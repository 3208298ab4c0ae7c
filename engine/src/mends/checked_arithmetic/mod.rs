//! Sums, differences, products and negatives of whole numbers that overflow are errors.
//!
//! DataFusion 55 computes them modulo 2^64 where no option of the expression says otherwise, which neither SQL nor a plan on
//! the wire can. Here a task's expressions get it where they are [decoded](crate::codec), and constants are computed by it
//! before they are folded. Decimals overflow with an error as they are, and so do negatives of constants; floats become
//! infinite. Plans of system tables, which no task runs, are the engine's. To be dropped when an option or the SQL planner
//! makes overflow an error.

mod negative;

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion::optimizer::OptimizerConfig;
use datafusion::physical_expr::expressions::{
    BinaryExpr as PhysicalBinaryExpr, NegativeExpr as PhysicalNegativeExpr,
};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use self::negative::NegativeExpr;
use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::{LogicalRule, top_down};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "checked_arithmetic",
    wrong: "sums, differences, products and negatives of whole numbers wrap around where they overflow",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[
        Act::FirstSent(constants_checked),
        Act::FirstLogical(constants_checked),
    ],
};

/// Returns the expression with its overflow as an error, if it is an operation on whole numbers of a row.
///
/// # Errors
/// When a type is not known.
pub(crate) fn checked(
    expr: Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> Result<Arc<dyn PhysicalExpr>> {
    if let Some(negative) = expr.downcast_ref::<PhysicalNegativeExpr>() {
        return Ok(match negative.data_type(schema)?.is_signed_integer() {
            true => Arc::new(NegativeExpr::new(Arc::clone(negative.arg()))),
            false => expr,
        });
    }
    let Some(binary) = expr.downcast_ref::<PhysicalBinaryExpr>() else {
        return Ok(expr);
    };
    if !overflows(*binary.op())
        || !binary.left().data_type(schema)?.is_integer()
        || !binary.right().data_type(schema)?.is_integer()
    {
        return Ok(expr);
    }
    Ok(Arc::new(binary.clone().with_fail_on_overflow(true)))
}

/// Returns the rule that computes the constants of a plan, before one that folds them.
fn constants_checked() -> LogicalRule {
    top_down("check_constants", check_constants)
}

fn overflows(op: Operator) -> bool {
    matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply)
}

/// Computes the constants of a plan's node that are operations on whole numbers.
fn check_constants(plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            let is_operation =
                matches!(expr, Expr::BinaryExpr(BinaryExpr { op, .. }) if overflows(*op));
            if !is_operation || !is_constant(expr)? {
                return Ok(TreeNodeRecursion::Continue);
            }
            compute(expr)?;
            Ok(TreeNodeRecursion::Jump)
        })
    })?;
    Ok(Transformed::no(plan))
}

/// Checks whether an expression is folded to a constant. Of a branch of CASE that is never taken, too: the engine folds
/// that as well.
fn is_constant(expr: &Expr) -> Result<bool> {
    let depends = expr.exists(|expr| {
        Ok(matches!(
            expr,
            Expr::Column(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Placeholder(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::Unnest(_)
        ))
    })?;
    Ok(!depends && !expr.is_volatile())
}

/// Computes a constant.
///
/// # Errors
/// When it overflows.
fn compute(expr: &Expr) -> Result<()> {
    let properties = ExecutionProps::new();
    let schema = Schema::empty();
    let context = PhysicalPlanningContext::default();
    let physical = create_physical_expr(expr, &DFSchema::empty(), &properties, &context);
    // It will be said by who plans it.
    let Ok(physical) = physical else {
        return Ok(());
    };
    let physical = physical
        .transform_up(|node| checked(node, &schema).map(Transformed::yes))?
        .data;
    let row = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(schema), vec![], &row)?;
    let computed = physical.evaluate(&row);
    let overflows = computed.is_err_and(|error| {
        let DataFusionError::ArrowError(error, _) = error.find_root() else {
            return false;
        };
        matches!(**error, ArrowError::ArithmeticOverflow(_))
    });
    if overflows {
        return plan_err!(
            "{} overflows: cast its numbers to DECIMAL(38, 0), which has 38 digits",
            expr.human_display()
        );
    }
    Ok(())
}
