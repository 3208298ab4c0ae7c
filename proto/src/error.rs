//! Error of the crate: faults of a user's spec, a store or a peer's message.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error at a process boundary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is missing or invalid.
    #[error("cannot read {file}")]
    Unreadable {
        /// Path or URL of the file.
        file: String,
        /// Error that was found.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A table has no form on the wire.
    #[error(
        "table {table} cannot be read on the cluster: it has neither files (CREATE EXTERNAL TABLE, FROM \
         'x.parquet') nor rows in memory (CREATE TABLE, VALUES), and exists only in this process"
    )]
    UnsendableTable {
        /// The table as the statement names it.
        table: String,
    },
    /// A name is not a valid model name.
    #[error(
        "{name:?} is not a model name: letters, digits, '_' and '-', starting with a letter or '_', at most 128 bytes"
    )]
    ModelName {
        /// Name as typed.
        name: String,
    },
    /// An option has an invalid value.
    #[error("option {option} = {value}: {expected}")]
    Option {
        /// The option's name as typed.
        option: String,
        /// The value as typed.
        value: String,
        /// Accepted values.
        expected: String,
    },
    /// The input lacks a column.
    #[error("unknown column {column:?} in {role}{hint}")]
    UnknownColumn {
        /// The column as typed.
        column: String,
        /// Role in which it was named.
        role: &'static str,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// The input lacks several columns.
    #[error("{input} lacks {count} columns {need}: {columns}")]
    MissingColumns {
        /// The input.
        input: &'static str,
        /// Number of the missing columns.
        count: usize,
        /// Reason why it needs them.
        need: &'static str,
        /// The first of them, with similar ones that the input has.
        columns: String,
    },
    /// A column's type does not suit its role.
    #[error(
        "column {column:?} cannot be used as {role}: its type is {actual}, expected {expected}"
    )]
    ColumnType {
        /// The column.
        column: String,
        /// Role in which it was named.
        role: &'static str,
        /// Actual type of the column.
        actual: String,
        /// Types that are accepted.
        expected: String,
    },
    /// There is no store at a URL.
    #[error("the store {url} does not exist")]
    NoStore {
        /// URL of the store.
        url: String,
    },
    /// The store lacks a model.
    #[error("unknown model {name:?} in store {store}{hint}")]
    UnknownModel {
        /// The model as typed.
        name: String,
        /// The store's URL.
        store: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// The model lacks a version.
    #[error("model {name:?} has no version {version}: it has {available}")]
    UnknownVersion {
        /// The model.
        name: String,
        /// The version as typed.
        version: u32,
        /// Existing versions.
        available: String,
    },
    /// The current version of a model is not dropped alone.
    #[error(
        "version {version} is the current version of model {name:?} and cannot be dropped alone: train a newer version \
         first, or drop the whole model"
    )]
    CurrentVersion {
        /// The model.
        name: String,
        /// The version as typed.
        version: u32,
    },
    /// A store has a version of another run under the number of the one to be copied.
    #[error(
        "version {version} of model {name:?} in {store} belongs to another run: copy to an empty store, or \
         drop the model there"
    )]
    OtherVersion {
        /// The model.
        name: String,
        /// The version.
        version: u32,
        /// URL of the store to copy to.
        store: String,
    },
    /// A model that must not exist was published by another run while this one trained.
    #[error(
        "model {name:?} exists already: another run has published version {version} meanwhile; \
         CREATE OR REPLACE MODEL publishes a new version"
    )]
    PublishedMeanwhile {
        /// The model.
        name: String,
        /// Its current version.
        version: u32,
    },
    /// A run that began later has published while this one trained.
    #[error(
        "model {name:?}: version {version} was published by training {train}, which began later: {later}, and this one \
         {begun}. This one is not published; if it has checkpoints, resume = true continues it and publishes it as \
         the newest version"
    )]
    NewerRun {
        /// The model.
        name: String,
        /// Its newest version.
        version: u32,
        /// Id of that version's run.
        train: String,
        /// Start of that run: a time, or the version published before.
        later: String,
        /// Start of this run.
        begun: String,
    },
    /// A file of a model differs from the published one.
    #[error(
        "{file} is damaged: it has {found}, and {expected} were published; put back a copy of the file, predict with \
         another version, or train the model again"
    )]
    ModelFile {
        /// The file's URL.
        file: String,
        /// Actual length or hash.
        found: String,
        /// Published length or hash.
        expected: String,
    },
    /// A checkpoint belongs to a superseded generation.
    #[error(
        "generation {generation} of run {run} has been given up: generation {by} writes its checkpoints now"
    )]
    Superseded {
        /// The run.
        run: String,
        /// Generation that tried to write.
        generation: u64,
        /// Later generation, which has written.
        by: u64,
    },
    /// A store operation failed.
    #[error("model store {store}: cannot {action}")]
    Store {
        /// The store's URL.
        store: String,
        /// Action that failed.
        action: String,
        /// Cause of the failure.
        #[source]
        source: object_store::Error,
    },
    /// An operation on a log failed.
    #[error("record {url}: cannot {action}")]
    Log {
        /// The log's URL.
        url: String,
        /// Action that failed.
        action: String,
        /// Cause of the failure.
        #[source]
        source: Box<object_store::Error>,
    },
    /// A log's URL is not usable.
    #[error("record {url:?}: {reason}")]
    LogUrl {
        /// The URL as typed.
        url: String,
        /// Reason why it is not.
        reason: String,
    },
    /// A store URL is not usable.
    #[error("model store {url:?}: {reason}")]
    StoreUrl {
        /// The URL as typed.
        url: String,
        /// Reason why it is not.
        reason: String,
    },
    /// A store of files has no such option.
    #[error("unknown option {key:?} of a store of files{hint}: expected one of {known}")]
    StoreOption {
        /// The option as typed.
        key: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
        /// Known options.
        known: String,
    },
    /// A store of files is not usable.
    #[error("store {url}: {reason}")]
    ObjectStoreUrl {
        /// Its URL, without a path.
        url: String,
        /// Reason why it is not.
        reason: String,
    },
    /// Bytes from a peer or a store do not decode.
    #[error("malformed {what}")]
    Malformed {
        /// Name of what was decoded.
        what: &'static str,
        /// The decoder's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Returns the error of an option's invalid value.
    pub fn option(
        option: impl Into<String>,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Option {
            option: option.into(),
            value: value.into(),
            expected: expected.into(),
        }
    }

    /// Wraps a decoder's error.
    pub fn malformed(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Malformed {
            what,
            source: source.into(),
        }
    }
}
