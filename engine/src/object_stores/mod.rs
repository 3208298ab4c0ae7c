//! The open stores of a process, as DataFusion's sessions look them up.
//!
//! The kinds of stores, and how one is opened, are in [`volley_proto::object_stores`].

mod registry;
mod remote;

pub use registry::{Declared, Stores, shown};
