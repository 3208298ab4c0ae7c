//! Window operators that emit the rows of each partition as soon as it ends.
//!
//! DataFusion's operator keeps all rows until its input ends, computes over them and emits them as one batch, from
//! which every operator above makes others as large. Its input is sorted by the windows' partition keys, so a
//! partition ends where the next one begins: rows are held until then and computed in batches of about the session's
//! size, and a task needs the memory of its largest partition instead of all of them.
//!
//! The rows that are held, and a copy of one column at a time, count as the task's memory, which DataFusion's operator does
//! not reserve. Without `PARTITION BY` the one partition ends with the input. A partition that exceeds the memory is written
//! to a [file](spilled) where all windows are aggregates over whole partitions, and fails the task elsewhere.
//!
//! Not here: the computation of window functions, which are DataFusion's expressions; windows that only look back, which
//! DataFusion streams itself.

mod spilled;

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::{concat, partition};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput, SpillMetrics,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, SpillManager};
use futures::{StreamExt, stream};

use self::spilled::Partition;
use crate::runtime::{advised, bytes_of, bytes_of_column};
use crate::{delegate_to, display_as};

/// Makes a window operator emit partitions as they end, and count its memory. Other operators stay unchanged.
pub(crate) fn emit_partitions(node: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if !node.is::<WindowAggExec>() {
        return node;
    }
    Arc::new(PartitionedWindows {
        plan: node,
        metrics: ExecutionPlanMetricsSet::new(),
    })
}

