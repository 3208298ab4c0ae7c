//! Limits that are pushed below window functions: where the lookahead of a function is more rows than DataFusion 55 keeps.
//!
//! A limit above window functions becomes the fetch of the sort below them, a top-k sort, plus the greatest lookahead of
//! any function. Those of nested functions are not added up; `lag(x, -3)` is taken to have none, `lead(x) IGNORE NULLS` to
//! have one row; and where an exchange is above the functions, the limit may take rows whose frames were cut off. A second
//! rule copies the top-k sort below a hash exchange, also where the limit is no merge in that order but takes rows of any
//! partition: of a window partition at the end of the top k, frames lack rows.
//!
//! So the rules are left out where plans have such. To be dropped when a release counts all lookahead.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::WindowFrameBound;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::codec::lost::{ignores_nulls, udwf};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that pushes limits below window functions.
pub(crate) const LIMIT_PAST_WINDOWS: &str = "LimitPushPastWindows";
/// DataFusion's rule that copies a top-k sort below a hash exchange.
pub(crate) const TOP_K_REPARTITION: &str = "TopKRepartition";

/// The plan after DataFusion's rule, if that counts all lookahead of the plan's window functions.
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

/// Whether any window function of an operator has lookahead, as [`lookahead`] says.
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

/// Whether a window function has lookahead: reads rows after its own. `None` where DataFusion takes it for less than it is.
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
    let misjudged = ahead && (!leads || ignores_nulls(expr)?);
    Ok((!misjudged).then_some(ahead))
}

/// The plan after DataFusion's rule, if every top-k sort above a hash exchange feeds a merge with a fetch.
pub(crate) fn keep_partitions(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    match has_unmerged_top_k(&plan, false) {
        true => Ok(plan),
        false => rule.optimize(plan, config),
    }
}

/// Whether a top-k sort above an exchange feeds another than a merge with a fetch; `merged` where one is above.
fn has_unmerged_top_k(plan: &Plan, merged: bool) -> bool {
    let sort = plan.downcast_ref::<SortExec>();
    let exchanged =
        |sort: &SortExec| sort.fetch().is_some() && sort.input().is::<RepartitionExec>();
    if !merged && sort.is_some_and(exchanged) {
        return true;
    }
    let inputs = plan.children();
    let merge = plan.downcast_ref::<SortPreservingMergeExec>();
    let merged = match merge {
        Some(merge) => merge.fetch().is_some(),
        // Whatever gathers rows otherwise, or sorts them, takes them in another order.
        None => merged && sort.is_none() && inputs.len() == 1 && !gathers(plan),
    };
    inputs
        .into_iter()
        .any(|input| has_unmerged_top_k(input, merged))
}

/// Whether rows of several partitions become one.
fn gathers(plan: &Plan) -> bool {
    let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
    plan.children()
        .iter()
        .any(|input| partitions(input) != partitions(plan))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use crate::with_rules;

    /// Rows of each number from 1 to 60, in no order that is known.
    async fn session() -> (SessionContext, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let config = SessionConfig::new().with_target_partitions(3);
        let state = SessionStateBuilder::new_with_default_features().with_config(config);
        let session = SessionContext::new_with_state(with_rules(state.build()).build());
        let at = dir.path().display();
        for statement in [
            format!(
                "COPY (SELECT value AS v, CASE WHEN value % 9 = 0 THEN value END AS x, value % 2 AS s \
                 FROM range(1, 61)) TO '{at}/t/1.csv'"
            ),
            format!(
                "CREATE EXTERNAL TABLE t (v BIGINT, x BIGINT, s INT) STORED AS CSV LOCATION '{at}/t/'"
            ),
        ] {
            let done = session.sql(&statement).await.unwrap();
            done.collect().await.unwrap();
        }
        (session, dir)
    }

    #[tokio::test]
    async fn limits_keep_all_lookahead() {
        let (session, _dir) = session().await;
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

    #[tokio::test]
    async fn a_top_k_sort_is_copied_below_an_exchange_for_a_merge_alone() {
        let (session, _dir) = session().await;
        let count =
            "count(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 5 PRECEDING AND 2 FOLLOWING)";
        for (order, sorts) in [("", 1), (" ORDER BY s, v", 2)] {
            let query = format!("SELECT s, v, {count} AS n FROM t{order} LIMIT 2");
            let plan = session.sql(&query).await.unwrap();
            let plan = plan.create_physical_plan().await.unwrap();
            let shown = datafusion::physical_plan::displayable(plan.as_ref()).indent(true);
            let shown = shown.to_string();
            assert_eq!(shown.matches("TopK(fetch=4)").count(), sorts, "{shown}");
        }
    }
}
