//! What crosses a process boundary in Volley.
//!
//! Wire messages, ids, the training [`spec`], the model [`store`]'s layout, and the plan nodes
//! (`plan`) with their codecs. Both sides of every boundary depend on this crate and on nothing
//! of each other. It is not the place for behaviour: planning lives in the scheduler and client,
//! training in the trainer. What a plan node needs at run time it finds behind a trait of
//! `runtime`, which only the executor implements, so the scheduler plans training without
//! linking a tensor library.
//!
//! ```text
//! always            wire messages, ids, spec, store, tables, access, tls     Arrow, tonic, object_store
//! feature `plan`    plan, runtime, settings, and of object_stores Stores     DataFusion, Ballista too
//! ```
//!
//! Scheduler, executor and client ask for `plan`; the trainer does not, and links no engine.

#[cfg(test)]
mod allocations;
mod disk;
mod error;
#[cfg(test)]
mod fuzz;
mod gpu;
mod name;
mod one_or_several;
mod secret;

pub mod access;
pub mod address;
pub mod connections;
pub mod damage;
pub mod failure;
pub mod limits;
pub mod nesting;
pub mod object_stores;
#[cfg(feature = "plan")]
pub mod plan;
pub mod probe;
#[cfg(feature = "plan")]
pub mod runtime;
#[cfg(feature = "plan")]
pub mod settings;
pub mod spec;
pub mod splitmix;
pub mod stack;
pub mod store;
pub mod tables;
pub mod tls;
pub mod wire;

pub use error::{Error, Result};
pub use gpu::{Capability, Gpu, GpuId};
pub use name::{ModelName, ModelRef, TrainId, did_you_mean};
pub use secret::Secret;
