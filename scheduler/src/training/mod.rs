//! Training runs: where the ranks of a gang meet, and where clients watch.
//!
//! ```text
//!  bound ──► generation g, members known ──► all joined ──► Membership handed out
//!                      │                                        │
//!                      └── deadline: who is missing             └── a rank fails: the root cause is
//!                                                                   kept for all of its peers
//! ```
//!
//! [`run`] is the state machine, without clock or I/O; [`registry`] owns the runs and the waiting;
//! [`service`] is the only file that knows the wire.

mod registry;
mod run;
mod service;

pub(crate) use registry::Registry;
pub(crate) use service::services;
