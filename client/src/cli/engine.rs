//! Engine that runs statements: a session, and the cluster behind it if that is in this process.

use std::time::Duration;

use anyhow::Context;
use volley::{SchedulerAddress, Session, SessionConfig};
use volley_proto::access::Credential;

use super::config::{Connection, EngineConfig};
use super::embedded::{self, Standalone};

/// Timeout for telling the scheduler about cancelled queries before the process ends.
const SETTLE: Duration = Duration::from_secs(2);

/// Session on a cluster.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) session: Session,
    pub(super) scheduler: SchedulerAddress,
    /// Cluster, if it is in this process.
    embedded: Option<Standalone>,
}

impl Engine {
    /// Returns true if the cluster ends with this process.
    pub(super) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Starts the cluster if it is to run in this process, and connects to it.
    ///
    /// # Errors
    /// When the cluster does not start or does not answer.
    pub(super) async fn open(connection: &Connection) -> anyhow::Result<Self> {
        let (embedded, scheduler) = match &connection.engine {
            EngineConfig::Scheduler(address) | EngineConfig::Found(address) => {
                (None, address.clone())
            }
            EngineConfig::Embedded(config) => {
                let embedded = embedded::start(config, connection.otlp.as_ref()).await?;
                let scheduler = embedded.scheduler().to_owned();
                (Some(embedded), scheduler)
            }
        };
        match connect(connection, scheduler).await {
            Ok((session, scheduler)) => Ok(Self {
                session,
                scheduler,
                embedded,
            }),
            Err(error) => {
                // If the cluster were dropped, its executors might log that the scheduler is gone.
                if let Some(embedded) = embedded {
                    embedded.stop().await;
                }
                Err(error)
            }
        }
    }

    /// Ends the session, and the cluster if it is in this process.
    pub(super) async fn close(self) {
        if !self.session.settle(SETTLE).await {
            tracing::warn!("the scheduler may not have received every cancellation of a query");
        }
        if let Some(embedded) = self.embedded {
            embedded.stop().await;
        }
    }
}

/// Opens a session on the scheduler at an address.
async fn connect(
    connection: &Connection,
    scheduler: String,
) -> anyhow::Result<(Session, SchedulerAddress)> {
    let config = connection.session(&scheduler);
    let (tls, credential) = (config.tls.clone(), config.credential.clone());
    let session = Session::connect(config).await;
    let session = session.context("cannot open a session")?;
    let scheduler = SchedulerAddress::open(scheduler, tls.as_ref(), &credential)?;
    Ok((session, scheduler))
}

impl Connection {
    /// Returns the configuration of a session on the scheduler at an address.
    pub(super) fn session(&self, scheduler: &str) -> SessionConfig {
        // A cluster inside this process has made its own token; one that is given is meant for another cluster.
        let credential = match &self.engine {
            EngineConfig::Scheduler(_) | EngineConfig::Found(_) => self.credential.clone(),
            EngineConfig::Embedded(_) => Credential::Found,
        };
        SessionConfig {
            scheduler: scheduler.to_owned(),
            store: self.store.clone(),
            settings: self.settings.clone(),
            connect_timeout: self.timeout,
            tls: self.tls.clone(),
            credential,
            otlp: self.otlp.clone(),
        }
    }
}
