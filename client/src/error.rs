//! The crate's error, and what is worth showing of the engine's.
//!
//! An error that starts on an executor reaches the client as text, wrapped once by every layer it
//! passed. [`root_cause`] takes off the layers that say nothing, and only those.

use std::time::Duration;

use datafusion::error::DataFusionError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody answered at the scheduler's address.
    #[error(
        "no scheduler answers at {address} (waited {}): start a local cluster with `volley \
         cluster up`, or name another address with --scheduler host:port",
        humantime::format_duration(*waited)
    )]
    Connect {
        /// The address as configured.
        address: String,
        /// How long was waited.
        waited: Duration,
        /// The last attempt's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A setting that DataFusion and Ballista do not take.
    #[error("SET {key} = {value}: {reason}")]
    Setting {
        /// The setting.
        key: String,
        /// The value as typed.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A script that is not SQL as Volley knows it.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// The line in the script, from 1.
        line: u64,
        /// The column in the line, from 1.
        column: u64,
        /// What was found and what would have been right.
        message: String,
    },
    /// A place for one query that was given something else.
    #[error("expected one query, found {found}")]
    OneQuery {
        /// What there was.
        found: String,
    },
    /// An option that `CREATE MODEL` does not know.
    #[error("unknown option {option:?}{hint}; the options are: {known}")]
    UnknownOption {
        /// The option as typed.
        option: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
        /// All options.
        known: String,
    },
    /// An option given more than once.
    #[error("option {option} is given twice")]
    RepeatedOption {
        /// The option.
        option: String,
    },
    /// An option that is needed and not there.
    #[error("option {option} is missing: {expected}")]
    MissingOption {
        /// The option.
        option: &'static str,
        /// What to write.
        expected: &'static str,
    },
    /// Something Volley knows of and cannot do.
    #[error("not supported: {what}")]
    NotSupported {
        /// What was asked for, and what there is instead.
        what: String,
    },
    /// A model that exists already.
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
    /// An `ML` function that does not exist or is called wrongly.
    #[error("ML.{function}: {reason}")]
    MlFunction {
        /// The function as typed.
        function: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A rule of names, specs or the model store that was broken.
    #[error(transparent)]
    Proto(#[from] volley_proto::Error),
    /// The engine could not plan or run a query.
    #[error("{cause}")]
    Engine {
        /// The root cause as text.
        cause: String,
        /// The engine's error with all its layers, which the text repeats.
        original: Box<DataFusionError>,
    },
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        let cause = root_cause(&error.find_root().to_string());
        Self::Engine { cause, original: Box::new(error) }
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// What is left of an error's text without the layers that say nothing.
fn root_cause(text: &str) -> String {
    text.to_owned()
}
