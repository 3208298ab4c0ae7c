//! Model store: storage of models, laid out so that a reader never sees half of one.
//!
//! ```text
//! <store URL>/models/<name>/<version>/manifest.json      the version exists; it contains the other files' hashes
//!                                    /weights.safetensors and the trainer's other files
//!                                    /report.html        a page about it, if one is kept
//!                           /unpublished/<train id>-…/    versions that are being written
//!                           /checkpoints/<train id>/…     checkpoints of unfinished runs
//! ```
//!
//! A rank writes, clients and predictors read. A version is moved into place whole, and exists as long as its manifest,
//! which is removed first when a model is dropped. The current version of a model is its highest. The store knows the
//! files' names and the manifest, not the contents of the other files.

mod access;
mod checkpoint;
mod classes;
mod file;
mod log;
mod manifest;
mod model_store;
mod objects;
mod open;
mod publish;
mod quantiles;
#[cfg(test)]
mod remote_tests;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;
mod upkeep;

pub use checkpoint::{CheckpointInfo, FoundCheckpoint, KeptOptions, Position, Writer};
pub use classes::{ClassType, Classes, PredictedColumns};
pub use file::WrittenFile;
pub use log::{Log, Replay, log_url};
pub use manifest::{
    Coverage, EpochRecord, FeatureSummary, LabelRecord, Manifest, Numbers, RankCoverage, Refitted,
    Scale,
};
pub use model_store::{ModelStore, ModelSummary, TRACE_FILE};
pub use quantiles::{Quantiles, quantile};
pub use upkeep::{Comparison, Copied, Holding, HoldingKind, VersionCopy};
