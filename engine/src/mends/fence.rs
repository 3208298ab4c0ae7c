//! Optimization fences: operators that pass rows on and have no properties, where DataFusion 55 would conclude what does
//! not hold.
//!
//! **Inputs of operators that put NULLs where there were values**: the side of an outer join where a row of the other side
//! finds no partner, and the input of grouping sets, of which each has NULLs for what it does not group by. What is
//! constant below is not above, and what is equal need not be; it is taken for such still (`EquivalenceGroup::join`,
//! `AggregateExec::compute_properties`), and an `ORDER BY` of such a column sorts by nothing.
//!
//! **Groups.** What rows are grouped by is there once, and a sort by more than that is none. A projection that puts the
//! columns in another order takes other columns for what they are grouped by (`projected_constraints`): in
//! `SELECT count(*) AS n, k FROM t GROUP BY k ORDER BY n LIMIT 10`, whose rows are sorted by `n, k` above, `n` is taken to
//! be there once.
//!
//! **Monotonic aggregates over windows.** The greatest value so far only grows, and is taken for sorted; but it is NULL as
//! long as there was none, before the others, wherever NULLs are asked for: `SELECT max(x) OVER (ORDER BY t) AS m … ORDER BY
//! m` had them first.
//!
//! All are so in one process too. A fence travels with the plan, because operators above conclude again wherever they
//! are made. To be dropped when a release knows better.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{JoinType, Statistics};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr};
use datafusion::physical_expr::{EquivalenceProperties, OrderingRequirements, PhysicalExpr};
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateInputMode, AggregateOutputMode,
};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, make_with_child};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    replace_children_if_necessary,
};

use crate::nodes::train::only;

type Plan = Arc<dyn ExecutionPlan>;

/// Rows of which no column is known to be constant, nor a key, nor an order: a sort-merge join sorts above it, where an
/// order by a constant is one too; no other join keeps the order of a side that it supplies NULLs for, grouping sets
/// keep none, and groups are sorted above.
#[derive(Debug)]
pub struct FenceExec {
    input: Plan,
    properties: Arc<PlanProperties>,
}

impl FenceExec {
    /// The rows of an input.
    pub fn new(input: Plan) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            input.output_partitioning().clone(),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self {
            input,
            properties: Arc::new(properties),
        }
    }
}

/// An outer join whose null-supplying sides say nothing of constants, if they did, or grouping sets whose input says
/// nothing; to be made once the kind of each join is settled.
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

/// Fences above windows whose aggregates an order above them is by, where these may be NULL.
pub(crate) fn forget_monotonicity(plan: Plan, _: &ConfigOptions) -> Result<Plan> {
    without_monotonicity(&plan, &BTreeSet::new())
}

/// `asked` are the columns of a node that orders above it are by.
fn without_monotonicity(node: &Plan, asked: &BTreeSet<usize>) -> Result<Plan> {
    let inputs = node.children().into_iter().enumerate();
    let inputs = inputs.map(|(number, input)| {
        let mut asked = asked_of_input(node, asked, input);
        let order = node.downcast_ref::<SortExec>().map(|sort| sort.expr());
        let keys = order.into_iter().flatten().map(|key| &key.expr);
        for key in keys {
            asked.extend(collect_columns(key).iter().map(Column::index));
        }
        let required = node
            .required_input_ordering()
            .into_iter()
            .nth(number)
            .flatten();
        let required = required.map(OrderingRequirements::into_single);
        for key in required.iter().flatten() {
            asked.extend(collect_columns(&key.expr).iter().map(Column::index));
        }
        let fenced = without_monotonicity(input, &asked)?;
        Ok(match is_monotonic(&fenced, &asked) {
            true => Arc::new(FenceExec::new(fenced)),
            false => fenced,
        })
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(node), inputs)
}

/// The columns of an input that those of an operator come from, as far as their order may.
fn asked_of_input(node: &Plan, asked: &BTreeSet<usize>, input: &Plan) -> BTreeSet<usize> {
    let schema = node.schema();
    let of = |exprs: Vec<&Arc<dyn PhysicalExpr>>| {
        let exprs = asked
            .iter()
            .filter_map(|column| exprs.get(*column).copied());
        let columns = exprs.flat_map(collect_columns);
        columns.map(|column| column.index()).collect()
    };
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return of(projection
            .expr()
            .iter()
            .map(|projected| &projected.expr)
            .collect());
    }
    if let Some(groups) = node.downcast_ref::<AggregateExec>() {
        let exprs = groups.group_expr().expr().iter();
        return of(exprs.map(|(expr, _)| expr).collect());
    }
    // Others keep their columns in their places, or have them under their names.
    let names: Vec<_> = asked
        .iter()
        .filter_map(|column| schema.fields().get(*column))
        .map(|field| field.name())
        .collect();
    let fields = input.schema();
    let fields = fields.fields().iter().enumerate();
    let named = fields.filter(|(_, field)| names.contains(&field.name()));
    named.map(|(column, _)| column).collect()
}

