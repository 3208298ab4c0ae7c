//! Volley's trainer: the work of one rank, from its rows to a model.
//!
//! ```text
//!  record batches ──encode──▶ codes and numbers ──train──▶ weights ──model──▶ files, predictions
//!                                                  │ ▲
//!                                             collective: the other ranks
//! ```
//!
//! [`load`] turns streams of Arrow batches into encoded shards, [`load_early`] into shards that training need not wait for. [`train`](train()) agrees with the other ranks on
//! vocabularies, steps and the state to start from, fits the network, and hands rank 0 the files to publish, or every
//! rank the [`TrainingState`] to resume from when it is interrupted. [`Model`] predicts from those files, with an [`Accelerator`] on a GPU. [`run_rank`]
//! does all of this for a rank that has found its [membership](collective::Membership): it connects the peers, trains,
//! and has the model published. [`custom`] is for users' own layers. The crate knows Arrow and, for GPUs, Burn; it
//! knows nothing of SQL, Ballista, stores or how ranks find each other: it is given streams, a membership and a
//! [`Publisher`]. [`simulation`] plays steps of many ranks in virtual time, for benchmarks.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod collective;

#[cfg(test)]
#[path = "../../proto/src/allocations.rs"]
mod allocations;

mod accelerator;
mod device;
mod encode;
mod error;
mod gang;
mod model;
mod network;
mod random;
pub mod simulation;
mod speed;
#[cfg(test)]
mod testing;
mod threads;
mod train;

/// Custom layers that users implement in Rust and networks name as `custom('name', argument, …)`.
///
/// A [`CustomLayer`](custom::CustomLayer) makes [operations](custom::CustomOperation), which compute forward and
/// backward on the CPU. Executors have the [`CustomLayers`](custom::CustomLayers) that their binary registers;
/// [`check_layer`](custom::check_layer) tests one.
pub mod custom {
    pub use crate::network::{
        CustomBatch, CustomLayer, CustomLayers, CustomOperation, Initializer, Parameter,
        check_layer,
    };
}

pub use accelerator::{AcceleratedModel, Accelerator};
pub use device::{Alone, GpuLock, ResolvedDevice, gpus, resolve_device, resolve_gpu};
pub use encode::{
    ArrivingShards, Defect, LoadedShards, RowMemory, Rule, ShardCache, load, load_early,
};
pub use error::{Error, Result};
pub use gang::{GangRank, Published, Publisher, run_rank};
pub use model::{Model, VOCABULARIES, WEIGHTS};
pub use speed::thread_speed;
#[doc(hidden)]
pub use train::bench;
pub use train::{
    Artifacts, Beginning, Interrupted, Observer, Origin, Outcome, Rank, RankReport, Shards, Step,
    TrainingState, train,
};
pub use volley_proto::store::Position;
