//! Encoding: from Arrow columns to the numbers a network takes.
//!
//! ```text
//!  per shard, while it streams                      once all ranks' values are known
//!
//!  column ──▶ Categories ──Dictionary──▶ local codes ──Vocabulary──▶ rows of the embedding table
//!  column ──▶ f64                                                 └─▶ shard in canonical order
//!                                                                                │ Statistics of all
//!                                                                                ▼
//!                                                        Scaling ──▶ inputs and labels around 0, f32
//! ```
//!
//! While a shard streams, a categorical value gets the next free number of the shard's own
//! dictionary. The [tallies](Tally) of all shards and ranks make one sorted [`Vocabulary`] a feature,
//! the same on every rank. A settled shard's rows are in an order that depends on their content
//! only, never on how they arrived: everything random downstream is keyed by position.
//!
//! Numbers are `f64` until they are scaled: 1e9 + x has no digit of x in `f32`. Rows of weight 0 are left out as a shard
//! streams, so that nothing behind counts them.
//!
//! Shards that memory has no room for are in mapped files, from their last row on; everyone else sees slices.
//!
//! It does no training and no communication: values are exchanged by `train`.

mod cache;
mod categories;
mod columns;
mod defect;
mod dictionary;
mod folds;
mod load;
mod scaling;
mod sequence;
mod settle;
mod shard;
mod spill;
mod statistics;
mod stored;
mod tally;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use cache::{RowMemory, ShardCache};
pub(crate) use categories::{Categories, numbers};
pub(crate) use defect::merge as merge_defects;
pub use defect::{Defect, Rule};
pub use load::{LoadedShards, load};
pub(crate) use scaling::{FeatureScale, Scaling};
pub(crate) use settle::{Rows, Settled, settle};
pub(crate) use spill::Storage;
pub(crate) use statistics::Statistics;
pub(crate) use stored::Stored;
pub(crate) use tally::Tally;
pub(crate) use vocabulary::Vocabulary;
