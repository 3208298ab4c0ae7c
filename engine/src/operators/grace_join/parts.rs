//! The parts of a grace hash join: pairs of files with the rows of both sides that have the same hashes.
//!
//! ```text
//! pair fits in memory                   DataFusion's hash join
//! does not fit, and may be divided      partitioned again, by another hash
//! does not fit, mostly one key          block by block
//! ```
//!
//! *Block by block*: blocks of one side that fit into memory are hashed one after the other, and each meets all of the
//! other side. That is exact for a side whose rows are emitted, since the fate of each is decided in its own block: the
//! left side in inner, left, left semi, anti and mark joins; the right side in right ones. A full join is a left join,
//! and then the right rows without a match.
//!
//! Not here: the decision to use files.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, new_null_array};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::common::JoinType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, RecordOutput, SpillMetrics,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{ExecutionPlan, SpillManager};
use futures::StreamExt;
use tokio::sync::mpsc::Sender;

use super::super::spilled::{LEVELS, Rows, divide, is_exhausted};
use super::{Plan, is_of_the_right};
use crate::runtime::bytes_of;

/// Memory that a row of a block takes in a hash table, in bytes.
const HASHED_ROW: usize = 64;

/// One partition of a join, computed by parts.
pub(super) struct GraceHash {
    /// The join, without inputs.
    join: HashJoinExec,
    /// Context with the join's own memory.
    context: Arc<TaskContext>,
    left: SpillManager,
    right: SpillManager,
    output: BaselineMetrics,
    /// Number of rows that may still be emitted.
    remaining: usize,
}

/// Side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Rows of both sides whose matches are among them.
struct Part {
    left: Arc<Rows>,
    right: Arc<Rows>,
    /// Number of times that the rows were partitioned.
    level: u64,
    /// True if partitioning left more than three quarters of the left side here: most of its rows have one key.
    is_skewed: bool,
}

/// Result of a join of one part.
enum Outcome {
    Done,
    /// The memory did not suffice, and no rows were emitted.
    Exhausted(DataFusionError),
}

impl GraceHash {
    pub(super) fn new(
        join: HashJoinExec,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
    ) -> Self {
        let spilled = SpillMetrics::new(metrics, partition);
        let manager =
            |plan: &Plan| SpillManager::new(context.runtime_env(), spilled.clone(), plan.schema());
        Self {
            left: manager(join.left()),
            right: manager(join.right()),
            output: BaselineMetrics::new(metrics, partition),
            remaining: join.fetch().unwrap_or(usize::MAX),
            join,
            context,
        }
    }

    /// Joins the rows of both sides.
    pub(super) fn rows(
        self,
        left: SendableRecordBatchStream,
        right: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        let mut rows = RecordBatchReceiverStreamBuilder::new(self.join.schema(), 1);
        let to = rows.tx();
        rows.spawn(self.run(left, right, to));
        rows.build()
    }

    async fn run(
        mut self,
        left: SendableRecordBatchStream,
        right: SendableRecordBatchStream,
        to: Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let mut due = self.partition(left, right, 0, usize::MAX).await?;
        while let Some(part) = due.pop() {
            if self.remaining == 0 {
                break;
            }
            if !self.emits(&part) {
                continue;
            }
            let join = self.of_inputs(part.left.plan()?, part.right.plan()?)?;
            let Outcome::Exhausted(_) = self.emit(Arc::new(join), false, &to).await? else {
                continue;
            };
            if part.is_skewed || part.level == LEVELS {
                self.by_blocks(&part, &to).await?;
                continue;
            }
            let (left, right) = (part.left.read()?, part.right.read()?);
            let parts = self.partition(left, right, part.level, part.left.rows);
            due.extend(parts.await?);
        }
        Ok(())
    }

    /// Checks whether the join may emit rows of a part.
    fn emits(&self, part: &Part) -> bool {
        let (left, right) = (part.left.rows > 0, part.right.rows > 0);
        match self.join.join_type() {
            JoinType::Inner => left && right,
            _ => left || right,
        }
    }

    fn of_inputs(&self, left: Plan, right: Plan) -> Result<HashJoinExec> {
        let join = self.join.builder().with_new_children(vec![left, right])?;
        join.reset_state().build()
    }

    /// Partitions both sides, of which the left has `before` rows.
    async fn partition(
        &self,
        left: SendableRecordBatchStream,
        right: SendableRecordBatchStream,
        level: u64,
        before: usize,
    ) -> Result<Vec<Part>> {
        let (left_keys, right_keys): (Vec<_>, Vec<_>) = self.join.on().iter().cloned().unzip();
        let left = divide(left, &left_keys, &self.left, level, &self.context).await?;
        let right = divide(right, &right_keys, &self.right, level, &self.context).await?;
        let parts = left.into_iter().zip(right).map(|(left, right)| Part {
            is_skewed: left.rows > before / 4 * 3,
            left: Arc::new(left),
            right: Arc::new(right),
            level: level + 1,
        });
        Ok(parts.collect())
    }

