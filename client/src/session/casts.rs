//! Comparisons of texts with other types, named where a text could not be cast.
//!
//! An executor's error has the text and the type, and not the columns: the plan tells which are compared.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Between, BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, TryCast,
};
use volley_engine::error::shown;

use crate::Error;

/// Adds to the error of a cast the comparison of the plan that it belongs to, if there is one.
pub(super) fn explained(plan: &LogicalPlan, error: Error) -> Error {
    match error {
        Error::Engine { cause, original } => {
            let compared = target(&cause).and_then(|target| comparison(plan, target));
            let cause = match compared {
                Some(compared) => format!("{cause}: {compared}"),
                None => cause,
            };
            Error::Engine { cause, original }
        }
        error => error,
    }
}

/// Returns the type that a text could not be cast to.
fn target(cause: &str) -> Option<&str> {
    let (_, rest) = cause.split_once("Cannot cast string '")?;
    let (_, rest) = rest.rsplit_once("' to value of ")?;
    Some(rest.split_once(" type")?.0)
}

/// Returns the first comparison of a text with a value of this type.
fn comparison(plan: &LogicalPlan, target: &str) -> Option<String> {
    let mut found = None;
    let walked = plan.apply_with_subqueries(|node| {
        let mut note = |left: (&Expr, &DFSchema), right: (&Expr, &DFSchema)| {
            found = found.take().or_else(|| compared(left, right, target));
        };
        if let LogicalPlan::Join(join) = node {
            for (left, right) in &join.on {
                let (of_left, of_right) = (join.left.schema(), join.right.schema());
                note((left, of_left.as_ref()), (right, of_right.as_ref()));
            }
        }
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                let mut note = |left: &Expr, right: &Expr| note((left, &schema), (right, &schema));
                match part {
                    Expr::BinaryExpr(BinaryExpr { left, op, right })
                        if op.supports_propagation() =>
                    {
                        note(left, right);
                    }
                    Expr::InList(InList { expr, list, .. }) => {
                        list.iter().for_each(|item| note(expr, item));
                    }
                    Expr::Between(Between {
                        expr, low, high, ..
                    }) => {
                        note(expr, low);
                        note(expr, high);
                    }
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walked.ok().and(found)
}

/// Describes a comparison if one side is a text and the other has the type.
fn compared(
    (left, of_left): (&Expr, &DFSchema),
    (right, of_right): (&Expr, &DFSchema),
    target: &str,
) -> Option<String> {
    let (left, right) = (without_cast(left), without_cast(right));
    let left_type = left.get_type(of_left).ok()?;
    let right_type = right.get_type(of_right).ok()?;
    let is_target = |of: &dyn std::fmt::Display| of.to_string() == target;
    let fails = left_type.is_string() && is_target(&right_type)
        || right_type.is_string() && is_target(&left_type);
    fails.then(|| {
        format!(
            "{} ({left_type}) is compared with {} ({right_type})",
            shown(left),
            shown(right)
        )
    })
}

/// Returns what is cast.
fn without_cast(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) => without_cast(expr),
        expr => expr,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::error::DataFusionError;

    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn failed_casts_name_the_columns_that_are_compared() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let failed = |target: &str| {
                let text =
                    format!("Cannot cast string 'a' to value of {target} type (in rows of /x.csv)");
                Error::from(DataFusionError::Execution(text))
            };
            for (sql, target, due) in [
                (
                    "SELECT 1 FROM sales s JOIN (SELECT 'a' AS week) w ON s.\"Id\" = w.week",
                    "Int64",
                    "(in rows of /x.csv): s.\"Id\" (Int64) is compared with w.week (Utf8)",
                ),
                (
                    "SELECT 1 FROM sales WHERE 'a' < \"Id\"",
                    "Int64",
                    "'a' (Utf8) is compared with sales.\"Id\" (Int64)",
                ),
                (
                    "SELECT 1 FROM sales WHERE \"Id\" IN (1, 'a')",
                    "Int64",
                    "sales.\"Id\" (Int64) is compared with 'a' (Utf8)",
                ),
                (
                    "SELECT 1 FROM sales WHERE 'a' < \"Id\"",
                    "Date32",
                    "/x.csv)",
                ),
                ("SELECT CAST('a' AS BIGINT)", "Int64", "/x.csv)"),
            ] {
                let frame = session.sql(sql).await.unwrap();
                let error = explained(frame.logical_plan(), failed(target)).to_string();
                assert!(error.ends_with(due), "{sql}: {error}");
            }
        });
    }
}
