//! The only adapter to Ballista's executor internals.

mod complete;
mod connections;
pub(crate) mod disks;
mod engine;
mod equip;
mod fetch;
mod flight;
mod handover;
mod join_filter;
mod kept;
mod local_files;
mod process;
mod proof;
mod runner;
mod runtime;
pub(crate) mod shuffle_dir;
mod small_results;
mod stop;
mod stored;
mod task_server;
mod tasks;
mod watchdog;

pub(crate) use engine::data_lost;
pub(crate) use process::{Process, connect, start};
pub(crate) use tasks::Tasks;
