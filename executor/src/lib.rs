//! Volley's executor: Ballista's executor, embedded, with ranks.
//!
//! ```text
//!   Ballista's task ──► engine: identity, cancel token, error classes ──► the stage's plan
//!                                                                          │ TrainExec
//!   rank host:  meet the peers ──► stream the shards ──► train on a thread of its own ──► publish
//! ```
//!
//! It runs the work that the scheduler assigns. It makes no decisions about placement or membership.
//!
//! A binary with its own layers is one line long, `volley_executor::run(CustomLayers::new().with("rbf", Rbf))`: see
//! [`custom`] and `examples/custom-layer`.

mod accelerator;
mod attendance;
mod ballista;
mod command;
mod config;
mod counts;
mod error;
mod executor;
mod files;
mod memory;
mod metrics;
mod models;
mod notices;
mod probe;
mod rank;

pub use command::run;
pub use config::{ExecutorConfig, ExecutorRole, MetricsConfig};
pub use error::{Error, Result};
pub use executor::Executor;
pub use memory::rank_memory;
pub use notices::{Collector, Notices, notices};
pub use volley_trainer::custom;
