//! Aggregates that keep all values of their groups, such as `median` and `array_agg`, over more values than the memory of a
//! task holds.
//!
//! DataFusion's aggregate writes the lists of all groups to sorted files, and merges batches of thousands of lists, which
//! fails where lists are long. Here the aggregate stays in memory as long as it fits. If it does not, it starts again: its
//! input is partitioned by a hash of the group keys into temporary files, and each file is aggregated by itself. A file
//! that does not fit is partitioned again, by another hash. The values of a group stay in the order of the input.
//!
//! Such an aggregate has no partial stage either: that would keep lists of the same values, and send rows as long as a
//! group.
//!
//! The median of one group that does not fit is the middle of its values in sorted files; for other functions, such a group
//! is an error.
//!
//! Not here: other aggregates, whose states of fixed size DataFusion spills; aggregates over rows in the order of their
//! groups, which hold one group.

mod medians;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput, SpillMetrics,
};
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::{
    ExecutionPlan, InputOrderMode, SpillManager, replace_children_if_necessary,
};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::Sender;

use self::medians::{has_medians_only, middles};
use super::spilled::{LEVELS, Once, Rows, divide, granted, is_exhausted, reserve, with_memory};
use super::window_exprs::FILTERED;
use crate::runtime::{advised, context_with};
use crate::{delegate_to, display_as};

type Plan = Arc<dyn ExecutionPlan>;

/// Functions whose state has all values of a group.
const KEEPING: [&str; 4] = ["array_agg", "median", "percentile_cont", "string_agg"];
/// Memory of a group's values when they are emitted, as a multiple of their size: they are copied.
const COPIES: usize = 2;

/// Checks whether the state of an aggregate grows with the number of rows of a group, distinct or not.
pub(super) fn keeps_values(call: &AggregateFunctionExpr) -> bool {
    let name = call.fun().name();
    let name = name.strip_prefix(FILTERED).unwrap_or(name);
    call.is_distinct() || KEEPING.contains(&name)
}

/// Replaces an aggregate of two stages that keeps all values by one over its rows; `None` for other operators.
pub(crate) fn gather_values(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(last) = node.downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    let Some(partial) = last.input().downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    let mode = match (last.mode(), partial.mode()) {
        (AggregateMode::Final, AggregateMode::Partial) => AggregateMode::Single,
        (AggregateMode::FinalPartitioned, AggregateMode::Partial) => {
            AggregateMode::SinglePartitioned
        }
        _ => return Ok(None),
    };
    // A partial stage removes rows whose value is in its group already.
    let mut calls = partial.aggr_expr().iter();
    let keeps = calls.any(|call| keeps_values(call) && !call.is_distinct());
    if !keeps || !partial.group_expr().is_single() {
        return Ok(None);
    }
    let aggregate = AggregateExec::try_new(
        mode,
        partial.group_expr().clone(),
        partial.aggr_expr().to_vec(),
        partial.filter_expr().to_vec(),
        Arc::clone(partial.input()),
        partial.input_schema(),
    )?;
    let is_same = aggregate.schema() == node.schema();
    Ok(is_same.then(|| Arc::new(aggregate) as Plan))
}

/// Makes an aggregate that keeps all values use files when they do not fit into memory. Other operators stay unchanged.
#[must_use]
pub(crate) fn grace_aggregate(node: Plan) -> Plan {
    let applies = node.downcast_ref::<AggregateExec>().is_some_and(|node| {
        let completes = match node.mode() {
            AggregateMode::Partial | AggregateMode::PartialReduce => false,
            AggregateMode::Single | AggregateMode::SinglePartitioned => true,
            AggregateMode::Final | AggregateMode::FinalPartitioned => true,
        };
        completes
            && node.group_expr().is_single()
            && node.limit_options().is_none()
            && *node.input_order_mode() == InputOrderMode::Linear
            && node.aggr_expr().iter().any(|call| keeps_values(call))
    });
    match applies {
        true => Arc::new(GraceAggregate::new(node)),
        false => node,
    }
}

