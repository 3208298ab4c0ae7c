//! Grouping sets over rows that are grouped already.
//!
//! A `ROLLUP` of four columns groups each row five times in DataFusion. Here rows are grouped once, by all of the columns,
//! and what that leaves is grouped by each set:
//!
//! ```text
//! AggregateExec: Partial, by sets         AggregateExec: PartialReduce, by columns and set
//!   └ input                         →       └ ExpandExec: each group once a set
//!                                               └ AggregateExec: Partial, by all columns
//!                                                   └ input
//! ```
//!
//! Where grouping by all columns leaves nearly as many rows as there were, DataFusion's partial aggregation stops by
//! itself, and little is lost. Not here: aggregates that need an order, look
//! at `DISTINCT` values or keep all of them.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array,
};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{ScalarValue, Statistics, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::EmitTo;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateMode, PhysicalGroupBy, evaluate_group_by,
};
use datafusion::physical_plan::expressions::lit;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt, stream};

use crate::nodes::train::rows_of_input;
use crate::operator;

type Plan = Arc<dyn ExecutionPlan>;

/// Makes a partial aggregate by grouping sets group its rows once; `None` where that is not equivalent or does not
/// help.
pub(crate) fn group_before_sets(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    let (sets, calls) = (aggregate.group_expr(), aggregate.aggr_expr());
    let is_partial = *aggregate.mode() == AggregateMode::Partial;
    // Grouped by all columns there may be more rows than by any set, unless that is one of them.
    let has_finest = sets.groups().iter().any(|set| !set.contains(&true));
    let helps = is_partial
        && !sets.is_single()
        && !sets.is_empty()
        && sets.groups().len() > 1
        && has_finest
        && aggregate.limit_options().is_none()
        && calls.iter().all(|call| is_small(call));
    if !helps {
        return Ok(None);
    }
    let grouped = AggregateExec::try_new(
        AggregateMode::Partial,
        PhysicalGroupBy::new_single(sets.expr().to_vec()),
        calls.to_vec(),
        aggregate.filter_expr().to_vec(),
        Arc::clone(aggregate.input()),
        aggregate.input_schema(),
    )?;
    let schema = aggregate.input().schema();
    let identity = calls.iter().map(|call| states_of_no_rows(call, &schema));
    let identity = identity.collect::<Result<Vec<_>>>()?.concat();
    let fits = {
        let schema = node.schema();
        let states = schema.fields().iter().skip(sets.num_group_exprs());
        let types = states.map(|state| state.data_type().clone());
        types.eq(identity.iter().map(ScalarValue::data_type))
    };
    if !fits {
        return Ok(None);
    }
    let expanded = ExpandExec::try_new(
        Arc::new(grouped),
        sets.groups().to_vec(),
        identity,
        node.schema(),
    )?;
    let reduced = AggregateExec::try_new(
        AggregateMode::PartialReduce,
        sets.as_final(),
        calls.to_vec(),
        // Rows have been left out already.
        vec![None; calls.len()],
        Arc::new(expanded),
        aggregate.input_schema(),
    )?;
    let same = reduced.schema() == node.schema();
    Ok(same.then(|| Arc::new(reduced) as Plan))
}

/// Aggregates that are the same for rows in any order, with states of a few numbers.
const SMALL: &[&str] = &[
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "max",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
    "volley_float_max",
    "volley_float_min",
    "volley_sum",
];

/// Checks whether merging an aggregate's states is cheap.
fn is_small(call: &AggregateFunctionExpr) -> bool {
    !call.is_distinct() && call.order_bys().is_empty() && SMALL.contains(&call.fun().name())
}

