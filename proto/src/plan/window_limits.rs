//! Limits that reach below window functions: where a function has to see more rows than DataFusion 55 leaves it.
//!
//! A limit above functions of few rows becomes one of the sort below them, of as many rows more as they look ahead. For
//! that DataFusion takes the most rows that any function looks ahead, where functions of functions look further. It does
//! not see that `lag(x, -3)` looks ahead, takes `lead(x) IGNORE NULLS` for one that looks at the next row, and lets an
//! exchange mix the rows that were cut off with those that were asked for. And it sends the first rows of partitions alone
//! through an exchange by what they are sorted by first, also where the limit takes rows of any partition: one that is
//! cut in the middle has fewer rows than a function counts.
//!
//! So the rules are left out where plans have such. To be dropped when a release looks at all of them.

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

use super::wire::{ignores_nulls, udwf};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that limits sorts below window functions.
pub(super) const LIMIT_PAST_WINDOWS: &str = "LimitPushPastWindows";
/// DataFusion's rule that keeps first rows below an exchange, too.
pub(super) const TOP_K_REPARTITION: &str = "TopKRepartition";

/// The plan after DataFusion's rule, if it sees how far functions look ahead.
pub(super) fn keep_rows_ahead(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    let (mut operators_ahead, mut misjudged) = (0, false);
    plan.apply(|node| {
        if node.is::<RepartitionExec>() {
            // Rows that were cut off may come out of another partition first.
            misjudged |= node.exists(|below| Ok(windows_look_ahead(below)? != Some(false)))?;
        }
        match windows_look_ahead(node)? {
            Some(ahead) => operators_ahead += usize::from(ahead),
            None => misjudged = true,
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match misjudged || operators_ahead > 1 {
        true => Ok(plan),
        false => rule.optimize(plan, config),
    }
}

/// Whether any function of an operator looks at rows after its own, as [`looks_ahead`] says.
fn windows_look_ahead(node: &Plan) -> Result<Option<bool>> {
    let windows = node.downcast_ref::<BoundedWindowAggExec>();
    let mut ahead = Some(false);
    for expr in windows
        .into_iter()
        .flat_map(|windows| windows.window_expr())
    {
        let looks = looks_ahead(expr)?;
        ahead = ahead.zip(looks).map(|(one, other)| one || other);
    }
    Ok(ahead)
}

/// Whether a function looks at rows after its own; `None` where it does so and DataFusion does not see how far.
fn looks_ahead(expr: &Arc<dyn WindowExpr>) -> Result<Option<bool>> {
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
    let looks_ahead = leads == is_forward;
    let misjudged = looks_ahead && (!leads || ignores_nulls(expr)?);
    Ok((!misjudged).then_some(looks_ahead))
}

/// The plan after DataFusion's rule, if the first rows of all partitions are the first rows of each that are asked for.
pub(super) fn keep_partitions(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    match takes_any(&plan, false) {
        true => Ok(plan),
        false => rule.optimize(plan, config),
    }
}

/// Whether first rows of exchanged partitions are asked for by another than a merge of all of them that keeps some.
fn takes_any(plan: &Plan, merged: bool) -> bool {
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
    inputs.into_iter().any(|input| takes_any(input, merged))
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

    use crate::plan::with_rules;

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
    async fn functions_see_the_rows_that_they_look_ahead_to() {
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
    async fn first_rows_are_kept_below_an_exchange_for_a_merge_alone() {
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
