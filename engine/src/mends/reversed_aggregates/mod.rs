//! `nth_value` with an ordering, counted from the same end in all of its stages.
//!
//! `nth_value(x, 2 ORDER BY y DESC)` over rows ordered by `y` is the second to last. DataFusion 55 reverses an
//! aggregate accordingly when it makes a plan, in all stages alike, and again whenever an input is replaced by one in
//! another order, as when the sides of a join are swapped: but then only in the partial aggregate, and the final one
//! takes rows from the wrong end. So the final aggregate takes the expression of the partial one, once plans no longer
//! change. Other aggregates, such as `array_agg`, reverse their own states, and are left alone. Remove when a release
//! reverses both stages.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::physical::{Rewrite, rule};
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "reversed_aggregates",
    wrong: "`nth_value` counts from the wrong end",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Last(|| {
        rule("reverse_as_partial", Rewrite::Each(reverse_as_partial))
    })],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Gives a final aggregate the `nth_value`s of the partial one if only those were reversed.
pub(crate) fn reverse_as_partial(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(merged) = node.downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    if merged.mode().input_mode() != AggregateInputMode::Partial {
        return Ok(None);
    }
    let Some(partial) = aggregate_below(merged.input()) else {
        return Ok(None);
    };
    let (own, those) = (merged.aggr_expr(), partial.aggr_expr());
    let differs = |(own, that): &(&Arc<AggregateFunctionExpr>, &Arc<AggregateFunctionExpr>)| {
        own.fun().name() == "nth_value" && own.is_reversed() != that.is_reversed()
    };
    let pairs = || own.iter().zip(those);
    if own.len() != those.len() || !pairs().any(|pair| differs(&pair)) {
        return Ok(None);
    }
    let turned = pairs().map(|pair| Arc::clone(if differs(&pair) { pair.1 } else { pair.0 }));
    let turned = merged.with_new_aggr_exprs(turned.collect::<Vec<_>>());
    Ok(Some(Arc::new(turned)))
}

/// Returns the aggregate whose states a plan yields, through operators that move or sort rows.
fn aggregate_below(plan: &Plan) -> Option<&AggregateExec> {
    let mut plan = plan;
    loop {
        if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            return Some(aggregate);
        }
        let [input] = plan.children()[..] else {
            return None;
        };
        plan = input;
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::display::array_value_to_string;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use crate::with_rules;

    /// `t` is ordered by `y` in each of two files; it is the larger side, whose order the join's output keeps.
    #[tokio::test]
    async fn both_stages_start_at_the_same_end() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().display();
        let config = SessionConfig::new().with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features().with_config(config);
        let session = SessionContext::new_with_state(with_rules(state.build()).build());
        for statement in [
            format!("COPY (SELECT i AS y FROM range(0, 1000) AS r(i)) TO '{dir}/t/1.parquet'"),
            format!("COPY (SELECT i AS y FROM range(1000, 2000) AS r(i)) TO '{dir}/t/2.parquet'"),
            format!("COPY (SELECT i AS k FROM range(0, 7) AS r(i)) TO '{dir}/s.parquet'"),
            format!(
                "CREATE EXTERNAL TABLE t (y BIGINT) STORED AS PARQUET WITH ORDER (y) LOCATION '{dir}/t/'"
            ),
            format!("CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION '{dir}/s.parquet'"),
        ] {
            let done = session.sql(&statement).await.unwrap();
            done.collect().await.unwrap();
        }
        for (call, expected) in [
            ("nth_value(y, 2 ORDER BY y DESC)", "1998"),
            ("nth_value(y, -1500 ORDER BY y DESC)", "1499"),
            ("nth_value(y, 2 ORDER BY y)", "1"),
            ("array_agg(y ORDER BY y DESC)[2:3]", "[1998, 1997]"),
            ("last_value(y ORDER BY y DESC)", "0"),
        ] {
            let query = format!("SELECT {call} AS v FROM t JOIN s ON s.k = t.y % 7");
            let rows = session.sql(&query).await.unwrap().collect().await.unwrap();
            let value = array_value_to_string(rows[0].column(0), 0).unwrap();
            assert_eq!(value, expected, "{call}");
        }
    }
}