/// Replacement of an [`AggregateExec`].
#[derive(Debug)]
struct GraceAggregate {
    plan: Plan,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The aggregate whose input is read again, after the first run has exceeded the memory.
    again: OnceLock<Plan>,
    /// First runs of the partitions.
    first: Mutex<Vec<Plan>>,
    /// Metrics of the runs with files.
    metrics: ExecutionPlanMetricsSet,
}

impl GraceAggregate {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            state: Arc::default(),
        }
    }

    /// Returns the aggregate whose input runs.
    fn current(&self) -> &Plan {
        self.state.again.get().unwrap_or(&self.plan)
    }
}

display_as!(GraceAggregate, plan);

impl ExecutionPlan for GraceAggregate {
    delegate_to!(plan);

    fn children(&self) -> Vec<&Plan> {
        self.current().children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let plan = Arc::clone(&self.plan);
        Ok(grace_aggregate(replace_children_if_necessary(
            plan, children,
        )?))
    }

    fn reset_state(self: Arc<Self>) -> Result<Plan> {
        Ok(Arc::new(Self::new(
            Arc::clone(self.current()).reset_state()?,
        )))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let reserve = reserve("GraceAggregate", &context);
        let input = aggregate_of(&self.plan)?.input();
        let first = over(&self.plan, input.execute(partition, Arc::clone(&context))?)?;
        self.state.firsts().push(Arc::clone(&first));
        let own = match is_one_group(&self.plan)? {
            true => Arc::clone(&context),
            false => in_memory(&context)?,
        };
        let mut rows = first.execute(0, own)?;
        let (plan, state) = (Arc::clone(&self.plan), Arc::clone(&self.state));
        let schema = self.schema();
        let output = Arc::clone(&schema);
        let first = async move {
            // The first rows come when the input has ended.
            match rows.next().await {
                Some(Err(failure)) if is_exhausted(&failure) => {
                    drop(rows);
                    if is_one_group(&plan)? && !has_medians_only(&plan)? {
                        return Err(too_large(&plan, failure));
                    }
                    tracing::info!(%failure, "an aggregate whose values exceed the memory is partitioned into files");
                    state.run(&plan, partition, context, reserve)
                }
                first => {
                    let rows = stream::iter(first).chain(rows);
                    let rows = RecordBatchStreamAdapter::new(output, rows);
                    Ok(Box::pin(rows) as SendableRecordBatchStream)
                }
            }
        };
        let rows = stream::once(first).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.state.metrics.clone_inner();
        for first in self.state.firsts().iter() {
            for metric in first.metrics().iter().flat_map(MetricsSet::iter) {
                metrics.push(Arc::clone(metric));
            }
        }
        Some(metrics)
    }
}

impl State {
    fn firsts(&self) -> MutexGuard<'_, Vec<Plan>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one partition with files.
    fn run(
        &self,
        plan: &Plan,
        partition: usize,
        context: Arc<TaskContext>,
        reserve: MemoryReservation,
    ) -> Result<SendableRecordBatchStream> {
        // Each partition has its own: operators below would share what they know of the rows above.
        let plan = reset_plan_states(Arc::clone(plan))?;
        self.again.get_or_init(|| Arc::clone(&plan));
        let input = aggregate_of(&plan)?.input();
        let rows = input.execute(partition, Arc::clone(&context))?;
        let spilled = SpillMetrics::new(&self.metrics, partition);
        let manager = SpillManager::new(context.runtime_env(), spilled, input.schema());
        let files = Files {
            memory: granted(&context, reserve),
            output: BaselineMetrics::new(&self.metrics, partition),
            manager,
            plan,
            context,
        };
        let mut output = RecordBatchReceiverStreamBuilder::new(files.plan.schema(), 1);
        let to = output.tx();
        output.spawn(files.run(rows, to));
        Ok(output.build())
    }
}

/// One partition of an aggregate, computed file by file.
struct Files {
    plan: Plan,
    context: Arc<TaskContext>,
    /// Memory that the aggregate has to itself: operators above would take what one file leaves before the next.
    memory: MemoryReservation,
    manager: SpillManager,
    output: BaselineMetrics,
}

