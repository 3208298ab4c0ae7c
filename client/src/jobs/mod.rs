//! Jobs on a cluster: what was submitted to a scheduler, whoever submitted it.
//!
//! A job keeps the id that its client was given, also when an attempt is lost and it runs again.
//! This is the outside of jobs, for finding again what runs without a client; a session's own
//! queries need none of it.

mod job;
mod service;

pub use job::{Job, JobEvent};
pub use service::Jobs;
pub use volley_proto::tables::JobState;