/// Returns the states of a group without rows, as DataFusion makes them for an empty grouping set.
fn states_of_no_rows(
    call: &Arc<AggregateFunctionExpr>,
    schema: &Schema,
) -> Result<Vec<ScalarValue>> {
    if !call.groups_accumulator_supported() {
        return call.create_accumulator()?.state();
    }
    let nulls = call.expressions().into_iter().map(|argument| {
        let of = argument.data_type(schema)?;
        Ok(new_null_array(&of, 1))
    });
    let nulls = nulls.collect::<Result<Vec<_>>>()?;
    let mut states = call.create_groups_accumulator()?;
    // One row that a filter removes, not zero rows: from zero rows, some conclude that all groups have been seen.
    states.update_batch(&nulls, &[0], Some(&BooleanArray::from(vec![false])), 1)?;
    let states = states.state(EmitTo::All)?;
    let states = states
        .iter()
        .map(|state| ScalarValue::try_from_array(state, 0));
    states.collect()
}

/// Emits each group with its partial states once for each grouping set, with NULL in the columns outside the set.
///
/// Columns: grouping columns, the set's number, states. Without any groups, the empty set still has one.
#[derive(Debug)]
pub(crate) struct ExpandExec {
    input: Plan,
    /// For each set, a mask of the columns that are NULL.
    sets: Vec<Vec<bool>>,
    /// The number of each set.
    numbers: Vec<ScalarValue>,
    /// The states of a group without rows.
    identity: Vec<ScalarValue>,
    properties: Arc<PlanProperties>,
}

impl ExpandExec {
    /// Expands the groups of an input that has the columns of `schema` except the set's number.
    ///
    /// # Errors
    /// When a set does not match the grouping columns.
    pub(crate) fn try_new(
        input: Plan,
        sets: Vec<Vec<bool>>,
        identity: Vec<ScalarValue>,
        schema: SchemaRef,
    ) -> Result<Self> {
        let others = identity.len() + 1;
        let fits = |set: &Vec<bool>| set.len() + others == schema.fields().len();
        if !sets.iter().all(fits) {
            return internal_err!("grouping sets of other columns than are grouped by");
        }
        let numbers = set_numbers(&sets)?;
        let partitions = input.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Ok(Self {
            input,
            sets,
            numbers,
            identity,
            properties: Arc::new(properties),
        })
    }

    pub(crate) fn sets(&self) -> &[Vec<bool>] {
        &self.sets
    }

    pub(crate) fn identity(&self) -> &[ScalarValue] {
        &self.identity
    }

    fn expander(&self) -> Expander {
        Expander {
            sets: self.sets.clone(),
            numbers: self.numbers.clone(),
            identity: self.identity.clone(),
            schema: self.schema(),
        }
    }
}

/// Returns the number that an aggregate by grouping sets assigns to each set.
fn set_numbers(sets: &[Vec<bool>]) -> Result<Vec<ScalarValue>> {
    let columns = sets.first().map_or(0, Vec::len);
    let nulls = vec![(lit(ScalarValue::Null), String::new()); columns];
    let grouping = PhysicalGroupBy::new(nulls.clone(), nulls, sets.to_vec(), true);
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options)?;
    let groups = evaluate_group_by(&grouping, &row)?;
    let numbers = groups.iter().filter_map(|group| group.last());
    numbers
        .map(|number| ScalarValue::try_from_array(number, 0))
        .collect()
}

/// State of a partition's stream.
struct Expander {
    sets: Vec<Vec<bool>>,
    numbers: Vec<ScalarValue>,
    identity: Vec<ScalarValue>,
    schema: SchemaRef,
}

impl Expander {
    fn expand(&self, groups: &RecordBatch) -> Result<Vec<RecordBatch>> {
        let (keys, states) = groups.columns().split_at(self.numbers_column());
        let sets = self.sets.iter().zip(&self.numbers);
        sets.map(|(set, number)| self.batch(set, number, keys, states, groups.num_rows()))
            .collect()
    }

    /// Returns the groups of an input without rows: one for each empty set.
    fn of_no_rows(&self) -> Result<Vec<RecordBatch>> {
        let keys = self.schema.fields().iter().take(self.numbers_column());
        let keys: Vec<_> = keys.map(|key| new_null_array(key.data_type(), 1)).collect();
        let states = self.identity.iter().map(ScalarValue::to_array);
        let states = states.collect::<Result<Vec<_>>>()?;
        let sets = self.sets.iter().zip(&self.numbers);
        sets.filter(|(set, _)| !set.contains(&false))
            .map(|(set, number)| self.batch(set, number, &keys, &states, 1))
            .collect()
    }

