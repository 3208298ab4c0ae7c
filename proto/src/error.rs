//! The crate's error: what a user's spec, a store or a peer's message can do wrong.

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong at a process boundary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that is not what it should be, or not there.
    #[error("cannot read {file}")]
    Unreadable {
        /// The file's path, or its URL.
        file: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A table that has no form on the wire.
    #[error(
        "table {table} cannot be read on the cluster: it is neither of files (CREATE EXTERNAL TABLE, \
         FROM 'x.parquet') nor of rows in memory (CREATE TABLE, VALUES), and only this process has it"
    )]
    UnsendableTable {
        /// The table as the statement names it.
        table: String,
    },
    /// A model name that SQL could not have written.
    #[error(
        "{name:?} is not a model name: letters, digits, '_' and '-', starting with a letter or '_', at most 128 bytes"
    )]
    ModelName {
        /// What was typed.
        name: String,
    },
    /// An option whose value cannot be used.
    #[error("option {option} = {value}: {expected}")]
    Option {
        /// The option's name as typed.
        option: String,
        /// The value as typed.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A column that the input does not have.
    #[error("unknown column {column:?} in {role}{hint}")]
    UnknownColumn {
        /// The column as typed.
        column: String,
        /// Where it was named.
        role: &'static str,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// A column whose type does not suit its role.
    #[error(
        "column {column:?} cannot be used as {role}: its type is {actual}, expected {expected}"
    )]
    ColumnType {
        /// The column.
        column: String,
        /// Where it was named.
        role: &'static str,
        /// The type it has.
        actual: String,
        /// The types that would do.
        expected: String,
    },
    /// A model that the store does not hold.
    #[error("unknown model {name:?} in store {store}{hint}")]
    UnknownModel {
        /// The model as typed.
        name: String,
        /// The store's URL.
        store: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
    },
    /// A version that the model does not have.
    #[error("model {name:?} has no version {version}: it has {available}")]
    UnknownVersion {
        /// The model.
        name: String,
        /// The version as typed.
        version: u32,
        /// The versions there are.
        available: String,
    },
    /// A model that must not exist, published by another run while this one trained.
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
    /// A file of a model that is not what was published.
    #[error(
        "{file} is damaged: it has {found}, and {expected} were published; put back a copy of the file, predict with \
         another version, or train the model again"
    )]
    ModelFile {
        /// The file's URL.
        file: String,
        /// What it has: a length, or a hash.
        found: String,
        /// What was published.
        expected: String,
    },
    /// A checkpoint of a superseded generation.
    #[error(
        "generation {generation} of run {run} has been given up: generation {by} writes its checkpoints now"
    )]
    Superseded {
        /// The run.
        run: String,
        /// The generation that would have written.
        generation: u64,
        /// A later one, which has written.
        by: u64,
    },
    /// A store that cannot be used.
    #[error("model store {store}: cannot {action}")]
    Store {
        /// The store's URL.
        store: String,
        /// What was being done.
        action: String,
        /// Why it failed.
        #[source]
        source: object_store::Error,
    },
    /// A store URL that names nothing usable.
    #[error("model store {url:?}: {reason}")]
    StoreUrl {
        /// The URL as typed.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An option of a store of files that it does not have.
    #[error("unknown option {key:?} of a store of files{hint}: expected one of {known}")]
    StoreOption {
        /// The option as typed.
        key: String,
        /// A suggestion, starting with "; ", or nothing.
        hint: String,
        /// The options that there are.
        known: String,
    },
    /// A store of files that cannot be used.
    #[error("store {url}: {reason}")]
    ObjectStoreUrl {
        /// Its URL, without a path.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes from a peer or a store that do not decode.
    #[error("malformed {what}")]
    Malformed {
        /// What was being decoded.
        what: &'static str,
        /// The decoder's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
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
