//! Executors of a cluster, and their planned departures. Not here: the executor's end, which the scheduler and the
//! executor agree on.

use std::time::Duration;

use tokio::time::sleep;
use volley_proto::tables::Executor;
use volley_proto::wire::DrainRequest;
use volley_proto::wire::cluster_client::ClusterClient;

use crate::session::await_scheduler;
use crate::system_tables::{Scope, SystemTables};
use crate::{Error, Result, SchedulerAddress};

/// Pause between two looks for an executor that is to leave.
const PAUSE: Duration = Duration::from_millis(250);

/// Executors of one scheduler.
#[derive(Debug)]
pub struct Executors {
    scheduler: SchedulerAddress,
    tables: SystemTables,
}

/// Executor that is to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    id: String,
    /// Time at which it registered, in milliseconds since 1970: one that comes back has another.
    since: Option<u64>,
}

impl Executors {
    /// Connects to a scheduler, and waits until it answers.
    ///
    /// # Errors
    /// When the scheduler does not answer in time, or refuses this client.
    pub async fn connect(scheduler: SchedulerAddress, patience: Duration) -> Result<Self> {
        await_scheduler(&scheduler, patience).await?;
        let tables = SystemTables::of(&scheduler);
        Ok(Self { scheduler, tables })
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &SchedulerAddress {
        &self.scheduler
    }

    /// Has an executor take no new tasks, and leave once nothing there is needed, or after its `--drain-timeout`.
    ///
    /// # Errors
    /// When the scheduler does not answer, or refuses: only administrators may do this, with an executor that is
    /// registered.
    pub async fn drain(&self, id: &str) -> Result<Leaving> {
        const REQUEST: &str = "drain the executor";
        let address = self.scheduler.as_str();
        let refused = |source| Error::Request {
            address: address.to_owned(),
            request: REQUEST,
            source,
        };
        let channel = self.scheduler.connect().await.map_err(refused)?;
        let request = DrainRequest {
            executor_id: id.to_owned(),
        };
        let drained = ClusterClient::new(channel).drain(request).await;
        drained.map_err(|status| Error::refused(address, REQUEST, status))?;
        // It may have left by now.
        let since = self.since(id).await?;
        let id = id.to_owned();
        Ok(Leaving { id, since })
    }

    /// Waits until an executor has left; its `--drain-timeout` bounds the wait.
    ///
    /// # Errors
    /// When the scheduler does not answer.
    pub async fn await_left(&self, leaving: &Leaving) -> Result<()> {
        while leaving.since.is_some() && self.since(&leaving.id).await? == leaving.since {
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Returns when a registered executor registered.
    async fn since(&self, id: &str) -> Result<Option<u64>> {
        let rows: Vec<Executor> = self.tables.rows(Scope::All).await?;
        let row = rows.into_iter().find(|row| row.executor_id == id);
        Ok(row.map(|row| row.since))
    }
}
