//! The open stores of a process, as DataFusion's sessions look them up.
//!
//! [`ShuffleStore`] keeps copies of shuffle files in one. The kinds of stores, and how one is opened, are in [`volley_proto::object_stores`].

mod counted;
mod registry;
mod remote;
mod shuffle;

pub use counted::Traffic;
pub use registry::{Declared, Stores, shown};
pub use shuffle::{ShuffleStore, TransferError};
