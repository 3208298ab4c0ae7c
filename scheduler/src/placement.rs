//! Placement: which stage gets which executors now, decided purely.
//!
//! Stages come in the order of their jobs, first come first served. An ordinary stage takes slices
//! of its partitions wherever slots are free. A barrier stage is a *gang*: all of its ranks start
//! at once, one task an executor, or none does. A gang that cannot start yet keeps a slot on every
//! executor it could use, so that later jobs cannot starve it; jobs ahead of it are not held up.
//!
//! ```text
//!              enough executors with a free slot ──────────────────────► Start(executors)
//!   gang ──────┤
//!              not yet: others hold the slots ─────────────────────────► Wait(reason), reserves
//!              it lost a task after it had started ────────────────────► Abort(reason)
//! ```
//!
//! Not here: how a decision is carried out on Ballista's graphs, and the clock.

use std::fmt;

use volley_proto::spec::Ranks;

/// An executor as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executor {
    pub(crate) id: String,
    /// Slots (vcores) that no task holds.
    pub(crate) free: usize,
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
        ranks: Ranks,
        shards: usize,
        /// Tasks it has been given before.
        started: usize,
    },
}

/// What is to be done for one demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Tasks of an ordinary stage: executor, partitions, slots.
    Tasks(Vec<Task>),
    /// The gang starts, one rank on each of these executors, with these numbers of shards.
    Start(Vec<Task>),
    /// The gang waits.
    Wait(WaitReason),
    /// The gang's job must end.
    Abort(String),
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

/// What a gang waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitReason {
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
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots {
                needed,
                free,
                registered,
            } => write!(
                f,
                "needs a free slot on {needed} executors at once: {free} of {registered} have one"
            ),
            Self::Turn { ahead } => write!(f, "waits behind the training of job {ahead}"),
            Self::Executors { needed, registered } => {
                write!(f, "needs {needed} executors: {registered} are registered")
            }
        }
    }
}

/// Why a gang of this size can never run on a cluster of this many executors, or `None`.
pub(crate) fn never_fits(ranks: Ranks, registered: usize) -> Option<String> {
    let needed = match ranks {
        Ranks::Exactly(needed) => needed,
        Ranks::All => 1,
    };
    (needed > registered).then(|| {
        format!(
            "training needs {needed} ranks, one an executor, and the cluster has {registered} \
             executors: start more, or lower ranks"
        )
    })
}

/// Decides for every demand, in their order, and takes what it gives from `executors`.
pub(crate) fn place(executors: &mut [Executor], demands: &[Demand]) -> Vec<Decision> {
    let mut waiting: Option<&str> = None;
    demands
        .iter()
        .map(|demand| match &demand.kind {
            Kind::Slices { pending, most } => {
                Decision::Tasks(place_slices(executors, *pending, *most))
            }
            Kind::Whole => Decision::Tasks(place_whole(executors)),
            Kind::Gang { started, .. } if *started > 0 => {
                Decision::Abort("a rank of the training was lost with its executor".to_owned())
            }
            Kind::Gang { ranks, shards, .. } => match waiting {
                Some(ahead) => Decision::Wait(WaitReason::Turn {
                    ahead: ahead.to_owned(),
                }),
                None => {
                    let decision = place_gang(executors, *ranks, *shards);
                    if matches!(decision, Decision::Wait(_)) {
                        waiting = Some(&demand.job);
                        reserve(executors);
                    }
                    decision
                }
            },
        })
        .collect()
}

