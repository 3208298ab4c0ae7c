//! The one adapter to Ballista's executor internals.

mod cancellable;
mod connections;
mod engine;
mod flight;
mod process;

pub(crate) use process::{Process, connect, start};