/// Replacement of a [`WindowAggExec`].
#[derive(Debug)]
struct PartitionedWindows {
    plan: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

display_as!(PartitionedWindows, plan);

impl ExecutionPlan for PartitionedWindows {
    delegate_to!(plan, |_, plan| Ok(emit_partitions(plan)));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(windows) = self.plan.downcast_ref::<WindowAggExec>() else {
            return self.plan.execute(partition, context);
        };
        let keys = windows.partition_by_sort_keys()?;
        // An expression may be listed twice.
        let first = windows.window_expr().first();
        let partitioned_by =
            first.map(|window| window.partition_by().iter().collect::<HashSet<_>>());
        if partitioned_by.is_some_and(|by| by.len() > keys.len()) {
            return internal_err!("windows whose rows are not in the order of their PARTITION BY");
        }
        let batch_size = context.session_config().batch_size();
        let memory = MemoryConsumer::new(format!("Windows[{partition}]"));
        let memory = memory.register(context.memory_pool());
        let spills = SpillMetrics::new(&self.metrics, partition);
        let manager = SpillManager::new(context.runtime_env(), spills, windows.input().schema());
        let input = windows.input().execute(partition, context)?;
        let rows = Rows {
            batch_size,
            input_schema: input.schema(),
            input: Some(input),
            keys: keys.into_iter().map(|key| key.expr).collect(),
            windows: windows.window_expr().to_vec(),
            schema: self.plan.schema(),
            ended: Batches::default(),
            open: Batches::default(),
            memory,
            can_spill: spilled::can_spill(windows.window_expr()),
            manager,
            spilled: None,
            emitted: None,
            pending: None,
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        let batches = stream::try_unfold(rows, |mut rows| async {
            let next = rows.next().await?;
            Ok(next.map(|batch| (batch, rows)))
        });
        let schema = self.plan.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Rows of one task partition, grouped by the windows' partitions.
struct Rows {
    /// Input stream, `None` once it has ended.
    input: Option<SendableRecordBatchStream>,
    /// Partition keys of the windows.
    keys: Vec<Arc<dyn PhysicalExpr>>,
    windows: Vec<Arc<dyn WindowExpr>>,
    input_schema: SchemaRef,
    schema: SchemaRef,
    batch_size: usize,
    /// Ended partitions, not computed yet.
    ended: Batches,
    /// Partition that is still open: the next row may belong to it.
    open: Batches,
    /// Memory of the rows of both, or of the values of the partition in a file.
    memory: MemoryReservation,
    /// True if a partition that exceeds the memory can be spilled to a file.
    can_spill: bool,
    manager: SpillManager,
    /// Open partition that is written to a file.
    spilled: Option<Partition>,
    /// Rows of a partition in a file that has ended, with the windows' columns.
    emitted: Option<SendableRecordBatchStream>,
    /// Rows that were read, but not held.
    pending: Option<RecordBatch>,
    metrics: BaselineMetrics,
}

#[derive(Default)]
struct Batches {
    batches: Vec<RecordBatch>,
    rows: usize,
    /// Size in memory.
    bytes: usize,
}

impl Batches {
    fn push(&mut self, batch: RecordBatch, bytes: usize) {
        if batch.num_rows() > 0 {
            self.rows += batch.num_rows();
            self.bytes += bytes;
            self.batches.push(batch);
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.batches.append(&mut other.batches);
        self.rows += std::mem::take(&mut other.rows);
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Rows {
    /// Returns the next batch of rows with the windows' columns, `None` after the last one.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(rows) = &mut self.emitted {
                match rows.next().await.transpose()? {
                    Some(batch) => return Ok(Some(batch.record_output(&self.metrics))),
                    None => self.emitted = None,
                }
            }
            let read = match (self.pending.take(), &mut self.input) {
                (Some(batch), _) => Some(batch),
                (None, Some(input)) => input.next().await.transpose()?,
                (None, None) => return Ok(None),
            };
            let computing = self.metrics.elapsed_compute().clone();
            let _timer = computing.timer();
            let mut due = false;
            match read {
                Some(batch) if self.spilled.is_some() => self.spill(&batch)?,
                Some(batch) => {
                    let bytes = bytes_of(&batch);
                    let held = self.open.bytes + self.ended.bytes + bytes;
                    // A partition that would not fit a second time when it ends is written to a file.
                    let reserved = self.reserve(if self.can_spill { 2 * held } else { held });
                    match reserved {
                        Ok(()) => self.hold(batch, bytes)?,
                        Err(_) if self.can_spill && self.ended.rows > 0 => {
                            self.pending = Some(batch);
                            due = true;
                        }
                        Err(_) if self.can_spill && self.open.rows > 0 => {
                            self.pending = Some(batch);
                            let open = std::mem::take(&mut self.open);
                            self.begin_file(&open.batches)?;
                        }
                        // Nothing is held: these rows are the first of a file.
                        Err(_) if self.can_spill && batch.num_rows() > 0 => {
                            self.memory.free();
                            let batch = self.until_next(batch)?;
                            self.begin_file(&[batch])?;
                        }
                        Err(failure) => return Err(failure),
                    }
                }
                None => {
                    self.input = None;
                    self.ended.append(&mut self.open);
                    self.end_file()?;
                    due = true;
                }
            }
            // Partitions end anywhere: in most input batches a little before the end of the batch.
            due |= self.ended.rows > self.batch_size / 2;
            if due && self.ended.rows > 0 {
                let batch = self.compute()?;
                return Ok(Some(batch.record_output(&self.metrics)));
            }
        }
    }

    /// Writes the rows of the open partition to a file.
    fn begin_file(&mut self, rows: &[RecordBatch]) -> Result<()> {
        tracing::info!("a partition of windows that exceeds the memory is written to a file");
        let partition = Partition::begin(&self.windows, rows, &self.manager, self.batch_size)?;
        self.reserve(partition.bytes())?;
        self.spilled = Some(partition);
        Ok(())
    }

    /// Adds rows to the partition in a file, up to the first of another partition.
    fn spill(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let Some(mut spilled) = self.spilled.take() else {
            return Ok(());
        };
        let belong = match !self.keys.is_empty() && self.begins(&spilled.last, batch)? {
            true => 0,
            false => self.first_partition(batch)?,
        };
        spilled.push(&self.windows, &batch.slice(0, belong))?;
        self.reserve(spilled.bytes())?;
        self.spilled = Some(spilled);
        if belong < rows {
            self.pending = Some(batch.slice(belong, rows - belong));
            self.end_file()?;
        }
        Ok(())
    }

    /// Returns the number of a batch's first rows that are of one partition.
    fn first_partition(&self, batch: &RecordBatch) -> Result<usize> {
        let rows = batch.num_rows();
        if self.keys.is_empty() {
            return Ok(rows);
        }
        let ranges = partition(&self.keys(batch)?)?.ranges();
        Ok(ranges.first().map_or(rows, |first| first.end))
    }

    /// Returns the rows of a batch's first partition; the others are read again.
    fn until_next(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let (rows, first) = (batch.num_rows(), self.first_partition(&batch)?);
        if first < rows {
            self.pending = Some(batch.slice(first, rows - first));
        }
        Ok(batch.slice(0, first))
    }

    /// Ends the partition in a file, if there is one, whose rows are next.
    fn end_file(&mut self) -> Result<()> {
        if let Some(spilled) = self.spilled.take() {
            self.emitted = Some(spilled.finish(Arc::clone(&self.schema))?);
            self.memory.free();
        }
        Ok(())
    }

    /// Checks whether the first row of a batch begins another partition than that of a row before.
    fn begins(&self, before: &RecordBatch, batch: &RecordBatch) -> Result<bool> {
        let (last, first) = (self.keys(before)?, self.keys(&batch.slice(0, 1))?);
        let both = last.iter().zip(&first);
        let both = both.map(|(last, first)| concat(&[last.as_ref(), first.as_ref()]));
        Ok(partition(&both.collect::<Result<Vec<_>, _>>()?)?.len() > 1)
    }

    /// Holds rows until their partition has ended.
    fn hold(&mut self, batch: RecordBatch, bytes: usize) -> Result<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        if self.keys.is_empty() {
            self.open.push(batch, bytes);
            return Ok(());
        }
        let begins = match self.open.batches.last() {
            Some(before) => self.begins(&before.slice(before.num_rows() - 1, 1), &batch)?,
            None => false,
        };
        if begins {
            self.ended.append(&mut self.open);
        }
        let last = partition(&self.keys(&batch)?)?.ranges().pop();
        let last = last.map_or(0, |last| last.start);
        let before = bytes / rows * last;
        if last > 0 {
            self.open.push(batch.slice(0, last), before);
            self.ended.append(&mut self.open);
        }
        self.open
            .push(batch.slice(last, rows - last), bytes - before);
        Ok(())
    }

    /// Evaluates the windows over each ended partition, and returns all rows as one batch. Slices of it would each
    /// be counted with the memory of the whole.
    fn compute(&mut self) -> Result<RecordBatch> {
        let ended = std::mem::take(&mut self.ended);
        let batch = self.concatenated(ended)?;
        let partitions = match self.keys.is_empty() {
            true => std::iter::once(0..batch.num_rows()).collect(),
            false => partition(&self.keys(&batch)?)?.ranges(),
        };
        let mut computed = vec![Vec::with_capacity(partitions.len()); self.windows.len()];
        for partition in partitions {
            let rows = batch.slice(partition.start, partition.len());
            for (window, computed) in self.windows.iter().zip(&mut computed) {
                computed.push(window.evaluate(&rows)?);
            }
        }
        let mut columns = batch.columns().to_vec();
        for partitions in computed {
            let partitions: Vec<_> = partitions.iter().map(AsRef::as_ref).collect();
            columns.push(concat(&partitions)?);
        }
        self.memory.try_resize(self.open.bytes)?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// Returns rows as one batch. Of their columns, one at a time is held twice.
    fn concatenated(&self, rows: Batches) -> Result<RecordBatch> {
        let rows_bytes = rows.bytes;
        let mut columns = vec![vec![]; self.input_schema.fields().len()];
        for batch in rows.batches {
            for (pieces, piece) in columns.iter_mut().zip(batch.columns()) {
                pieces.push(Arc::clone(piece));
            }
        }
        let bytes = |pieces: &Vec<ArrayRef>| pieces.iter().map(bytes_of_column).sum();
        let largest: usize = columns.iter().map(bytes).max().unwrap_or(0);
        let held = rows_bytes + self.open.bytes;
        self.reserve(held + largest)?;
        let one = |pieces: Vec<ArrayRef>| {
            let pieces: Vec<_> = pieces.iter().map(AsRef::as_ref).collect();
            concat(&pieces)
        };
        let columns = columns.into_iter().map(one).collect::<Result<_, _>>()?;
        self.memory.try_resize(held)?;
        let rows = RecordBatchOptions::new().with_row_count(Some(rows.rows));
        let schema = Arc::clone(&self.input_schema);
        Ok(RecordBatch::try_new_with_options(schema, columns, &rows)?)
    }

    /// Reserves memory for so many bytes of rows in all.
    fn reserve(&self, bytes: usize) -> Result<()> {
        let reserved = self.memory.try_resize(bytes);
        reserved.map_err(|failure| {
            let rows = match self.keys.is_empty() {
                true => "a window without PARTITION BY (OVER ()) needs all rows at once",
                false => "a window needs all rows of a partition at once",
            };
            advised(
                failure,
                rows,
                "more partitions of the query do not divide those of a window: more memory for a slot helps (--memory of \
                 the executor, or fewer --vcores), or a PARTITION BY with fewer rows for each value; a frame that only \
                 looks back (ORDER BY … ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) holds few rows, and aggregates \
                 over whole partitions in a SELECT of their own use files",
            )
        })
    }

    fn keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let rows = batch.num_rows();
        let keys = self.keys.iter();
        keys.map(|key| key.evaluate(batch)?.into_array(rows))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
    use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::collect;
    use datafusion::physical_plan::sorts::sort::SortExec;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    const BATCH: usize = 8;

    /// Table of a thousand rows, with partitions by `k` of 500 rows, of 1 to 19 rows, and of 290 rows where it is
    /// NULL.
    const TABLE: &str = "CREATE TABLE t AS SELECT value AS id, \
        CASE WHEN value < 500 THEN 0 WHEN value < 710 THEN CAST(1 + sqrt(2 * (value - 500)) AS BIGINT) END AS k, \
        concat('k', value % 13) AS name, (value * 37) % 101 AS v FROM range(1000)";

    /// Returns a query's plan unchanged, and with its windows replaced.
    async fn plans(query: &str) -> (SessionContext, [Arc<dyn ExecutionPlan>; 2]) {
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(BATCH);
        let session = SessionContext::new_with_config(config);
        session.sql(TABLE).await.unwrap();
        let plan = session.sql(query).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let emit = |node| Ok(Transformed::yes(emit_partitions(node)));
        let emitting = Arc::clone(&plan).transform_up(emit).unwrap().data;
        (session, [plan, emitting])
    }

    #[tokio::test]
    async fn rows_are_those_of_the_operator() {
        let looks_ahead = "ROWS BETWEEN 2 PRECEDING AND UNBOUNDED FOLLOWING";
        for (windows, partitioned) in [
            (format!("sum(v) OVER (PARTITION BY k ORDER BY id {looks_ahead})"), true),
            (format!("max(v) OVER (PARTITION BY name, k ORDER BY v, id {looks_ahead})"), true),
            (
                "count(*) OVER (PARTITION BY name), first_value(v) OVER (PARTITION BY name, k ORDER BY id DESC), \
                 ntile(3) OVER (PARTITION BY k ORDER BY id)"
                    .into(),
                true,
            ),
            (
                format!(
                    "max(v) OVER (PARTITION BY k ORDER BY id {looks_ahead}), \
                     ntile(3) OVER (PARTITION BY k, k ORDER BY k, id)"
                ),
                true,
            ),
            // Partitions as large as an input batch.
            (
                format!("sum(v) OVER (PARTITION BY id / 8 ORDER BY id {looks_ahead})"),
                true,
            ),
            ("sum(v) OVER (PARTITION BY id / 1000)".into(), true),
            (format!("sum(v) OVER (ORDER BY id {looks_ahead})"), true),
            ("count(*) OVER (), max(v) OVER ()".into(), true),
            ("sum(v) OVER (PARTITION BY k ORDER BY id)".into(), false),
        ] {
            let query = format!("SELECT *, {windows} FROM t");
            let (session, [plan, emitting]) = plans(&query).await;
            let replaced = format!("{emitting:?}").contains("PartitionedWindows");
            assert_eq!(replaced, partitioned, "{query}");
            let expected = collect(plan, session.task_ctx()).await.unwrap();
            let batches = collect(emitting, session.task_ctx()).await.unwrap();
            let pieces = batches.len();
            let is_one = query.contains("id / 1000") || !query.contains("PARTITION BY");
            assert!(!partitioned || pieces > 1 || is_one, "{query}");
            let schema = expected[0].schema();
            let expected = concat_batches(&schema, &expected).unwrap();
            assert_eq!(expected.num_rows(), 1000);
            assert_eq!(concat_batches(&schema, &batches).unwrap(), expected, "{query}");
        }
        let (session, [_, emitting]) =
            plans("SELECT count(*) OVER (PARTITION BY k) FROM t WHERE id < 0").await;
        let batches = collect(emitting, session.task_ctx()).await.unwrap();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    }

    #[tokio::test]
    async fn a_partition_is_emitted_when_the_next_one_begins() {
        let (session, [_, plan]) = plans("SELECT count(*) OVER (PARTITION BY id / 5) FROM t").await;
        let mut rows = plan.execute(0, session.task_ctx()).unwrap();
        let first = rows.next().await.unwrap().unwrap();
        assert!(first.num_rows() > 0);
        let mut read = None;
        plan.apply(|node| {
            if node.is::<SortExec>() {
                read = node.metrics().and_then(|metrics| metrics.output_rows());
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        let read = read.unwrap();
        assert!(
            read <= 3 * BATCH,
            "{read} rows are read before the first are emitted"
        );
    }

    /// Returns a session whose queries may hold 16 KiB.
    fn little(session: &SessionContext) -> SessionContext {
        let runtime =
            RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(16 << 10)));
        let mut config = session.copied_config();
        config.options_mut().execution.sort_spill_reservation_bytes = 1 << 10;
        SessionContext::new_with_config_rt(config, runtime.build_arc().unwrap())
    }

    #[tokio::test]
    async fn a_partition_that_exceeds_the_memory_is_written_to_a_file() {
        for (windows, in_files) in [
            ("count(*) OVER (), max(name) OVER (), avg(v) OVER ()", 1),
            (
                "sum(v) OVER (PARTITION BY id / 500), min(k) OVER (PARTITION BY id / 500)",
                2,
            ),
            // Small partitions before, between and after large ones.
            (
                "sum(v) OVER (PARTITION BY k), count(*) OVER (PARTITION BY k)",
                2,
            ),
            ("sum(v) OVER (PARTITION BY (id + 200) / 300, id / 690)", 3),
            ("max(v) OVER (PARTITION BY id / 20)", 0),
        ] {
            let query = format!("SELECT *, {windows} FROM t");
            let (session, [plan, emitting]) = plans(&query).await;
            let little = little(&session);
            let expected = collect(plan, session.task_ctx()).await.unwrap();
            let batches = collect(Arc::clone(&emitting), little.task_ctx()).await;
            let batches = batches.unwrap_or_else(|failure| panic!("{query}: {failure}"));
            let schema = expected[0].schema();
            // Rows of equal keys have no order.
            let [expected, batches] = [expected, batches].map(|batches| {
                let rows = concat_batches(&schema, &batches).unwrap();
                let order = sort_to_indices(rows.column(0), None, None).unwrap();
                take_record_batch(&rows, &order).unwrap()
            });
            assert_eq!(batches, expected, "{query}");
            let mut files = 0;
            emitting
                .apply(|node| {
                    if node.is::<WindowAggExec>() {
                        files += node.metrics().unwrap().spill_count().unwrap();
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
                .unwrap();
            assert_eq!(files, in_files, "{query}");
            assert_eq!(little.runtime_env().memory_pool.reserved(), 0);
        }
    }

    #[tokio::test]
    async fn a_partition_that_exceeds_the_memory_fails_where_its_rows_differ() {
        let (session, _) = plans("SELECT 1").await;
        for (windows, fits) in [
            ("PARTITION BY id / 5", true),
            ("PARTITION BY id / 500", false),
            ("", false),
        ] {
            let query = format!("SELECT *, ntile(3) OVER ({windows}) FROM t");
            let (_, [_, emitting]) = plans(&query).await;
            let little = little(&session);
            match collect(emitting, little.task_ctx()).await {
                Ok(_) => assert!(fits, "{query}"),
                Err(failure) => {
                    let said = failure.to_string();
                    let is_named = said.contains("Windows[0]")
                        && said.contains("PARTITION BY with fewer")
                        && said.contains("OVER ()") == windows.is_empty();
                    assert!(!fits && is_named, "{query}: {failure}");
                }
            }
            assert_eq!(little.runtime_env().memory_pool.reserved(), 0);
        }
    }
}
