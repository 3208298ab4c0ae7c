//! The job's SQL files in `examples/rossmann`, embedded.
//!
//! `${name}` in them stands for a value that the caller defines: `${data}` is the directory of the CSV tables,
//! `${out}` that of the results; `train.sql` also uses `${batch_size}`, `${epochs}`, `${ranks}` and `${seed}`.

/// Declaration of the seven tables under `${data}`.
pub const TABLES: &str = include_str!("../tables.sql");

/// Views up to `train_features`, `test_features` and `training_set`; they run nothing.
pub const FEATURES: &str = include_str!("../features.sql");

/// Check of the joins: one row per join with the rows before and after; fails naming the join where they differ.
pub const CHECKS: &str = include_str!("../checks.sql");

/// Export to `${out}/features/dataset=train/` and `${out}/features/dataset=test/`.
pub const EXPORT: &str = include_str!("../export.sql");

/// Training: one `CREATE OR REPLACE MODEL rossmann`.
pub const TRAIN: &str = include_str!("../train.sql");

/// Prediction with the model `rossmann`, written to `${out}/submission.csv`.
pub const PREDICT: &str = include_str!("../predict.sql");
