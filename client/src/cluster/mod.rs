//! A session's connections to its cluster, kept from one query to the next, and what goes over them:
//! queries, their cancellation, and the rows of jobs that have succeeded.
//!
//! It knows jobs, not plans: what is submitted comes encoded, and whether to run it again is for others.

mod job;
mod lease;
mod rows;

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

pub(crate) use self::job::Submitted;
pub(crate) use self::rows::{JobRows, Order};
use crate::{Result, SchedulerAddress};

/// Who is connected to, by host and port, and with what settings.
type Peer = (String, u16, GrpcClientConfig);

/// The connections to one cluster.
///
/// They belong to the runtime that they were first used in.
pub(crate) struct Cluster {
    scheduler: SchedulerAddress,
    /// By the settings that they were made with, which a session may change.
    channels: Mutex<HashMap<GrpcClientConfig, Authorized>>,
    executors: Mutex<HashMap<Peer, BallistaClient>>,
    /// Submissions, cancellations and last words of readers under way.
    tasks: Mutex<JoinSet<()>>,
    undelivered: AtomicBool,
}

impl Cluster {
    /// Of a scheduler, which is not asked for anything yet.
    pub(crate) fn of(scheduler: SchedulerAddress) -> Arc<Self> {
        Arc::new(Self {
            scheduler,
            channels: Mutex::default(),
            executors: Mutex::default(),
            tasks: Mutex::default(),
            undelivered: AtomicBool::new(false),
        })
    }

    /// The scheduler's address, `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.scheduler.as_str()
    }

    /// The scheduler.
    pub(crate) fn scheduler_address(&self) -> &SchedulerAddress {
        &self.scheduler
    }

    /// Waits for cancellations under way. Returns whether all since it was last asked were delivered, in
    /// time. To be asked before the process ends: what is not done by the deadline is given up.
    pub(crate) async fn settle(&self, deadline: Duration) -> bool {
        // A submission that nobody waits for leaves a cancellation behind.
        let done = tokio::time::timeout(deadline, async {
            loop {
                let tasks = std::mem::take(&mut *self.tasks.lock());
                if tasks.is_empty() {
                    return;
                }
                tasks.join_all().await;
            }
        });
        done.await.is_ok() && !self.undelivered.swap(false, Ordering::Relaxed)
    }

    /// Has something done that is waited for before the process ends.
    fn spawn(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, runtime);
    }

    /// The channel to the scheduler; it connects when it is first used, and again when the connection
    /// is lost.
    pub(crate) fn channel(&self, grpc: &GrpcClientConfig) -> Result<Authorized> {
        let mut channels = self.channels.lock();
        if let Some(known) = channels.get(grpc) {
            return Ok(known.clone());
        }
        let channel = self.scheduler.channel(grpc)?;
        channels.insert(grpc.clone(), channel.clone());
        Ok(channel)
    }

    /// Makes the next request connect anew: this connection may be lost without a word.
    fn forget_scheduler(&self, grpc: &GrpcClientConfig) {
        self.channels.lock().remove(grpc);
    }

    /// The engine's part of the scheduler.
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
