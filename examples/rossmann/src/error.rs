//! Errors of the Rossmann job, up to the start of training.

use std::path::PathBuf;

use datafusion::error::DataFusionError;

/// Error in generating, reading or joining the Rossmann job's data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Data for 0 stores was requested.
    #[error("cannot generate data for 0 stores; ask for at least 1")]
    NoStores,
    /// A directory or file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the directory or file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A table's file is missing.
    #[error("table {table} needs {}, which is not there", path.display())]
    MissingTable {
        /// Name of the table.
        table: &'static str,
        /// Path of its file.
        path: PathBuf,
    },
    /// The engine could not plan or run a part of the job.
    #[error("cannot {action}")]
    Query {
        /// The part of the job, as a verb and its object.
        action: &'static str,
        /// The engine's error.
        source: Box<DataFusionError>,
    },
    /// A join lost or duplicated rows.
    #[error("the join of {join} lost or duplicated rows: {before} before, {after} after")]
    JoinChangedRows {
        /// The joined tables.
        join: &'static str,
        /// Rows before the join.
        before: u64,
        /// Rows after the join.
        after: u64,
    },
}

impl Error {
    /// Returns a function for `map_err` that reports a failure of the engine at `action`.
    pub(crate) fn query(action: &'static str) -> impl FnOnce(DataFusionError) -> Self {
        move |source| Self::Query {
            action,
            source: Box::new(source),
        }
    }
}
