//! The crate's error. What is worth showing of the engine's is found by [`root_cause`](crate::root_cause).

use std::path::PathBuf;
use std::time::Duration;

use datafusion::error::DataFusionError;
use volley_proto::limits::size;

use crate::root_cause::plain;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a session, an estimator or a client of the scheduler.
///
/// Each variant is one kind of failure, so a program can match on it; its text also tells a person what to do. Errors
/// of DataFusion's own, with the failures of its queries on the cluster, are [`Engine`](Self::Engine).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No scheduler answers at the address.
    #[error(
        "no scheduler answers at {address} (waited {}): start a local cluster with `volley \
         cluster up`, or name another address with --scheduler host:port",
        humantime::format_duration(*waited)
    )]
    Connect {
        /// The address as configured.
        address: String,
        /// Time that was waited.
        waited: Duration,
        /// The last attempt's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The scheduler and this client cannot agree on TLS.
    #[error("the scheduler at {address} cannot be used: {reason}")]
    Disagreement {
        /// The scheduler's address.
        address: String,
        /// Reason of the disagreement.
        reason: String,
    },
    /// A file for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] volley_proto::tls::Error),
    /// The scheduler does not authenticate or authorize this client.
    #[error("the scheduler at {address} refuses: {reason}")]
    Denied {
        /// Its address.
        address: String,
        /// The scheduler's reason.
        reason: String,
    },
    /// The token cannot be used.
    #[error("cannot use the token for the scheduler at {address}")]
    Token {
        /// The scheduler's address.
        address: String,
        /// Reason.
        #[source]
        source: Box<volley_proto::Error>,
    },
    /// The scheduler and this library speak different protocols.
    #[error("cannot work with the scheduler at {address}: {reason}")]
    Version {
        /// The scheduler's address.
        address: String,
        /// Versions and wire numbers of both.
        reason: String,
    },
    /// A setting is refused.
    #[error("SET {key} = {value}: {reason}")]
    Setting {
        /// The setting.
        key: String,
        /// The value as typed.
        value: String,
        /// Reason.
        reason: String,
    },
    /// A table does not exist.
    #[error("there is no table {table}{hint}")]
    UnknownTable {
        /// The table as the statement names it.
        table: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// A table exists already.
    #[error(
        "table {table} exists already: CREATE OR REPLACE TABLE replaces it, DROP TABLE drops it"
    )]
    TableExists {
        /// The table.
        table: String,
    },
    /// A place has no files that can be read.
    #[error("{place}: {reason}")]
    NoFiles {
        /// The place as typed.
        place: String,
        /// Reason, with a file of a similar name.
        reason: String,
    },
    /// A pattern of file names is malformed.
    #[error("{pattern} is not a pattern of file names: {reason}")]
    Pattern {
        /// The pattern as typed.
        pattern: String,
        /// Reason.
        reason: String,
    },
    /// The name of a file is not UTF-8, and so not part of a URL.
    #[error("the name of {} is not UTF-8: rename it", file.display())]
    NotUtf8 {
        /// The file.
        file: PathBuf,
    },
    /// The name of a file does not tell its format.
    #[error(
        "the name of {file} does not tell its format: expected .csv, .tsv, .json, .jsonl or .ndjson (then \
         .gz, .zst, .bz2 or .xz if it is compressed), .parquet, .avro or .arrow; for another name, CREATE \
         EXTERNAL TABLE t STORED AS format LOCATION 'file'"
    )]
    FileName {
        /// The file.
        file: String,
    },
    /// Two files do not go together in one table.
    #[error("{one} and {other} cannot be one table: {how}")]
    FilesDiffer {
        /// A file.
        one: String,
        /// A file that differs from it.
        other: String,
        /// The difference.
        how: String,
    },
    /// A copy would add to the files of a folder.
    #[error(
        "{folder} already has files, and COPY would add to them: remove them, or use INSERT INTO a table of the \
         folder to add rows"
    )]
    FolderNotEmpty {
        /// The folder as typed.
        folder: String,
    },
    /// A table in memory has too many rows.
    #[error(
        "table {table} would have more than {limit} MiB of rows, and a table in memory is sent with each \
         query that reads it: write the rows to files, COPY (SELECT …) TO 'folder/' STORED AS PARQUET, and \
         query these, SELECT … FROM 'folder/*.parquet'"
    )]
    TableTooLarge {
        /// The table.
        table: String,
        /// Limit, in MiB.
        limit: usize,
    },
    /// A script is not valid SQL.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// The line in the script, from 1.
        line: u64,
        /// The column in the line, from 1.
        column: u64,
        /// The text that was found, and the expected one.
        message: String,
    },
    /// Something else was given where one query is expected.
    #[error("expected one query, found {found}")]
    OneQuery {
        /// The statement that was found.
        found: String,
    },
    /// An option of `CREATE MODEL` does not exist.
    #[error(
        "unknown option {option:?}{hint}{} `volley help options` lists all of them",
        if hint.is_empty() { ";" } else { "" }
    )]
    UnknownOption {
        /// The option as typed.
        option: String,
        /// Up to three similar ones, starting with "; ", or nothing.
        hint: String,
    },
    /// An option is given more than once.
    #[error("option {option} is given twice")]
    RepeatedOption {
        /// The option.
        option: String,
    },
    /// A required option is missing.
    #[error("option {option} is missing: {expected}")]
    MissingOption {
        /// The option.
        option: &'static str,
        /// The expected text.
        expected: &'static str,
    },
    /// Two input columns have the same name.
    #[error("the input has two columns {column:?}: give one of them another name (AS …)")]
    RepeatedColumn {
        /// The name.
        column: String,
    },
    /// A clause is invalid.
    #[error("{clause}: {reason}")]
    Clause {
        /// The clause.
        clause: String,
        /// Reason, and a correction.
        reason: String,
    },
    /// The request is understood and not supported.
    #[error("not supported: {what}")]
    NotSupported {
        /// The request, and the alternative.
        what: String,
    },
    /// The model exists already.
    #[error(
        "model {name} exists already (version {version}): CREATE OR REPLACE MODEL publishes a new \
         version"
    )]
    ModelExists {
        /// The model.
        name: String,
        /// Its current version.
        version: u32,
    },
    /// An `ML` function does not exist, or is called wrongly.
    #[error("ML.{function}: {reason}")]
    MlFunction {
        /// The function as typed.
        function: String,
        /// Reason, and a correction.
        reason: String,
    },
    /// An expression in `TRANSFORM (…)` cannot be computed there.
    #[error("TRANSFORM: {expression}: {reason}")]
    Transform {
        /// The expression as typed.
        expression: String,
        /// Reason, and a correction.
        reason: String,
    },
    /// A query does not fit into a message to the scheduler.
    #[error(
        "the query is too large: it takes {} when it is sent to the scheduler, and the limit is {}; \
         long lists of values (IN (…), VALUES) belong in a table, such as a file, that the query joins",
        size(*bytes),
        size(*limit)
    )]
    QueryTooLarge {
        /// Size of the message, in bytes.
        bytes: usize,
        /// Limit, in bytes.
        limit: usize,
    },
    /// The result rows of a job that succeeded are lost.
    #[error("job {job} succeeded, but its rows were lost with {holder}: {advice}")]
    ResultLost {
        /// The job.
        job: String,
        /// Holder of the rows, as far as it is known.
        holder: String,
        /// Advice to the user.
        advice: String,
        /// Error by which they could not be read.
        #[source]
        source: Box<Error>,
    },
    /// The scheduler stopped answering while a job ran.
    #[error(
        "lost the scheduler while job {job} ran: when it is back, `volley jobs attach {job}` \
         finds the job again{}",
        if *training {
            "; if it does not know the job any more, CREATE MODEL with resume = true continues from \
             the last checkpoint"
        } else {
            ""
        }
    )]
    SchedulerLost {
        /// The job.
        job: String,
        /// True if the job trains a model.
        training: bool,
        /// Error that came instead of an answer.
        #[source]
        source: Box<Error>,
    },
    /// The scheduler no longer knows a job that it accepted, as after a restart.
    #[error(
        "lost the scheduler while job {job} ran: it does not know the job any more, as after a restart; {}",
        if *training {
            "CREATE MODEL with resume = true continues from the last checkpoint"
        } else {
            "run it again; if it writes, first check what was written"
        }
    )]
    SchedulerRestarted {
        /// The job.
        job: String,
        /// True if the job trains a model.
        training: bool,
    },
    /// The scheduler stopped answering while an executor was to leave.
    #[error(
        "lost the scheduler at {address} while executor {executor} was to leave: it has not answered for {}; when it is \
         back, `volley executors` tells whether the executor is still there",
        humantime::format_duration(*waited)
    )]
    DrainLost {
        /// The scheduler's address.
        address: String,
        /// The executor.
        executor: String,
        /// Time that was waited.
        waited: Duration,
        /// The last attempt's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The job was cancelled, for example by another client.
    #[error("job {job} was cancelled")]
    Cancelled {
        /// The job.
        job: String,
    },
    /// The scheduler did not carry out a request.
    #[error("the scheduler at {address} did not {request}")]
    Request {
        /// The scheduler's address.
        address: String,
        /// The request, such as "read its system tables".
        request: &'static str,
        /// Its answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The scheduler does not know a job.
    #[error("unknown job {id:?}{hint}")]
    UnknownJob {
        /// The id as typed.
        id: String,
        /// Known jobs, starting with "; ".
        hint: String,
    },
    /// An error of names, options, specs or the model store.
    #[error(transparent)]
    Proto(#[from] volley_proto::Error),
    /// The engine could not plan or run a query, or a training failed.
    #[error("{cause}")]
    Engine {
        /// Root cause, as text.
        cause: String,
        /// The engine's error with all its layers.
        original: Box<DataFusionError>,
    },
}

impl Error {
    /// Converts the error that the scheduler at an address answered to a request.
    pub(crate) fn refused(address: &str, request: &'static str, status: tonic::Status) -> Self {
        if let Some(denied) = Self::denied(address, &status) {
            return denied;
        }
        let reason = match status.code() {
            tonic::Code::Unimplemented => "its version does not support that",
            _ => status.message(),
        };
        Self::request(address, request, reason)
    }

    /// Returns the error of something that is not supported.
    pub(crate) fn not_supported(what: impl Into<String>) -> Self {
        Self::NotSupported { what: what.into() }
    }

    /// Returns the error of a request that a scheduler did not carry out.
    pub(crate) fn request(
        address: &str,
        request: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Request {
            address: address.to_owned(),
            request,
            source: source.into(),
        }
    }

    /// Returns the error of a request that the scheduler denies this client, if that is its answer.
    pub(crate) fn denied(address: &str, status: &tonic::Status) -> Option<Self> {
        let is_denied = matches!(
            status.code(),
            tonic::Code::Unauthenticated | tonic::Code::PermissionDenied
        );
        is_denied.then(|| Self::Denied {
            address: address.to_owned(),
            reason: status.message().to_owned(),
        })
    }
}

impl From<DataFusionError> for Error {
    /// Finds the error that is Volley's own, where one started it all; else the root cause.
    fn from(error: DataFusionError) -> Self {
        own(error).unwrap_or_else(|error| Self::Engine {
            cause: plain(&error.find_root().to_string()),
            original: Box::new(error),
        })
    }
}

impl From<volley_engine::error::Error> for Error {
    fn from(error: volley_engine::error::Error) -> Self {
        match error {
            volley_engine::error::Error::Clause { clause, reason } => {
                Self::Clause { clause, reason }
            }
            volley_engine::error::Error::NotSupported { what } => Self::NotSupported { what },
        }
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// Takes out Volley's own error that DataFusion carries; returns DataFusion's unchanged if it carries none.
fn own(error: DataFusionError) -> Result<Error, DataFusionError> {
    match error {
        DataFusionError::External(carried) => {
            let carried = match carried.downcast::<Error>() {
                Ok(error) => return Ok(*error),
                Err(other) => other,
            };
            let carried = match carried.downcast::<volley_engine::error::Error>() {
                Ok(error) => return Ok(Error::from(*error)),
                Err(other) => other,
            };
            let carried = match carried.downcast::<volley_proto::Error>() {
                Ok(error) => return Ok(Error::Proto(*error)),
                Err(other) => other,
            };
            match carried.downcast::<DataFusionError>() {
                Ok(error) => own(*error),
                Err(other) => Err(DataFusionError::External(other)),
            }
        }
        DataFusionError::Context(context, error) => {
            own(*error).map_err(|error| DataFusionError::Context(context, Box::new(error)))
        }
        DataFusionError::Diagnostic(diagnostic, error) => {
            own(*error).map_err(|error| DataFusionError::Diagnostic(diagnostic, Box::new(error)))
        }
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_errors_of_its_own() {
        let own = || Error::NotSupported { what: "x".into() };
        let nested = DataFusionError::Context(
            "planning".into(),
            Box::new(DataFusionError::External(Box::new(DataFusionError::from(
                own(),
            )))),
        );
        assert!(matches!(Error::from(nested), Error::NotSupported { .. }));
        let name = "a/b".parse::<volley_proto::ModelName>().unwrap_err();
        assert!(matches!(
            Error::from(volley_engine::error::external(name)),
            Error::Proto(_)
        ));
        let engine = DataFusionError::Execution("boom".into()).context("while testing");
        assert!(matches!(Error::from(engine), Error::Engine { cause, .. } if cause == "boom"));
    }
}
