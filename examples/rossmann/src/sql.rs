//! The job's SQL files, as they lie in `examples/rossmann`, embedded.
//!
//! `${name}` in them stands for a value that the caller defines: `${data}` is the directory of the
//! CSV tables, `${out}` that of the results; `train.sql` has `${batch_size}`, `${epochs}`,
//! `${ranks}` and `${seed}`.

/// Declares the seven tables under `${data}`.
pub const TABLES: &str = include_str!("../tables.sql");

/// Views up to `train_features`, `test_features` and `training_set`. Runs nothing.
pub const FEATURES: &str = include_str!("../features.sql");

/// One row a join with the rows before and after it; fails naming the join where they differ.
pub const CHECKS: &str = include_str!("../checks.sql");

/// Writes `${out}/features/dataset=train/` and `${out}/features/dataset=test/`.
pub const EXPORT: &str = include_str!("../export.sql");

/// One `CREATE OR REPLACE MODEL rossmann`.
pub const TRAIN: &str = include_str!("../train.sql");

/// Writes `${out}/submission.csv` with the model `rossmann`.
pub const PREDICT: &str = include_str!("../predict.sql");
