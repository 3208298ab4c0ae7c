//! Hash joins whose build side does not fit into the memory of its task: grace hash joins (Kitsuregawa et al. 1983).
//!
//! DataFusion's hash join fails when its build side exceeds the memory. Here the join then starts again: both sides are
//! partitioned by a hash of their keys into temporary files, and each pair of files is joined by itself. A pair that
//! does not fit is partitioned again, by another hash. Where that does not help, because most rows of the build side have
//! one key, it is joined [block by block](parts).
//!
//! A join that fits is DataFusion's, and nothing else happens. The inputs run once more otherwise: rows that the first run
//! has read are read again, and operators below that need all of their input start anew. From then on the join has a part of the task's memory to itself, since a sort or an aggregate
//! above would take all that is left by one pair before the next. Rows keep the order of the right side where the plan
//! relies on it.
//!
//! Not here: `NOT IN` by a null-aware join, which asks for NULLs on the whole right side; joins above a sort with a limit,
//! whose dynamic filter would still have the limit of the first run; joins without equal keys, which DataFusion spills;
//! the number of partitions of a plan.

mod parts;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::UInt64Array;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use futures::{StreamExt, TryStreamExt, stream};

use self::parts::GraceHash;
use super::spilled::{Once, granted, is_exhausted, reserve, with_memory};
use crate::{delegate_to, display_as};

type Plan = Arc<dyn ExecutionPlan>;

