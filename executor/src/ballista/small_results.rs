//! Rows of small results, which come with the report of their task instead of in files.
//!
//! ```text
//!   plan of a query's last stage ─► read up to a limit ─┬ all rows ─► encoded, in the task's report
//!                                                       └ more ─────► the stage's writer: what was read, and the rest
//! ```
//!
//! Not here: the scheduler's store of such rows, and its limit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::ExecutionPlanProperties;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use volley_engine::runtime::bytes_of;
use volley_engine::{delegate_to, display_as};
use volley_proto::wire::PartitionRows;

/// Assumed bytes of a batch and of a column in it, besides its rows.
const BATCH: usize = 256;
const COLUMN: usize = 64;

/// Rows of a task that come with its report.
#[derive(Debug)]
pub(super) struct SmallResult {
    /// Partitions with rows.
    pub(super) partitions: Vec<PartitionRows>,
    /// True if the task reads or writes files of a work folder.
    pub(super) has_files: bool,
}

/// Plan whose rows can be read up to a limit, before it is executed as a part of its stage.
#[derive(Debug)]
pub(super) struct ReadAhead {
    plan: Arc<dyn ExecutionPlan>,
    /// Partitions that have begun, by number, until they are executed.
    begun: Mutex<Vec<Option<Begun>>>,
}

/// Partition of which some rows were read.
struct Begun {
    read: Vec<RecordBatch>,
    /// `None` if all rows were read.
    rest: Option<SendableRecordBatchStream>,
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun")
            .field("batches", &self.read.len())
            .finish_non_exhaustive()
    }
}

impl ReadAhead {
    pub(super) fn new(plan: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            plan,
            begun: Mutex::default(),
        }
    }

    /// Reads and encodes the rows of all partitions, if they take at most `limit` bytes. Otherwise, returns `None`, and
    /// the plan is to be executed.
    pub(super) async fn read(
        &self,
        limit: usize,
        context: &Arc<TaskContext>,
    ) -> Result<Option<Vec<EncodedPartition>>> {
        let (held, over) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        // As in a writer, the partitions are computed in parallel.
        let mut reading = JoinSet::new();
        for partition in 0..self.plan.output_partitioning().partition_count() {
            let rows = self.plan.execute(partition, Arc::clone(context))?;
            let begun = read_some(rows, limit, Arc::clone(&held), over.clone());
            reading.spawn(async move { (partition, begun.await) });
        }
        let mut begun: Vec<Option<Begun>> = Vec::new();
        begun.resize_with(reading.len(), || None);
        while let Some(read) = reading.join_next().await {
            let (partition, read) = read.map_err(|error| external(error.into()))?;
            begun[partition] = Some(read?);
        }
        if let Some(encoded) = encode_all(&begun, limit)? {
            return Ok(Some(encoded));
        }
        *self.begun.lock() = begun;
        Ok(None)
    }
}

/// Reads the rows of a partition until it ends, or `over` is cancelled because all partitions exceed the limit.
async fn read_some(
    mut rows: SendableRecordBatchStream,
    limit: usize,
    held: Arc<AtomicUsize>,
    over: CancellationToken,
) -> Result<Begun> {
    let mut read = Vec::new();
    loop {
        let next = tokio::select! {
            biased;
            () = over.cancelled() => {
                let rest = Some(rows);
                return Ok(Begun { read, rest });
            }
            next = rows.try_next() => next?,
        };
        let Some(batch) = next else {
            return Ok(Begun { read, rest: None });
        };
        let bytes = bytes_of(&batch) + BATCH + batch.num_columns() * COLUMN;
        read.push(batch);
        if held.fetch_add(bytes, Ordering::Relaxed) + bytes > limit {
            over.cancel();
        }
    }
}

/// Encoded rows of a partition, with their number and that of their batches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EncodedPartition {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: usize,
    pub(super) batches: usize,
}

/// Encodes partitions that were read to their end, if they take at most `limit` bytes. A partition without rows takes
/// none.
fn encode_all(begun: &[Option<Begun>], limit: usize) -> Result<Option<Vec<EncodedPartition>>> {
    let (mut encoded, mut total) = (Vec::new(), 0);
    for partition in begun.iter().flatten() {
        if partition.rest.is_some() {
            return Ok(None);
        }
        let partition = encode(&partition.read)?;
        total += partition.bytes.len();
        if total > limit {
            return Ok(None);
        }
        encoded.push(partition);
    }
    Ok(Some(encoded))
}

