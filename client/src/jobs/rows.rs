//! The rows of a job that has succeeded, fetched from the executors that made them.
//!
//! As Ballista's own query node does it (`execute_query_pull` in its `distributed_query.rs`), but
//! for a job that somebody else has submitted.

use arrow::record_batch::RecordBatch;
use ballista_core::client::BallistaClient;
use ballista_core::config::BallistaConfig;
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::get_job_status_result::FlightProxy;
use ballista_core::serde::protobuf::job_status::Status;
use ballista_core::serde::protobuf::{GetJobStatusParams, PartitionLocation, SuccessfulJob};
use ballista_core::utils::GrpcClientConfig;
use datafusion::execution::SendableRecordBatchStream;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::Jobs;
use crate::session::unfetched;
use crate::{Error, Result};

impl Jobs {
    /// The rows of a job that has succeeded. Each partition's begin with an empty batch, so that
    /// the columns are known where there are no rows.
    ///
    /// # Errors
    /// When the job has no rows to give, or they are lost.
    pub async fn rows(&self, id: &str) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let ask = GetJobStatusParams {
            job_id: id.to_owned(),
        };
        let answer = self.engine.clone().get_job_status(ask).await;
        let answer = answer.map_err(|status| self.refused("say where the rows are", status))?;
        let answer = answer.into_inner();
        let Some(Status::Successful(SuccessfulJob {
            partition_location, ..
        })) = answer.status.and_then(|status| status.status)
        else {
            let source = "the job has not succeeded, or its rows are gone by now".into();
            return Err(Error::Request {
                address: self.address().to_owned(),
                request: "say where the rows are",
                source,
            });
        };
        let proxy = match answer.flight_proxy {
            Some(FlightProxy::External(address)) => Some(address),
            Some(FlightProxy::Local(true)) => Some(self.address().to_owned()),
            Some(FlightProxy::Local(false)) | None => None,
        };
        let job = id.to_owned();
        let partitions = futures::stream::iter(partition_location).then(move |location| {
            let (job, proxy) = (job.clone(), proxy.clone());
            async move { fetch(job, location, proxy).await }
        });
        Ok(partitions.try_flatten().boxed())
    }
}

/// The rows of one partition.
async fn fetch(
    job: String,
    location: PartitionLocation,
    proxy: Option<String>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let layout = location.layout();
    let incomplete = || volley_proto::Error::malformed("place of rows", "a part of it is missing");
    let executor = location.executor_meta.ok_or_else(incomplete)?;
    let partition = location.partition_id.ok_or_else(incomplete)?;
    let port = u16::try_from(executor.port).map_err(|_| incomplete())?;
    let holder = format!("executor {}", executor.id);
    let lost = move |error: Error| Error::ResultLost {
        job: job.clone(),
        holder: holder.clone(),
        advice: "run the statement again".to_owned(),
        source: Box::new(error),
    };
    let open = async {
        let address = match &proxy {
            Some(address) => split(address).ok_or_else(incomplete)?,
            None => (executor.host.as_str(), port),
        };
        let mut client = connect(address).await?;
        client
            .fetch_partition_proxied(
                &executor.id,
                &partition.into(),
                location.file_id,
                layout,
                &executor.host,
                port,
                true,
            )
            .await
            .map_err(engine)
    };
    let rows: SendableRecordBatchStream = match open.await {
        Ok(rows) => rows,
        Err(error) => return Err(lost(error)),
    };
    let columns = RecordBatch::new_empty(rows.schema());
    let rows = rows.map_err(move |error| lost(unfetched(error)));
    Ok(futures::stream::once(async { Ok(columns) })
        .chain(rows)
        .boxed())
}

async fn connect((host, port): (&str, u16)) -> Result<BallistaClient> {
    let config = BallistaConfig::default();
    let grpc = GrpcClientConfig::from(&config);
    let client = BallistaClient::try_new(
        host,
        port,
        grpc.max_message_size,
        grpc.use_tls,
        None,
        grpc.io_retries_times,
        grpc.io_retry_wait_time_ms,
        grpc.initial_connection_window_size,
        grpc.initial_stream_window_size,
    );
    client.await.map_err(engine)
}

fn engine(error: BallistaError) -> Error {
    unfetched(error.into_datafusion())
}

fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
