//! The one adapter to Ballista's executor internals.

mod cancellable;
mod connections;
mod engine;
mod flight;
mod process;
mod runtime;

pub(crate) use engine::data_lost;
pub(crate) use process::{Process, clear_work_dir, connect, start};