fn encode(batches: &[RecordBatch]) -> Result<EncodedPartition> {
    let mut encoded = EncodedPartition {
        bytes: Vec::new(),
        rows: 0,
        batches: 0,
    };
    let mut writer = None;
    for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
        };
        writer.write(batch)?;
        encoded.rows += batch.num_rows();
        encoded.batches += 1;
    }
    if let Some(writer) = writer {
        encoded.bytes = writer.into_inner()?;
    }
    Ok(encoded)
}

fn external(error: Box<dyn std::error::Error + Send + Sync>) -> DataFusionError {
    DataFusionError::External(error)
}

display_as!(ReadAhead, plan);

impl ExecutionPlan for ReadAhead {
    delegate_to!(plan, |_, plan| Ok(Arc::new(Self::new(plan))));

    fn metrics(&self) -> Option<datafusion::physical_plan::metrics::MetricsSet> {
        self.plan.metrics()
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let begun = self.begun.lock().get_mut(partition).and_then(Option::take);
        let Some(Begun { read, rest }) = begun else {
            return self.plan.execute(partition, context);
        };
        let read = stream::iter(read.into_iter().map(Ok));
        let rest = stream::iter(rest).flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            read.chain(rest),
        )))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Array, AsArray, Int64Array, NullArray, StringViewArray};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::arrow::ipc::reader::StreamReader;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::collect_partitioned;

    use super::*;

    fn batch(column: impl Array + 'static) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(column) as _)]).unwrap()
    }

    fn plan(partitions: &[Vec<RecordBatch>]) -> Arc<dyn ExecutionPlan> {
        MemorySourceConfig::try_new_exec(partitions, partitions[0][0].schema(), None).unwrap()
    }

    /// Returns three partitions of numbers: two batches, none, and one batch.
    fn numbers() -> Arc<dyn ExecutionPlan> {
        let numbers = |from| batch(Int64Array::from_iter_values(from..from + 10));
        plan(&[vec![numbers(0), numbers(10)], vec![], vec![numbers(20)]])
    }

    fn values(batches: &[RecordBatch]) -> Vec<i64> {
        let columns = batches.iter().map(|batch| batch.column(0));
        let values = columns.flat_map(|column| column.as_primitive::<Int64Type>().values());
        values.copied().collect()
    }

    #[tokio::test]
    async fn a_small_result_is_read_whole() {
        let ahead = ReadAhead::new(numbers());
        let encoded = ahead.read(10_000, &Arc::default()).await.unwrap().unwrap();
        let counted: Vec<_> = encoded.iter().map(|at| (at.rows, at.batches)).collect();
        assert_eq!(counted, [(20, 2), (0, 0), (10, 1)]);
        let decode = |at: &EncodedPartition| {
            let reader = StreamReader::try_new(&at.bytes[..], None).unwrap();
            values(&reader.map(Result::unwrap).collect::<Vec<_>>())
        };
        assert_eq!(decode(&encoded[0]), (0..20).collect::<Vec<_>>());
        assert!(encoded[1].bytes.is_empty());
        assert_eq!(decode(&encoded[2]), (20..30).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_larger_result_goes_on_where_reading_ended() {
        for limit in [0, 400, 1_000, 1_199] {
            let ahead = Arc::new(ReadAhead::new(numbers()));
            let read = ahead.read(limit, &Arc::default()).await.unwrap();
            assert!(read.is_none(), "limit {limit}");
            let rows = collect_partitioned(ahead, Arc::default()).await.unwrap();
            let rows: Vec<_> = rows.iter().map(|rows| values(rows)).collect();
            let due = [(0..20).collect(), vec![], (20..30).collect::<Vec<_>>()];
            assert_eq!(rows, due, "limit {limit}");
        }
    }

    #[tokio::test]
    async fn all_bytes_of_a_result_count() {
        let text = StringViewArray::from_iter_values(vec!["x".repeat(2_000); 1_000]);
        let nulls = batch(NullArray::new(1));
        let name = "n".repeat(100_000);
        let named = RecordBatch::try_from_iter([(name, Arc::new(NullArray::new(1)) as _)]).unwrap();
        for batches in [vec![batch(text)], vec![nulls; 1_000], vec![named]] {
            let ahead = ReadAhead::new(plan(&[batches]));
            let read = ahead.read(100_000, &Arc::default()).await.unwrap();
            assert!(read.is_none());
        }
    }
}
