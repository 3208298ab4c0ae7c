//! Reads what other stages have written, within a bound of memory.
//!
//! ```text
//! partition of a file that is here, or small    Ballista's reader
//! large partition of another executor's file    a stream, one after another
//! ```
//!
//! Ballista's reader holds the rows of another executor's file in memory before it passes the first of them on, uncounted. So it
//! reads only partitions within a budget, which is a share of the task's memory. A stream that breaks off is opened again,
//! and the batches that it has passed on are skipped: a file has always the same.
//!
//! Not here: the check that [all rows arrived](super::complete); the [connections](super::connections).

use std::sync::Arc;
use std::time::Duration;

use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::config::{BALLISTA_SHUFFLE_READER_MAX_BYTES_IN_FLIGHT, BallistaConfig};
use ballista_core::error::BallistaError;
use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::scheduler::PartitionLocation;
use ballista_core::utils::GrpcClientConfig;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::time::sleep;
use volley_engine::runtime::context_with;

/// Divisor of a task's memory for the budget of one reader.
const SHARE: usize = 32;
/// Minimum budget of a reader, in bytes.
const LEAST: usize = 64 << 10;

/// Environment of a task's readers.
#[derive(Debug)]
pub(super) struct Fetches {
    connections: Arc<dyn BallistaClientPool>,
    work_dir: String,
    /// Rows of streams.
    metrics: ExecutionPlanMetricsSet,
}

impl Fetches {
    pub(super) fn new(connections: Arc<dyn BallistaClientPool>, work_dir: &str) -> Self {
        Self {
            connections,
            work_dir: work_dir.to_owned(),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Returns the metrics of streams.
    pub(super) fn metrics(&self) -> MetricsSet {
        self.metrics.clone_inner()
    }

    /// Reads one partition of a reader.
    ///
    /// # Errors
    /// When the reader cannot start.
    pub(super) fn execute(
        &self,
        reader: &ShuffleReaderExec,
        partition: usize,
        context: &TaskContext,
    ) -> Result<SendableRecordBatchStream> {
        let mut config = context.session_config().clone();
        let settings = config.ballista_config();
        let budget = budget(context, &settings);
        if config
            .options()
            .extensions
            .get::<BallistaConfig>()
            .is_some()
        {
            let options = config.options_mut();
            options.set(
                BALLISTA_SHUFFLE_READER_MAX_BYTES_IN_FLIGHT,
                &budget.to_string(),
            )?;
        }
        let runtime = context.runtime_env();
        let context = context_with(context, config, runtime);
        // A broadcast is one partition, which all tasks read.
        let read = if reader.broadcast { 0 } else { partition };
        let is_streamed = |place: &PartitionLocation| {
            let bytes = place.partition_stats.num_bytes();
            let is_here = || place.path(&self.work_dir).is_ok_and(|path| path.exists());
            bytes.is_some_and(|bytes| bytes > budget)
                && (settings.shuffle_reader_force_remote_read() || !is_here())
        };
        let places = reader.partition.get(read).map_or(&[][..], Vec::as_slice);
        let (large, rest): (Vec<_>, Vec<_>) = places.iter().partition(|place| is_streamed(place));
        if large.is_empty() {
            return reader.execute(partition, context);
        }
        let mut large: Vec<_> = large.into_iter().cloned().collect();
        // Tasks begin with different executors.
        let first = partition % large.len();
        large.rotate_left(first);
        let mut connection = GrpcClientConfig::from(&settings);
        // A stream has its connection to itself: what waits here unread is limited by the connection's window.
        let window = u32::try_from(budget).unwrap_or(u32::MAX);
        connection.initial_connection_window_size =
            connection.initial_connection_window_size.min(window);
        connection.initial_stream_window_size = connection.initial_stream_window_size.min(window);
        let retries = std::mem::replace(&mut connection.io_retries_times, 1);
        let prefers_flight = settings.shuffle_reader_remote_prefer_flight();
        let connections = Arc::clone(&self.connections);
        let streams = stream::iter(large).flat_map(move |place| {
            let streamed = Streamed {
                place,
                connections: Arc::clone(&connections),
                connection: connection.clone(),
                prefers_flight,
                open: None,
                came: 0,
                retries,
            };
            streamed.rows()
        });
        let count = MetricBuilder::new(&self.metrics).output_rows(partition);
        let streams = streams.inspect_ok(move |batch: &RecordBatch| count.add(batch.num_rows()));
        let mut others = reader.clone();
        others.partition[read] = rest.into_iter().cloned().collect();
        let rows = others.execute(partition, context)?.chain(streams);
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            reader.schema(),
            rows,
        )))
    }
}

