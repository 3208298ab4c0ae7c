//! Where statements run: a session, and the cluster behind it when that lives in this process.

use std::time::Duration;

use anyhow::Context;
use volley::{SchedulerAddress, Session, SessionConfig};

use super::config::{Connection, EngineConfig};
use super::embedded::{self, Standalone};

/// How long the scheduler may take to hear of what was cancelled before the process ends.
const SETTLE: Duration = Duration::from_secs(2);

/// A session on a cluster.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) session: Session,
    pub(super) scheduler: SchedulerAddress,
    /// The cluster, where it lives in this process.
    embedded: Option<Standalone>,
}

impl Engine {
    /// Starts the cluster if it is to live in this process, and connects to it.
    ///
    /// # Errors
    /// When the cluster does not start or does not answer.
    pub(super) async fn open(connection: &Connection) -> anyhow::Result<Self> {
        let (embedded, scheduler) = match &connection.engine {
            EngineConfig::Scheduler(address) => (None, address.clone()),
            EngineConfig::Embedded(config) => {
                let embedded = embedded::start(config).await?;
                let scheduler = embedded.scheduler().to_owned();
                (Some(embedded), scheduler)
            }
        };
        let session = Session::connect(SessionConfig {
            scheduler: scheduler.clone(),
            store: connection.store.clone(),
            settings: connection.settings.clone(),
            connect_timeout: connection.timeout,
            tls: connection.tls.clone(),
            credential: connection.credential.clone(),
        });
        let session = session.await.context("cannot open a session")?;
        Ok(Self {
            session,
            scheduler: SchedulerAddress::open(
                scheduler,
                connection.tls.as_ref(),
                &connection.credential,
            )?,
            embedded,
        })
    }

    /// Ends the session, and the cluster if it lives in this process.
    pub(super) async fn close(self) {
        if !self.session.settle(SETTLE).await {
            tracing::warn!("the scheduler may not have heard of every cancelled query");
        }
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
    }
}
