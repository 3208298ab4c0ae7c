//! Placement: which stage gets which executors now, decided purely.
//!
//! Stages come in the order of their jobs, first come first served. An ordinary stage takes slices
//! of its partitions wherever slots are free. A barrier stage is a *gang*: all of its ranks start
//! at once, one task an executor, or none does. A gang that cannot start yet keeps a slot on every
//! executor it could use (by role and memory), so that later jobs cannot starve it; jobs ahead of it are not held up. One
//! that meets again has its place among jobs by its own arrival, also while its last generation ends.
//!
//! ```text
//!              enough executors with a free slot ──────────────────────► Start(executors)
//!   gang ──────┤
//!              not yet: others hold the slots, or lost ranks may return ► Wait(reason), reserves
//!              ranks of the last generation have not ended ────────────► Wait(reason), reserves
//!              ranks were lost, and too few executors are left ────────► Fail(reason)
//!              its ranks take more memory than executors offer ────────► Fail(reason), or Wait if asked to
//!              some ranks are done and others were lost ───────────────► Rerun(reason)
//! ```
//!
//! Not here: how a decision is carried out on Ballista's graphs, and the clock.

mod gang;
#[cfg(test)]
mod tests;

use std::fmt;

use bytesize::ByteSize;
use volley_proto::spec::{Ranks, TooFew};

pub(crate) use gang::{Memory, grows_by, never_fits};
use gang::{least_memory, place_gang};

/// An executor as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executor {
    pub(crate) id: String,
    /// Slots (vcores) that no task holds.
    pub(crate) free: usize,
    /// Whether no task holds any.
    pub(crate) idle: bool,
    pub(crate) role: Role,
    /// Bytes of memory that it offers each of its ranks.
    pub(crate) rank_memory: u64,
}

impl Executor {
    fn take(&mut self, slots: usize) {
        (self.free, self.idle) = (self.free - slots, false);
    }
}

/// What an executor is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    #[default]
    Any,
    /// Queries only.
    Query,
    /// Ranks only: it never holds shuffle data.
    Train,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Any => "any",
            Self::Query => "query",
            Self::Train => "train",
        })
    }
}

impl Role {
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
}

/// What a stage waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// A slot for queries; a gang that waits may be ahead.
    Slot { ahead: Option<String> },
    /// Executors are there, but other tasks hold their slots.
    Slots {
        needed: usize,
        free: usize,
        registered: usize,
    },
    /// A gang ahead of it waits.
    Turn { ahead: String },
    /// Executors have left since the job was admitted.
    Executors { needed: usize, registered: usize },
    /// Too few executors offer a rank as much memory as it takes.
    Memory {
        needed: usize,
        bytes: u64,
        offer: usize,
    },
    /// Lost ranks may come back.
    Replacement {
        wanted: usize,
        free: usize,
        least: usize,
    },
    /// Ranks of the last generation have not ended yet.
    Ending { running: usize },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot { ahead: None } => f.write_str("needs a free slot"),
            Self::Slot { ahead: Some(job) } => {
                write!(
                    f,
                    "the training of job {job}, which waits for its slots, goes first"
                )
            }
            Self::Slots {
                needed,
                free,
                registered,
            } => write!(
                f,
                "needs a free slot on {needed} executors at once: {free} of {registered} have one"
            ),
            Self::Turn { ahead } => write!(f, "the training of job {ahead} is ahead"),
            Self::Executors { needed, registered } => {
                write!(f, "needs {needed} executors: {registered} are registered")
            }
            Self::Memory {
                needed,
                bytes,
                offer,
            } => write!(
                f,
                "needs {needed} executors that offer a rank {} (--rank-memory): {offer} do",
                ByteSize(*bytes).display().iec()
            ),
            Self::Replacement {
                wanted,
                free,
                least,
            } => write!(
                f,
                "{wanted} executors with a free slot are needed to go on as before, {free} have \
                 one; after regroup_timeout {least} will do"
            ),
            Self::Ending { running } => {
                write!(f, "{running} of the last generation's ranks have not ended")
            }
        }
    }
}

