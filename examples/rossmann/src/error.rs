//! What can go wrong with the Rossmann job, up to where training begins.

use std::path::PathBuf;

use datafusion::error::DataFusionError;

/// An error of the Rossmann job's data: making it, reading it, or joining it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Data for no store was asked for.
    #[error("cannot generate data for 0 stores; ask for at least 1")]
    NoStores,
    /// A directory or file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A table's file is not where it should be.
    #[error("table {table} needs {}, which is not there", path.display())]
    MissingTable {
        /// The table.
        table: &'static str,
        /// Its file.
        path: PathBuf,
    },
    /// The engine could not plan or run a part of the job.
    #[error("cannot {action}")]
    Query {
        /// Which part, as a verb and what it is done to.
        action: &'static str,
        /// What the engine said.
        source: Box<DataFusionError>,
    },
    /// A join lost or duplicated rows.
    #[error("the join of {join} lost or duplicated rows: {before} before, {after} after")]
    JoinChangedRows {
        /// The join, by the tables it joins.
        join: &'static str,
        /// Rows that went in.
        before: u64,
        /// Rows that came out.
        after: u64,
    },
}

impl Error {
    /// For `map_err`: the engine failed at `action`.
    pub(crate) fn query(action: &'static str) -> impl FnOnce(DataFusionError) -> Self {
        move |source| Self::Query {
            action,
            source: Box::new(source),
        }
    }
}