/// Rows of whole groups.
struct Part {
    rows: Arc<Rows>,
    /// Number of times that the rows were partitioned.
    level: u64,
}

impl Files {
    async fn run(
        mut self,
        rows: SendableRecordBatchStream,
        to: Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let mut own = with_memory(&self.context, self.memory.size())?;
        let mut due = self.divide(rows, 0, &own).await?;
        while let Some(part) = due.pop() {
            if part.rows.rows == 0 {
                continue;
            }
            if is_one_group(&self.plan)? {
                let row = middles(&self.plan, &part.rows, &own).await?;
                to.send(Ok(row.record_output(&self.output))).await.ok();
                continue;
            }
            if self.emit(&part, &own, &to).await?.is_none() {
                continue;
            }
            if !part.rows.is_one && part.level < LEVELS {
                let rows = part.rows.read()?;
                due.extend(self.divide(rows, part.level, &own).await?);
                continue;
            }
            if has_medians_only(&self.plan)? {
                let row = middles(&self.plan, &part.rows, &own).await?;
                to.send(Ok(row.record_output(&self.output))).await.ok();
                continue;
            }
            // Groups that do not fit into a part of the memory may fit into all of it.
            self.memory.free();
            if let Some(failure) = self.emit(&part, &self.context, &to).await? {
                return Err(too_large(&self.plan, failure));
            }
            self.memory = granted(&self.context, self.memory);
            own = with_memory(&self.context, self.memory.size())?;
        }
        Ok(())
    }

    /// Partitions rows.
    async fn divide(
        &self,
        rows: SendableRecordBatchStream,
        level: u64,
        own: &TaskContext,
    ) -> Result<Vec<Part>> {
        let keys = aggregate_of(&self.plan)?.group_expr().input_exprs();
        let parts = divide(rows, &keys, &self.manager, level, own).await?;
        let parts = parts.into_iter().map(|rows| Part {
            rows: Arc::new(rows),
            level: level + 1,
        });
        Ok(parts.collect())
    }

    /// Emits the groups of a part. Returns the failure if the memory did not suffice, and nothing was emitted.
    async fn emit(
        &self,
        part: &Part,
        context: &Arc<TaskContext>,
        to: &Sender<Result<RecordBatch>>,
    ) -> Result<Option<DataFusionError>> {
        let aggregate = over(&self.plan, part.rows.read()?)?;
        let mut rows = aggregate.execute(0, in_memory(context)?)?;
        let mut is_first = true;
        while let Some(batch) = rows.next().await {
            let batch = match batch {
                Err(failure) if is_first && is_exhausted(&failure) => return Ok(Some(failure)),
                batch => batch?,
            };
            is_first = false;
            if to
                .send(Ok(batch.record_output(&self.output)))
                .await
                .is_err()
            {
                // Nobody reads on.
                break;
            }
        }
        Ok(None)
    }
}

fn aggregate_of(plan: &Plan) -> Result<&AggregateExec> {
    match plan.downcast_ref::<AggregateExec>() {
        Some(aggregate) => Ok(aggregate),
        None => internal_err!("{} is not an aggregate", plan.name()),
    }
}

/// Checks whether an aggregate has no groups.
fn is_one_group(plan: &Plan) -> Result<bool> {
    Ok(aggregate_of(plan)?.group_expr().is_empty())
}

/// Returns the aggregate over rows that are read once, in the order of its input.
fn over(plan: &Plan, rows: SendableRecordBatchStream) -> Result<Plan> {
    let input = aggregate_of(plan)?.input();
    let orders = input.properties().eq_properties.oeq_class().iter().cloned();
    let once = vec![Arc::new(Once::new(input.schema(), rows)) as _];
    let once = StreamingTableExec::try_new(input.schema(), once, None, orders, false, None)?;
    replace_children_if_necessary(Arc::clone(plan), vec![Arc::new(once)])
}

