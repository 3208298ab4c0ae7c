//! How a gang is placed: how many ranks it has now, and on which executors, or why none.
//!
//! A rank's memory is compared with what each executor offers each of its ranks, and reserved as little as that of
//! queries is: an executor offers as much to every slot. Fewer ranks have more rows each, so a gang that has lost ranks
//! may not fit any more.
//!
//! Not here: whose turn it is.

use std::cmp::Ordering;

use bytesize::ByteSize;
use volley_proto::spec::{RankMemory, Ranks, TooFew};

use super::pool::{Executor, Offers, Pool};
use super::{Decision, ExecutorRole, RankRequest, Task, WaitReason};

/// What a gang's ranks take in memory, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// Of one rank; `None` where only executors know.
    pub(crate) of_rank: Option<RankMemory>,
    /// Rows of all ranks.
    pub(crate) rows: Option<u64>,
}

impl Memory {
    /// Bytes of one of so many ranks, at least.
    pub(crate) fn needed(&self, ranks: usize) -> u64 {
        let of_rank = self.of_rank.as_ref();
        of_rank.map_or(0, |memory| memory.of_rank(self.rows, ranks as u64))
    }

    /// How many of these offers suffice for one of so many ranks.
    fn enough(&self, offers: &Offers, ranks: usize) -> usize {
        offers.at_least(self.needed(ranks))
    }

