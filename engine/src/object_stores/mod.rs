//! The stores that a process has open, as DataFusion's sessions look them up.
//!
//! Which stores there are, and how one is opened, is in [`volley_proto::object_stores`].

mod registry;
mod remote;

pub use registry::{Declared, Stores, shown};
