//! One offer: a decision for every demand, in rounds of slots.
//!
//! ```text
//!   for each gang, in the order of arrival:
//!       queries ahead of it take what is theirs beside all others' claims ─► it starts │ waits, and reserves
//!   all queries take slots that are not reserved
//!   a gang waits: queries ahead of it take the reserved ones
//! ```
//!
//! Ahead of a gang are those that came before it, and those [promoted](crate::control::aging) after it has starved them.
//! Every slot goes to the stage that is first by [fair share](super::super::queues), on the executor that is the most open.
//! Not here: how many ranks a gang has.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use volley_proto::spec::Device;

use super::gang::{Asked, least_memory, place_gang};
use super::{Decision, Demand, Kind, Pool, Task, WaitReason};
use crate::control::aging::Starved;
use crate::control::devices::HeldGpus;
use crate::control::queues::{Queues, Turns, Usage, Waiting};

/// How slots are shared, and which slots and GPUs are held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares<'a> {
    pub(crate) queues: &'a Queues,
    pub(crate) usage: &'a Usage,
    pub(crate) gpus: &'a HeldGpus,
}

/// What is decided in an offer.
#[derive(Debug)]
pub(crate) struct Placed {
    /// One for each demand.
    pub(crate) decisions: Vec<Decision>,
    /// What the reservation of a gang withholds from queries, if one reserves.
    pub(crate) starved: Option<Starved>,
}

/// Decides for every demand, which are in the order of arrival, and takes what it gives from the pool.
pub(crate) fn place(pool: &mut Pool, demands: &[Demand], shares: Shares<'_>) -> Placed {
    let mut round = Round::new(pool, demands, shares);
    let mut gangs: HashMap<usize, Decision> = HashMap::new();
    let mut waiting: Option<usize> = None;
    let mut reserving: Option<usize> = None;
    // Whether the gang that waits does so for GPUs.
    let mut awaits_gpus = false;
    // Whether a query is ahead of a gang.
    let precedes = |query: usize, gang: usize| query < gang || demands[query].promoted;
    for (position, demand) in demands.iter().enumerate() {
        let Kind::Gang {
            request,
            shards,
            memory,
            device,
            running,
            done,
        } = &demand.kind
        else {
            continue;
        };
        let ranks = Asked {
            request: *request,
            shards: *shards,
            memory,
            device: *device,
        };
        // A gang that waits for GPUs is passed by those that take none.
        let is_its_turn = waiting.is_none() || awaits_gpus && device.device == Device::Cpu;
        let asks = |query: usize| round.left[query] > 0 && precedes(query, position);
        if is_its_turn && (0..demands.len()).any(asks) {
            round.give(|_| true, |query| precedes(query, position));
        }
        let decision = match waiting {
            _ if *running > 0 => Decision::Wait(WaitReason::Ending { running: *running }),
            _ if *done > 0 => Decision::Rerun(
                "a rank was lost after others had come to the end of training".to_owned(),
            ),
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

/// What an offer has given so far.
struct Round<'a> {
    pool: &'a mut Pool,
    demands: &'a [Demand],
    queues: &'a Queues,
    usage: Usage,
    gpus: HeldGpus,
    /// Slots that each demand still asks for; none of gangs.
    left: Vec<usize>,
    given: Vec<Vec<Task>>,
    /// By demand and executor, the task there that takes further partitions.
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
            gpus: shares.gpus.clone(),
            left: left.collect(),
            given: vec![Vec::new(); demands.len()],
            growing: HashMap::new(),
        }
    }

    /// Gives free slots to those of the queries that take part, as it is their turn. Those that are only claimed, by
    /// queries that do not keep theirs, are free again afterwards.
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
            self.pool.take(&executor);
            self.left[position] -= 1;
            turns.take(self.left[position] > 0);
            match keeps(position) {
                true => self.keep(position, executor),
                false => claimed.push((position, executor)),
            }
        }
        for (position, executor) in claimed {
            self.pool.give_back(&executor);
            self.left[position] += 1;
        }
    }

    /// A demand keeps a slot: another partition of its task there, or another task.
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

    /// A gang starts with these ranks, which share their GPUs or do not.
    fn start(&mut self, ranks: &[Task], shares: bool) {
        for rank in ranks {
            if let Some(gpu) = &rank.gpu {
                self.gpus.take(gpu, shares);
            }
            self.pool.take(&Arc::from(rank.executor.as_str()));
        }
    }

    /// The decisions, where a gang reserves slots or none does.
    fn decide(mut self, mut gangs: HashMap<usize, Decision>, reserving: Option<usize>) -> Placed {
        // What is free now is so because it is reserved.
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

    /// The sum of the weights of the queues that have slots or wait for some, where there are several.
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

    /// That a query waits for its queue's turn, where there are others.
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
