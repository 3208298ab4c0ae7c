//! A session: DataFusion's context whose plans run on a cluster, and statements on top of it.

mod output;

use datafusion::dataframe::DataFrame;
use datafusion::prelude::SessionContext;
use std::time::Duration;
use volley_proto::store::ModelStore;

pub use output::Output;

use crate::sql::Statement;
use crate::{Result, SessionConfig};

/// A connection to a cluster and a model store.
#[derive(Debug)]
pub struct Session {
    store: ModelStore,
}

impl Session {
    /// Connects to the scheduler and opens the store.
    ///
    /// # Errors
    /// When no scheduler answers in time, or a setting or the store's URL is not usable.
    pub async fn connect(config: SessionConfig) -> Result<Self> {
        Ok(Self { store: ModelStore::open(&config.store)? })
    }

    /// DataFusion's own context; its plans run on the cluster.
    pub fn context(&self) -> &SessionContext {
        unimplemented!("session")
    }

    /// The model store.
    pub fn store(&self) -> &ModelStore {
        &self.store
    }

    /// The statements of a script, which `;` separates.
    ///
    /// # Errors
    /// Says the line and column where the script stops making sense.
    pub fn parse(&self, script: &str) -> Result<Vec<Statement>> {
        let _ = script;
        unimplemented!("session")
    }

    /// Runs a statement. Dropping the future, or the output's rows, cancels what runs.
    ///
    /// # Errors
    /// Whatever is wrong with the statement or goes wrong while it runs.
    pub async fn run(&self, statement: Statement) -> Result<Output> {
        let _ = statement;
        unimplemented!("session")
    }

    /// Plans one query.
    ///
    /// # Errors
    /// When it is not one query, or cannot be planned.
    pub async fn sql(&self, sql: &str) -> Result<DataFrame> {
        let _ = sql;
        unimplemented!("session")
    }

    /// Waits until the cancellations of dropped queries have reached the scheduler.
    ///
    /// Returns whether they all did in time. To be called before the process ends.
    pub async fn settle(&self, deadline: Duration) -> bool {
        let _ = deadline;
        unimplemented!("session")
    }
}
