//! The Rossmann store sales job: seven CSV tables in, a forecast for every store and day out.
//!
//! The job exists twice, as the SQL that [`sql`] embeds and as DataFrames in [`features`]; a test checks that both
//! give the same rows. [`generate`] makes tables of the same shape for users who do not have the competition's.
//! Training itself is not here: `train.sql` and the estimator do it.
//!
//! ```text
//! generate ──> seven CSV files ──> register_tables ──> check_joins ──> features ──> training
//!                                  tables.sql          checks.sql      features.sql  train.sql
//! ```

mod checks;
mod error;
mod features;
mod generate;
pub mod sql;
mod tables;
#[cfg(test)]
mod tests;

pub use checks::check_joins;
pub use error::Error;
pub use features::{CATEGORICAL, CONTINUOUS, Features, LABEL, SPLIT, features};
pub use generate::{FULL_SIZE, GenerateOptions, GenerateSummary, GeneratedTable, generate};
pub use tables::register_tables;
