//! Everything that crosses a process boundary in Volley.
//!
//! Wire messages, ids, the training [`spec`], the model [`store`]'s layout, tables, access, TLS and [`traces`] for a collector,
//! on Arrow, tonic and object_store. Both sides of every boundary depend on this crate and on nothing of each other. It is not the place
//! for behaviour, and names no query engine: plan nodes and their encoding are in `volley-engine`, training is in
//! `volley-trainer`.

#[cfg(test)]
mod allocations;
mod error;
mod executor_role;
#[cfg(test)]
mod fuzz;
mod gpu;
mod name;
mod one_or_several;
mod secret;

pub mod access;
pub mod address;
pub mod attempts;
pub mod connections;
pub mod damage;
pub mod disk;
pub mod failure;
pub mod limits;
pub mod metrics;
pub mod nesting;
pub mod notes;
pub mod object_stores;
pub mod probe;
pub mod schedulers;
pub mod scratch;
pub mod settings;
pub mod spec;
pub mod splitmix;
pub mod stack;
pub mod store;
pub mod tables;
pub mod tls;
pub mod traces;
pub mod version;
pub mod wire;

pub use error::{Error, Result};
pub use executor_role::ExecutorRole;
pub use gpu::{Capability, Gpu, GpuId};
pub use name::{ModelName, ModelRef, PreparedId, TrainId, did_you_mean, nearest};
pub use secret::Secret;
