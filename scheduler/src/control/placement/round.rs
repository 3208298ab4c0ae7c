//! One offer: a decision for every demand, in rounds of slots.
//!
//! ```text
//!   for each gang, in the order of arrival:
//!       queries ahead of it take what is theirs beside all others' claims ─► it starts │ waits, and reserves
//!   all queries take slots that are not reserved
//!   a gang waits: queries ahead of it take the reserved ones
//! ```
//!
//! Jobs that came before a gang are ahead of it, and so are those [promoted](crate::control::aging) after it has
//! starved them. Every slot goes to the stage that is first by [fair share](super::super::queues), on the executor
//! that is the most open. Not here: the number of ranks of a gang.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::gang::{Asked, least_memory, place_gang};
use super::{Decision, Demand, Kind, Pool, Task, WaitReason};
use crate::control::aging::Starved;
use crate::control::devices::HeldGpus;
use crate::control::queues::{Queues, Turns, Usage, Waiting};
use crate::control::quotas::HeldMemory;

/// Sharing of slots, and the slots, memory and GPUs in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares<'a> {
    pub(crate) queues: &'a Queues,
    pub(crate) usage: &'a Usage,
    pub(crate) memory: &'a HeldMemory,
    pub(crate) gpus: &'a HeldGpus,
}

/// Result of an offer.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Decisions, one for each demand.
    pub(crate) decisions: Vec<Decision>,
    /// Effect of a gang's reservation on queries, if a gang reserves slots.
    pub(crate) starved: Option<Starved>,
}

/// Decides for every demand, in the order of arrival, and takes the slots that it gives from the pool.
pub(crate) fn place(pool: &mut Pool, demands: &[Demand], shares: Shares<'_>) -> Placed {
    let mut round = Round::new(pool, demands, shares);
    let mut gangs: HashMap<usize, Decision> = HashMap::new();
    let mut waiting: Option<usize> = None;
    let mut reserving: Option<usize> = None;
    // True if the waiting gang waits for GPUs.
    let mut awaits_gpus = false;
    // True if the query is ahead of the gang.
    let precedes = |query: usize, gang: usize| query < gang || demands[query].promoted;
    for (position, demand) in demands.iter().enumerate() {
        let Kind::Gang {
            request,
            shards,
            memory,
            device,
            running,
            done,
            preferred,
        } = &demand.kind
        else {
            continue;
        };
        let ranks = Asked {
            request: *request,
            shards: *shards,
            memory,
            device: *device,
            preferred,
        };
        // Gangs that take no GPU pass a gang that waits for GPUs.
        let is_its_turn = waiting.is_none() || awaits_gpus && device.takes_no_gpu();
        let asks = |query: usize| round.left[query] > 0 && precedes(query, position);
        if is_its_turn && (0..demands.len()).any(asks) {
            round.give(|_| true, |query| precedes(query, position));
        }
        let decision = match waiting {
            _ if *running > 0 => Decision::Wait(WaitReason::Ending { running: *running }),
            _ if *done > 0 => {
                Decision::Rerun("a rank was lost after others had finished training".to_owned())
            }
            Some(ahead) if !is_its_turn => Decision::Wait(WaitReason::Turn {
                ahead: demands[ahead].job.clone(),
            }),
            _ => place_gang(round.pool, &round.gpus, &ranks),
        };
        if let Decision::Start(tasks) = &decision {
            round.start(tasks, device.shares);
        }
        if let (true, Decision::Wait(reason)) = (is_its_turn, &decision) {
            waiting = Some(position);
            awaits_gpus = reason.is_of_gpus();
            if reason.is_of_slots() {
                reserving = Some(position);
                let needed = least_memory(round.pool, &ranks);
                round.pool.reserve(needed, *device);
            }
        }
        gangs.insert(position, decision);
    }
    round.give(|_| true, |_| true);
    if let Some(gang) = reserving {
        round.pool.unreserve();
        round.give(|query| precedes(query, gang), |_| true);
    }
    round.decide(gangs, reserving)
}

