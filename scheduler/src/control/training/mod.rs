//! Training runs: where the ranks of a gang meet, and where clients watch.
//!
//! ```text
//!  bound ──► generation g, members known ──► all joined ──► Membership handed out
//!                      │                                        │
//!                      └── deadline: who is missing             ├── a rank fails: the root cause is
//!                                                               │   kept for all of its peers
//!                                                               └── a rank is lost: all are told that
//!                                                                   the generation is over
//! ```
//!
//! [`run`] is the state machine, without clock or I/O; [`service`] is the only file that knows the
//! wire.

mod progress;
mod run;
mod service;
mod tables;

use volley_proto::TrainId;

pub(crate) use run::Run;
pub(crate) use service::services;

/// The training runs of this scheduler.
pub(crate) type Runs = crate::watched::Watched<TrainId, Run>;
