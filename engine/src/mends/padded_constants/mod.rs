//! Constants of rows that outer joins and grouping sets pad with NULLs.
//!
//! An outer join pads a row without a match with NULLs for the other side's columns, and each grouping set pads the
//! keys that it does not group by. A column that is constant below is not constant above, and equal columns need not be
//! equal; DataFusion 55 still takes them for such (`EquivalenceGroup::join`, `AggregateExec::compute_properties`), and
//! an `ORDER BY` of such a column does not sort. So these inputs are fenced.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::fence::FenceExec;
use crate::rules::names::JOIN_SELECTION;
use crate::rules::physical::{Rewrite, rule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "padded_constants",
    wrong: "rows are not sorted by a column that is constant before an outer join or grouping sets",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::After(JOIN_SELECTION, || {
        rule("forget_constants", Rewrite::Each(forget_constants))
    })],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Fences the null-supplying sides of an outer join that have constants, and the input of grouping sets that has
/// equivalences or orderings. Runs once the type of each join is settled.
pub(crate) fn forget_constants(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let input = aggregate.input();
        let is_raw = aggregate.mode().input_mode() == AggregateInputMode::Raw;
        let supplies = is_raw && !aggregate.group_expr().is_single();
        let known = input.equivalence_properties();
        let forgets = supplies && !(known.eq_group().is_empty() && known.oeq_class().is_empty());
        return Ok(match forgets {
            true => {
                let input = Arc::new(FenceExec::new(Arc::clone(input)));
                Some(replace_children_if_necessary(
                    Arc::clone(node),
                    vec![input],
                )?)
            }
            false => None,
        });
    }
    let kind = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        *join.join_type()
    } else if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        *join.join_type()
    } else if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
        join.join_type()
    } else {
        return Ok(None);
    };
    let supplies = match kind {
        JoinType::Left => [false, true],
        JoinType::Right => [true, false],
        JoinType::Full => [true, true],
        _ => return Ok(None),
    };
    let mut changed = false;
    let inputs = node.children().into_iter().zip(supplies);
    let inputs = inputs.map(|(input, supplies)| {
        let forgets = supplies && !input.equivalence_properties().constants().is_empty();
        changed |= forgets;
        match forgets {
            true => Arc::new(FenceExec::new(Arc::clone(input))) as Plan,
            false => Arc::clone(input),
        }
    });
    let inputs: Vec<_> = inputs.collect();
    match changed {
        true => replace_children_if_necessary(Arc::clone(node), inputs).map(Some),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionConfig;

    use crate::mends::testing::{column, session};

    #[tokio::test]
    async fn grouping_sets_are_in_the_order_of_a_column_that_is_constant_before_them() {
        let create = "CREATE TABLE a AS SELECT value AS id, value % 2 AS k FROM range(0, 6)";
        let session = session(SessionConfig::new(), &[create]).await;
        let query =
            "SELECT k, id FROM a WHERE k = 1 GROUP BY CUBE (k, id) ORDER BY k NULLS FIRST, id";
        assert_eq!(column(&session, query).await, "    1111");
    }

    #[tokio::test]
    async fn rows_are_in_the_order_of_a_column_that_is_constant_before_the_join() {
        let tables = [
            "CREATE TABLE b AS SELECT value AS id FROM range(1, 5)",
            "CREATE TABLE a AS SELECT value AS id, 5 AS k FROM range(1, 5, 2)",
        ];
        for (prefer_hash_join, kind) in [
            (true, "LEFT"),
            (true, "FULL"),
            (false, "LEFT"),
            (false, "FULL"),
        ] {
            let config = SessionConfig::new()
                .set_bool("datafusion.optimizer.prefer_hash_join", prefer_hash_join);
            let session = session(config, &tables).await;
            let query = format!(
                "SELECT b.id, x.k FROM b {kind} JOIN (SELECT * FROM a WHERE k = 5) x \
                 ON b.id = x.id ORDER BY x.k NULLS FIRST, b.id"
            );
            assert_eq!(column(&session, &query).await, "2413", "{query}");
        }
    }
}
