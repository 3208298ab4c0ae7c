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
//!              not yet: others hold the slots, or lost ranks may return ► Wait(reason), reserves
//!              ranks of the last generation have not ended ────────────► Wait(reason)
//!              ranks were lost, and too few executors are left ────────► Fail(reason)
//!              some ranks are done and others were lost ───────────────► Rerun(reason)
//! ```
//!
//! Not here: how a decision is carried out on Ballista's graphs, and the clock.

use std::fmt;

use volley_proto::spec::{Ranks, TooFew};

/// An executor as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executor {
    pub(crate) id: String,
    /// Slots (vcores) that no task holds.
    pub(crate) free: usize,
    /// Whether no task holds any.
    pub(crate) idle: bool,
    pub(crate) role: Role,
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

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        wish: Wish,
        shards: usize,
        /// Ranks of the last generation that have not ended.
        running: usize,
        /// Ranks that have come to their end.
        done: usize,
    },
}

/// How many ranks a gang wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To begin with.
    Begin {
        ranks: Ranks,
        /// Whether too few executors have been waited for for long enough.
        gives_up: bool,
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

impl Decision {
    /// Whether tasks are to be bound.
    pub(crate) fn starts(&self) -> bool {
        matches!(self, Self::Tasks(_) | Self::Start(_))
    }
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
                tasks_or_wait(place_slices(executors, *pending, *most), waiting)
            }
            Kind::Whole => tasks_or_wait(place_whole(executors), waiting),
            Kind::Gang { running, .. } if *running > 0 => {
                Decision::Wait(WaitReason::Ending { running: *running })
            }
            Kind::Gang { done, .. } if *done > 0 => Decision::Rerun(
                "a rank was lost after others had come to the end of training".to_owned(),
            ),
            Kind::Gang { wish, shards, .. } => match waiting {
                Some(ahead) => Decision::Wait(WaitReason::Turn {
                    ahead: ahead.to_owned(),
                }),
                None => {
                    let decision = place_gang(executors, *wish, *shards);
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

fn place_gang(executors: &mut [Executor], wish: Wish, shards: usize) -> Decision {
    let registered = executors.iter().filter(|e| e.role.runs_ranks()).count();
    let mut open = open_executors(executors, Role::runs_ranks);
    let free = open.len();
    let taken = match wish {
        Wish::Begin { ranks, gives_up } => {
            let needed = match ranks {
                Ranks::Exactly(needed) => needed,
                Ranks::All => registered.clamp(1, shards),
            };
            match never_fits(ranks, registered) {
                Some(reason) if gives_up => return Decision::Fail(reason),
                _ if needed > registered => {
                    return Decision::Wait(WaitReason::Executors { needed, registered });
                }
                _ => {}
            }
            if free < needed {
                return Decision::Wait(WaitReason::Slots {
                    needed,
                    free,
                    registered,
                });
            }
            needed
        }
        Wish::Regroup {
            wanted,
            least,
            most,
            patience_over,
            too_few,
        } => {
            if free < wanted && !patience_over {
                return Decision::Wait(WaitReason::Replacement {
                    wanted,
                    free,
                    least,
                });
            }
            if registered < least && too_few == TooFew::Fail {
                return Decision::Fail(format!(
                    "ranks were lost, and training goes on with no fewer than {least} \
                     (min_ranks): {registered} executors are left; start more and continue with \
                     resume = true"
                ));
            }
            if registered < least {
                let needed = least;
                return Decision::Wait(WaitReason::Executors { needed, registered });
            }
            if free < least {
                let needed = least;
                return Decision::Wait(WaitReason::Slots {
                    needed,
                    free,
                    registered,
                });
            }
            free.min(most).min(shards)
        }
    };
    let task = |(rank, executor): (usize, &mut &mut Executor)| {
        executor.take(1);
        let partitions = shards / taken + usize::from(rank < shards % taken);
        Task {
            executor: executor.id.clone(),
            partitions,
            slots: 1,
        }
    };
    Decision::Start(open.iter_mut().take(taken).enumerate().map(task).collect())
}

/// An executor by which a running gang could grow, once every demand has been served.
pub(crate) fn grows_by<'a>(
    executors: &'a [Executor],
    ranks_on: &[String],
    most: usize,
) -> Option<&'a str> {
    if ranks_on.len() >= most {
        return None;
    }
    let joins = |executor: &&Executor| {
        executor.free > 0 && executor.role.runs_ranks() && !ranks_on.contains(&executor.id)
    };
    executors.iter().find(joins).map(|joins| joins.id.as_str())
}

/// Keeps a slot on every executor from the stages that come later.
fn reserve(executors: &mut [Executor]) {
    for executor in executors.iter_mut().filter(|e| e.role.runs_ranks()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(free: &[usize]) -> Vec<Executor> {
        let executor = |(n, free): (usize, &usize)| Executor {
            id: format!("e{n}"),
            free: *free,
            idle: false,
            role: Role::Any,
        };
        free.iter().enumerate().map(executor).collect()
    }

    fn gang_with(job: &str, wish: Wish, running: usize, done: usize) -> Demand {
        Demand {
            job: job.into(),
            stage: 1,
            kind: Kind::Gang {
                wish,
                shards: 10,
                running,
                done,
            },
        }
    }

    fn gang(job: &str, ranks: Ranks) -> Demand {
        let gives_up = false;
        gang_with(job, Wish::Begin { ranks, gives_up }, 0, 0)
    }

    /// A gang that had 3 ranks, goes on with 2 and takes up to 4.
    fn regroup(patience_over: bool, too_few: TooFew) -> Demand {
        let wish = Wish::Regroup {
            wanted: 3,
            least: 2,
            most: 4,
            patience_over,
            too_few,
        };
        gang_with("a", wish, 0, 0)
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
            Decision::Fail(reason) => format!("fail: {reason}"),
            Decision::Rerun(reason) => format!("rerun: {reason}"),
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
            run(&[1, 1], &[gang("a", Ranks::Exactly(2))]),
            ["start e0:5 e1:5"]
        );
        assert_eq!(
            run(&[4, 4, 1], &[gang("a", Ranks::Exactly(3))]),
            ["start e0:4 e1:3 e2:3"]
        );
        assert_eq!(
            run(&[1, 1, 1], &[gang("a", Ranks::All)]),
            ["start e0:4 e1:3 e2:3"]
        );
    }

    #[test]
    fn a_gang_that_lacks_one_slot_takes_none() {
        assert_eq!(
            run(&[3, 0], &[gang("a", Ranks::Exactly(2))]),
            ["wait: needs a free slot on 2 executors at once: 1 of 2 have one"]
        );
    }

    #[test]
    fn a_waiting_gang_keeps_slots_from_later_jobs_but_not_from_earlier_ones() {
        assert_eq!(
            run(&[1, 0], &[gang("a", Ranks::Exactly(2)), slices("b", 4)]),
            [
                "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
                "wait: the training of job a, which waits for its slots, goes first"
            ]
        );
        assert_eq!(
            run(&[1, 0], &[slices("a", 4), gang("b", Ranks::Exactly(2))]),
            [
                "tasks e0:1",
                "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
            ]
        );
        assert_eq!(
            run(&[3, 0], &[gang("a", Ranks::Exactly(2)), slices("b", 4)])[1],
            "tasks e0:2"
        );
    }

    #[test]
    fn a_second_gang_waits_for_the_first() {
        let demands = [gang("a", Ranks::Exactly(2)), gang("b", Ranks::Exactly(2))];
        assert_eq!(
            run(&[1, 1], &demands),
            [
                "start e0:5 e1:5",
                "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
            ]
        );
        assert_eq!(
            run(&[1, 0], &demands)[1],
            "wait: the training of job a is ahead"
        );
        assert_eq!(
            run(&[2, 2], &demands),
            ["start e0:5 e1:5", "start e0:5 e1:5"]
        );
    }

    #[test]
    fn lost_ranks_are_waited_for_and_then_done_without() {
        let wait = "wait: 3 executors with a free slot are needed to go on as before, 2 have one; \
                    after regroup_timeout 2 will do";
        assert_eq!(run(&[1, 1], &[regroup(false, TooFew::Fail)]), [wait]);
        assert_eq!(
            run(&[1, 1], &[regroup(true, TooFew::Fail)]),
            ["start e0:5 e1:5"]
        );
        assert_eq!(
            run(&[1; 5], &[regroup(false, TooFew::Fail)]),
            ["start e0:3 e1:3 e2:2 e3:2"]
        );
    }

    #[test]
    fn too_few_executors_are_waited_for_or_end_the_job_as_asked() {
        assert!(run(&[1], &[regroup(true, TooFew::Fail)])[0].starts_with("fail: ranks were lost"));
        assert_eq!(
            run(&[1], &[regroup(true, TooFew::Wait)]),
            ["wait: needs 2 executors: 1 are registered"]
        );
        assert!(run(&[1, 0], &[regroup(true, TooFew::Fail)])[0].starts_with("wait: needs a free"));
    }

    #[test]
    fn a_generation_ends_before_the_next_begins() {
        let begin = |gives_up| Wish::Begin {
            ranks: Ranks::Exactly(2),
            gives_up,
        };
        let ending = gang_with("a", begin(false), 1, 0);
        assert_eq!(
            run(&[1, 1], &[ending]),
            ["wait: 1 of the last generation's ranks have not ended"]
        );
        let half_done = gang_with("a", begin(false), 0, 1);
        assert!(run(&[1, 1], &[half_done])[0].starts_with("rerun: "));
        let short = gang_with("a", begin(true), 0, 0);
        assert!(run(&[1], &[short])[0].starts_with("fail: training needs 2 ranks"));
    }

    #[test]
    fn roles_keep_ranks_and_queries_apart() {
        let mut executors = cluster(&[2, 2, 2]);
        (executors[0].role, executors[1].role) = (Role::Query, Role::Train);
        let demands = [slices("a", 6), gang("b", Ranks::All), slices("c", 6)];
        let decisions: Vec<_> = place(&mut executors, &demands).iter().map(script).collect();
        assert_eq!(
            decisions,
            [
                "tasks e0:2 e2:2",
                "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
                "wait: the training of job b, which waits for its slots, goes first"
            ]
        );
    }

    #[test]
    fn a_gang_grows_by_an_executor_that_is_free() {
        let executors = cluster(&[0, 1, 1]);
        let on = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(grows_by(&executors, &on(&["e0", "e1"]), 3), Some("e2"));
        assert_eq!(grows_by(&executors, &on(&["e0", "e1"]), 2), None);
        assert_eq!(grows_by(&executors, &on(&["e1", "e2"]), 3), None);
    }

    #[test]
    fn a_gang_waits_for_executors_that_left() {
        assert_eq!(
            run(&[1], &[gang("a", Ranks::Exactly(2))]),
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
        let wait = "wait: needs a free slot";
        assert_eq!(run(&[0, 0], &[slices("a", 5)]), [wait]);
    }

    #[test]
    fn what_is_small_goes_to_an_executor_that_is_idle() {
        let mut executors = cluster(&[3, 1, 2]);
        executors[1].idle = true;
        let demands = [slices("a", 1), slices("b", 1), slices("c", 2)];
        let decisions: Vec<_> = place(&mut executors, &demands).iter().map(script).collect();
        assert_eq!(decisions, ["tasks e1:1", "tasks e0:1", "tasks e0:1 e2:1"]);
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
