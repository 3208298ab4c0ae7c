//! The placement of a gang: its number of ranks now, and their executors, or why none start.
//!
//! A rank's memory is compared with what each executor offers each of its ranks. Like that of queries, it is not
//! reserved: an executor offers the same to every slot. With fewer ranks, each has more rows, so a gang that has lost
//! ranks may not fit any more.
//!
//! Not here: the order of gangs, and the [assignment](super::deal) of GPUs.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::fmt;

use bytesize::ByteSize;
use volley_proto::spec::{RankMemory, Ranks, TooFew};

use super::deal::{Dealt, deal};
use super::pool::{Executor, Offers, Pool};
use super::{Decision, ExecutorRole, RankRequest, Task, WaitReason};
use crate::control::devices::{DeviceRequest, HeldGpus, HostGpu};

/// Memory of a gang's ranks, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// Memory of one rank; `None` if only executors know it.
    pub(crate) of_rank: Option<RankMemory>,
    /// Rows of all ranks together.
    pub(crate) rows: Option<u64>,
    /// Rows of the largest shard, which one rank takes whole; 0 if unknown.
    pub(crate) largest_shard: u64,
}

impl Memory {
    /// Returns the least bytes that each of `ranks` ranks needs.
    pub(crate) fn needed(&self, ranks: usize) -> u64 {
        let ranks = ranks as u64;
        // The rank with the largest shard has at least its rows.
        let least = self.largest_shard.saturating_mul(ranks);
        let rows = self.rows.map(|rows| rows.max(least));
        let of_rank = self.of_rank.as_ref();
        of_rank.map_or(0, |memory| memory.of_rank(rows, ranks))
    }

    /// Counts the offers that suffice for one of `ranks` ranks.
    fn enough(&self, offers: &Offers, ranks: usize) -> usize {
        offers.at_least(self.needed(ranks))
    }

    /// Returns the largest number of ranks, up to `most`, for which enough of these offers suffice.
    fn fits(&self, offers: &Offers, most: usize) -> usize {
        let fits = |ranks: &usize| self.enough(offers, *ranks) >= *ranks;
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// Describes that these offers are too small for so many ranks.
    fn too_little(&self, offers: &Offers, ranks: usize) -> String {
        let text = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let needed = self.needed(ranks);
        let enough = self.enough(offers, ranks);
        let largest = offers.largest();
        let each = match ranks {
            1 => "its rank".to_owned(),
            ranks => format!("each of {ranks} ranks"),
        };
        let (rows, shards) = match self.rows {
            Some(rows) => (format!(" with its share of {rows} rows"), "raise shards, "),
            None => (String::new(), ""),
        };
        format!(
            "training does not fit into memory: {each} takes {}{rows} at least, and {enough} of {} \
             executors offer a rank that much, {} at most: make the network or the batch smaller, {shards}spread the \
             rows over more ranks, or raise --rank-memory of volley-executor",
            text(needed),
            offers.executors(),
            text(largest),
        )
    }
}

/// GPUs that a cluster has for the ranks of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuCount {
    /// GPUs that the training may take; each counts once, however many executors see it.
    gpus: usize,
    /// Executors that have one of them.
    executors: usize,
    /// True if several ranks may hold one together.
    shared: bool,
}

impl fmt::Display for GpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpus {
            0 => f.write_str("none"),
            gpus => write!(f, "{gpus} on {} executors", self.executors),
        }
    }
}

/// Executors of a cluster that could run ranks of a gang at once, if nothing else ran.
#[derive(Debug)]
pub(crate) struct Reach<'a> {
    offers: Cow<'a, Offers>,
    /// GPUs, if the ranks need them, or if there are too few for all executors.
    gpus: Option<GpuCount>,
}

/// Returns the executors and GPUs in reach of a gang.
pub(crate) fn reach(pool: &Pool, request: DeviceRequest) -> Reach<'_> {
    if !pool.deals_gpus(request) {
        return Reach {
            offers: Cow::Borrowed(pool.able()),
            gpus: None,
        };
    }
    let able: Vec<_> = pool.able_executors().collect();
    let with_device = |executor: &&&Executor| !executor.choice(request).gpus().is_empty();
    let executors = able.iter().filter(with_device).count();
    let offers = offers(able.iter().copied(), request, &HeldGpus::default());
    let seen = able
        .iter()
        .flat_map(|executor| executor.choice(request).gpus());
    let seen: BTreeSet<&HostGpu> = seen.collect();
    let is_short = offers.executors() < able.len() || request.needs_gpu();
    Reach {
        offers: Cow::Owned(offers),
        gpus: is_short.then_some(GpuCount {
            gpus: seen.len(),
            executors,
            shared: request.shares,
        }),
    }
}

