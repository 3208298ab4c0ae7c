//! Lease on the result rows of a job: a client's report that it reads them, repeated while it does.
//!
//! The scheduler keeps the rows as long as somebody reads them, however slowly. It has them removed when the last
//! reader is done, or has not reported for a while.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ballista_core::utils::GrpcClientConfig;
use futures::stream::unfold;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use uuid::Uuid;
use volley_proto::limits::READER_SIGN;
use volley_proto::wire::ReadRowsRequest;
use volley_proto::wire::jobs_client::JobsClient;

use super::Cluster;
use crate::{Error, Result};

/// Timeout of one report to the scheduler.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lease on result rows; dropping it releases them.
pub(super) struct Lease {
    reader: Arc<Reader>,
    cluster: Arc<Cluster>,
    grpc: GrpcClientConfig,
    runtime: Handle,
    /// Task that reports the reader.
    _signs: JoinSet<()>,
}

#[derive(Debug)]
struct Reader {
    job: String,
    id: u64,
    /// Number of batches read so far.
    batches: AtomicU64,
    /// Reason why the rows are no longer kept.
    gone: Mutex<Option<String>>,
}

impl Lease {
    /// Starts to lease a job's rows, with reports from the current runtime.
    pub(super) fn take(job: &str, cluster: &Arc<Cluster>, grpc: &GrpcClientConfig) -> Self {
        let reader = Arc::new(Reader {
            job: job.to_owned(),
            id: Uuid::new_v4().as_u64_pair().0,
            batches: AtomicU64::new(0),
            gone: Mutex::default(),
        });
        let say = {
            let (cluster, grpc) = (Arc::clone(cluster), grpc.clone());
            move |sign| {
                let (cluster, grpc) = (Arc::clone(&cluster), grpc.clone());
                async move { cluster.reads(sign, &grpc).await }
            }
        };
        let runtime = Handle::current();
        let mut signs = JoinSet::new();
        signs.spawn_on(give_signs(Arc::clone(&reader), times(), say), &runtime);
        Self {
            reader,
            cluster: Arc::clone(cluster),
            grpc: grpc.clone(),
            runtime,
            _signs: signs,
        }
    }

    /// Counts one more batch as read.
    pub(super) fn advances(&self) {
        self.reader.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the scheduler's reason to an error of lost rows, if the scheduler had them removed.
    pub(super) fn explain(&self, error: Error) -> Error {
        match (error, self.reader.gone.lock().clone()) {
            (
                Error::ResultLost {
                    job,
                    holder,
                    source,
                    ..
                },
                Some(reason),
            ) => Error::ResultLost {
                job,
                holder,
                advice: format!("{reason}; run the statement again"),
                source,
            },
            (error, _) => error,
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let sign = self.reader.sign(true);
        let (cluster, grpc) = (Arc::clone(&self.cluster), self.grpc.clone());
        self.cluster.spawn(&self.runtime, async move {
            if let Err(error) = cluster.reads(sign, &grpc).await {
                // The scheduler removes the rows after a while anyway.
                tracing::debug!(%error, "the scheduler does not know that rows have been read");
            }
        });
    }
}

impl Reader {
    fn sign(&self, done: bool) -> ReadRowsRequest {
        ReadRowsRequest {
            id: self.job.clone(),
            reader: self.id,
            batches: self.batches.load(Ordering::Relaxed),
            done,
        }
    }
}

/// Returns the times of the reports. Rows that are read at once need none.
fn times() -> impl Stream<Item = ()> {
    let mut tick = interval_at(Instant::now() + READER_SIGN, READER_SIGN);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    unfold(tick, |mut tick| async move {
        tick.tick().await;
        Some(((), tick))
    })
}

/// Reports the reader each time, as long as this is polled.
async fn give_signs<Said>(
    reader: Arc<Reader>,
    times: impl Stream<Item = ()>,
    say: impl Fn(ReadRowsRequest) -> Said,
) where
    Said: Future<Output = Result<Option<String>>>,
{
    let mut times = pin!(times);
    while times.next().await.is_some() {
        match say(reader.sign(false)).await {
            Ok(gone) => *reader.gone.lock() = gone,
            Err(error) => tracing::debug!(%error, "the scheduler does not hear that rows are read"),
        }
    }
}

impl Cluster {
    /// Reports a reader to the scheduler. Returns why the rows are gone, if they are.
    async fn reads(
        &self,
        sign: ReadRowsRequest,
        grpc: &GrpcClientConfig,
    ) -> Result<Option<String>> {
        const REQUEST: &str = "take note of a reader";
        let mut jobs = JobsClient::new(self.channel(grpc)?);
        match timeout(PATIENCE, jobs.read(sign)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().gone),
            Ok(Err(status)) => Err(Error::refused(self.address(), REQUEST, status)),
            Err(_) => {
                let reason = format!("it has not answered for {PATIENCE:?}");
                Err(Error::request(self.address(), REQUEST, reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_says_that_it_is_there_for_as_long_as_it_reads() {
        let reader = Arc::new(Reader {
            job: "J1".to_owned(),
            id: 7,
            batches: AtomicU64::new(0),
            gone: Mutex::default(),
        });
        // Ten minutes, with one batch each minute.
        let minutes = futures::stream::iter(1..=60).map(|sign| {
            let read = u64::from(sign % 6 == 0);
            reader.batches.fetch_add(read, Ordering::Relaxed);
        });
        let said = Mutex::new(Vec::new());
        let say = |sign: ReadRowsRequest| {
            assert!(!sign.done && sign.reader == 7 && sign.id == "J1");
            let mut said = said.lock();
            said.push(sign.batches);
            let gone = (said.len() == 60).then(|| "it took too long".to_owned());
            // A scheduler that sometimes does not answer does not stop the reports.
            let silent = said.len() % 7 == 0;
            async move {
                match silent {
                    true => Err(Error::not_supported("x")),
                    false => Ok(gone),
                }
            }
        };
        give_signs(Arc::clone(&reader), minutes, say).await;
        let said = said.into_inner();
        assert_eq!((said.len(), said[0], said[59]), (60, 0, 10));
        assert!(said.is_sorted(), "{said:?}");
        assert_eq!(reader.gone.lock().as_deref(), Some("it took too long"));
    }
}