/// State of an offer so far.
struct Round<'a> {
    pool: &'a mut Pool,
    demands: &'a [Demand],
    queues: &'a Queues,
    usage: Usage,
    /// Memory that users' queries may hold; `None` while no demand has a quota.
    memory: Option<HeldMemory>,
    gpus: HeldGpus,
    /// For each demand, true if its user's quota of memory keeps it from a free slot.
    full: Vec<bool>,
    /// Slots that each demand still asks for; 0 for gangs.
    left: Vec<usize>,
    given: Vec<Vec<Task>>,
    /// Task that takes further partitions, by demand and executor.
    growing: HashMap<(usize, Arc<str>), usize>,
}

impl<'a> Round<'a> {
    fn new(pool: &'a mut Pool, demands: &'a [Demand], shares: Shares<'a>) -> Self {
        let left = demands.iter().map(|demand| match &demand.kind {
            Kind::Slices { pending, .. } => *pending,
            Kind::Whole => 1,
            Kind::Gang { .. } => 0,
        });
        Self {
            pool,
            demands,
            queues: shares.queues,
            usage: shares.usage.clone(),
            memory: demands
                .iter()
                .any(|demand| demand.memory().limit.is_some())
                .then(|| shares.memory.clone()),
            gpus: shares.gpus.clone(),
            full: vec![false; demands.len()],
            left: left.collect(),
            given: vec![Vec::new(); demands.len()],
            growing: HashMap::new(),
        }
    }

    /// Gives free slots to the queries that take part, in their turns. Slots of queries that do not keep theirs are
    /// only claimed, and are free again afterwards.
    fn give(&mut self, takes_part: impl Fn(usize) -> bool, keeps: impl Fn(usize) -> bool) {
        if self.pool.first_open().is_none() {
            return;
        }
        let left = &self.left;
        let waiting = self.demands.iter().enumerate();
        let waiting = waiting.filter(|(position, _)| left[*position] > 0 && takes_part(*position));
        let waiting = waiting.map(|(position, demand)| Waiting {
            account: &demand.account,
            priority: demand.priority,
            position,
        });
        let mut turns = Turns::new(self.queues, &self.usage, waiting);
        let mut claimed = Vec::new();
        while let Some(position) = turns.next() {
            let Some(executor) = self.pool.first_open() else {
                break;
            };
            let Some(bytes) = self.hold(position, &executor) else {
                turns.skip();
                continue;
            };
            self.pool.take(&executor);
            self.left[position] -= 1;
            turns.take(self.left[position] > 0);
            match keeps(position) {
                true => self.keep(position, executor),
                false => claimed.push((position, executor, bytes)),
            }
        }
        for (position, executor, bytes) in claimed {
            self.pool.give_back(&executor);
            self.left[position] += 1;
            if let Some(memory) = &mut self.memory {
                memory.remove(&self.demands[position].account.user, bytes);
            }
        }
    }

    /// Takes the memory of a slot of an executor for a demand. Returns its bytes; `None` if the user's quota has too
    /// little left.
    fn hold(&mut self, position: usize, executor: &Arc<str>) -> Option<u64> {
        let Some(memory) = &mut self.memory else {
            return Some(0);
        };
        let demand = &self.demands[position];
        let (quota, user) = (demand.memory(), &demand.account.user);
        let bytes = quota.of_slot(self.pool.slot_memory(executor));
        let after = memory.of(user).saturating_add(bytes);
        if quota.limit.is_some_and(|limit| after > limit) {
            self.full[position] = true;
            return None;
        }
        memory.add(user, bytes);
        Some(bytes)
    }

    /// Gives a demand a slot: another partition for its task there, or another task.
    fn keep(&mut self, position: usize, executor: Arc<str>) {
        let demand = &self.demands[position];
        self.usage.add(&demand.account, 1);
        let tasks = &mut self.given[position];
        let (most, partitions) = match &demand.kind {
            Kind::Slices { most, .. } => (most.unwrap_or(usize::MAX), 1),
            Kind::Whole | Kind::Gang { .. } => (1, usize::MAX),
        };
        let there = (position, executor);
        if let Some(task) = self.growing.get(&there)
            && let Some(task) = tasks.get_mut(*task)
            && task.partitions < most
        {
            task.partitions += 1;
            task.slots += 1;
            return;
        }
        tasks.push(Task {
            executor: there.1.to_string(),
            partitions,
            slots: 1,
            gpu: None,
        });
        self.growing.insert(there, tasks.len() - 1);
    }