    /// The most ranks, up to so many, that as many of these offers suffice for.
    fn fits(&self, offers: &Offers, most: usize) -> usize {
        let fits = |ranks: &usize| self.enough(offers, *ranks) >= *ranks;
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// That executors which offer so much have too little for so many ranks.
    fn too_little(&self, offers: &Offers, ranks: usize) -> String {
        let text = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let needed = self.needed(ranks);
        let enough = self.enough(offers, ranks);
        let largest = offers.largest();
        let rows = match self.rows {
            Some(rows) => format!(" with its share of {rows} rows"),
            None => String::new(),
        };
        format!(
            "training does not fit into memory: each of {ranks} ranks takes {}{rows} at least, and {enough} of {} \
             executors offer a rank so much, {} at most: make the network or the batch smaller, spread the rows over \
             more ranks, or raise --rank-memory of volley-executor",
            text(needed),
            offers.executors(),
            text(largest),
        )
    }
}

/// Why a gang of this size can never run on executors that offer a rank so much memory each, or `None`.
pub(crate) fn never_fits(ranks: Ranks, memory: &Memory, offers: &Offers) -> Option<String> {
    let registered = offers.executors();
    let (needed, least) = match ranks {
        Ranks::Exactly(needed) => (needed, needed),
        Ranks::All => (1, registered.max(1)),
    };
    if needed > registered {
        return Some(format!(
            "training needs {needed} ranks, one an executor, and the cluster has {registered} \
             executors: start more, or lower ranks"
        ));
    }
    (memory.fits(offers, least) < needed).then(|| memory.too_little(offers, least))
}

/// Where a gang's ranks start, or why they do not.
pub(super) fn place_gang(
    pool: &Pool,
    request: RankRequest,
    shards: usize,
    memory: &Memory,
) -> Decision {
    let mut open: Vec<_> = pool.open_to_ranks().collect();
    let offers: Offers = open.iter().map(|e| e.capacity.rank_memory).collect();
    let taken = match size(request, shards, memory, pool.able(), &offers) {
        Ok(taken) => taken,
        Err(decision) => return decision,
    };
    let needed = memory.needed(taken);
    open.retain(|executor| executor.capacity.rank_memory >= needed);
    open.sort_by(|a, b| open_order(a, b));
    let task = |(rank, executor): (usize, &&Executor)| {
        let partitions = shards / taken + usize::from(rank < shards % taken);
        Task {
            executor: executor.id.to_string(),
            partitions,
            slots: 1,
        }
    };
    Decision::Start(open.iter().take(taken).enumerate().map(task).collect())
}

/// Executors with a free slot as ranks take them: those that run nothing but ranks first, then idle ones, then the one
/// with the most.
fn open_order(a: &Executor, b: &Executor) -> Ordering {
    let shared = |executor: &Executor| executor.capacity.role != ExecutorRole::Train;
    shared(a)
        .cmp(&shared(b))
        .then_with(|| b.is_idle().cmp(&a.is_idle()))
        .then_with(|| b.free().cmp(&a.free()))
        .then_with(|| a.id.cmp(&b.id))
}

/// How many ranks start now, of what all executors offer a rank, and those with a free slot; or else what becomes of the
/// gang.
fn size(
    request: RankRequest,
    shards: usize,
    memory: &Memory,
    all: &Offers,
    open: &Offers,
) -> Result<usize, Decision> {
    let registered = all.executors();
    let slots = |needed: usize, free: usize| {
        Err(Decision::Wait(WaitReason::Slots {
            needed,
            free,
            registered,
        }))
    };
    match request {
        RankRequest::Begin {
            ranks,
            most,
            patience_over,
            too_few,
        } => {
            let asked = match ranks {
                Ranks::Exactly(needed) => needed,
                Ranks::All => registered.min(most).clamp(1, shards),
            };
            let gives_up = patience_over && too_few == TooFew::Fail;
            if asked > registered {
                return Err(match never_fits(ranks, memory, all) {
                    Some(reason) if gives_up => Decision::Fail(reason),
                    _ => Decision::Wait(WaitReason::Executors {
                        needed: asked,
                        registered,
                    }),
                });
            }
            let needed = match (ranks, memory.fits(all, asked)) {
                (Ranks::Exactly(_), fit) if fit < asked => 0,
                (_, fit) => fit,
            };
            match too_few {
                _ if needed > 0 => {}
                // The executors that are there are not those that may come.
                TooFew::Wait => {
                    return Err(Decision::Wait(WaitReason::Memory {
                        needed: asked,
                        bytes: memory.needed(asked),
                        offer: memory.enough(all, asked),
                    }));
                }
                TooFew::Fail => return Err(Decision::Fail(memory.too_little(all, asked))),
            }
            let free = memory.enough(open, needed);
            match free < needed {
                true => slots(needed, free),
                false => Ok(needed),
            }
        }
        RankRequest::Regroup {
            wanted,
            least,
            most,
            patience_over,
            too_few,
        } => {
            let most = most.min(shards);
            let free = memory.fits(open, open.executors().min(most));
            if free < wanted.min(most) && !patience_over {
                return Err(Decision::Wait(WaitReason::Replacement {
                    wanted,
                    free: memory.enough(open, wanted.min(most)),
                    least,
                }));
            }
            let fit = memory.fits(all, registered.min(most));
            match too_few {
                _ if fit >= least => {}
                TooFew::Fail if registered >= least => {
                    return Err(Decision::Fail(format!(
                        "ranks were lost, and others would have more rows each; {}, and continue with resume = true",
                        memory.too_little(all, registered.min(most))
                    )));
                }
                TooFew::Fail => {
                    return Err(Decision::Fail(format!(
                        "ranks were lost, and training goes on with no fewer than {least} \
                         (min_ranks): {registered} executors are left; start more and continue with \
                         resume = true"
                    )));
                }
                TooFew::Wait if registered >= least => {
                    return Err(Decision::Wait(WaitReason::Memory {
                        needed: least,
                        bytes: memory.needed(least),
                        offer: memory.enough(all, least),
                    }));
                }
                TooFew::Wait => {
                    return Err(Decision::Wait(WaitReason::Executors {
                        needed: least,
                        registered,
                    }));
                }
            }
            if free >= least {
                return Ok(free);
            }
            // Fewer ranks have more rows each: the fewest that fit.
            let mut sizes = least..=fit;
            let needed = sizes.find(|ranks| memory.enough(all, *ranks) >= *ranks);
            let needed = needed.unwrap_or(least);
            slots(needed, memory.enough(open, needed))
        }
    }
}

/// Bytes that a rank of a gang takes at least, whichever number of ranks starts: the more there are, the fewer rows has
/// each.
pub(super) fn least_memory(
    pool: &Pool,
    request: RankRequest,
    shards: usize,
    memory: &Memory,
) -> u64 {
    let able = pool.able().executors();
    let ranks = match request {
        RankRequest::Begin {
            ranks: Ranks::Exactly(ranks),
            ..
        } => ranks,
        RankRequest::Begin { most, .. } | RankRequest::Regroup { most, .. } => {
            most.min(shards).min(able)
        }
    };
    memory.needed(ranks.max(1))
}

/// An executor by which a running gang could grow, once every demand has been served.
pub(crate) fn grows_by<'a>(
    pool: &'a Pool,
    ranks_on: &[String],
    most: usize,
    memory: &Memory,
) -> Option<&'a str> {
    if ranks_on.len() >= most {
        return None;
    }
    let needed = memory.needed(ranks_on.len() + 1);
    let is_on = |executor: &Executor| ranks_on.iter().any(|id| **id == *executor.id);
    let joins = |executor: &&Executor| executor.capacity.rank_memory >= needed && !is_on(executor);
    pool.open_to_ranks().find(joins).map(|joins| &*joins.id)
}
