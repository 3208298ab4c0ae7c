//! Comparisons of timestamps with dates that nanoseconds cannot express, such as `DATE '9999-12-31'` for "until further
//! notice".
//!
//! A timestamp of nanoseconds reaches from 1677 to 2262. DataFusion 55 casts the date to the timestamp's type, which fails for
//! dates beyond. Here both sides are cast to seconds: no timestamp is near such a date, so nothing is lost. Columns of dates
//! are compared as DataFusion does, and fail where they have such a date.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, LogicalPlan, Operator, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::scalar::ScalarValue;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::map_named;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "far_dates",
    wrong: "a timestamp compared with `DATE '9999-12-31'` fails",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Analyzer(|| Arc::new(FarDates))],
};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Analyzer rule that runs after DataFusion's own type coercion.
#[derive(Debug)]
struct FarDates;

impl AnalyzerRule for FarDates {
    fn name(&self) -> &'static str {
        "volley_far_dates"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let in_seconds = |plan: LogicalPlan| {
            map_named(plan, |expr| expr.transform_up(|expr| Ok(compared(expr))))
        };
        Ok(plan.transform_up_with_subqueries(in_seconds)?.data)
    }
}

fn compared(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() => {
            let [left, right] = [*left, *right];
            let far = far_date(&right).or_else(|| far_date(&left));
            let is_far = far.is_some();
            let [left, right] = [left, right].map(|side| in_seconds(side, far.as_ref()));
            let compared = BinaryExpr::new(Box::new(left), op, Box::new(right));
            Transformed::new_transformed(Expr::BinaryExpr(compared), is_far)
        }
        Expr::Between(Between {
            expr,
            negated,
            low,
            high,
        }) if far_date(&low).or_else(|| far_date(&high)).is_some() => {
            // One of the bounds may be near.
            let within = |op, bound| {
                let within = BinaryExpr::new(expr.clone(), op, bound);
                compared(Expr::BinaryExpr(within)).data
            };
            let both = within(Operator::GtEq, low).and(within(Operator::LtEq, high));
            Transformed::yes(if negated { !both } else { both })
        }
        expr => Transformed::no(expr),
    }
}

/// Returns the type of seconds for a constant date that is cast to nanoseconds, which cannot express it.
fn far_date(expr: &Expr) -> Option<DataType> {
    let Expr::Cast(Cast { expr, field }) = expr else {
        return None;
    };
    let DataType::Timestamp(TimeUnit::Nanosecond, zone) = field.data_type() else {
        return None;
    };
    let date = match expr.as_ref() {
        // `DATE '…'` is a text that is cast.
        Expr::Cast(Cast { expr, field }) if *field.data_type() == DataType::Date32 => expr,
        Expr::Literal(date, _) if date.data_type().is_string() => expr,
        Expr::Literal(ScalarValue::Date32(_) | ScalarValue::Date64(_), _) => expr,
        _ => return None,
    };
    let Expr::Literal(date, _) = date.as_ref() else {
        return None;
    };
    let ScalarValue::Date32(Some(days)) = date.cast_to(&DataType::Date32).ok()? else {
        return None;
    };
    let seconds = i64::from(days) * DAY_SECONDS;
    let is_far = seconds.checked_mul(1_000_000_000).is_none();
    is_far.then(|| DataType::Timestamp(TimeUnit::Second, zone.clone()))
}

/// Casts one side of a comparison to seconds: a date without the detour.
fn in_seconds(side: Expr, seconds: Option<&DataType>) -> Expr {
    let Some(seconds) = seconds else {
        return side;
    };
    match side {
        Expr::Cast(date) if far_date(&Expr::Cast(date.clone())).is_some() => {
            cast(*date.expr, seconds.clone())
        }
        side => cast(side, seconds.clone()),
    }
}