/// Returns the context of an aggregate that does not spill, and reserves what it holds when it emits.
fn in_memory(context: &TaskContext) -> Result<Arc<TaskContext>> {
    let disabled = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let runtime = RuntimeEnvBuilder::from_runtime_env(&context.runtime_env())
        .with_disk_manager_builder(disabled)
        .with_memory_pool(Arc::new(Copied(Arc::clone(context.memory_pool()))));
    let config = context.session_config().clone();
    Ok(context_with(context, config, runtime.build_arc()?))
}

/// Memory pool in which each byte counts as several: those that are copied.
#[derive(Debug)]
struct Copied(Arc<dyn MemoryPool>);

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MemoryPool for Copied {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.0.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.0.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, COPIES * additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, COPIES * shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.0.try_grow(reservation, COPIES * additional)
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.0.memory_limit()
    }
}

/// Returns the error of a group whose values exceed the memory.
fn too_large(plan: &Plan, failure: DataFusionError) -> DataFusionError {
    let Ok(aggregate) = aggregate_of(plan) else {
        return failure;
    };
    let calls = aggregate.aggr_expr().iter();
    let calls = calls.filter(|call| keeps_values(call));
    let calls: Vec<_> = calls.map(|call| call.name()).collect();
    let of = match aggregate.group_expr().is_empty() {
        true => "the values of all rows at once",
        false => "all values of a group at once, and those of one group exceed the memory",
    };
    advised(
        failure,
        &format!("{} needs {of}", calls.join(", ")),
        "more partitions do not divide a group: more memory for a slot does (--memory of the executor, or fewer --vcores), \
         or fewer values; percentile_cont also has an approximate form, approx_percentile_cont",
    )
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
    use datafusion::execution::SessionStateBuilder;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// Table of 20,000 rows: `g` has 997 values and NULL, `h` has 16,000, `s` has three quarters of its rows in one value.
    const TABLE: &str = "CREATE TABLE t AS SELECT value AS id, \
        CASE WHEN value % 19 = 0 THEN NULL ELSE value * 7919 % 997 END AS g, value * 7919 % 16000 AS h, \
        CASE WHEN value % 4 = 0 THEN value ELSE 1 END AS s, \
        CASE WHEN value % 11 = 0 THEN NULL ELSE value * 104729 % 100003 END AS v, \
        concat('name of row ', value % 5000) AS name FROM range(20000)";

    /// Session whose queries may hold so many bytes.
    async fn session(bytes: usize, partitions: usize) -> SessionContext {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(bytes)))
            .build_arc();
        let mut config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_batch_size(64);
        config.options_mut().execution.sort_spill_reservation_bytes = 1 << 10;
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(runtime.unwrap())
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        session.sql(TABLE).await.unwrap();
        session
    }

    /// Returns the rows of a query, sorted, and whether its aggregates had files.
    async fn rows(session: &SessionContext, query: &str) -> Result<(Vec<String>, bool)> {
        let plan = session.sql(query).await?.create_physical_plan().await?;
        let aggregates = |node| Ok(Transformed::yes(grace_aggregate(node)));
        let plan = plan.transform_up(aggregates)?.data;
        let rows = collect(Arc::clone(&plan), session.task_ctx()).await?;
        let count: usize = rows.iter().map(RecordBatch::num_rows).sum();
        let rows = pretty_format_batches(&rows)?.to_string();
        let mut rows: Vec<_> = rows.lines().map(str::to_owned).collect();
        rows.sort();
        let mut spilled = false;
        plan.apply(|node| {
            if node.is::<AggregateExec>() {
                let metrics = node.metrics().unwrap_or_default();
                spilled |= metrics.spill_count().unwrap_or(0) > 0;
                assert!(
                    metrics.output_rows().unwrap_or(0) >= count.min(1),
                    "{query}"
                );
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok((rows, spilled))
    }

    /// Bytes in which all aggregates fit, and in which none does.
    const MUCH: usize = 256 << 20;
    const LITTLE: usize = 4 << 20;
    /// Bytes in which the values of no large group fit.
    const TINY: usize = 96 << 10;

    #[tokio::test]
    async fn rows_are_those_of_an_aggregate_that_fits() {
        for partitions in [1, 3] {
            let (much, little) = (
                session(MUCH, partitions).await,
                session(LITTLE * partitions, partitions).await,
            );
            let calls = [
                "median(v), count(*), sum(v)",
                "percentile_cont(0.3) WITHIN GROUP (ORDER BY v)",
                "array_agg(name ORDER BY id), array_agg(v ORDER BY id) FILTER (WHERE id % 3 > 0)",
                "string_agg(name, ',' ORDER BY v, id), min(id)",
                "array_agg(DISTINCT name ORDER BY name), median(v)",
            ];
            // The sorts of several partitions would share the memory with the aggregates above them.
            let calls = calls
                .into_iter()
                .filter(|calls| partitions == 1 || !calls.contains("agg"));
            for calls in calls {
                for keys in ["g", "h", "g % 100, name", "s"] {
                    let query = format!("SELECT {keys}, {calls} FROM t GROUP BY {keys}");
                    let (due, in_memory) = rows(&much, &query).await.unwrap();
                    assert!(!in_memory, "{query}");
                    match rows(&little, &query).await {
                        Ok((rows, in_files)) => {
                            assert!(rows == due, "{query}, {partitions} partitions");
                            // Numbers of few groups fit.
                            assert!(in_files || !calls.contains("agg"), "{query}");
                        }
                        Err(failure) => {
                            let failure = failure.to_string();
                            let is_one = keys == "s" && failure.contains("all values of a group");
                            assert!(is_one, "{query}: {failure}");
                        }
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn the_median_of_a_group_that_exceeds_the_memory_is_found_in_files() {
        let (much, little) = (session(MUCH, 1).await, session(TINY, 1).await);
        let calls = [
            "median(v)",
            "median(v) FILTER (WHERE id % 3 > 0), count(*), median(id), sum(v)",
            "median(CAST(v AS DOUBLE) / 7), median(CAST(v AS DECIMAL(20, 3))), max(name)",
            "median(v) FILTER (WHERE id < 0), median(id)",
        ];
        for call in calls {
            for groups in ["", "GROUP BY id % 2", "WHERE id > 0 GROUP BY s"] {
                let query = format!("SELECT {call} FROM t {groups}");
                let (due, _) = rows(&much, &query).await.unwrap();
                let (rows, in_files) = rows(&little, &query).await.unwrap();
                assert!(rows == due && in_files, "{query}: {rows:?}, not {due:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_group_that_exceeds_the_memory_is_an_error_that_names_the_call() {
        let little = session(TINY, 1).await;
        for (query, named) in [
            (
                "SELECT id % 2, array_agg(name) FROM t GROUP BY 1",
                "array_agg(t.name)",
            ),
            (
                "SELECT percentile_cont(0.2) WITHIN GROUP (ORDER BY v), min(id) FROM t",
                "percentile_cont",
            ),
        ] {
            let failure = rows(&little, query).await.unwrap_err();
            assert!(is_exhausted(&failure), "{failure}");
            let said = failure.to_string();
            let is_named =
                said.contains(named) && !said.contains("min(") && said.contains("do not divide");
            assert!(is_named, "{query}: {said}");
        }
    }

    #[tokio::test]
    async fn values_are_kept_by_one_stage() {
        let session = session(MUCH, 3).await;
        for (calls, partial) in [
            ("median(v), sum(v)", false),
            ("array_agg(v)", false),
            ("sum(v)", true),
            ("array_agg(DISTINCT v ORDER BY v), sum(v)", true),
        ] {
            for groups in ["", "GROUP BY g"] {
                let query = format!(
                    "SELECT {calls} FROM (SELECT * FROM t UNION ALL SELECT * FROM t) {groups}"
                );
                let plan = session.sql(&query).await.unwrap();
                let plan = plan.create_physical_plan().await.unwrap();
                let mut partials = 0;
                plan.apply(|node| {
                    let aggregate = node.downcast_ref::<AggregateExec>();
                    let mode = aggregate.map(|aggregate| *aggregate.mode());
                    partials += usize::from(mode == Some(AggregateMode::Partial));
                    Ok(TreeNodeRecursion::Continue)
                })
                .unwrap();
                assert_eq!(partials > 0, partial, "{query}");
            }
        }
    }
}