/// Whether a window has an aggregate among these columns that may be NULL, and be taken for monotonic.
fn is_monotonic(node: &Plan, asked: &BTreeSet<usize>) -> bool {
    let (input, exprs) = if let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() {
        (window.input(), window.window_expr())
    } else if let Some(window) = node.downcast_ref::<WindowAggExec>() {
        (window.input(), window.window_expr())
    } else {
        return false;
    };
    let before = input.schema().fields().len();
    exprs.iter().enumerate().any(|(number, expr)| {
        let expr = expr.as_any();
        let is_aggregate =
            expr.is::<PlainAggregateWindowExpr>() || expr.is::<SlidingAggregateWindowExpr>();
        let column = before + number;
        let schema = node.schema();
        let field = schema.fields().get(column);
        is_aggregate && asked.contains(&column) && field.is_some_and(|field| field.is_nullable())
    })
}

/// Fences above groups where more than one order is asked for above them: the first
/// is sorted anyway, and what is taken for a key counts from the second on.
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

/// Whether rows are those of whole groups.
fn has_groups(node: &Plan) -> bool {
    node.downcast_ref::<AggregateExec>().is_some_and(|groups| {
        groups.mode().output_mode() == AggregateOutputMode::Final && !groups.group_expr().is_empty()
    })
}

impl DisplayAs for FenceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FenceExec")
    }
}

impl ExecutionPlan for FenceExec {
    fn name(&self) -> &str {
        "FenceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        only(inputs.to_vec())
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Plan>> {
        // What a projection says of its own columns, that two are the same, partitions may be known by above.
        let columns = projection.expr().iter();
        let columns = columns.map(|projected| projected.expr.downcast_ref::<Column>());
        let columns: Option<HashSet<_>> = columns.collect();
        if columns.is_none_or(|columns| columns.len() < projection.expr().len()) {
            return Ok(None);
        }
        let projected = make_with_child(projection, &self.input)?;
        Ok(Some(Arc::new(Self::new(projected))))
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        Ok(Arc::new(Self::new(only(children)?)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use crate::with_rules;

    /// A session of two partitions, with these tables.
    async fn session(config: SessionConfig, tables: &[&str]) -> SessionContext {
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config.with_target_partitions(2))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        for create in tables {
            let created = session.sql(create).await.unwrap();
            created.collect().await.unwrap();
        }
        session
    }

    /// The first characters of the rows of a query, in their order.
    async fn column(session: &SessionContext, query: &str) -> String {
        let rows = session.sql(query).await.unwrap().collect().await.unwrap();
        let rows = pretty_format_batches(&rows).unwrap().to_string();
        let lines = rows.lines().filter_map(|row| row.strip_prefix("| "));
        lines.skip(1).filter_map(|row| row.get(..1)).collect()
    }

    #[tokio::test]
    async fn grouping_sets_are_in_the_order_of_a_column_that_is_constant_before_them() {
        let create = "CREATE TABLE a AS SELECT value AS id, value % 2 AS k FROM range(0, 6)";
        let session = session(SessionConfig::new(), &[create]).await;
        let query =
            "SELECT k, id FROM a WHERE k = 1 GROUP BY CUBE (k, id) ORDER BY k NULLS FIRST, id";
        assert_eq!(column(&session, query).await, "    1111");
    }

    #[tokio::test]
    async fn monotonic_aggregates_are_sorted_where_they_may_be_null() {
        let create = "CREATE TABLE t AS SELECT column1 AS id, column2 AS k FROM (VALUES (1, NULL), (2, 7), (3, 9))";
        let session = session(SessionConfig::new(), &[create]).await;
        for (query, due) in [
            (
                "SELECT id FROM (SELECT id, max(k) OVER (ORDER BY id) AS m FROM t) ORDER BY m",
                "231",
            ),
            (
                "SELECT id FROM (SELECT id, max(k) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) \
                 AS m FROM t) ORDER BY m, id",
                "312",
            ),
            (
                "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY m, id) AS r FROM \
                 (SELECT id, max(k) OVER (ORDER BY id) AS m FROM t)) ORDER BY r",
                "231",
            ),
        ] {
            assert_eq!(column(&session, query).await, due, "{query}");
        }
    }

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