/// Returns the memory that executors offer one rank each of a gang, given the GPUs that are held.
///
/// GPUs are dealt to executors in the order of their memory, so for any amount of memory, as many executors as
/// possible that offer it are included.
fn offers<'a>(
    executors: impl Iterator<Item = &'a Executor>,
    request: DeviceRequest,
    held: &HeldGpus,
) -> Offers {
    let mut executors: Vec<_> = executors.collect();
    executors.sort_by_key(|executor| Reverse(executor.capacity.rank_memory));
    let dealt = deal(&executors, request, held);
    let memory = |dealt: &Dealt<'_>| dealt.executor.capacity.rank_memory;
    dealt.iter().map(memory).collect()
}

impl Reach<'_> {
    /// Returns the number of executors.
    pub(crate) fn executors(&self) -> usize {
        self.offers.executors()
    }

    /// Returns the reason to wait if more ranks are needed than there are executors.
    fn waits(&self, needed: usize) -> WaitReason {
        match self.gpus {
            Some(there) => WaitReason::Gpus { needed, there },
            None => WaitReason::Executors {
                needed,
                registered: self.executors(),
            },
        }
    }

    /// Returns the reason why so many ranks can never run.
    fn refuses(&self, needed: usize) -> String {
        let Some(there) = self.gpus else {
            return format!(
                "training needs {needed} ranks, one per executor, and the cluster has {} executors: start more, or \
                 lower ranks",
                self.executors()
            );
        };
        let advice = match there {
            GpuCount { gpus: 0, .. } => {
                "executors find GPUs where the NVIDIA driver and CUDA's run-time compiler (NVRTC) are installed"
            }
            GpuCount { shared: true, .. } => "start more executors that see a GPU, or lower ranks",
            GpuCount { .. } => {
                "start more executors on hosts with GPUs, lower ranks, or let ranks share GPUs with device_share = true"
            }
        };
        let (s, each) = match (needed, there.shared) {
            (1, _) => ("", ""),
            (_, true) => ("s", ", one rank per executor"),
            (_, false) => ("s", ", one per rank and one rank per executor"),
        };
        format!("training needs {needed} GPU{s}{each}, and the cluster has {there}: {advice}")
    }
}

/// Returns why a gang of this size can never run on the executors in its reach; `None` if it can.
pub(crate) fn never_fits(ranks: Ranks, memory: &Memory, reach: &Reach<'_>) -> Option<String> {
    let registered = reach.executors();
    let (needed, least) = match ranks {
        Ranks::Exactly(needed) => (needed, needed),
        Ranks::All => (1, registered.max(1)),
    };
    if needed > registered {
        return Some(reach.refuses(needed));
    }
    let offers = &reach.offers;
    (memory.fits(offers, least) < needed).then(|| memory.too_little(offers, least))
}

/// Request of a gang.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) request: RankRequest,
    pub(super) shards: usize,
    pub(super) memory: &'a Memory,
    pub(super) device: DeviceRequest,
    /// Executors that hold its rows already.
    pub(super) preferred: &'a [String],
}

/// Executors with a free slot that could run a rank each at once.
struct Open {
    /// Offers with the GPUs that no other rank holds.
    now: Offers,
    /// Offers if no other rank held a GPU.
    without_others: Offers,
}

/// Places a gang's ranks beside others that hold these GPUs, or decides why they do not start.
pub(super) fn place_gang(pool: &Pool, held: &HeldGpus, asked: &Asked<'_>) -> Decision {
    let Asked {
        shards,
        memory,
        device,
        preferred,
        ..
    } = *asked;
    let mut executors: Vec<_> = pool.open_to_ranks().collect();
    let free = |held: &HeldGpus| offers(executors.iter().copied(), device, held);
    let now = free(held);
    let open = Open {
        without_others: match pool.deals_gpus(device) {
            true => free(&HeldGpus::default()),
            false => now.clone(),
        },
        now,
    };
    let taken = match size(asked, &reach(pool, device), &open) {
        Ok(taken) => taken,
        Err(decision) => return decision,
    };
    let needed = memory.needed(taken);
    executors.retain(|executor| executor.capacity.rank_memory >= needed);
    let is_other = |executor: &Executor| !preferred.iter().any(|id| **id == *executor.id);
    executors.sort_by(|a, b| {
        let by_rows = is_other(a).cmp(&is_other(b));
        by_rows.then_with(|| open_order(a, b))
    });
    let dealt = deal(&executors, device, held);
    let task = |(rank, dealt): (usize, &Dealt<'_>)| {
        let partitions = shards / taken + usize::from(rank < shards % taken);
        Task {
            executor: dealt.executor.id.to_string(),
            partitions,
            slots: 1,
            gpu: dealt.gpu.cloned(),
        }
    };
    Decision::Start(dealt.iter().take(taken).enumerate().map(task).collect())
}

