//! `IS [NOT] DISTINCT FROM` with the precedence of `IS NULL`.
//!
//! The parser (sqlparser 0.62) takes all that follows as its right side: it reads `x IS NOT DISTINCT FROM y AND z` as
//! `x IS NOT DISTINCT FROM (y AND z)`, which silently changes the condition if `y` is boolean.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value};

use crate::mends::clauses::{Clause, Reading, refuse_if};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "distinct_from",
    wrong: "`x IS NOT DISTINCT FROM y AND z` is read as `x IS NOT DISTINCT FROM (y AND z)`",
    upstream: Upstream::Thread("apache/datafusion#23692"),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Expr(expr))],
};

/// Moves the comparison down to its own right operand.
fn expr(expr: &mut Expr, _: &Reading<'_>) -> Result<()> {
    // A preceding AND or NOT should apply to the comparison alone.
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

/// Returns the first operand of a chain of `AND` and `OR`.
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

/// Returns the `AND` or `OR` that the right side of a comparison wrongly includes.
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
