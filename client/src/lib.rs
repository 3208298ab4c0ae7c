//! Volley: a distributed dataframe engine with an integrated trainer.
//!
//! A [`Session`] is DataFusion's `SessionContext` whose plans run on a cluster, with SQL for
//! training and prediction on top (`CREATE MODEL`, `ML.PREDICT`), and the same in Rust:
//! [`Estimator`] → [`fit`](Estimator::fit) → [`Model`] → [`transform`](Model::transform).

mod config;
mod error;
mod estimator;
mod jobs;
mod model;
pub mod rossmann;
mod session;
mod sql;
#[cfg(feature = "standalone")]
pub mod standalone;
#[cfg(test)]
mod testing;

pub use config::SessionConfig;
pub use datafusion;
pub use error::{Error, Result};
pub use estimator::Estimator;
pub use jobs::{Job, JobState, Jobs, Note};
pub use model::{DataFrameExt, Model};
pub use session::{Output, Session};
pub use sql::{
    OptionValue, SplitMethod, Statement, TrainOption, TrainOptions, WarmStart, train_options,
};
