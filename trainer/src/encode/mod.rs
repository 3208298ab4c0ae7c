//! Encoding of Arrow columns as the numbers that a network takes.
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
//! While a shard streams, a categorical value gets the next free number of the shard's own dictionary. The
//! [tallies](Tally) of all shards and ranks are merged into one sorted [`Vocabulary`] per feature, the same on every
//! rank. The order of a settled shard's rows depends on their content only, not on the order of arrival: everything
//! random downstream is keyed by position.
//!
//! A column of text with an Arrow dictionary is encoded by its keys: each text that occurs in a batch is looked up once.
//! Other columns are encoded through a memo of recent values. A model that predicts looks up the rest by a hash.
//!
//! Numbers are `f64` until they are scaled: in `f32`, 1e9 + x loses every digit of x. Rows of weight 0 are dropped as a
//! shard streams, so that nothing downstream counts them.
//!
//! Shards that do not fit in memory are in mapped files, from their last row on; callers see slices either way.
//!
//! This module does no training and no communication: `train` exchanges the values.

mod arriving;
mod cache;
mod categories;
mod columns;
mod defect;
mod dictionary;
mod folds;
mod index;
mod load;
mod memo;
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

pub(crate) use arriving::WAVES;
pub use arriving::{ArrivingShards, load_early};
pub use cache::{RowMemory, ShardCache};
pub(crate) use categories::{Categories, Class, numbers};
pub(crate) use defect::merge as merge_defects;
pub use defect::{Defect, Rule};
pub(crate) use index::Index;
pub use load::{LoadedShards, load};
pub(crate) use scaling::{FeatureScale, Scaling};
pub(crate) use settle::{Rows, Settled, settle};
pub(crate) use shard::{LocalShard, is_finite};
pub(crate) use spill::Storage;
pub(crate) use statistics::Statistics;
pub(crate) use stored::Stored;
pub(crate) use tally::Tally;
pub(crate) use vocabulary::Vocabulary;