    fn batch(
        &self,
        set: &[bool],
        number: &ScalarValue,
        keys: &[ArrayRef],
        states: &[ArrayRef],
        rows: usize,
    ) -> Result<RecordBatch> {
        let keys = keys.iter().zip(set);
        let mut columns: Vec<_> = keys
            .map(|(key, is_null)| match is_null {
                true => new_null_array(key.data_type(), rows),
                false => Arc::clone(key),
            })
            .collect();
        columns.push(number.to_array_of_size(rows)?);
        columns.extend(states.iter().cloned());
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// Returns the index of the column with the set's number, which follows the grouping columns.
    fn numbers_column(&self) -> usize {
        self.schema.fields().len() - 1 - self.identity.len()
    }
}

impl DisplayAs for ExpandExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExpandExec: sets=[")?;
        for (index, set) in self.sets.iter().enumerate() {
            let schema = self.schema();
            let columns = schema.fields().iter().zip(set);
            let columns = columns.filter(|(_, is_null)| !**is_null);
            let columns: Vec<_> = columns.map(|(column, _)| column.name().as_str()).collect();
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}({})", columns.join(", "))?;
        }
        let identity: Vec<_> = self.identity.iter().map(ScalarValue::to_string).collect();
        write!(f, "], states of no rows=[{}]", identity.join(", "))
    }
}

