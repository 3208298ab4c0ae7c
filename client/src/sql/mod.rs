//! Volley's SQL: DataFusion's, and statements and functions about models.

mod options;
mod statement;

pub use options::{OptionValue, TrainOption, TrainOptions, train_options};
pub use statement::Statement;
