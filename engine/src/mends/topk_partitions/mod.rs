//! Top-k sorts copied below a hash exchange only for a merge.
//!
//! DataFusion 55 copies a top-k sort below a hash exchange even if the limit above is not a merge in that order but
//! takes rows of any partition: then frames lack rows in the window partition where the top k ends. So the rule skips
//! plans with such a sort.

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "topk_partitions",
    wrong: "a limit of window functions cuts frames in the middle of a partition",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Around(&[TOP_K_REPARTITION], keep_partitions)],
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that copies a top-k sort below a hash exchange.
const TOP_K_REPARTITION: &str = "TopKRepartition";

/// Applies DataFusion's rule if every top-k sort above a hash exchange feeds a merge with a fetch.
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

/// Checks whether a top-k sort above an exchange feeds anything but a merge with a fetch; `merged` if such a merge is
/// above.
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
        // Other operators that gather or sort rows take them in another order.
        None => merged && sort.is_none() && inputs.len() == 1 && !gathers(plan),
    };
    inputs
        .into_iter()
        .any(|input| has_unmerged_top_k(input, merged))
}

/// Checks whether an operator changes the number of partitions.
fn gathers(plan: &Plan) -> bool {
    let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
    plan.children()
        .iter()
        .any(|input| partitions(input) != partitions(plan))
}

#[cfg(test)]
mod tests {
    use crate::mends::testing::numbers;

    #[tokio::test]
    async fn a_top_k_sort_is_copied_below_an_exchange_for_a_merge_alone() {
        let (session, _dir) = numbers().await;
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
