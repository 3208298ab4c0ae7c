//! Distinct counts, kept from being answered by column statistics when a filter or a join drops rows.
//!
//! DataFusion 55's rule that answers aggregates from statistics takes a distinct count for exact even if the number of
//! rows is not (`Count::value_from_stats`): `count(DISTINCT v)` where `v = 5` is one, even if no row matches. So the
//! rule skips a plan with such an aggregate. Remove when a release checks the number of rows.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "distinct_counts",
    wrong: "distinct values of no row are counted as one",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Around(&[AGGREGATE_STATISTICS], keep_distinct_counts)],
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that answers aggregates from statistics.
pub(crate) const AGGREGATE_STATISTICS: &str = "aggregate_statistics";

/// Applies a rule unless it would answer a distinct count from the statistics of unfiltered rows.
pub(crate) fn keep_distinct_counts(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    match plan.exists(|node| Ok(counts_filtered_rows(node)))? {
        true => Ok(plan),
        false => rule.optimize(plan, config),
    }
}

/// Checks whether an aggregate counts distinct values of rows whose number is not known exactly.
fn counts_filtered_rows(node: &Plan) -> bool {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else {
        return false;
    };
    let is_raw = aggregate.mode().input_mode() == AggregateInputMode::Raw;
    let mut aggregates = aggregate.aggr_expr().iter();
    if !is_raw || !aggregates.any(|aggregate| aggregate.is_distinct()) {
        return false;
    }
    let statistics = StatisticsContext::new();
    let known = statistics.compute(aggregate.input().as_ref(), &StatisticsArgs::new());
    !known.is_ok_and(|known| matches!(known.num_rows, Precision::Exact(_)))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    use crate::with_rules;

    #[tokio::test]
    async fn no_row_has_no_distinct_value() {
        let state = SessionStateBuilder::new_with_default_features().build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.parquet");
        let file = file.display();
        for statement in [
            format!(
                "COPY (SELECT i % 10 AS v, (i + 1) % 10 AS w FROM range(0, 100) AS t(i)) TO '{file}'"
            ),
            format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{file}'"),
        ] {
            let done = session.sql(&statement).await.unwrap();
            done.collect().await.unwrap();
        }
        for (filter, expected) in [("v = 5 AND w = 2", "| 0 | 0 |"), ("v = 5", "| 1 | 1 |")] {
            let query = format!(
                "SELECT count(DISTINCT v) AS a, count(DISTINCT w) AS b FROM f WHERE {filter}"
            );
            let rows = session.sql(&query).await.unwrap().collect().await.unwrap();
            let rows = pretty_format_batches(&rows).unwrap().to_string();
            assert!(rows.contains(expected), "{filter}: {rows}");
        }
    }
}