/// Orders executors with a free slot for ranks: those that run ranks only first, then idle ones, then the one with
/// the most free slots.
fn open_order(a: &Executor, b: &Executor) -> Ordering {
    let shared = |executor: &Executor| executor.capacity.role != ExecutorRole::Train;
    shared(a)
        .cmp(&shared(b))
        .then_with(|| b.is_idle().cmp(&a.is_idle()))
        .then_with(|| b.free().cmp(&a.free()))
        .then_with(|| a.id.cmp(&b.id))
}

/// Returns the number of ranks that start now on the executors in reach with a free slot; otherwise the decision
/// about the gang.
fn size(asked: &Asked<'_>, reach: &Reach<'_>, open: &Open) -> Result<usize, Decision> {
    let (shards, memory) = (asked.shards, asked.memory);
    let (all, registered) = (&*reach.offers, reach.executors());
    let slots = |needed: usize, free: usize| {
        let has_slots = memory.enough(&open.without_others, needed) >= needed;
        Err(Decision::Wait(match has_slots {
            true => WaitReason::GpusHeld {
                needed,
                free,
                registered,
            },
            false => WaitReason::Slots {
                needed,
                free,
                registered,
            },
        }))
    };
    let open = &open.now;
    match asked.request {
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
                return Err(match never_fits(ranks, memory, reach) {
                    Some(reason) if gives_up => Decision::Fail(reason),
                    _ => Decision::Wait(reach.waits(asked)),
                });
            }
            let needed = match (ranks, memory.fits(all, asked)) {
                (Ranks::Exactly(_), fit) if fit < asked => 0,
                (_, fit) => fit,
            };
            match too_few {
                _ if needed > 0 => {}
                // More executors may come than are there now.
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
                    let with = if reach.gpus.is_some() {
                        " with a GPU"
                    } else {
                        ""
                    };
                    return Err(Decision::Fail(format!(
                        "ranks were lost, and training goes on with no fewer than {least} \
                         (min_ranks): {registered} executors{with} are left; start more and continue with \
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
                TooFew::Wait => return Err(Decision::Wait(reach.waits(least))),
            }
            if free >= least {
                return Ok(free);
            }
            // Fewer ranks have more rows each, so this takes the fewest that fit.
            let mut sizes = least..=fit;
            let needed = sizes.find(|ranks| memory.enough(all, *ranks) >= *ranks);
            let needed = needed.unwrap_or(least);
            slots(needed, memory.enough(open, needed))
        }
    }
}

/// Returns the least bytes of a rank, whichever number of ranks starts: the more ranks there are, the fewer rows each
/// has.
pub(super) fn least_memory(pool: &Pool, asked: &Asked<'_>) -> u64 {
    let (shards, memory) = (asked.shards, asked.memory);
    let able = reach(pool, asked.device).executors();
    let ranks = match asked.request {
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

/// Returns an executor by which a running gang could grow beside ranks that hold these GPUs, once every demand has
/// been served.
pub(crate) fn grows_by<'a>(
    pool: &'a Pool,
    held: &HeldGpus,
    ranks_on: &[String],
    most: usize,
    (memory, request): (&Memory, DeviceRequest),
) -> Option<&'a str> {
    if ranks_on.len() >= most {
        return None;
    }
    let needed = memory.needed(ranks_on.len() + 1);
    let is_on = |executor: &Executor| ranks_on.iter().any(|id| **id == *executor.id);
    let has_device = |executor: &Executor| {
        let choice = executor.choice(request);
        let is_open = |gpu| held.is_open(gpu, request.shares);
        !choice.needs_gpu() || choice.gpus().iter().any(is_open)
    };
    let joins = |executor: &&Executor| {
        executor.capacity.rank_memory >= needed && !is_on(executor) && has_device(executor)
    };
    pool.open_to_ranks().find(joins).map(|joins| &*joins.id)
}
