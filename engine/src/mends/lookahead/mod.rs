//! Limits pushed below window functions whose lookahead is larger than DataFusion 55 assumes.
//!
//! A limit above window functions becomes the fetch of the sort below them, a top-k sort, plus the largest lookahead of
//! any function. DataFusion 55 does not add up the lookahead of nested functions, and assumes no lookahead for
//! `lag(x, -3)` and one row for `lead(x) IGNORE NULLS`. With an exchange above the functions, the limit may also take
//! rows whose frames were cut off. So the rule skips plans with any of these.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::WindowFrameBound;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::windows::BoundedWindowAggExec;

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::window_exprs::{options, udwf};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "lookahead",
    wrong: "a limit cuts off rows that window functions look ahead to",
    upstream: Upstream::Thread("apache/datafusion#25471"),
    query: include_str!("query.sql"),
    acts: &[Act::Around(&[LIMIT_PAST_WINDOWS], keep_lookahead)],
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that pushes limits below window functions.
const LIMIT_PAST_WINDOWS: &str = "LimitPushPastWindows";

/// Applies DataFusion's rule if it accounts for all lookahead of the plan's window functions.
pub(crate) fn keep_lookahead(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    let (mut operators, mut misjudged) = (0, false);
    plan.apply(|node| {
        if node.is::<RepartitionExec>() {
            // Rows whose frames were cut off may come out of another partition first.
            misjudged |= node.exists(|below| Ok(operator_lookahead(below)? != Some(false)))?;
        }
        match operator_lookahead(node)? {
            Some(ahead) => operators += usize::from(ahead),
            None => misjudged = true,
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match misjudged || operators > 1 {
        true => Ok(plan),
        false => rule.optimize(plan, config),
    }
}

/// Checks whether any window function of an operator has lookahead; `None` as in [`lookahead`].
fn operator_lookahead(node: &Plan) -> Result<Option<bool>> {
    let windows = node.downcast_ref::<BoundedWindowAggExec>();
    let mut ahead = Some(false);
    for expr in windows
        .into_iter()
        .flat_map(|windows| windows.window_expr())
    {
        let own = lookahead(expr)?;
        ahead = ahead.zip(own).map(|(one, other)| one || other);
    }
    Ok(ahead)
}

/// Checks whether a window function has lookahead, that is, reads rows after its own. `None` if DataFusion may
/// underestimate it.
fn lookahead(expr: &Arc<dyn WindowExpr>) -> Result<Option<bool>> {
    let shift = udwf(expr).filter(|function| matches!(function.fun().name(), "lead" | "lag"));
    let Some(shift) = shift else {
        let end = &expr.get_window_frame().end_bound;
        return Ok(Some(matches!(end, WindowFrameBound::Following(_))));
    };
    let offset = shift.args().get(1);
    let offset = offset.map(|offset| offset.downcast_ref::<Literal>().map(Literal::value));
    let is_forward = match offset {
        None => true,
        Some(Some(ScalarValue::Int64(Some(rows)))) => *rows >= 0,
        Some(_) => return Ok(None),
    };
    let leads = shift.fun().name() == "lead";
    let ahead = leads == is_forward;
    let misjudged = ahead && (!leads || options(expr)?.ignore_nulls);
    Ok((!misjudged).then_some(ahead))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;

    use crate::mends::testing::numbers;

    #[tokio::test]
    async fn limits_keep_all_lookahead() {
        let (session, _dir) = numbers().await;
        let rows = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW";
        let ahead =
            |rows| format!("OVER (ORDER BY v ROWS BETWEEN CURRENT ROW AND {rows} FOLLOWING)");
        let nested = format!("(SELECT v, sum(v) {} AS c FROM t) q", ahead(2));
        for (function, from) in [
            (format!("lag(v, -3) OVER (ORDER BY v {rows})"), "t"),
            (format!("lead(v, 3) OVER (ORDER BY v {rows})"), "t"),
            (
                format!("lead(x) IGNORE NULLS OVER (ORDER BY v {rows})"),
                "t",
            ),
            (format!("sum(v) {}", ahead(4)), "t"),
            (format!("sum(c) {}", ahead(3)), &nested),
            (format!("lead(c) OVER (ORDER BY v {rows})"), &nested),
        ] {
            let all = format!("SELECT v, {function} AS f FROM {from}");
            let first = format!("SELECT * FROM ({all}) a WHERE v < 3 ORDER BY v");
            for limited in [
                format!("{all} ORDER BY v LIMIT 2"),
                format!("SELECT * FROM ({all} LIMIT 2) a ORDER BY v"),
            ] {
                let [due, got] = [&first, &limited].map(async |query| {
                    let rows = session.sql(query).await.unwrap().collect().await.unwrap();
                    pretty_format_batches(&rows).unwrap().to_string()
                });
                assert_eq!(due.await, got.await, "{limited}");
            }
        }
    }
}
