//! Spill files that are partitioned by a hash of keys, and the memory reservation of operators that restart with them when
//! their task runs out of memory.
//!
//! Not here: the operators, [joins](super::grace_join) and [aggregates](super::grace_aggregate).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryReservation,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan, SpillManager};
use futures::{StreamExt, stream};

use crate::runtime::{bytes_of, context_with};

type Plan = Arc<dyn ExecutionPlan>;

/// Maximum number of times that rows are partitioned.
pub(super) const LEVELS: u64 = 5;
/// Number of files that rows are partitioned into.
const FILES: usize = 16;
/// Seed of the first level's hash, which no exchange and no hash table uses.
const SEED: u64 = 0x6772_6163;
/// Maximum memory of the rows that are buffered before they are written, in bytes.
const BUFFERS: usize = 4 << 20;
/// Share of the operator's memory that is buffered at most.
const BUFFERS_SHARE: usize = 16;
/// Maximum number of bytes that an operator reserves before it knows whether it needs them.
const RESERVE: usize = 2 << 20;
/// Share of a task's memory that an operator reserves so at most.
const RESERVE_SHARE: usize = 16;
/// Memory of a task without a limit, in bytes.
const UNLIMITED: usize = 1 << 30;

/// Checks whether an operator failed for lack of memory.
pub(super) fn is_exhausted(failure: &DataFusionError) -> bool {
    matches!(failure.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Reserves a little memory for an operator while there is some: the operators around it may use up all of it.
pub(super) fn reserve(name: &str, context: &TaskContext) -> MemoryReservation {
    let reservation = MemoryConsumer::new(name).register(context.memory_pool());
    reservation
        .try_grow(RESERVE.min(limit(context) / RESERVE_SHARE))
        .ok();
    reservation
}

/// Adds to what is reserved up to half of the task's memory, as far as there is so much.
pub(super) fn granted(context: &TaskContext, reserve: MemoryReservation) -> MemoryReservation {
    let mut share = limit(context) / 2;
    while share > reserve.size() && reserve.try_resize(share).is_err() {
        share /= 2;
    }
    reserve
}

/// Returns the memory of a task, in bytes.
pub(super) fn limit(context: &TaskContext) -> usize {
    match context.memory_pool().memory_limit() {
        MemoryLimit::Finite(limit) => limit,
        _ => UNLIMITED,
    }
}

/// Returns the context of operators that have this memory to themselves.
pub(super) fn with_memory(context: &TaskContext, bytes: usize) -> Result<Arc<TaskContext>> {
    let runtime = RuntimeEnvBuilder::from_runtime_env(&context.runtime_env());
    let runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(bytes)));
    let mut config = context.session_config().clone();
    let merged = &mut config.options_mut().execution.sort_spill_reservation_bytes;
    *merged = (*merged).min(bytes / 4);
    Ok(context_with(context, config, runtime.build_arc()?))
}

/// Partitions rows by a hash of their keys into files; `level` is the number of times that they were partitioned before.
///
/// # Errors
/// When the rows cannot be read, or not written.
pub(super) async fn divide(
    mut rows: SendableRecordBatchStream,
    keys: &[PhysicalExprRef],
    manager: &SpillManager,
    level: u64,
    context: &TaskContext,
) -> Result<Vec<Rows>> {
    let hasher = RandomState::with_seed(SEED + level);
    let (mut files, mut hashes) = (vec![], vec![]);
    // Hash of a file's first row; true while all rows have it.
    let mut of_files = [(None, true); FILES];
    while let Some(batch) = rows.next().await.transpose()? {
        let count = batch.num_rows();
        if count == 0 {
            continue;
        }
        if files.is_empty() {
            let rows = buffered(&batch, context);
            let file = || Writing::new(manager, rows);
            files = (0..FILES).map(|_| file()).collect::<Result<_>>()?;
        }
        let keys = keys
            .iter()
            .map(|key| key.evaluate(&batch)?.into_array(count));
        let keys: Vec<ArrayRef> = keys.collect::<Result<_>>()?;
        hashes.clear();
        hashes.resize(count, 0);
        create_hashes(&keys, &hasher, &mut hashes)?;
        let mut rows_of = vec![vec![]; FILES];
        for (row, hash) in (0_u32..).zip(&hashes) {
            let file = (hash >> 32) as usize % FILES;
            rows_of[file].push(row);
            let (first, is_one) = &mut of_files[file];
            *is_one &= first.get_or_insert(*hash) == hash;
        }
        for (file, rows) in files.iter_mut().zip(rows_of) {
            if !rows.is_empty() {
                file.push(&batch, UInt32Array::from(rows))?;
            }
        }
    }
    if files.is_empty() {
        let none = || Rows::none(manager);
        return Ok((0..FILES).map(|_| none()).collect());
    }
    let files = files.into_iter().zip(of_files);
    let files = files.map(|(file, (_, is_one))| {
        let rows = file.finish()?;
        Ok(Rows { is_one, ..rows })
    });
    files.collect()
}