    /// Starts a gang with these ranks; `shares` says whether they share their GPUs.
    fn start(&mut self, ranks: &[Task], shares: bool) {
        for rank in ranks {
            if let Some(gpu) = &rank.gpu {
                self.gpus.take(gpu, shares);
            }
            self.pool.take(&Arc::from(rank.executor.as_str()));
        }
    }

    /// Returns the decisions; `reserving` is the gang that reserves slots, if there is one.
    fn decide(mut self, mut gangs: HashMap<usize, Decision>, reserving: Option<usize>) -> Placed {
        // A slot that is free now is reserved.
        let mut starved = reserving.map(|_| Starved {
            slot: self.pool.first_open().is_some(),
            jobs: Vec::new(),
        });
        let mut active = None;
        let mut decisions = Vec::with_capacity(self.demands.len());
        for (position, demand) in self.demands.iter().enumerate() {
            if let Some(decision) = gangs.remove(&position) {
                decisions.push(decision);
                continue;
            }
            let tasks = std::mem::take(&mut self.given[position]);
            if !tasks.is_empty() {
                decisions.push(Decision::Tasks(tasks));
                continue;
            }
            if let Some(reason) = self.beyond_quota(position) {
                decisions.push(Decision::Wait(reason));
                continue;
            }
            let cap = self.queues.cap(&demand.account.queue);
            let capped = cap.map(|cap| (cap, self.usage.of_user(&demand.account)));
            let ahead = reserving.filter(|gang| *gang < position && !demand.promoted);
            let reason = match (capped, ahead) {
                (Some((cap, held)), _) if held >= cap => WaitReason::Cap {
                    account: demand.account.clone(),
                    held,
                    cap,
                },
                (_, Some(gang)) => {
                    if let Some(Starved { jobs, .. }) = &mut starved
                        && !demand.runs
                        && jobs.last() != Some(&demand.job)
                    {
                        jobs.push(demand.job.clone());
                    }
                    WaitReason::Slot {
                        ahead: Some(self.demands[gang].job.clone()),
                    }
                }
                _ => self.share(demand, *active.get_or_insert_with(|| self.active())),
            };
            decisions.push(Decision::Wait(reason));
        }
        Placed { decisions, starved }
    }

    /// Returns the reason why a query waits if its user's quota of memory keeps it from a free slot.
    fn beyond_quota(&self, position: usize) -> Option<WaitReason> {
        let demand = &self.demands[position];
        let limits = demand.limits.filter(|_| self.full[position])?;
        let user = Arc::clone(&demand.account.user);
        Some(WaitReason::MemoryQuota {
            role: limits.role,
            held: self.memory.as_ref().map_or(0, |memory| memory.of(&user)),
            limit: limits.memory.limit?,
            user,
        })
    }

    /// Sums the weights of the queues that have slots or wait for some, if there are several.
    fn active(&self) -> Option<u64> {
        let wait = self.demands.iter().map(|demand| &demand.account.queue);
        let active: BTreeSet<&str> = self
            .usage
            .active()
            .chain(wait)
            .map(|queue| &**queue)
            .collect();
        (active.len() > 1).then(|| self.queues.weights(active.into_iter()))
    }

    /// Returns the reason why a query waits: its queue's share, if there are other queues.
    fn share(&self, demand: &Demand, weights: Option<u64>) -> WaitReason {
        let Some(weights) = weights else {
            return WaitReason::Slot { ahead: None };
        };
        let (queue, all) = (Arc::clone(&demand.account.queue), self.pool.query_slots());
        WaitReason::Share {
            held: self.usage.of_queue(&queue),
            all,
            share: self.queues.share(&queue, all, weights),
            queue,
        }
    }
}
