//! System tables of a cluster, read from its scheduler.

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::timeout;
use volley_proto::access::Authorized;
use volley_proto::probe::Link;
use volley_proto::tables::{self, Row, Table};
use volley_proto::wire::cluster_client::ClusterClient;
use volley_proto::wire::{DropPreparedRequest, ProbeRequest, ReadTableRequest};
use volley_proto::{PreparedId, TrainId};

use crate::{Error, Result, SchedulerAddress};

/// Timeout of a read of a table.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the scheduler's next answer about the links between executors.
const LINK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an answer in bytes: a log of many jobs is long.
const MOST_BYTES: usize = 256 * 1024 * 1024;

/// System tables of one scheduler; it connects lazily.
#[derive(Debug)]
pub struct SystemTables {
    scheduler: SchedulerAddress,
    client: OnceCell<ClusterClient<Authorized>>,
}

/// Scope of a read: the rows of a system table that it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All rows.
    All,
    /// Rows of one job.
    Job(&'a str),
    /// Rows of one training run.
    Training(TrainId),
}

impl SystemTables {
    /// Returns the tables of a scheduler, which it connects to on the first read.
    pub fn of(scheduler: &SchedulerAddress) -> Self {
        Self {
            scheduler: scheduler.clone(),
            client: OnceCell::new(),
        }
    }

    /// Reads the rows of a table.
    ///
    /// # Errors
    /// When the scheduler does not answer within ten seconds, or sends the rows of another version.
    pub async fn rows<R: Row>(&self, of: Scope<'_>) -> Result<Vec<R>> {
        let json = self.read(R::TABLE, of).await?;
        Ok(tables::rows(&json)?)
    }

    /// Reads the rows of a table as a JSON array of objects.
    ///
    /// # Errors
    /// When the scheduler does not answer within ten seconds.
    pub async fn read(&self, table: Table, of: Scope<'_>) -> Result<Vec<u8>> {
        const REQUEST: &str = "read its system tables";
        let (job_id, train_id) = match of {
            Scope::All => (None, None),
            Scope::Job(id) => (Some(id.to_owned()), None),
            Scope::Training(id) => (None, Some(id.to_string())),
        };
        let request = ReadTableRequest {
            table: table.to_string(),
            job_id,
            train_id,
        };
        let client = self.client(REQUEST).await?;
        let answer = self.scheduler.authenticated(|| {
            let mut request = tonic::Request::new(request.clone());
            request.set_timeout(PATIENCE);
            let mut client = client.clone();
            async move { client.read_table(request).await }
        });
        let answer = answer.await.map_err(|status| {
            let address = self.scheduler.as_str();
            let denied = Error::denied(address, &status);
            denied.unwrap_or_else(|| Error::request(address, REQUEST, status))
        })?;
        Ok(answer.into_inner().rows)
    }

    /// Drops prepared rows that the caller may drop: those with an id, or all. Returns how many.
    ///
    /// # Errors
    /// When the scheduler does not answer within ten seconds, or there are none with the id.
    pub(crate) async fn drop_prepared(&self, id: Option<PreparedId>) -> Result<u64> {
        const REQUEST: &str = "drop prepared rows";
        let client = self.client(REQUEST).await?;
        let answer = self.scheduler.authenticated(|| {
            let id = id.map(String::from);
            let mut request = tonic::Request::new(DropPreparedRequest { id });
            request.set_timeout(PATIENCE);
            let mut client = client.clone();
            async move { client.drop_prepared(request).await }
        });
        let answer = answer.await;
        let answer =
            answer.map_err(|status| Error::refused(self.scheduler.as_str(), REQUEST, status))?;
        Ok(answer.into_inner().dropped)
    }

    /// Probes the links between the cluster's processes, which connect to each other for this. Takes a second or two
    /// for each executor.
    ///
    /// # Errors
    /// When the scheduler does not answer for a minute, serves another client, or has another version.
    pub async fn links(&self) -> Result<Vec<Link>> {
        const REQUEST: &str = "try the links between its executors";
        let mut client = self.client(REQUEST).await?;
        let address = self.scheduler.as_str();
        let status = |status| Error::refused(address, REQUEST, status);
        let silent = |_| {
            let reason = format!("it has not answered for {LINK_TIMEOUT:?}");
            Error::request(address, REQUEST, reason)
        };
        let answer = timeout(LINK_TIMEOUT, client.probe(ProbeRequest {})).await;
        let mut answers = answer.map_err(silent)?.map_err(status)?.into_inner();
        let mut links = Vec::new();
        loop {
            let answer = timeout(LINK_TIMEOUT, answers.message()).await;
            match answer.map_err(silent)?.map_err(status)? {
                Some(answer) => {
                    let link = serde_json::from_slice(&answer.link);
                    links.push(link.map_err(|error| Error::request(address, REQUEST, error))?);
                }
                None => return Ok(links),
            }
        }
    }

    /// Returns the client, which connects for the first request.
    async fn client(&self, request: &'static str) -> Result<ClusterClient<Authorized>> {
        let client = self.client.get_or_try_init(|| async {
            let channel = self.scheduler.connect_for(request).await?;
            Ok::<_, Error>(ClusterClient::new(channel).max_decoding_message_size(MOST_BYTES))
        });
        Ok(client.await?.clone())
    }
}