impl ExecutionPlan for ExpandExec {
    operator!("ExpandExec", input, |expand, input| {
        let (sets, identity) = (expand.sets.clone(), expand.identity.clone());
        Self::try_new(input, sets, identity, expand.schema())
    });

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    /// Estimates as many rows as the input has groups, whose number is overestimated already.
    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        rows_of_input(inputs, &self.schema())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let groups = self.input.execute(partition, context)?;
        let expander = self.expander();
        let mut none_yet = true;
        let expanded = groups
            .map_ok(Some)
            .chain(stream::once(ready(Ok(None))))
            .map(move |groups| {
                let batches = match groups? {
                    Some(groups) if groups.num_rows() == 0 => vec![],
                    Some(groups) => {
                        none_yet = false;
                        expander.expand(&groups)?
                    }
                    None if none_yet => expander.of_no_rows()?,
                    None => vec![],
                };
                Ok::<_, DataFusionError>(stream::iter(batches.into_iter().map(Ok)))
            })
            .try_flatten();
        let schema = self.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, expanded)))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::{collect, displayable};
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::verify_sent;
    use crate::with_rules;

    /// Creates a session with a table of 1,000 rows of few groups, NULL among them, and one without rows.
    async fn session(is_ours: bool, memory: Option<usize>) -> SessionContext {
        let config = SessionConfig::new()
            .with_target_partitions(3)
            .with_batch_size(64);
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(memory) = memory {
            runtime = runtime.with_memory_limit(memory, 1.0);
        }
        let mut state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(runtime.build_arc().unwrap());
        if is_ours {
            state = with_rules(state.build());
        }
        let session = SessionContext::new_with_state(state.build());
        for create in [
            "CREATE TABLE t AS SELECT CASE WHEN value % 7 < 6 THEN value % 7 END AS a, \
             'k' || (value % 3) AS b, value % 50 AS c, value AS x, CAST(value AS DOUBLE) / 4 AS y, \
             CAST(value AS DECIMAL(10, 2)) AS d FROM range(0, 1000)",
            "CREATE TABLE none AS SELECT * FROM t WHERE x < 0",
        ] {
            let created = session.sql(create).await.unwrap();
            created.collect().await.unwrap();
        }
        session
    }

    async fn rows(session: &SessionContext, query: &str) -> Vec<String> {
        let rows = session.sql(query).await.unwrap().collect().await.unwrap();
        let rows = pretty_format_batches(&rows).unwrap().to_string();
        let mut rows: Vec<_> = rows.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    }

    async fn is_expanded(session: &SessionContext, query: &str) -> bool {
        let frame = session.sql(query).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        verify_sent(&plan, &session.task_ctx()).unwrap();
        let plan = displayable(plan.as_ref()).indent(false).to_string();
        plan.contains("ExpandExec")
    }

    #[tokio::test]
    async fn sets_are_those_of_the_rows() {
        let (ours, theirs) = (session(true, None).await, session(false, None).await);
        let calls = "count(*) AS n, sum(x) AS s, avg(y) AS m, min(d) AS l, avg(d) AS e, \
            round(stddev(y), 6) AS v, sum(x) FILTER (WHERE x % 2 = 0) AS f, bool_or(x = 5) AS o";
        for table in ["t", "none"] {
            for sets in [
                "ROLLUP (a, b)",
                "CUBE (a, b, c)",
                "GROUPING SETS ((a, b), (a), (a), ())",
                "GROUPING SETS ((), (), (b))",
                "GROUPING SETS ((a, b), (b), (), ())",
                "a, ROLLUP (b, c)",
            ] {
                for query in [
                    format!("SELECT {calls} FROM {table} GROUP BY {sets}"),
                    format!("SELECT grouping(b) AS g, b, {calls} FROM {table} GROUP BY {sets}"),
                ] {
                    let expanded = is_expanded(&ours, &query).await;
                    assert!(expanded, "{query}");
                    let (ours, theirs) = (rows(&ours, &query).await, rows(&theirs, &query).await);
                    assert_eq!(ours, theirs, "{query}");
                }
            }
            let query = format!("SELECT a, b FROM {table} GROUP BY ROLLUP (a, b)");
            let (ours, theirs) = (rows(&ours, &query).await, rows(&theirs, &query).await);
            assert_eq!(ours, theirs, "{query}");
        }
    }

    #[tokio::test]
    async fn what_needs_each_row_is_left_alone() {
        let ours = session(true, None).await;
        for query in [
            "SELECT a, b, count(DISTINCT x), count(DISTINCT y) FROM t GROUP BY ROLLUP (a, b)",
            "SELECT a, array_agg(x ORDER BY y) FROM t GROUP BY ROLLUP (a)",
            "SELECT a, first_value(x) FROM t GROUP BY ROLLUP (a)",
            "SELECT a, b, sum(x) FROM t GROUP BY GROUPING SETS ((a), (b))",
            "SELECT a, b, sum(x) FROM t GROUP BY a, b",
        ] {
            assert!(!is_expanded(&ours, query).await, "{query}");
        }
    }

    /// More groups than memory has room for: they are written to files and merged.
    #[tokio::test]
    async fn sets_are_those_of_the_rows_in_little_memory() {
        let query = "SELECT count(*) AS groups, sum(n) AS n, round(sum(s)) AS s, sum(g) AS g FROM \
            (SELECT grouping(x) AS g, count(*) AS n, sum(y) AS s FROM u GROUP BY CUBE (x, c, b)) u";
        let mut answers = vec![];
        for (is_ours, memory) in [(true, Some(8 << 20)), (false, None)] {
            let session = session(is_ours, memory).await;
            let more = "CREATE TABLE u AS SELECT t.x * 40 + r.value AS x, t.c, t.b, t.y \
                FROM t CROSS JOIN range(0, 40) r";
            session.sql(more).await.unwrap().collect().await.unwrap();
            let frame = session.sql(query).await.unwrap();
            let plan = frame.create_physical_plan().await.unwrap();
            let batches = collect(Arc::clone(&plan), session.task_ctx()).await;
            answers.push(
                pretty_format_batches(&batches.unwrap())
                    .unwrap()
                    .to_string(),
            );
            assert_eq!(spills(&plan) > 0, is_ours);
        }
        assert_eq!(answers[0], answers[1]);
    }

    fn spills(plan: &Plan) -> usize {
        let own = plan.metrics().and_then(|metrics| metrics.spill_count());
        let inputs = plan.children().into_iter().map(spills);
        own.unwrap_or(0) + inputs.sum::<usize>()
    }
}
