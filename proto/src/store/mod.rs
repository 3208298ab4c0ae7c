//! The model store: where models live, laid out so that a reader never sees half of one.
//!
//! ```text
//! <store URL>/models/<name>/<version>/claim.json         reserves the version for one run
//!                                    /weights.safetensors and what else the trainer wrote
//!                                    /manifest.json      written last: the version exists
//!                                    /report.html        a page about it, if one is kept
//!                           /checkpoints/<train id>/…     what unfinished runs left
//! ```
//!
//! A rank writes, clients and predictors read. A version is visible once its manifest is there;
//! the manifest is removed first when a model is dropped. The current version of a model is its
//! highest. The store knows the files' names and the manifest, not what the other files hold.

mod checkpoint;
mod classes;
mod manifest;
mod model_store;
mod quantiles;
mod rows;
#[cfg(test)]
mod tests;

pub use checkpoint::{CheckpointInfo, FoundCheckpoint, Position};
pub use classes::{ClassType, Classes, PredictedColumns};
pub use manifest::{
    Coverage, EpochRecord, FeatureSummary, LabelRecord, Manifest, Numbers, RankCoverage, Refitted,
    Scale,
};
pub use model_store::{ModelStore, ModelSummary, TRACE_FILE};
pub use quantiles::{Quantiles, quantile};
