//! Keys of groups below a projection that reorders columns.
//!
//! The columns of a GROUP BY are a key, so further sort columns after the key are redundant. Above a projection that
//! moves the key's columns, DataFusion 55 takes other columns for the key (`projected_constraints`): in
//! `SELECT count(*) AS n, k FROM t GROUP BY k ORDER BY n LIMIT 10`, whose rows are sorted by `n, k` above, it takes `n`
//! for unique. So groups below several orderings are fenced.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::fence::FenceExec;
use crate::rules::names::JOIN_SELECTION;
use crate::rules::physical::{Rewrite, rule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "keys_of_groups",
    wrong: "rows of groups are not sorted by all that is asked for",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::After(JOIN_SELECTION, || {
        rule("forget_keys", Rewrite::Whole(forget_keys))
    })],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Fences groups below more than one required ordering: the first is sorted anyway, and the wrong key matters from the
/// second on.
pub(crate) fn forget_keys(plan: Plan, _: &ConfigOptions) -> Result<Plan> {
    without_keys(&plan, 0)
}

fn without_keys(node: &Plan, orders_above: usize) -> Result<Plan> {
    let mirrors_sort = node.is::<OutputRequirementExec>();
    let asks = |required: &Option<_>| required.is_some();
    let asks = node.is::<SortExec>() || node.required_input_ordering().iter().any(asks);
    let orders = orders_above + usize::from(asks && !mirrors_sort);
    let inputs = node.children().into_iter().map(|input| {
        let fenced = without_keys(input, orders)?;
        let is_ordered = !fenced.equivalence_properties().oeq_class().is_empty();
        Ok(
            match orders + usize::from(is_ordered) > 1 && has_groups(&fenced) {
                true => Arc::new(FenceExec::new(fenced)),
                false => fenced,
            },
        )
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(node), inputs)
}

/// Recognizes an aggregate whose rows are complete groups.
fn has_groups(node: &Plan) -> bool {
    node.downcast_ref::<AggregateExec>().is_some_and(|groups| {
        groups.mode().output_mode() == AggregateOutputMode::Final && !groups.group_expr().is_empty()
    })
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionConfig;

    use crate::mends::testing::{column, session};

    #[tokio::test]
    async fn a_column_in_the_place_of_a_key_is_none() {
        let create = "CREATE TABLE t AS SELECT value % 7 AS k FROM range(0, 70)";
        let session = session(SessionConfig::new(), &[create]).await;
        let groups = "(SELECT count(*) AS n, k FROM t GROUP BY k ORDER BY n LIMIT 10)";
        for query in [
            format!("SELECT k FROM {groups} ORDER BY n, k DESC"),
            format!(
                "SELECT k FROM (SELECT row_number() OVER (ORDER BY n, k DESC) AS r, k FROM {groups}) ORDER BY r"
            ),
        ] {
            assert_eq!(column(&session, &query).await, "6543210", "{query}");
        }
    }
}
