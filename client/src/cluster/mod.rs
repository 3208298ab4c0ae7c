//! Connections of a session to its cluster, kept between queries, and the requests over them: queries, their
//! cancellation, and the result rows of succeeded jobs.
//!
//! This module knows jobs, not plans: queries arrive encoded, and callers decide whether to run one again.

mod job;
mod lease;
mod rows;
mod trace;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::GrpcClientConfig;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use volley_proto::access::Authorized;
use volley_proto::traces::Exporter;
use volley_proto::wire::queries_client::QueriesClient;

pub(crate) use self::job::{REDIAL, RETURN, Submitted, decode, is_no_answer};
pub(crate) use self::rows::{JobRows, Order};
use crate::{Result, SchedulerAddress};

/// Host, port and settings of a connection.
type Peer = (String, u16, GrpcClientConfig);

/// Connections to one cluster.
///
/// They belong to the runtime that first used them.
pub(crate) struct Cluster {
    scheduler: SchedulerAddress,
    /// Channels by their settings, which a session may change.
    channels: Mutex<HashMap<GrpcClientConfig, Authorized>>,
    executors: Mutex<HashMap<Peer, BallistaClient>>,
    /// Running submissions and cancellations, and final reports of readers.
    tasks: Mutex<JoinSet<()>>,
    undelivered: AtomicBool,
    /// Exporter of traces of jobs, if there is one.
    exporter: Mutex<Option<Exporter>>,
}

impl Cluster {
    /// Creates the connections to a scheduler, without a request to it.
    pub(crate) fn of(scheduler: SchedulerAddress) -> Arc<Self> {
        Arc::new(Self {
            scheduler,
            channels: Mutex::default(),
            executors: Mutex::default(),
            tasks: Mutex::default(),
            undelivered: AtomicBool::new(false),
            exporter: Mutex::default(),
        })
    }

    /// Sends spans of jobs from now on.
    pub(crate) fn export(&self, exporter: Exporter) {
        *self.exporter.lock() = Some(exporter);
    }

    /// Returns the scheduler's address, `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.scheduler.as_str()
    }

    /// Returns the scheduler's address, with TLS and credential.
    pub(crate) fn scheduler_address(&self) -> &SchedulerAddress {
        &self.scheduler
    }

    /// Waits for running cancellations, and sends the spans of jobs, of which none is sent from then on. Returns whether
    /// all cancellations since the last call were delivered in time. Call it before the process ends: at the deadline it
    /// gives up the rest.
    pub(crate) async fn settle(&self, deadline: Duration) -> bool {
        // A submission that nobody waits for starts a cancellation.
        let done = tokio::time::timeout(deadline, async {
            loop {
                let tasks = std::mem::take(&mut *self.tasks.lock());
                if tasks.is_empty() {
                    return;
                }
                tasks.join_all().await;
            }
        });
        let exporter = self.exporter.lock().take();
        let exported = async {
            if let Some(exporter) = exporter {
                exporter.finish().await;
            }
        };
        let (done, ()) = tokio::join!(done, exported);
        done.is_ok() && !self.undelivered.swap(false, Ordering::Relaxed)
    }

    /// Spawns a task that `settle` waits for before the process ends.
    fn spawn(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, runtime);
    }

    /// Returns the channel to the scheduler, which connects on first use, and again after the connection is lost.
    pub(crate) fn channel(&self, grpc: &GrpcClientConfig) -> Result<Authorized> {
        let mut channels = self.channels.lock();
        if let Some(known) = channels.get(grpc) {
            return Ok(known.clone());
        }
        let channel = self.scheduler.channel(grpc)?;
        channels.insert(grpc.clone(), channel.clone());
        Ok(channel)
    }

    /// Makes the next request connect anew, to another of several schedulers than the one that was tried: this connection
    /// may be lost without a notice.
    fn forget_scheduler(&self, grpc: &GrpcClientConfig, tried: &str) {
        self.channels.lock().remove(grpc);
        self.scheduler.schedulers().distrust(tried);
    }

    /// Returns a client of the scheduler's service of queries.
    fn queries(&self, grpc: &GrpcClientConfig) -> Result<QueriesClient<Authorized>> {
        Ok(QueriesClient::new(self.channel(grpc)?)
            .max_encoding_message_size(grpc.max_message_size)
            .max_decoding_message_size(grpc.max_message_size))
    }

    /// Returns a client of the scheduler's Ballista service.
    pub(crate) fn scheduler(
        &self,
        grpc: &GrpcClientConfig,
    ) -> Result<SchedulerGrpcClient<Authorized>> {
        Ok(SchedulerGrpcClient::new(self.channel(grpc)?)
            .max_encoding_message_size(grpc.max_message_size)
            .max_decoding_message_size(grpc.max_message_size))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("scheduler", &self.scheduler)
            .finish_non_exhaustive()
    }
}
