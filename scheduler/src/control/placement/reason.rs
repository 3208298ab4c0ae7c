//! The reasons why a stage waits, and their texts.
//!
//! Not here: the holders of slots, which are added when the text is requested.

use std::fmt;
use std::sync::Arc;

use bytesize::ByteSize;
use volley_proto::access::Role;

use super::GpuCount;
use crate::control::queues::Account;
use crate::control::quotas::SpentGpuHours;

/// Reason why a stage waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// No executor is registered.
    NoExecutor,
    /// No slot for queries is free; a waiting gang may be ahead.
    Slot { ahead: Option<String> },
    /// No slot for queries is free, and queues share the slots.
    Share {
        queue: Arc<str>,
        held: usize,
        all: usize,
        share: usize,
    },
    /// The user's queries hold as many slots as the cap of the queue allows.
    Cap {
        account: Account,
        held: usize,
        cap: usize,
    },
    /// Running tasks of the user's queries may hold as much memory as a quota leaves, with less left than a slot's share.
    MemoryQuota {
        user: Arc<str>,
        role: Role,
        held: u64,
        limit: u64,
    },
    /// The user's trainings have used up the quota of GPU hours.
    GpuHours(SpentGpuHours),
    /// There are enough executors, but other tasks hold their slots.
    Slots {
        needed: usize,
        free: usize,
        registered: usize,
    },
    /// A gang that is ahead in the queue waits.
    Turn { ahead: String },
    /// Executors have left since the job was admitted.
    Executors { needed: usize, registered: usize },
    /// Other ranks hold the GPUs.
    GpusHeld {
        needed: usize,
        free: usize,
        registered: usize,
    },
    /// The cluster has too few GPUs.
    Gpus { needed: usize, there: GpuCount },
    /// Too few executors offer a rank the memory that it needs.
    Memory {
        needed: usize,
        bytes: u64,
        offer: usize,
    },
    /// Lost ranks may still be replaced.
    Replacement {
        wanted: usize,
        free: usize,
        least: usize,
    },
    /// Ranks of the last generation have not ended yet.
    Ending { running: usize },
}

impl WaitReason {
    /// Checks whether slots that become free bring the end of the wait closer.
    pub(super) fn is_of_slots(&self) -> bool {
        !matches!(self, Self::Executors { .. } | Self::Memory { .. }) && !self.is_of_gpus()
    }

    /// Returns the text for those who may not see the job that is ahead.
    pub(crate) fn without_job(&self) -> &'static str {
        match self {
            Self::Slot { .. } => "slots are reserved for a training of another user",
            _ => "a training of another user is ahead",
        }
    }

    /// Checks whether the wait is for GPUs, which ranks on the CPU do not take.
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
            Self::MemoryQuota {
                user,
                role,
                held,
                limit,
            } => {
                let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
                write!(
                    f,
                    "running tasks of user {user} may hold {} of memory, and the limit memory of the role {role} is {}: \
                     there is no slot's share left",
                    size(*held),
                    size(*limit)
                )
            }
            Self::GpuHours(spent) => write!(f, "{spent}"),
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
                "needs {wanted} executors with a free slot: {free} {has} one; after regroup_timeout, training continues \
                 with {least}",
                has = if *free == 1 { "has" } else { "have" },
            ),
            Self::Ending { running } => {
                write!(f, "{running} of the last generation's ranks have not ended")
            }
        }
    }
}
