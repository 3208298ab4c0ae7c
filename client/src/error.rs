//! The crate's error, and what is worth showing of the engine's.
//!
//! An error that starts on an executor reaches the client as text, wrapped once by every layer it
//! passed. [`root_cause`] takes off the layers that say nothing, and only those.

use std::time::Duration;

use datafusion::error::DataFusionError;
use volley_proto::failure::{DataLost, TaskFailure};
use volley_proto::limits::size;

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
    /// The scheduler and this client cannot agree on TLS.
    #[error("the scheduler at {address} cannot be used: {reason}")]
    Disagreement {
        /// The scheduler's address.
        address: String,
        /// Why not.
        reason: String,
    },
    /// A file for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] volley_proto::tls::Error),
    /// The scheduler does not let this client in, or not do that.
    #[error("the scheduler at {address} refuses: {reason}")]
    Denied {
        /// Its address.
        address: String,
        /// What it wants.
        reason: String,
    },
    /// A token that cannot be used.
    #[error("cannot use the token for the scheduler at {address}")]
    Token {
        /// The scheduler's address.
        address: String,
        /// What is wrong with it.
        #[source]
        source: Box<volley_proto::Error>,
    },
    /// A scheduler of another version.
    #[error(
        "the scheduler at {address} is version {theirs} and this volley is {own}: run the same \
         version everywhere"
    )]
    Version {
        /// The scheduler's address.
        address: String,
        /// Its version.
        theirs: String,
        /// This library's.
        own: &'static str,
    },
    /// A setting that is not taken.
    #[error("SET {key} = {value}: {reason}")]
    Setting {
        /// The setting.
        key: String,
        /// The value as typed.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A table that there is not.
    #[error("there is no table {table}{hint}")]
    UnknownTable {
        /// The table as the statement means it.
        table: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// A table that there is already.
    #[error(
        "table {table} exists already: CREATE OR REPLACE TABLE makes it anew, DROP TABLE drops it"
    )]
    TableExists {
        /// The table.
        table: String,
    },
    /// A place where a table's files were to be.
    #[error("no file that can be read is at {place}")]
    NoFiles {
        /// The place as typed.
        place: String,
    },
    /// A pattern of file names that is none.
    #[error("{pattern} is no pattern of file names: {reason}")]
    Pattern {
        /// The pattern as typed.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file whose name does not say what it is.
    #[error(
        "the name of {file} does not say what is in it: .csv, .tsv, .json, .jsonl and .ndjson (then .gz, \
         .zst, .bz2 or .xz where it is compressed), .parquet, .avro and .arrow do; CREATE EXTERNAL TABLE t \
         STORED AS format LOCATION 'file' says it of any other"
    )]
    FileName {
        /// The file.
        file: String,
    },
    /// Files that cannot be one table.
    #[error("{one} and {other} cannot be one table: {how}")]
    FilesDiffer {
        /// A file.
        one: String,
        /// A file that is different.
        other: String,
        /// In what.
        how: String,
    },
    /// Rows of a table in memory that are too many.
    #[error(
        "table {table} would have more than {limit} MiB of rows, and a table in memory goes along with \
         each query of it: write the rows to files, COPY (SELECT …) TO 'folder/' STORED AS PARQUET, and \
         query these, SELECT … FROM 'folder/*.parquet'"
    )]
    TableTooLarge {
        /// The table.
        table: String,
        /// The most there may be.
        limit: usize,
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
    /// Two input columns of one name.
    #[error("the input has two columns {column:?}: give one of them another name (AS …)")]
    RepeatedColumn {
        /// The name.
        column: String,
    },
    /// A clause that is wrong by itself.
    #[error("{clause}: {reason}")]
    Clause {
        /// The clause.
        clause: String,
        /// What is wrong with it and what would be right.
        reason: String,
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
    /// An expression in `TRANSFORM (…)` that cannot be computed there.
    #[error("TRANSFORM: {expression}: {reason}")]
    Transform {
        /// The expression as typed.
        expression: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A query that does not fit into a message to the scheduler.
    #[error(
        "the query is too large: it takes {} when it is sent to the scheduler, and the limit is {}; \
         long lists of values (IN (…), VALUES) belong into a table, a file for example, that the \
         query joins",
        size(*bytes),
        size(*limit)
    )]
    QueryTooLarge {
        /// Bytes that it takes.
        bytes: usize,
        /// Bytes that it may take.
        limit: usize,
    },
    /// Rows that a job made and that cannot be read any more.
    #[error("job {job} succeeded, but its rows were lost with {holder}: {advice}")]
    ResultLost {
        /// The job.
        job: String,
        /// Who held the rows, as far as it is known.
        holder: String,
        /// What to do.
        advice: String,
        /// Why they could not be read.
        #[source]
        source: Box<Error>,
    },
    /// A scheduler that stopped answering while a job ran.
    #[error(
        "lost the scheduler while job {job} ran: when it is back, `volley jobs attach {job}` \
         finds the job again{}",
        if *training {
            "; if it does not know the job any more, CREATE MODEL with resume = true goes on from \
             the last checkpoint"
        } else {
            ""
        }
    )]
    SchedulerLost {
        /// The job.
        job: String,
        /// Whether it trains a model.
        training: bool,
        /// What came instead of an answer.
        #[source]
        source: Box<Error>,
    },
    /// A scheduler that does not know a job which it took, as after a restart.
    #[error(
        "lost the scheduler while job {job} ran: it does not know the job any more, as after a restart; {}",
        if *training {
            "CREATE MODEL with resume = true goes on from the last checkpoint"
        } else {
            "run it again, but where it writes, look first at what is written already"
        }
    )]
    SchedulerRestarted {
        /// The job.
        job: String,
        /// Whether it trains a model.
        training: bool,
    },
    /// A request that the scheduler did not carry out.
    #[error("the scheduler at {address} did not {request}")]
    Request {
        /// The scheduler's address.
        address: String,
        /// What was asked, as "read its system tables".
        request: &'static str,
        /// Its answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A job that the scheduler does not know.
    #[error("unknown job {id:?}{hint}")]
    UnknownJob {
        /// The id as typed.
        id: String,
        /// What is known instead, starting with "; ".
        hint: String,
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

impl Error {
    /// What the scheduler at an address answered instead of doing something.
    pub(crate) fn refused(address: &str, request: &'static str, status: tonic::Status) -> Self {
        if let Some(denied) = Self::denied(address, &status) {
            return denied;
        }
        Self::Request {
            address: address.to_owned(),
            request,
            source: match status.code() {
                tonic::Code::Unimplemented => "it is of a version that cannot".into(),
                _ => status.message().to_owned().into(),
            },
        }
    }

    /// That the scheduler does not let this client do something, if that is what it answered.
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

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// The error of this project that DataFusion carries, or DataFusion's as it was.
fn own(error: DataFusionError) -> Result<Error, DataFusionError> {
    match error {
        DataFusionError::External(carried) => {
            let carried = match carried.downcast::<Error>() {
                Ok(error) => return Ok(*error),
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

/// What is worth showing of the text of an error of the engine's.
pub(crate) fn plain(text: &str) -> String {
    said_by_executor(text).unwrap_or_else(|| root_cause(text))
}

/// What an executor marked in an error's text to be found again, if it did.
fn said_by_executor(text: &str) -> Option<String> {
    if let Some(DataLost { executor, reason }) = DataLost::find(text) {
        return Some(format!("data on executor {executor} was lost: {reason}"));
    }
    TaskFailure::find(text).map(root_cause)
}

/// What is left of an error's text without the layers that say nothing.
///
/// Layers are prefixes such as `Execution error: ` and `Job x failed: `, and values printed by
/// `Debug` such as `DataFusionError(Execution("…"))`. Whatever is not known to be one stays.
fn root_cause(text: &str) -> String {
    let mut cause = text.trim().to_owned();
    while let Some(inner) = without_prefix(&cause).or_else(|| without_debug(&cause)) {
        if inner.is_empty() {
            break;
        }
        cause = inner;
    }
    cause
}

/// The text behind one prefix, if it has one.
fn without_prefix(text: &str) -> Option<String> {
    const PREFIXES: &[&str] = &[
        "Execution error: ",
        "External error: ",
        "Error during planning: ",
        "Schema error: ",
        "Arrow error: ",
        "DataFusion error: ",
        "General error: ",
        "Internal Ballista error: ",
        "Task failed due to runtime execution error: ",
        "Task failed due to IO error: ",
        "Fail to execute query due to ",
    ];
    /// Prefixes with a word in them: what comes before it and after it.
    const AROUND: &[(&str, &str)] = &[
        ("Job ", " failed: "),
        ("Job failed due to stage ", " failed: "),
        ("Error planning job ", ": "),
    ];
    if let Some(feature) = text.strip_prefix("This feature is not implemented: ") {
        return Some(not_supported(feature));
    }
    let plain = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
    let around = || {
        AROUND.iter().find_map(|(before, after)| {
            let (word, rest) = text.strip_prefix(before)?.split_once(after)?;
            (!word.contains(char::is_whitespace)).then_some(rest)
        })
    };
    plain.or_else(around).map(|rest| rest.trim().to_owned())
}

/// The value in one layer of `Debug`, if the text is one.
fn without_debug(text: &str) -> Option<String> {
    const LAYERS: &[&str] = &[
        "DataFusionError(",
        "ArrowError(",
        "Execution(",
        "Plan(",
        "External(",
        "Shared(",
        "General(",
        "Internal(",
        "GrpcActionError(",
        "GrpcConnectionError(",
        "ExternalError(",
    ];
    if text.starts_with("Status {") {
        let (_, message) = text.split_once("message: ")?;
        return string_literal(message).map(|(message, _)| message);
    }
    if let Some(rest) = text.strip_prefix("NotImplemented(") {
        let (feature, _) = string_literal(rest)?;
        return Some(not_supported(&feature));
    }
    // The name of an optimizer's rule, and what went wrong in it.
    if let Some(rest) = text.strip_prefix("Context(") {
        let (_, rest) = string_literal(rest)?;
        let inner = rest.strip_prefix(", ")?.strip_suffix(')')?;
        return Some(inner.to_owned());
    }
    let inner = LAYERS.iter().find_map(|layer| text.strip_prefix(layer))?;
    if let Some((message, rest)) = string_literal(inner) {
        return rest.ends_with(')').then_some(message);
    }
    // Some layers have a second field, the backtrace, which is empty.
    let inner = inner.strip_suffix(')')?;
    let shorter = inner
        .strip_suffix(", None")
        .or_else(|| inner.strip_suffix(", Some(\"\")"));
    Some(shorter.unwrap_or(inner).to_owned())
}

/// What DataFusion says of a feature that it has not, in the words of [`Error::NotSupported`].
fn not_supported(feature: &str) -> String {
    let what = feature.trim().trim_start_matches("not supported: ");
    format!("not supported: {what}")
}

/// A string literal as `Debug` prints it, and what follows it.
fn string_literal(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?.char_indices();
    let body = &text[1..];
    let mut value = String::new();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => return Some((value, &body[at + 1..])),
            '\\' => match rest.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                'u' => {
                    let digits = rest.as_str().strip_prefix('{')?.split_once('}')?.0;
                    value.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                    rest.nth(digits.len() + 1);
                }
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_off_layers_that_say_nothing() {
        for (text, expected) in [
            ("Execution error: boom", "boom"),
            (
                "Execution error: Job 7EnTdU failed: Job failed due to stage 2 failed: Task failed \
                 due to runtime execution error: DataFusionError(Execution(\"rank 1: cannot load \\\"m\\\"\"))\n",
                "rank 1: cannot load \"m\"",
            ),
            (
                "Execution error: Job x failed: Job failed due to stage 1 failed: Task failed due \
                 to runtime execution error: DataFusionError(ArrowError(DivideByZero, Some(\"\")))\n",
                "DivideByZero",
            ),
            (
                "Task failed due to runtime execution error: \
                 DataFusionError(Shared(External(Execution(\"a\\nb\\u{1b}\"))))",
                "a\nb\u{1b}",
            ),
            (
                "Execution error: Status { code: Internal, message: \"no\", x: 1 }",
                "no",
            ),
            (
                "Execution error: Job x failed: Error planning job x: DataFusionError(Plan(\"3 ranks\"))",
                "3 ranks",
            ),
            (
                "Job x failed: Error planning job x: DataFusionError(Context(\"a_rule\", NotImplemented(\"two orders\")))",
                "not supported: two orders",
            ),
            (
                "Error during planning: This feature is not implemented: not supported: two orders",
                "not supported: two orders",
            ),
            (
                "Error during planning: table 't' not found",
                "table 't' not found",
            ),
        ] {
            assert_eq!(root_cause(text), expected, "{text}");
        }
    }

    #[test]
    fn leaves_what_it_does_not_know() {
        for text in [
            "Resources exhausted: no memory",
            "Execution(\"open",
            "Io(Custom { kind: Other })",
            "Job a b failed: c",
            "",
        ] {
            assert_eq!(root_cause(text), text);
        }
    }

    #[test]
    fn finds_what_an_executor_marked() {
        let marked =
            "Job x failed: DataFusionError(External([[volley 21: label \"Sales\" is null]]))";
        for (text, expected) in [
            (marked, "label \"Sales\" is null"),
            (
                "Job x failed: External([[volley 34: This feature is not implemented: x]])",
                "not supported: x",
            ),
            (
                "Job x failed: External([[volley 50: stage 2: [[volley-lost 21: e-1: no route to host]]]])",
                "data on executor e-1 was lost: no route to host",
            ),
        ] {
            let error = Error::from(DataFusionError::Execution(text.into()));
            assert_eq!(error.to_string(), expected);
        }
    }

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
            Error::from(DataFusionError::from(name)),
            Error::Proto(_)
        ));
        let engine = DataFusionError::Execution("boom".into()).context("while testing");
        assert!(matches!(Error::from(engine), Error::Engine { cause, .. } if cause == "boom"));
    }
}