    /// Joins a part block by block.
    async fn by_blocks(&mut self, part: &Part, to: &Sender<Result<RecordBatch>>) -> Result<()> {
        match *self.join.join_type() {
            JoinType::Full => {
                self.blocks(part, Side::Left, JoinType::Left, to).await?;
                self.blocks(part, Side::Right, JoinType::RightAnti, to)
                    .await
            }
            JoinType::Inner => self.blocks(part, Side::Left, JoinType::Inner, to).await,
            kind if is_of_the_right(kind) => self.blocks(part, Side::Right, kind, to).await,
            kind => self.blocks(part, Side::Left, kind, to).await,
        }
    }

    /// Joins each block of one side with all of the other.
    async fn blocks(
        &mut self,
        part: &Part,
        side: Side,
        kind: JoinType,
        to: &Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let mut rows = match side {
            Side::Left => part.left.read()?,
            Side::Right => part.right.read()?,
        };
        let pool = self.context.memory_pool();
        let reservation = MemoryConsumer::new("GraceJoinBlock").register(pool);
        let mut block = vec![];
        loop {
            let next = rows.next().await.transpose()?;
            if let Some(batch) = &next {
                let bytes = 2 * bytes_of(batch);
                let hashed = HASHED_ROW * batch.num_rows();
                let fits = reservation.try_grow(bytes + hashed).is_ok();
                if fits || block.is_empty() {
                    block.extend(next);
                    continue;
                }
            }
            reservation.free();
            // A block that does not fit after all is halved.
            let mut due = vec![std::mem::take(&mut block)];
            while let Some(mut block) = due.pop() {
                let join = self.of_block(part, side, kind, &block)?;
                match self.emit(join, self.pads(kind), to).await? {
                    Outcome::Done => {}
                    Outcome::Exhausted(failure) if block.len() < 2 => return Err(failure),
                    Outcome::Exhausted(_) => {
                        let half = block.split_off(block.len() / 2);
                        due.extend([half, block]);
                    }
                }
            }
            match next {
                Some(batch) if self.remaining > 0 => block.push(batch),
                _ => return Ok(()),
            }
        }
    }

    /// Checks whether rows of a join of this kind are the unmatched right rows of a full join, without its left columns.
    fn pads(&self, kind: JoinType) -> bool {
        kind == JoinType::RightAnti && *self.join.join_type() == JoinType::Full
    }

    /// Returns the join of a block of one side, which is hashed, with all of the other.
    fn of_block(
        &self,
        part: &Part,
        side: Side,
        kind: JoinType,
        block: &[RecordBatch],
    ) -> Result<Plan> {
        let block = |schema: &SchemaRef| -> Result<Plan> {
            let rows = [block.to_vec()];
            let rows = MemorySourceConfig::try_new_exec(&rows, Arc::clone(schema), None)?;
            Ok(rows)
        };
        let (left, right) = match side {
            Side::Left => (block(self.left.schema())?, part.right.plan()?),
            Side::Right => (part.left.plan()?, block(self.right.schema())?),
        };
        let join = self.join.builder().with_type(kind);
        let join = match self.pads(kind) {
            true => join.with_projection(None),
            false => join,
        };
        let join = join.with_new_children(vec![left, right])?;
        let join = join.reset_state().build()?;
        match side {
            Side::Left => Ok(Arc::new(join)),
            Side::Right => join.swap_inputs(PartitionMode::Partitioned),
        }
    }

    /// Emits the rows of a join of parts; `pads` if they are right rows without a match, of a full join.
    async fn emit(
        &mut self,
        join: Plan,
        pads: bool,
        to: &Sender<Result<RecordBatch>>,
    ) -> Result<Outcome> {
        let mut rows = join.execute(0, Arc::clone(&self.context))?;
        let mut is_first = true;
        while self.remaining > 0 {
            let batch = match rows.next().await {
                Some(Err(failure)) if is_first && is_exhausted(&failure) => {
                    return Ok(Outcome::Exhausted(failure));
                }
                Some(batch) => batch?,
                None => break,
            };
            is_first = false;
            let batch = batch.slice(0, batch.num_rows().min(self.remaining));
            self.remaining -= batch.num_rows();
            let columns = match pads {
                true => self.padded(&batch),
                false => batch.columns().to_vec(),
            };
            let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let batch = RecordBatch::try_new_with_options(self.join.schema(), columns, &rows)?;
            if to
                .send(Ok(batch.record_output(&self.output)))
                .await
                .is_err()
            {
                // Nobody reads on.
                self.remaining = 0;
            }
        }
        Ok(Outcome::Done)
    }

    /// Returns the columns of a full join for right rows without a match.
    fn padded(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        let schema = self.join.schema();
        let left = self.left.schema().fields().len();
        let columns = match &self.join.projection {
            Some(projection) => projection.to_vec(),
            None => (0..schema.fields().len()).collect(),
        };
        let columns = columns.into_iter().zip(schema.fields());
        let column = |(column, field): (usize, &FieldRef)| match column.checked_sub(left) {
            Some(right) => Arc::clone(rows.column(right)),
            None => new_null_array(field.data_type(), rows.num_rows()),
        };
        columns.map(column).collect()
    }
}