/// Returns the number of rows like these to buffer for each file.
fn buffered(batch: &RecordBatch, context: &TaskContext) -> usize {
    let row = bytes_of(batch).div_ceil(batch.num_rows());
    // Rows are buffered in one batch and written from another.
    let bytes = BUFFERS.min(limit(context) / BUFFERS_SHARE);
    (bytes / (2 * FILES) / row.max(1)).clamp(1, context.session_config().batch_size())
}

/// Appends a batch to a file, or ends the file. The file's type has no public name.
type File = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// File that is written.
pub(super) struct Writing {
    manager: SpillManager,
    file: File,
    buffer: BatchCoalescer,
    rows: usize,
}

impl Writing {
    /// Creates a file that is written in batches of `rows` rows.
    pub(super) fn new(manager: &SpillManager, rows: usize) -> Result<Self> {
        let mut file =
            manager.create_in_progress_file("rows of an operator that exceeds the memory")?;
        let file: File = Box::new(move |batch| match batch {
            Some(batch) => file.append_batch(batch).map(|_| None),
            None => file.finish(),
        });
        Ok(Self {
            file,
            buffer: BatchCoalescer::new(Arc::clone(manager.schema()), rows),
            manager: manager.clone(),
            rows: 0,
        })
    }

    /// Adds all rows of a batch.
    pub(super) fn append(&mut self, batch: RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        self.buffer.push_batch(batch)?;
        self.write()
    }

    /// Adds some rows of a batch.
    fn push(&mut self, batch: &RecordBatch, rows: UInt32Array) -> Result<()> {
        self.rows += rows.len();
        self.buffer.push_batch_with_indices(batch.clone(), &rows)?;
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        while let Some(batch) = self.buffer.next_completed_batch() {
            (self.file)(Some(&batch))?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Rows> {
        self.buffer.finish_buffered_batch()?;
        self.write()?;
        Ok(Rows {
            file: (self.file)(None)?,
            manager: self.manager,
            rows: self.rows,
            is_one: false,
        })
    }
}

/// Rows in a file, which is removed with them.
#[derive(Clone)]
pub(super) struct Rows {
    manager: SpillManager,
    /// `None` if there are no rows.
    file: Option<Arc<dyn SpillFile>>,
    pub(super) rows: usize,
    /// True if all keys have the same hash, so that another round of partitioning would not separate the rows.
    pub(super) is_one: bool,
}

impl Rows {
    fn none(manager: &SpillManager) -> Self {
        Self {
            manager: manager.clone(),
            file: None,
            rows: 0,
            is_one: true,
        }
    }

    pub(super) fn read(&self) -> Result<SendableRecordBatchStream> {
        match &self.file {
            Some(file) => self.manager.read_spill_as_stream(Arc::clone(file), None),
            None => {
                let schema = Arc::clone(self.manager.schema());
                Ok(Box::pin(EmptyRecordBatchStream::new(schema)))
            }
        }
    }

    /// Returns a plan that reads the rows.
    pub(super) fn plan(self: &Arc<Self>) -> Result<Plan> {
        let schema = Arc::clone(self.manager.schema());
        let rows = vec![Arc::clone(self) as _];
        let plan = StreamingTableExec::try_new(schema, rows, None, None, false, None)?;
        Ok(Arc::new(plan))
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        self.manager.schema()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.read().unwrap_or_else(|failure| {
            let failure = stream::once(async { Err(failure) });
            let schema = Arc::clone(self.manager.schema());
            Box::pin(RecordBatchStreamAdapter::new(schema, failure))
        })
    }
}

/// Rows that are read once.
pub(super) struct Once {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl Once {
    /// Creates the operator with the columns of a plan, which may differ in metadata from those of the stream.
    pub(super) fn new(schema: SchemaRef, rows: SendableRecordBatchStream) -> Self {
        Self {
            schema,
            rows: Mutex::new(Some(rows)),
        }
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

impl PartitionStream for Once {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || Box::pin(EmptyRecordBatchStream::new(Arc::clone(&self.schema))) as _;
        rows.take().unwrap_or_else(none)
    }
}