/// Returns the budget of a reader: the bytes that it may have in flight, as written in files.
fn budget(context: &TaskContext, settings: &BallistaConfig) -> u64 {
    let set = settings.shuffle_reader_max_bytes_in_flight();
    match context.memory_pool().memory_limit() {
        MemoryLimit::Finite(limit) => set.min((limit / SHARE).max(LEAST) as u64),
        _ => set,
    }
}

/// Partition of another executor's file, which is read as it comes.
struct Streamed {
    place: PartitionLocation,
    connections: Arc<dyn BallistaClientPool>,
    connection: GrpcClientConfig,
    /// True if the other executor is to send batches, not parts of its file.
    prefers_flight: bool,
    open: Option<Open>,
    /// Number of batches that were passed on.
    came: usize,
    /// Number of times that the stream may still be opened again.
    retries: u8,
}

/// Open stream.
struct Open {
    rows: SendableRecordBatchStream,
    connection: PooledClient,
    /// Number of batches still to be skipped.
    known: usize,
}

impl Streamed {
    fn rows(self) -> impl Stream<Item = Result<RecordBatch>> + Send {
        stream::try_unfold(self, |mut streamed| async move {
            let next = streamed.next().await;
            next.map(|batch| batch.map(|batch| (batch, streamed)))
        })
    }

    /// Returns the next batch, from a stream that is opened again if it breaks off.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let failure = match self.try_next().await {
                Ok(batch) => {
                    self.came += usize::from(batch.is_some());
                    return Ok(batch);
                }
                Err(failure) => failure,
            };
            if let Some(open) = self.open.take() {
                open.connection.discard();
            }
            if self.retries == 0 || !matches!(failure, BallistaError::FetchFailed(..)) {
                return Err(failure.into_datafusion());
            }
            self.retries -= 1;
            tracing::debug!(%failure, batches = self.came, "rows of another executor are fetched again");
            sleep(Duration::from_millis(self.connection.io_retry_wait_time_ms)).await;
        }
    }

    async fn try_next(&mut self) -> Result<Option<RecordBatch>, BallistaError> {
        loop {
            let Some(open) = &mut self.open else {
                self.open = Some(self.connect().await?);
                continue;
            };
            let next = open.rows.try_next().await;
            let next = next.map_err(|failure| failed(&self.place, failure.to_string()))?;
            if next.is_none() {
                self.open = None;
                return Ok(None);
            }
            match open.known.checked_sub(1) {
                Some(known) => open.known = known,
                None => return Ok(next),
            }
        }
    }

    async fn connect(&mut self) -> Result<Open, BallistaError> {
        let executor = &self.place.executor_meta;
        let connection =
            self.connections
                .acquire(&executor.host, executor.port, &self.connection, None);
        let mut connection = connection.await.map_err(|failure| match failure {
            BallistaError::GrpcConnectionError(reason) => failed(&self.place, reason),
            failure => failure,
        })?;
        let rows = connection
            .fetch_partition(
                &executor.id,
                &self.place.partition_id,
                self.place.file_id,
                self.place.layout(),
                self.prefers_flight,
            )
            .await;
        match rows {
            Ok(rows) => Ok(Open {
                rows,
                connection,
                known: self.came,
            }),
            Err(failure) => {
                connection.discard();
                Err(failure)
            }
        }
    }
}

