//! Placement: the assignment of executors to stages now, decided purely.
//!
//! An ordinary stage takes slices of its partitions wherever slots are free; [queues](super::queues) decide whose
//! turn it is for a slot. A barrier stage is a *gang*: all of its ranks start at once, one task an executor, or none
//! does. Gangs are served in the order of arrival. A gang that cannot start yet reserves a slot on every executor it
//! could use (by role and memory), so that later jobs cannot starve it; jobs ahead of it are not held up. A gang that
//! meets again keeps its place among jobs by its own arrival, even while its last generation ends. Each rank is
//! [dealt](deal) a GPU of its own if its training asks for one, or if its executor has one; while a gang waits for
//! GPUs, gangs that compute on the CPU pass it. Queries that a reservation has starved for too long are
//! [promoted](super::aging) ahead of the gang. A gang that lacks executors, or their memory, reserves no slots,
//! because they would not help.
//!
//! ```text
//!              enough executors with a free slot ──────────────────────► Start(executors)
//!   gang ──────┤
//!              not yet: others hold the slots, or lost ranks may return ► Wait(reason), reserves
//!              not yet: others hold the GPUs ──────────────────────────► Wait(reason)
//!              ranks of the last generation have not ended ────────────► Wait(reason), reserves
//!              ranks were lost, and too few executors are left ────────► Fail(reason)
//!              its ranks take more memory than executors offer ────────► Fail(reason), or Wait if asked to
//!              too few executors are registered ───────────────────────► Fail(reason), or Wait if asked to
//!              some ranks are done and others were lost ───────────────► Rerun(reason)
//! ```
//!
//! Not here: carrying out a decision on Ballista's graphs, and the clock.

mod deal;
mod gang;
mod pool;
mod reason;
mod round;
#[cfg(test)]
mod tests;

pub(crate) use volley_proto::ExecutorRole;
use volley_proto::spec::{Ranks, TooFew};

pub(crate) use gang::{GpuCount, Memory, grows_by, never_fits, reach};
pub(crate) use pool::{Capacity, Pool};
pub(crate) use reason::WaitReason;
pub(crate) use round::{Placed, Shares, place};

use super::devices::{DeviceRequest, HostGpu};
use super::jobs::JobLimits;
use super::queues::Account;
use super::quotas::MemoryQuota;

/// Running stage with partitions that no task has taken yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) job: String,
    pub(crate) stage: usize,
    /// Account that its tasks' slots will count to.
    pub(crate) account: Account,
    /// Priority of the job among its user's in the queue; the highest comes first.
    pub(crate) priority: i32,
    /// Limits of the job, if there are any.
    pub(crate) limits: Option<JobLimits>,
    /// True if it has been promoted ahead of gangs that came before it.
    pub(crate) promoted: bool,
    /// True if a task of its job runs.
    pub(crate) runs: bool,
    pub(crate) kind: Kind,
}

impl Demand {
    /// Returns the limits on the memory of its user's queries.
    fn memory(&self) -> MemoryQuota {
        self.limits
            .map_or_else(MemoryQuota::default, |limits| limits.memory)
    }
}

/// Request of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Slices of partitions, a slot for each slice.
    Slices {
        pending: usize,
        /// Most slices that one task may take; `None` for as many as there are slots.
        most: Option<usize>,
    },
    /// All pending partitions in one task, on one slot: the plan collapses its input.
    Whole,
    /// A barrier stage.
    Gang {
        request: RankRequest,
        shards: usize,
        memory: Box<Memory>,
        device: DeviceRequest,
        /// Ranks of the last generation that have not ended.
        running: usize,
        /// Ranks that have succeeded.
        done: usize,
        /// Executors that hold its rows already.
        preferred: Vec<String>,
    },
}

/// Number of ranks that a gang requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankRequest {
    /// Request to begin.
    Begin {
        ranks: Ranks,
        /// Most ranks, if the gang takes all executors.
        most: usize,
        /// True if too few executors have been waited for for long enough.
        patience_over: bool,
        too_few: TooFew,
    },
    /// Request to continue after ranks were lost or executors joined.
    Regroup {
        /// Number of ranks before.
        wanted: usize,
        /// Number of ranks that suffices once patience is over.
        least: usize,
        most: usize,
        /// True if lost ranks have been waited for for long enough.
        patience_over: bool,
        too_few: TooFew,
    },
}

/// Decision about one demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Tasks of an ordinary stage: executor, partitions, slots.
    Tasks(Vec<Task>),
    /// The gang starts, one rank on each of these executors, with these numbers of shards.
    Start(Vec<Task>),
    /// The stage waits.
    Wait(WaitReason),
    /// The gang's job must end.
    Fail(String),
    /// The gang's job must be run again from its start.
    Rerun(String),
}

/// Task to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) executor: String,
    /// Number of pending slices or shards that it takes.
    pub(crate) partitions: usize,
    /// Slots that it holds while it runs.
    pub(crate) slots: usize,
    /// GPU assigned to a rank; `None` for the CPU.
    pub(crate) gpu: Option<HostGpu>,
}
