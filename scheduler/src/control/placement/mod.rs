//! Placement: which stage gets which executors now, decided purely.
//!
//! An ordinary stage takes slices of its partitions wherever slots are free; whose turn it is for a slot is said by
//! [queues](super::queues). A barrier stage is a *gang*: all of its ranks start at once, one task an executor, or none
//! does. Gangs come first come first served. One that cannot start yet keeps a slot on every executor it could use (by
//! role and memory), so that later jobs cannot starve it; jobs ahead of it are not held up. One that meets again has its
//! place among jobs by its own arrival, also while its last generation ends. Each rank is [dealt](deal) a GPU of its own
//! where its training asks for one, or where the executor that it runs on has one; while a gang waits for GPUs, those that
//! compute on the CPU pass it. Queries that its reservation has starved for
//! too long are [promoted](super::aging) ahead of it. One that lacks executors, or their memory, keeps no slots: they would not do.
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
//! Not here: how a decision is carried out on Ballista's graphs, and the clock.

mod deal;
mod gang;
mod pool;
mod reason;
mod round;
#[cfg(test)]
mod tests;

use std::fmt;

use volley_proto::spec::{Ranks, TooFew};

pub(crate) use gang::{GpuCount, Memory, grows_by, never_fits, reach};
pub(crate) use pool::{Capacity, Pool};
pub(crate) use reason::WaitReason;
pub(crate) use round::{Placed, Shares, place};

use super::devices::{DeviceRequest, HostGpu};
use super::queues::Account;

/// What an executor is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ExecutorRole {
    #[default]
    Any,
    /// Queries only.
    Query,
    /// Ranks only: it never holds shuffle data.
    Train,
}

impl fmt::Display for ExecutorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Any => "any",
            Self::Query => "query",
            Self::Train => "train",
        })
    }
}

impl ExecutorRole {
    pub(crate) fn runs_ranks(self) -> bool {
        self != Self::Query
    }

    pub(crate) fn runs_queries(self) -> bool {
        self != Self::Train
    }
}

/// A running stage with partitions that no task has taken yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) job: String,
    pub(crate) stage: usize,
    /// Whose slots its tasks will hold.
    pub(crate) account: Account,
    /// The job's priority among its user's in the queue; the highest comes first.
    pub(crate) priority: i32,
    /// Whether it has been promoted ahead of gangs that came before it.
    pub(crate) promoted: bool,
    /// Whether a task of its job runs.
    pub(crate) runs: bool,
    pub(crate) kind: Kind,
}

/// What a stage asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Slices of partitions, a slot for each partition.
    Slices {
        pending: usize,
        /// Partitions one task may take; `None` for as many as there are slots.
        most: Option<usize>,
    },
    /// All pending partitions in one task, on one slot: the plan collapses its input.
    Whole,
    /// A barrier stage.
    Gang {
        request: RankRequest,
        shards: usize,
        memory: Memory,
        device: DeviceRequest,
        /// Ranks of the last generation that have not ended.
        running: usize,
        /// Ranks that have come to their end.
        done: usize,
    },
}

/// How many ranks a gang asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankRequest {
    /// To begin with.
    Begin {
        ranks: Ranks,
        /// No more than these, where it takes all.
        most: usize,
        /// Whether too few executors have been waited for for long enough.
        patience_over: bool,
        too_few: TooFew,
    },
    /// To go on after ranks were lost or executors joined.
    Regroup {
        /// As many as there were.
        wanted: usize,
        /// What it makes do with once patience is over.
        least: usize,
        most: usize,
        /// Whether lost ranks have been waited for long enough.
        patience_over: bool,
        too_few: TooFew,
    },
}

/// What is to be done for one demand.
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

/// One task to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) executor: String,
    /// How many of the pending partitions it takes.
    pub(crate) partitions: usize,
    /// Slots it holds while it runs.
    pub(crate) slots: usize,
    /// GPU that a rank was dealt; it computes on the CPU where there is none.
    pub(crate) gpu: Option<HostGpu>,
}
