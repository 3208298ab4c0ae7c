//! Result rows of a succeeded job: fetched from the executors that hold them, or received with the job's outcome.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use ballista_core::client::BallistaClient;
use ballista_core::error::BallistaError;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::serde::protobuf::PartitionLocation;
use ballista_core::serde::protobuf::get_job_status_result::FlightProxy;
use ballista_core::utils::GrpcClientConfig;
use datafusion::common::exec_err;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::stream::{BoxStream, try_unfold};
use futures::{Stream, StreamExt, TryStreamExt};
use volley_proto::wire::Outcome;

use super::lease::Lease;
use super::{Cluster, Peer};
use crate::root_cause::plain;
use crate::{Error, Result};

/// Interval and timeout of keep-alive pings to an executor.
const ALIVE: Duration = Duration::from_secs(10);
/// Maximum number of kept connections to executors.
const KEPT: usize = 256;
/// Number of partitions fetched in parallel.
const AT_ONCE: usize = 4;

/// Locations of a job's result rows.
#[derive(Debug)]
pub(crate) struct JobRows {
    job: String,
    places: Vec<PartitionLocation>,
    /// Rows that came with the outcome, by partition.
    inline: HashMap<u32, Vec<u8>>,
    /// True if they are kept until a reader reports that it has them.
    kept: bool,
    /// Address of the Flight proxy, where clients do not reach executors.
    proxy: Option<String>,
    cluster: Arc<Cluster>,
    grpc: GrpcClientConfig,
}

impl JobRows {
    /// Returns the rows of a job with this outcome, which are at these places or behind a proxy.
    pub(crate) fn new(
        job: String,
        outcome: Outcome,
        (places, proxy): (Vec<PartitionLocation>, Option<FlightProxy>),
        (cluster, grpc): (&Arc<Cluster>, &GrpcClientConfig),
    ) -> Self {
        let inline = outcome.rows.into_iter();
        let inline = inline.map(|rows| (rows.partition, rows.rows));
        let proxy = match proxy {
            Some(FlightProxy::External(address)) => Some(address),
            Some(FlightProxy::Local(true)) => Some(cluster.address().to_owned()),
            Some(FlightProxy::Local(false)) | None => None,
        };
        Self {
            job,
            places,
            inline: inline.collect(),
            kept: outcome.kept,
            proxy,
            cluster: Arc::clone(cluster),
            grpc: grpc.clone(),
        }
    }

    /// Fetches the rows: a few partitions in parallel, or one after the other where their order counts. The rows of
    /// each partition begin with an empty batch, so that the columns are known even without rows. An error is an
    /// [`Error::ResultLost`], unless a location is malformed. The rows are kept until all have been read, or this is
    /// dropped.
    pub(crate) fn fetch(self, order: Order) -> BoxStream<'static, Result<RecordBatch>> {
        let Self {
            job,
            places,
            mut inline,
            kept,
            proxy,
            cluster,
            grpc,
        } = self;
        let lease = kept.then(|| Lease::take(&job, &cluster, &grpc));
        let partitions = futures::stream::iter(places).map(move |place| {
            let partition = place.partition_id.as_ref().map(|id| id.partition_id);
            let rows = partition.and_then(|partition| inline.remove(&partition));
            let (job, proxy) = (job.clone(), proxy.clone());
            let (cluster, grpc) = (Arc::clone(&cluster), grpc.clone());
            async move {
                match rows {
                    Some(rows) => decode(rows, &place),
                    None => fetch(job, place, proxy, &cluster, grpc).await,
                }
            }
        });
        let rows = match order {
            // While one partition is read, the next ones are opened and fill their buffers.
            Order::Kept => partitions.buffered(AT_ONCE).try_flatten().boxed(),
            Order::Any => {
                let opened = |partition| futures::stream::once(partition).try_flatten().boxed();
                partitions.map(opened).flatten_unordered(AT_ONCE).boxed()
            }
        };
        let read = try_unfold((rows, lease), |(mut rows, lease)| async move {
            match rows.try_next().await {
                Ok(Some(batch)) => {
                    lease.iter().for_each(Lease::advances);
                    Ok(Some((batch, (rows, lease))))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(match &lease {
                    Some(lease) => lease.explain(error),
                    None => error,
                }),
            }
        });
        read.boxed()
    }
}

/// Order of partitions: kept, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Kept,
    Any,
}

/// Decodes the rows of one partition, which came with the outcome.
fn decode(
    rows: Vec<u8>,
    place: &PartitionLocation,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let read = || {
        let reader = StreamReader::try_new(Cursor::new(rows), None)?;
        let columns = RecordBatch::new_empty(reader.schema());
        let batches = std::iter::once(Ok(columns)).chain(reader);
        batches.collect::<std::result::Result<Vec<_>, ArrowError>>()
    };
    let batches = read().map_err(DataFusionError::from)?;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    if let Some(due) = rows_due(place)
        && due != rows as u64
    {
        let reason = format!("{rows} rows of the {due} that were computed");
        return Err(volley_proto::Error::malformed("rows of a result", reason).into());
    }
    Ok(futures::stream::iter(batches.into_iter().map(Ok)).boxed())
}

/// Returns the number of rows at a place, if it is known.
fn rows_due(place: &PartitionLocation) -> Option<u64> {
    u64::try_from(place.partition_stats.as_ref()?.num_rows).ok()
}

