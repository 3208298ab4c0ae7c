//! Unmet demand: the work that waits for slots, as the last offer has found it. It is what a cluster would have to grow by.

use volley_proto::spec::Ranks;

use super::placement::{Decision, Demand, Kind, RankRequest, WaitReason};

/// Work that waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unmet {
    /// Tasks of queries, each of which takes one slot.
    pub(crate) tasks: usize,
    /// Gangs that have not started, or meet again.
    pub(crate) gangs: usize,
    /// Ranks of these gangs, each of which takes a slot of another executor.
    pub(crate) ranks: usize,
}

impl Unmet {
    /// Returns what a decision leaves of a demand.
    pub(super) fn of(demand: &Demand, decision: &Decision) -> Self {
        let given = match decision {
            Decision::Tasks(tasks) | Decision::Start(tasks) => {
                tasks.iter().map(|task| task.partitions).sum()
            }
            // More slots would not help.
            Decision::Wait(WaitReason::Cap { .. } | WaitReason::MemoryQuota { .. }) => {
                return Self::default();
            }
            Decision::Wait(_) => 0,
            // The stage is over.
            Decision::Fail(_) | Decision::Rerun(_) => return Self::default(),
        };
        let tasks = match &demand.kind {
            Kind::Slices { pending, .. } => pending.saturating_sub(given),
            Kind::Whole => usize::from(given == 0),
            Kind::Gang { .. } if given > 0 => 0,
            Kind::Gang { request, .. } => {
                return Self {
                    tasks: 0,
                    gangs: 1,
                    ranks: ranks(*request),
                };
            }
        };
        Self {
            tasks,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.tasks += other.tasks;
        self.gangs += other.gangs;
        self.ranks += other.ranks;
    }
}

/// Returns the number of ranks that a gang waits for; one where any number would do.
fn ranks(request: RankRequest) -> usize {
    match request {
        RankRequest::Begin {
            ranks: Ranks::Exactly(ranks),
            ..
        } => ranks,
        RankRequest::Begin {
            ranks: Ranks::All, ..
        } => 1,
        RankRequest::Regroup { wanted, .. } => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::placement::{Task, WaitReason};

    fn demand(kind: Kind) -> Demand {
        Demand {
            job: "j".into(),
            stage: 1,
            account: crate::control::offers::unknown_account(),
            priority: 0,
            limits: None,
            promoted: false,
            runs: false,
            kind,
        }
    }

    fn given(partitions: usize) -> Decision {
        Decision::Tasks(vec![Task {
            executor: "a".into(),
            partitions,
            slots: 1,
            gpu: None,
        }])
    }

    #[test]
    fn what_no_task_takes_is_unmet() {
        let waits = Decision::Wait(WaitReason::Slot { ahead: None });
        let slices = demand(Kind::Slices {
            pending: 5,
            most: None,
        });
        let tasks = |demand: &Demand, decision: &Decision| Unmet::of(demand, decision).tasks;
        assert_eq!(tasks(&slices, &given(2)), 3);
        assert_eq!(tasks(&slices, &waits), 5);
        assert_eq!(tasks(&slices, &Decision::Fail("it".into())), 0);
        let whole = demand(Kind::Whole);
        assert_eq!((tasks(&whole, &waits), tasks(&whole, &given(1))), (1, 0));
    }
}
