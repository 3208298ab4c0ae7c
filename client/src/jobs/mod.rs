//! Jobs on a cluster: everything submitted to a scheduler, by any client.
//!
//! A job keeps the id that its client was given, even when an attempt is lost and the job runs again. This module finds
//! and manages jobs that run without a client; a session does not need it for its own queries.

mod job;
mod service;

pub use job::{Job, JobEvent};
pub use service::Jobs;
pub use volley_proto::tables::JobState;