/// Decides for every demand, in their order, and takes what it gives from `executors`.
pub(crate) fn place(executors: &mut [Executor], demands: &[Demand]) -> Vec<Decision> {
    let mut waiting: Option<&str> = None;
    demands
        .iter()
        .map(|demand| match &demand.kind {
            Kind::Slices { pending, most } => {
                tasks_or_wait(place_slices(executors, *pending, *most), waiting)
            }
            Kind::Whole => tasks_or_wait(place_whole(executors), waiting),
            Kind::Gang {
                request,
                shards,
                memory,
                running,
                done,
            } => {
                let decision = match waiting {
                    _ if *running > 0 => Decision::Wait(WaitReason::Ending { running: *running }),
                    _ if *done > 0 => Decision::Rerun(
                        "a rank was lost after others had come to the end of training".to_owned(),
                    ),
                    Some(ahead) => Decision::Wait(WaitReason::Turn {
                        ahead: ahead.to_owned(),
                    }),
                    None => place_gang(executors, *request, *shards, memory),
                };
                if waiting.is_none() && matches!(decision, Decision::Wait(_)) {
                    waiting = Some(&demand.job);
                    let needed = least_memory(executors, *request, *shards, memory);
                    reserve(executors, needed);
                }
                decision
            }
        })
        .collect()
}

fn tasks_or_wait(tasks: Vec<Task>, ahead: Option<&str>) -> Decision {
    match tasks.is_empty() {
        true => Decision::Wait(WaitReason::Slot {
            ahead: ahead.map(str::to_owned),
        }),
        false => Decision::Tasks(tasks),
    }
}

/// Spreads a stage's partitions evenly over the executors with free slots, idle ones first, then
/// the emptiest.
fn place_slices(executors: &mut [Executor], mut pending: usize, most: Option<usize>) -> Vec<Task> {
    let mut tasks = Vec::new();
    while pending > 0 {
        let mut open = open_executors(executors, Role::runs_queries);
        if open.is_empty() {
            break;
        }
        let count = open.len();
        for (taken, executor) in open.iter_mut().enumerate() {
            let share = pending.div_ceil(count - taken);
            let partitions = share.min(executor.free).min(most.unwrap_or(usize::MAX));
            if partitions == 0 {
                continue;
            }
            executor.take(partitions);
            pending -= partitions;
            tasks.push(Task {
                executor: executor.id.clone(),
                partitions,
                slots: partitions,
            });
        }
    }
    tasks
}

fn place_whole(executors: &mut [Executor]) -> Vec<Task> {
    let mut open = open_executors(executors, Role::runs_queries);
    let Some(executor) = open.first_mut() else {
        return Vec::new();
    };
    executor.take(1);
    vec![Task {
        executor: executor.id.clone(),
        partitions: usize::MAX,
        slots: 1,
    }]
}

/// Keeps a slot on every executor that could run a rank of so much memory from the stages that come later.
fn reserve(executors: &mut [Executor], memory: u64) {
    let suits = |e: &&mut Executor| e.role.runs_ranks() && e.rank_memory >= memory;
    for executor in executors.iter_mut().filter(suits) {
        executor.free = executor.free.saturating_sub(1);
    }
}

/// Executors with a free slot that suit, idle ones first, then the one with the most; for ranks,
/// those that run nothing else come before all others.
fn open_executors(executors: &mut [Executor], suits: fn(Role) -> bool) -> Vec<&mut Executor> {
    let mut open: Vec<_> = executors
        .iter_mut()
        .filter(|executor| executor.free > 0 && suits(executor.role))
        .collect();
    open.sort_by(|a, b| {
        let shared = |executor: &Executor| executor.role != Role::Train;
        shared(a)
            .cmp(&shared(b))
            .then_with(|| b.idle.cmp(&a.idle))
            .then_with(|| b.free.cmp(&a.free))
            .then_with(|| a.id.cmp(&b.id))
    });
    open
}
