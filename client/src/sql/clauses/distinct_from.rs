//! `IS [NOT] DISTINCT FROM`, which binds as `IS NULL` does.
//!
//! The parser (sqlparser 0.62) reads all that follows for its right side: `x IS NOT DISTINCT FROM y AND z` as
//! `x IS NOT DISTINCT FROM (y AND z)`, which of truth values is another condition without a word.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value};

use super::refuse_if;
use crate::Result;

/// Gives the comparison its own right side.
pub(super) fn expr(expr: &mut Expr) -> Result<()> {
    // What stands before it was to take the comparison alone.
    let behind = match expr {
        Expr::BinaryOp {
            op: BinaryOperator::And,
            right,
            ..
        } => operator(right).filter(|op| *op == BinaryOperator::Or),
        Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr: inner,
        } => operator(inner),
        _ => None,
    };
    refuse_if(behind.is_some(), || {
        format!("{expr}: put the comparison IS [NOT] DISTINCT FROM in parentheses")
    })?;
    if operator(expr).is_none() {
        return Ok(());
    }
    let (Expr::IsDistinctFrom(value, other) | Expr::IsNotDistinctFrom(value, other)) = expr else {
        return Ok(());
    };
    let nothing = || Box::new(Expr::value(Value::Null));
    let value = std::mem::replace(value, nothing());
    let mut whole = std::mem::replace(other, nothing());
    let first = first_operand(&mut whole);
    let other = Box::new(std::mem::replace(first, Expr::value(Value::Null)));
    *first = match expr {
        Expr::IsDistinctFrom(..) => Expr::IsDistinctFrom(value, other),
        _ => Expr::IsNotDistinctFrom(value, other),
    };
    *expr = *whole;
    Ok(())
}

/// The first of what `AND` and `OR` stand between.
fn first_operand(expr: &mut Expr) -> &mut Expr {
    match expr {
        Expr::BinaryOp {
            left,
            op: BinaryOperator::And | BinaryOperator::Or,
            ..
        } => first_operand(left),
        first => first,
    }
}

/// What binds the right side of a comparison that was read too far.
fn operator(expr: &Expr) -> Option<BinaryOperator> {
    let (Expr::IsDistinctFrom(_, other) | Expr::IsNotDistinctFrom(_, other)) = expr else {
        return None;
    };
    match other.as_ref() {
        Expr::BinaryOp { op, .. } if matches!(op, BinaryOperator::And | BinaryOperator::Or) => {
            Some(op.clone())
        }
        _ => None,
    }
}
