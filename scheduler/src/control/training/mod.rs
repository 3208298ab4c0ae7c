//! Training runs: the meeting place of a gang's ranks, and the state that clients watch.
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
//! [`run`] is the state machine of one run, [`shards`] assigns shards to ranks, [`progress`] has the run's progress,
//! and [`events`] its log.

mod events;
mod progress;
mod run;
mod shards;
mod tables;

use volley_proto::TrainId;

pub(crate) use events::{Failure, RunEvent, Shown};
pub(crate) use progress::StepReport;
pub(crate) use run::{BoundRank, Generation, Membership, RankProgress, Resolution, Run};

/// Training runs of this scheduler.
pub(crate) type Runs = super::retained::Retained<TrainId, Run>;