/// Returns the error of a fetch, after which the job runs again.
fn failed(place: &PartitionLocation, reason: String) -> BallistaError {
    let partition = &place.partition_id;
    BallistaError::FetchFailed(
        place.executor_meta.id.clone(),
        partition.stage_id,
        partition.partition_id,
        reason,
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all};
    use std::net::TcpListener;
    use std::ops::Range;
    use std::path::{Path, PathBuf};

    use arrow::ipc::writer::StreamWriter;
    use ballista_core::JobId;
    use ballista_core::serde::scheduler::{
        ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification, PartitionId,
        PartitionStats,
    };
    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_expr::Partitioning;
    use datafusion::prelude::SessionConfig;
    use tokio::runtime::{Builder, Runtime};
    use tokio_util::sync::CancellationToken;
    use volley_proto::access::ClusterSecret;
    use volley_proto::connections::Listener;

    use super::super::connections::Connections;
    use super::super::flight;
    use super::super::handover::Rows;
    use super::super::proof::Proven;
    use super::*;
    use crate::counts::Counts;

    /// Rows of a batch, and batches of the file: 64 MiB.
    const ROWS: i64 = 1 << 17;
    const BATCHES: i64 = 64;
    const BYTES: u64 = (ROWS * BATCHES) as u64 * 8;

    /// Executor that serves files, with threads of its own.
    struct Peer {
        runtime: Option<Runtime>,
        counts: Arc<Counts>,
        port: u16,
    }

    impl Peer {
        fn start(work_dir: &Path, secret: &ClusterSecret, port: u16) -> Self {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            let address = listener.local_addr().unwrap();
            listener.set_nonblocking(true).unwrap();
            let threads = Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            let runtime = threads.unwrap();
            let counts = Arc::<Counts>::default();
            let rows = Rows {
                work_dir: work_dir.to_owned(),
                connections: Arc::new(Connections::new(None, secret.clone())),
                proven: Proven::new(secret.clone(), address.to_string()),
                counts: Arc::clone(&counts),
            };
            let entered = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let listener = Listener::new(listener, None);
            runtime.spawn(flight::serve(listener, rows, CancellationToken::new()));
            drop(entered);
            Self {
                runtime: Some(runtime),
                counts,
                port: address.port(),
            }
        }

        fn served(&self) -> u64 {
            self.counts.shuffle_served_bytes.get()
        }

        /// Ends the executor with its connections.
        async fn end(mut self) {
            let runtime = self.runtime.take().unwrap();
            let ends = move || runtime.shutdown_timeout(Duration::from_secs(60));
            tokio::task::spawn_blocking(ends).await.unwrap();
        }
    }

    impl Drop for Peer {
        fn drop(&mut self) {
            if let Some(runtime) = self.runtime.take() {
                runtime.shutdown_background();
            }
        }
    }

    fn batch(numbers: Range<i64>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        RecordBatch::try_from_iter([("n", numbers)]).unwrap()
    }

    /// Writes the file of a stage below a work folder. Returns where it is.
    fn write(work_dir: &Path, port: u16) -> PartitionLocation {
        let place = PartitionLocation {
            map_partition_id: 0,
            partition_id: PartitionId::new(&JobId::from("j"), 1, 0),
            executor_meta: ExecutorMetadata {
                id: "e-1".to_owned(),
                host: "127.0.0.1".to_owned(),
                port,
                grpc_port: 0,
                specification: ExecutorSpecification::default(),
                os_info: ExecutorOperatingSystemSpecification::default(),
            },
            partition_stats: PartitionStats::new(None, None, Some(BYTES)),
            file_id: Some(7),
            is_sort_shuffle: false,
        };
        let path: PathBuf = place.path(&work_dir.display().to_string()).unwrap();
        create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        let mut writer = StreamWriter::try_new(file, &batch(0..0).schema()).unwrap();
        for number in 0..BATCHES {
            let rows = batch(number * ROWS..(number + 1) * ROWS);
            writer.write(&rows).unwrap();
        }
        writer.finish().unwrap();
        place
    }

    /// Begins to read the file as a task with 32 MiB of memory.
    fn read(
        place: PartitionLocation,
        secret: &ClusterSecret,
        work_dir: &Path,
    ) -> (SendableRecordBatchStream, Fetches) {
        let connections: Arc<dyn BallistaClientPool> =
            Arc::new(Connections::new(None, secret.clone()));
        let work_dir = work_dir.display().to_string();
        let partitioning = Partitioning::UnknownPartitioning(1);
        let schema = batch(0..0).schema();
        let reader = ShuffleReaderExec::try_new(1, vec![vec![place]], schema, partitioning);
        let reader = reader.unwrap().with_work_dir(work_dir.clone());
        let reader = reader.with_client_pool(Arc::clone(&connections));
        let memory = Arc::new(FairSpillPool::new(32 << 20));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(memory);
        let mut config = SessionConfig::new_with_ballista();
        let options = config.options_mut();
        options
            .set("ballista.client.io_retry_wait_time_ms", "1")
            .unwrap();
        let context = TaskContext::default()
            .with_session_config(config)
            .with_runtime(runtime.build_arc().unwrap());
        let fetches = Fetches::new(connections, &work_dir);
        let rows = fetches.execute(&reader, 0, &context).unwrap();
        (rows, fetches)
    }

    /// Checks that the next rows are the file's from a number on, to its end.
    async fn is_the_rest(rows: SendableRecordBatchStream, from: i64) {
        let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        let numbers = rows.iter().flat_map(|batch| {
            let numbers = batch.column(0).as_primitive::<Int64Type>();
            numbers.values().iter().copied()
        });
        assert!(numbers.eq(from..ROWS * BATCHES));
    }

    #[tokio::test]
    async fn a_large_file_is_read_as_it_comes() {
        let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = ClusterSecret::generate();
        let peer = Peer::start(theirs.path(), &secret, 0);
        let place = write(theirs.path(), peer.port);
        let (mut rows, fetches) = read(place.clone(), &secret, own.path());
        assert_eq!(rows.next().await.unwrap().unwrap(), batch(0..ROWS));
        // What follows waits where it is, but for the connection's window and the parts being sent.
        assert!(peer.served() < BYTES / 2, "{}", peer.served());
        is_the_rest(rows, ROWS).await;
        assert!(peer.served() > BYTES, "{}", peer.served());
        let counted = fetches.metrics().output_rows();
        assert_eq!(counted, Some((ROWS * BATCHES) as usize));
        // A file that is here is opened, not fetched.
        let before = peer.served();
        let (rows, _fetches) = read(place, &secret, theirs.path());
        is_the_rest(rows, 0).await;
        assert_eq!(peer.served(), before);
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_goes_on_where_it_was() {
        let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = ClusterSecret::generate();
        let peer = Peer::start(theirs.path(), &secret, 0);
        let port = peer.port;
        let (mut rows, _fetches) = read(write(theirs.path(), port), &secret, own.path());
        assert_eq!(rows.next().await.unwrap().unwrap(), batch(0..ROWS));
        peer.end().await;
        let again = Peer::start(theirs.path(), &secret, port);
        is_the_rest(rows, ROWS).await;
        assert!(again.served() > BYTES, "{}", again.served());
        // Where nobody answers any more, the rows are lost.
        let (mut rows, _fetches) = read(write(theirs.path(), port), &secret, own.path());
        assert_eq!(rows.next().await.unwrap().unwrap(), batch(0..ROWS));
        again.end().await;
        let failure = rows.try_collect::<Vec<_>>().await.unwrap_err();
        let lost = super::super::data_lost(&failure);
        assert!(lost.is_some_and(|lost| lost.executor == "e-1"));
    }
}