/// Opens the rows of one partition.
async fn fetch(
    job: String,
    place: PartitionLocation,
    proxy: Option<String>,
    cluster: &Cluster,
    grpc: GrpcClientConfig,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let layout = place.layout();
    let due = rows_due(&place);
    let incomplete = || volley_proto::Error::malformed("place of rows", "a part of it is missing");
    let executor = place.executor_meta.ok_or_else(incomplete)?;
    let partition = place.partition_id.ok_or_else(incomplete)?.into();
    let port = u16::try_from(executor.port).map_err(|_| incomplete())?;
    let (host, via) = match &proxy {
        Some(address) => split(address).ok_or_else(incomplete)?,
        None => (executor.host.as_str(), port),
    };
    let holder = format!("executor {}", executor.id);
    let lost = move |error: Error| Error::ResultLost {
        job: job.clone(),
        holder: holder.clone(),
        advice: "run the statement again".to_owned(),
        source: Box::new(error),
    };
    let peer = (host.to_owned(), via, grpc);
    let open = async |mut client: BallistaClient| {
        let rows = client.fetch_partition_proxied(
            &executor.id,
            &partition,
            place.file_id,
            layout,
            &executor.host,
            port,
            true,
        );
        rows.await.map_err(engine)
    };
    let opened = match cluster.kept(&peer) {
        Some(client) => open(client).await.ok(),
        None => None,
    };
    let rows: SendableRecordBatchStream = match opened {
        Some(rows) => rows,
        // No connection is kept, or it has been lost.
        None => {
            let rows = async { open(cluster.connect(&peer).await?).await };
            rows.await.map_err(|error| {
                cluster.executors.lock().remove(&peer);
                lost(error)
            })?
        }
    };
    let columns = RecordBatch::new_empty(rows.schema());
    let rows = complete(rows, due).map_err(move |error| lost(unfetched(error)));
    Ok(futures::stream::once(async { Ok(columns) })
        .chain(rows)
        .boxed())
}

/// Passes the rows on, and returns an error at the end if they are fewer or more than were written: a stream that
/// breaks off looks like the end of the rows.
fn complete(
    rows: SendableRecordBatchStream,
    due: Option<u64>,
) -> impl Stream<Item = std::result::Result<RecordBatch, DataFusionError>> {
    try_unfold((rows, 0), move |(mut rows, came)| async move {
        match (rows.try_next().await?, due) {
            (Some(batch), _) => {
                let came = came + batch.num_rows() as u64;
                Ok(Some((batch, (rows, came))))
            }
            (None, Some(due)) if came != due => {
                exec_err!("{came} rows came of the {due} that were written")
            }
            (None, _) => Ok(None),
        }
    })
}

impl Cluster {
    fn kept(&self, peer: &Peer) -> Option<BallistaClient> {
        self.executors.lock().get(peer).cloned()
    }

    /// Connects to an executor, or to its Flight proxy, and keeps the connection.
    async fn connect(&self, peer: &Peer) -> Result<BallistaClient> {
        let (host, port, grpc) = peer;
        let patience = Duration::from_secs(grpc.connect_timeout_seconds);
        let tls = self.scheduler.tls().cloned();
        let over_tls = tls.is_some();
        let alive = BallistaConfigGrpcEndpoint::new(Arc::new(move |endpoint| {
            let endpoint = match &tls {
                Some(tls) => tls.endpoint(endpoint)?,
                None => endpoint,
            };
            Ok(endpoint
                .connect_timeout(patience)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(ALIVE)
                .keep_alive_timeout(ALIVE)
                .keep_alive_while_idle(true))
        }));
        let client = BallistaClient::try_new(
            host,
            *port,
            grpc.max_message_size,
            over_tls,
            Some(Arc::new(alive)),
            grpc.io_retries_times,
            grpc.io_retry_wait_time_ms,
            grpc.initial_connection_window_size,
            grpc.initial_stream_window_size,
        );
        let client = client.await.map_err(engine)?;
        let mut executors = self.executors.lock();
        if executors.len() >= KEPT {
            // Most of these executors have left by now.
            executors.clear();
        }
        executors.insert(peer.clone(), client.clone());
        Ok(client)
    }
}

/// Converts an error that came in place of rows, without the text about their loss, which the caller adds.
fn unfetched(error: DataFusionError) -> Error {
    let said = match error.find_root() {
        DataFusionError::External(carried) => match carried.downcast_ref() {
            Some(BallistaError::FetchFailed(_, _, _, text)) => Some(plain(text)),
            _ => None,
        },
        _ => None,
    };
    match (said, Error::from(error)) {
        (Some(cause), Error::Engine { original, .. }) => Error::Engine { cause, original },
        (_, error) => error,
    }
}

fn engine(error: BallistaError) -> Error {
    unfetched(error.into_datafusion())
}

fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::ipc::writer::StreamWriter;
    use ballista_core::serde::protobuf::PartitionStats;

    use super::*;

    #[tokio::test]
    async fn rows_that_come_with_the_outcome_are_counted() {
        let column = Arc::new(Int64Array::from(vec![1, 2, 3])) as _;
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        let rows = writer.into_inner().unwrap();
        let place = |num_rows| PartitionLocation {
            partition_stats: Some(PartitionStats {
                num_rows,
                ..PartitionStats::default()
            }),
            ..PartitionLocation::default()
        };
        for counted in [3, -1] {
            let read = decode(rows.clone(), &place(counted)).unwrap();
            let read: Vec<_> = read.try_collect().await.unwrap();
            assert_eq!(
                read,
                [RecordBatch::new_empty(batch.schema()), batch.clone()]
            );
        }
        let refused = |rows, counted| match decode(rows, &place(counted)) {
            Ok(_) => panic!("{counted} rows"),
            Err(error) => format!("{error:?}"),
        };
        let said = refused(rows.clone(), 4);
        assert!(said.contains("3 rows of the 4"), "{said}");
        refused(rows[..20].to_vec(), 3);
    }
}
