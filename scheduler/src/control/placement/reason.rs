//! What a stage waits for, and how that is told.
//!
//! Not here: who holds the slots, which is added where it is asked for.

use std::fmt;
use std::sync::Arc;

use bytesize::ByteSize;

use super::GpuCount;
use crate::control::queues::Account;

/// What a stage waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// An executor.
    NoExecutor,
    /// A slot for queries; a gang that waits may be ahead.
    Slot { ahead: Option<String> },
    /// A slot for queries, which queues share.
    Share {
        queue: Arc<str>,
        held: usize,
        all: usize,
        share: usize,
    },
    /// Other tasks of its user to end.
    Cap {
        account: Account,
        held: usize,
        cap: usize,
    },
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
    /// Others hold GPUs.
    GpusHeld {
        needed: usize,
        free: usize,
        registered: usize,
    },
    /// The cluster has too few GPUs.
    Gpus { needed: usize, there: GpuCount },
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

impl WaitReason {
    /// Whether slots that become free bring what it waits for closer.
    pub(super) fn is_of_slots(&self) -> bool {
        !matches!(self, Self::Executors { .. } | Self::Memory { .. }) && !self.is_of_gpus()
    }

    /// Waits for GPUs, which ranks on the CPU do not take.
    pub(super) fn is_of_gpus(&self) -> bool {
        matches!(self, Self::GpusHeld { .. } | Self::Gpus { .. })
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoExecutor => f.write_str("no executor is registered"),
            Self::Share {
                queue,
                held,
                all,
                share,
            } => write!(
                f,
                "needs a free slot: queue {queue} has {held} of {all} slots, and its share is {share}"
            ),
            Self::Cap { account, held, cap } => {
                let Account { queue, user } = account;
                let s = if *held == 1 { "" } else { "s" };
                write!(
                    f,
                    "user {user} holds {held} slot{s}, and the cap of queue {queue} is {cap}"
                )
            }
            Self::Slot { ahead: None } => f.write_str("needs a free slot"),
            Self::Slot { ahead: Some(job) } => {
                write!(f, "slots are reserved for the training of job {job}")
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
            Self::GpusHeld {
                needed,
                free,
                registered,
            } => write!(
                f,
                "needs a free GPU on {needed} executors at once: {free} of {registered} have one"
            ),
            Self::Gpus { needed, there } => {
                let s = if *needed == 1 { "" } else { "s" };
                write!(f, "needs {needed} GPU{s}, and the cluster has {there}")
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
