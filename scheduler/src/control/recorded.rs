//! Recorded state of jobs and usage: the changes that the record keeps, and what a scheduler restores from it.
//!
//! Not here: how and where they are kept, and the submissions of jobs, which the core does not know.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use volley_proto::tables::JobState;

use super::event::Submission;
use super::jobs::{Note, Totals};
use super::ledger::Held;

/// Time that the jobs of an earlier scheduler wait for executors.
pub(super) const EXECUTORS_PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Number of times in a row that a scheduler ends while it plans a job, after which the job is taken for the cause.
pub(super) const FUTILE: u32 = 3;

/// Change that is recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// Another attempt of a job has been accepted by the engine.
    Attempt { job: String, attempt: String },
    /// The current attempt is planned.
    Planned { job: String },
    /// A generation of a job's training has been bound.
    Generation {
        job: String,
        generation: u64,
        ranks: usize,
    },
    /// A job has ended.
    Ended { job: String, end: JobEnd },
    /// These executors are registered.
    Executors(BTreeSet<String>),
    /// The usage of these users, as far as it has changed.
    Usage(RecordedUsage),
}

/// Usage of the cluster by users.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedUsage {
    /// Time since which it counts.
    pub(crate) since: SystemTime,
    pub(crate) users: Vec<UserUsage>,
}

/// Usage of the cluster by a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UserUsage {
    pub(crate) owner: String,
    pub(crate) jobs: Totals,
    pub(crate) held: Held,
}

/// End of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobEnd {
    pub(crate) state: JobState,
    pub(crate) error: Option<String>,
    pub(crate) at: SystemTime,
    pub(crate) notes: Vec<Note>,
}

/// Job of an earlier scheduler, and what the record has of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) submission: Submission,
    pub(crate) submitted: SystemTime,
    /// Attempts, of which the first has the job's id.
    pub(crate) attempts: Vec<String>,
    /// Submissions in a row that were not planned to the end.
    pub(crate) futile: u32,
    /// Last generation of its training, and the number of its ranks.
    pub(crate) generation: Option<(u64, usize)>,
    /// End, if it has ended.
    pub(crate) end: Option<JobEnd>,
}

/// Jobs of an earlier scheduler that wait for its executors, or for their clients.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) jobs: Vec<String>,
    /// Executors that the earlier scheduler had last; none if they had left before it ended.
    pub(super) executors: BTreeSet<String>,
    pub(super) since: Instant,
    /// Time when the first executor was registered.
    pub(super) first: Option<Instant>,
    /// True once there are enough executors.
    pub(super) ready: bool,
}