/// Spreads a stage's partitions evenly over the executors with free slots, the emptiest first.
fn place_slices(executors: &mut [Executor], mut pending: usize, most: Option<usize>) -> Vec<Task> {
    let mut tasks = Vec::new();
    while pending > 0 {
        let mut open = open_executors(executors);
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
            executor.free -= partitions;
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
    let mut open = open_executors(executors);
    let Some(executor) = open.first_mut() else {
        return Vec::new();
    };
    executor.free -= 1;
    vec![Task {
        executor: executor.id.clone(),
        partitions: usize::MAX,
        slots: 1,
    }]
}

fn place_gang(executors: &mut [Executor], ranks: Ranks, shards: usize) -> Decision {
    let registered = executors.len();
    let needed = match ranks {
        Ranks::Exactly(needed) => needed,
        Ranks::All => registered.clamp(1, shards),
    };
    if needed > registered {
        return Decision::Wait(WaitReason::Executors { needed, registered });
    }
    let mut open = open_executors(executors);
    if open.len() < needed {
        return Decision::Wait(WaitReason::Slots {
            needed,
            free: open.len(),
            registered,
        });
    }
    let task = |(rank, executor): (usize, &mut &mut Executor)| {
        executor.free -= 1;
        let partitions = shards / needed + usize::from(rank < shards % needed);
        Task {
            executor: executor.id.clone(),
            partitions,
            slots: 1,
        }
    };
    Decision::Start(open.iter_mut().take(needed).enumerate().map(task).collect())
}

/// Keeps a slot on every executor from the stages that come later.
fn reserve(executors: &mut [Executor]) {
    for executor in executors {
        executor.free = executor.free.saturating_sub(1);
    }
}

/// Executors with a free slot, the one with the most first.
fn open_executors(executors: &mut [Executor]) -> Vec<&mut Executor> {
    let mut open: Vec<_> = executors
        .iter_mut()
        .filter(|executor| executor.free > 0)
        .collect();
    open.sort_by(|a, b| b.free.cmp(&a.free).then_with(|| a.id.cmp(&b.id)));
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(free: &[usize]) -> Vec<Executor> {
        let executor = |(n, free): (usize, &usize)| Executor {
            id: format!("e{n}"),
            free: *free,
        };
        free.iter().enumerate().map(executor).collect()
    }

    fn gang(job: &str, ranks: Ranks, started: usize) -> Demand {
        Demand {
            job: job.into(),
            stage: 1,
            kind: Kind::Gang {
                ranks,
                shards: 10,
                started,
            },
        }
    }

    fn slices(job: &str, pending: usize) -> Demand {
        Demand {
            job: job.into(),
            stage: 1,
            kind: Kind::Slices {
                pending,
                most: None,
            },
        }
    }

    /// `executor:partitions` of the decision's tasks, or the reason.
    fn script(decision: &Decision) -> String {
        let tasks = |tasks: &[Task]| {
            let text = |task: &Task| format!("{}:{}", task.executor, task.partitions);
            tasks.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        match decision {
            Decision::Tasks(list) => format!("tasks {}", tasks(list)),
            Decision::Start(list) => format!("start {}", tasks(list)),
            Decision::Wait(reason) => format!("wait: {reason}"),
            Decision::Abort(reason) => format!("abort: {reason}"),
        }
    }

    fn run(free: &[usize], demands: &[Demand]) -> Vec<String> {
        place(&mut cluster(free), demands)
            .iter()
            .map(script)
            .collect()
    }

    #[test]
    fn a_gang_starts_whole_one_rank_an_executor() {
        assert_eq!(
            run(&[1, 1], &[gang("a", Ranks::Exactly(2), 0)]),
            ["start e0:5 e1:5"]
        );
        assert_eq!(
            run(&[4, 4, 1], &[gang("a", Ranks::Exactly(3), 0)]),
            ["start e0:4 e1:3 e2:3"]
        );
        assert_eq!(
            run(&[1, 1, 1], &[gang("a", Ranks::All, 0)]),
            ["start e0:4 e1:3 e2:3"]
        );
    }

    #[test]
    fn a_gang_that_lacks_one_slot_takes_none() {
        assert_eq!(
            run(&[3, 0], &[gang("a", Ranks::Exactly(2), 0)]),
            ["wait: needs a free slot on 2 executors at once: 1 of 2 have one"]
        );
    }

    #[test]
    fn a_waiting_gang_keeps_slots_from_later_jobs_but_not_from_earlier_ones() {
        assert_eq!(
            run(&[1, 0], &[gang("a", Ranks::Exactly(2), 0), slices("b", 4)]),
            [
                "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
                "tasks "
            ]
        );
        assert_eq!(
            run(&[1, 0], &[slices("a", 4), gang("b", Ranks::Exactly(2), 0)]),
            [
                "tasks e0:1",
                "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
            ]
        );
        assert_eq!(
            run(&[3, 0], &[gang("a", Ranks::Exactly(2), 0), slices("b", 4)])[1],
            "tasks e0:2"
        );
    }

    #[test]
    fn a_second_gang_waits_for_the_first() {
        let demands = [
            gang("a", Ranks::Exactly(2), 0),
            gang("b", Ranks::Exactly(2), 0),
        ];
        assert_eq!(
            run(&[1, 1], &demands),
            [
                "start e0:5 e1:5",
                "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
            ]
        );
        assert_eq!(
            run(&[1, 0], &demands)[1],
            "wait: waits behind the training of job a"
        );
        assert_eq!(
            run(&[2, 2], &demands),
            ["start e0:5 e1:5", "start e0:5 e1:5"]
        );
    }

    #[test]
    fn a_gang_that_lost_a_task_is_aborted() {
        assert_eq!(
            run(&[1, 1], &[gang("a", Ranks::Exactly(2), 2)]),
            ["abort: a rank of the training was lost with its executor"]
        );
    }

    #[test]
    fn a_gang_waits_for_executors_that_left() {
        assert_eq!(
            run(&[1], &[gang("a", Ranks::Exactly(2), 0)]),
            ["wait: needs 2 executors: 1 are registered"]
        );
    }

    #[test]
    fn admission_says_what_is_missing() {
        assert_eq!(never_fits(Ranks::Exactly(2), 2), None);
        assert!(
            never_fits(Ranks::Exactly(4), 2)
                .unwrap()
                .contains("needs 4 ranks")
        );
        assert!(never_fits(Ranks::All, 0).is_some());
    }

    #[test]
    fn slices_are_spread_evenly() {
        assert_eq!(run(&[4, 4], &[slices("a", 4)]), ["tasks e0:2 e1:2"]);
        assert_eq!(run(&[1, 1], &[slices("a", 5)]), ["tasks e0:1 e1:1"]);
        assert_eq!(run(&[0, 0], &[slices("a", 5)]), ["tasks "]);
    }

    #[test]
    fn a_collapsing_stage_runs_as_one_task() {
        let whole = Demand {
            job: "a".into(),
            stage: 1,
            kind: Kind::Whole,
        };
        let decisions = place(&mut cluster(&[1, 3]), &[whole]);
        let task = Task {
            executor: "e1".into(),
            partitions: usize::MAX,
            slots: 1,
        };
        assert_eq!(decisions, [Decision::Tasks(vec![task])]);
    }
}