/// Makes a hash join spill when its build side does not fit into memory. Other operators stay unchanged.
///
/// # Errors
/// When the inputs of a join cannot be walked.
pub(crate) fn grace_join(node: Plan) -> Result<Plan> {
    let Some(join) = node.downcast_ref::<HashJoinExec>() else {
        return Ok(node);
    };
    // Each partition of the right has all of the left to itself, or its own part.
    let is_alone = *join.partition_mode() == PartitionMode::Partitioned
        || join.right().output_partitioning().partition_count() == 1
        || is_of_the_right(*join.join_type());
    let mut has_limits = false;
    node.apply(|below| {
        let sort = below.downcast_ref::<SortExec>();
        has_limits |= sort.is_some_and(|sort| sort.fetch().is_some());
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(match is_alone && !join.null_aware && !has_limits {
        true => Arc::new(GraceJoin::new(node)),
        false => node,
    })
}

/// Checks whether every output row comes from a row of the right side, or from a pair: a task with all of the left side
/// and a part of the right can decide about those alone.
#[must_use]
pub(crate) fn is_of_the_right(join: JoinType) -> bool {
    matches!(
        join,
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

/// Replacement of a [`HashJoinExec`].
#[derive(Debug)]
struct GraceJoin {
    plan: Plan,
    again: Arc<Again>,
}

/// Second run of a join, after the first has run out of memory.
#[derive(Debug)]
struct Again {
    /// The join as its first partition runs it again.
    plan: OnceLock<Plan>,
    /// Metrics of spilling.
    metrics: ExecutionPlanMetricsSet,
}

impl GraceJoin {
    fn new(plan: Plan) -> Self {
        let again = Again {
            plan: OnceLock::new(),
            metrics: ExecutionPlanMetricsSet::new(),
        };
        Self {
            plan,
            again: Arc::new(again),
        }
    }

    /// Returns the join whose inputs run.
    fn current(&self) -> &Plan {
        self.again.plan.get().unwrap_or(&self.plan)
    }
}

display_as!(GraceJoin, plan);

impl ExecutionPlan for GraceJoin {
    delegate_to!(plan);

    fn children(&self) -> Vec<&Plan> {
        self.current().children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let plan = Arc::clone(&self.plan);
        grace_join(replace_children_if_necessary(plan, children)?)
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
        let reserve = reserve("GraceJoin", &context);
        let mut rows = self.plan.execute(partition, Arc::clone(&context))?;
        let (plan, again) = (Arc::clone(&self.plan), Arc::clone(&self.again));
        let schema = self.schema();
        let output = Arc::clone(&schema);
        let first = async move {
            // The first rows come when the build side is complete.
            match rows.next().await {
                Some(Err(failure)) if is_exhausted(&failure) => {
                    tracing::info!(%failure, "a join whose build side exceeds the memory is partitioned into files");
                    drop(rows);
                    again.run(&plan, partition, context, reserve)
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
        let mut metrics = self.current().metrics()?;
        for metric in self.again.metrics.clone_inner().iter() {
            metrics.push(Arc::clone(metric));
        }
        Some(metrics)
    }
}

impl Again {
    /// Runs one partition of a join with files.
    fn run(
        &self,
        plan: &Plan,
        partition: usize,
        context: Arc<TaskContext>,
        reserve: MemoryReservation,
    ) -> Result<SendableRecordBatchStream> {
        // Each partition has its own: operators below would share what they know of the rows above.
        let plan = reset_plan_states(Arc::clone(plan))?;
        self.plan.get_or_init(|| Arc::clone(&plan));
        let Some(join) = plan.downcast_ref::<HashJoinExec>() else {
            return internal_err!("{} is not a hash join", plan.name());
        };
        let of_left = match join.partition_mode() {
            PartitionMode::CollectLeft => 0,
            _ => partition,
        };
        let left = join.left().execute(of_left, Arc::clone(&context))?;
        let right = join.right().execute(partition, Arc::clone(&context))?;
        let memory = granted(&context, reserve);
        let run = |join, right, bytes| {
            let own = with_memory(&context, bytes)?;
            let hash = GraceHash::new(join, own, &self.metrics, partition);
            Ok::<_, DataFusionError>(hash.rows(left, right))
        };
        let bytes = memory.size();
        let rows = if let Some(order) = plan.output_ordering() {
            let right = numbered(right);
            let all = alone(join, right.schema(), with_number(join), None)?;
            let rows = run(all, right, bytes / 4 * 3)?;
            in_order(
                rows,
                order,
                join.fetch(),
                &with_memory(&context, bytes / 4)?,
            )?
        } else {
            let projection = join.projection.as_deref().map(<[usize]>::to_vec);
            let join = alone(join, right.schema(), projection, join.fetch())?;
            run(join, right, bytes)?
        };
        let schema = rows.schema();
        let rows = rows.inspect(move |_| {
            // The memory is held as long as the rows.
            let _ = &memory;
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Returns the join without inputs and runtime state, for a right side with these columns.
fn alone(
    join: &HashJoinExec,
    right: SchemaRef,
    projection: Option<Vec<usize>>,
    fetch: Option<usize>,
) -> Result<HashJoinExec> {
    let left = Arc::new(EmptyExec::new(join.left().schema()));
    let right = Arc::new(EmptyExec::new(right));
    let join = join.builder().reset_state();
    let join = join
        .with_partition_mode(PartitionMode::Partitioned)
        .with_projection(projection)
        .with_fetch(fetch);
    join.with_new_children(vec![left, right])?.build()
}

/// Appends the row numbers to the right side of a join.
fn numbered(rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let mut fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(NUMBER, DataType::UInt64, false)));
    let schema = Arc::new(Schema::new(fields));
    let with_numbers = Arc::clone(&schema);
    let mut next = 0;
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let first = next;
        next += batch.num_rows() as u64;
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(UInt64Array::from_iter_values(first..next)));
        Ok(RecordBatch::try_new(Arc::clone(&with_numbers), columns)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Name of the column of row numbers.
const NUMBER: &str = "row_number";

/// Returns the columns of a join that keeps the order of its right side, and after them the right side's last column.
fn with_number(join: &HashJoinExec) -> Option<Vec<usize>> {
    let (left, right) = (
        join.left().schema().fields().len(),
        join.right().schema().fields().len(),
    );
    let (number, columns) = match join.join_type() {
        JoinType::RightSemi | JoinType::RightAnti => (right, right),
        JoinType::RightMark => (right, right + 1),
        _ => (left + right, left + right),
    };
    let columns = match &join.projection {
        Some(projection) => projection.to_vec(),
        None => (0..columns).collect(),
    };
    let moved = columns.into_iter();
    let moved = moved.map(|column| column + usize::from(column >= number));
    Some(moved.chain([number]).collect())
}

/// Sorts rows by their last column, which is removed, and those of one right row by the join's order.
fn in_order(
    rows: SendableRecordBatchStream,
    order: &LexOrdering,
    fetch: Option<usize>,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = rows.schema();
    let number = schema.fields().len() - 1;
    let by_number: Arc<dyn PhysicalExpr> = Arc::new(Column::new(NUMBER, number));
    let by_number = [PhysicalSortExpr::new_default(by_number)].into_iter();
    let Some(by_number) = LexOrdering::new(by_number.chain(order.iter().cloned())) else {
        return internal_err!("an order of no columns");
    };
    let once = Once::new(Arc::clone(&schema), rows);
    let once = StreamingTableExec::try_new(schema, vec![Arc::new(once)], None, None, false, None)?;
    // With a limit of its own, the sort could not spill.
    let sort = SortExec::new(by_number, Arc::new(once));
    let sort = GlobalLimitExec::new(Arc::new(sort), 0, fetch);
    let columns: Vec<_> = (0..number).collect();
    let sorted = sort.execute(0, Arc::clone(context))?;
    let schema = Arc::new(sorted.schema().project(&columns)?);
    let rows = sorted.map(move |batch| Ok(batch?.project(&columns)?));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}
