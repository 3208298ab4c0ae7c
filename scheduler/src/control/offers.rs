//! The controller's part in placement: from stages that could run to tasks to be bound.
//!
//! An offer has the stages with partitions that no task has, and its cost grows with their number; no other job is
//! looked at. The free capacity of executors is put into the pool as tasks come and go.

use std::cell::OnceCell;

use volley_proto::PreparedId;
use volley_proto::failure::DataLost;
use volley_proto::settings::QUEUE_DEFAULT;

use super::clock::Now;
use super::controller::Controller;
use super::event::{
    AttemptEnd, Binding, Command, DataLoss, Gang, GangBinding, GangStage, Offer, Stage, Topic, Work,
};
use super::executors::Drain;
use super::jobs::Job;
use super::placement::{
    Capacity, Decision, Demand, ExecutorRole, Kind, Memory, Placed, Shares, Task, WaitReason,
    grows_by, place, reach,
};
use super::queues::Account;
use super::recorded::Change;
use super::retained::Ends;
use super::slots::Viewer;
use super::unmet::Unmet;

/// Stage that a demand is for.
struct Asked {
    attempt: String,
    stage: usize,
    gang: Option<Gang>,
    /// Rows of each shard of the gang.
    shards: Vec<u64>,
    prepared: Option<PreparedId>,
    written: Option<String>,
}

/// Gang whose ranks all run.
struct Running {
    gang: Gang,
    memory: Memory,
    ranks_on: Vec<String>,
}

/// Returns the account of attempts without a job, whose states are pushed to their clients.
pub(super) fn unknown_account() -> Account {
    Account::new(QUEUE_DEFAULT, "")
}

/// Holders of the slots and GPUs that queries and ranks wait for, looked up once and only if needed.
pub(crate) struct Holders<'a> {
    controller: &'a Controller,
    viewer: Viewer<'a>,
    of_queries: OnceCell<Option<String>>,
    of_ranks: OnceCell<Option<String>>,
    of_gpus: OnceCell<Option<String>>,
}

impl Holders<'_> {
    /// Describes what a job waits for.
    pub(crate) fn waits(&self, job: &Job) -> Option<String> {
        let reason = job.waits.as_ref()?;
        let holders = match reason {
            WaitReason::Slot { .. } | WaitReason::Share { .. } => self
                .of_queries
                .get_or_init(|| self.of(ExecutorRole::runs_queries)),
            WaitReason::Slots { .. } => self
                .of_ranks
                .get_or_init(|| self.of(ExecutorRole::runs_ranks)),
            WaitReason::GpusHeld { .. } => self.of_gpus.get_or_init(|| {
                let Controller {
                    executors, slots, ..
                } = self.controller;
                slots.gpus_told(&executors.gpus(), self.viewer)
            }),
            _ => &None,
        };
        let told = self.controller.told(reason, self.viewer);
        Some(match (reason, holders) {
            (WaitReason::Slot { ahead: None }, Some(holders)) => holders.clone(),
            (_, Some(holders)) => format!("{told}; {holders}"),
            (_, None) => told,
        })
    }

    /// Describes who holds the slots of the executors with suitable roles.
    fn of(&self, suits: fn(ExecutorRole) -> bool) -> Option<String> {
        let Controller {
            executors, slots, ..
        } = self.controller;
        let suited = executors.slots();
        let suited = suited.filter(|(id, _)| suits(executors.role(id)));
        let suited: Vec<_> = suited.collect();
        let all = suited.iter().map(|(_, slots)| slots).sum();
        slots.told(suited.iter().map(|(id, _)| *id), all, self.viewer)
    }
}

impl Controller {
    /// Decides what of an offer starts now. The commands include bindings, each of which must be carried out and
    /// reported as [`super::Event::TasksBound`] before the next offer.
    pub(crate) fn place(&mut self, offer: Offer<'_>, now: Now) -> Vec<Command> {
        let Offer { stages, alive } = offer;
        self.pool.begin(alive);
        let (limit, most) = (self.policy.reservation_limit, self.pool.query_slots());
        let (jobs, slots) = (&self.jobs, &self.slots);
        self.aging.begin(limit, most, now.instant, |job| {
            let is_offered = || stages.iter().any(|stage| stage.attempt == job);
            match jobs.get(job) {
                Some(job) => job.has_ended(),
                None => !slots.runs(job) && !is_offered(),
            }
        });
        let mut running = Vec::new();
        self.early.clear();
        self.awaits_day = None;
        let mut asked = Vec::with_capacity(stages.len());
        for stage in stages {
            asked.extend(self.demand(stage, &mut running, now));
        }
        // Job ids ascend in time, so their order is the order of arrival; a job that is run again keeps its place.
        asked.sort_by(|(ask, demand), (other_ask, other)| {
            let of = (&demand.job, &ask.attempt, ask.stage);
            of.cmp(&(&other.job, &other_ask.attempt, other_ask.stage))
        });
        let (asked, demands): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let shares = Shares {
            queues: &self.policy.queues,
            usage: self.slots.usage(),
            memory: self.slots.memory(),
            gpus: self.slots.gpus(),
        };
        let Placed { decisions, starved } = place(&mut self.pool, &demands, shares);
        self.aging.end(starved, now.instant);
        let starts =
            |decision: &Decision| matches!(decision, Decision::Tasks(_) | Decision::Start(_));
        // For each demand, true if a task of its job runs.
        let mut runs = Vec::with_capacity(demands.len());
        for of_job in demands.chunk_by(|demand, next| demand.job == next.job) {
            let job = &of_job[0].job;
            if self.jobs.get_mut(job).is_some_and(Job::is_planned) {
                let job = job.clone();
                self.command(Command::Record(Change::Planned { job }));
            }
            let mut decided = of_job.iter().zip(&decisions[runs.len()..]);
            let job_runs = decided.any(|(demand, decision)| demand.runs || starts(decision));
            if job_runs {
                self.job_waits(&of_job[0].job, None);
            }
            runs.extend(of_job.iter().map(|_| job_runs));
        }
        let unmet = asked.iter().zip(demands.iter().zip(&decisions));
        let unmet = unmet
            .map(|(ask, (demand, decision))| (ask.attempt.clone(), Unmet::of(demand, decision)));
        self.unmet = unmet
            .filter(|(_, unmet)| *unmet != Unmet::default())
            .collect();
        let asked = asked.into_iter().zip(demands.iter().zip(runs));
        for ((ask, demand), decision) in asked.zip(decisions) {
            self.act(ask, demand, decision, now);
        }
        self.grow_gangs(&running, now);
        self.pool.end();
        self.take_commands()
    }

    /// Returns the demand of a stage; `None` if its attempt must end, all ranks of its gang run, or it waits for its job to be
    /// known or for GPU hours.
    fn demand(
        &mut self,
        stage: Stage,
        running: &mut Vec<Running>,
        now: Now,
    ) -> Option<(Asked, Demand)> {
        let Stage {
            attempt,
            stage,
            work,
        } = stage;
        let (job, account, priority, limits) = match self.jobs.of_live_attempt(&attempt)? {
            Some(job) => (
                job.id.clone(),
                job.account.clone(),
                job.priority,
                job.limits(),
            ),
            // Its quotas are not known either.
            None if self.opening > 0 => {
                self.early.insert(attempt);
                return None;
            }
            None => (attempt.clone(), unknown_account(), 0, None),
        };
        let mut asked = Asked {
            attempt: attempt.clone(),
            stage,
            gang: None,
            shards: vec![],
            prepared: None,
            written: None,
        };
        let kind = match work {
            Work::Slices { pending, most } => Kind::Slices { pending, most },
            Work::Whole => Kind::Whole,
            Work::Gang(stage) => {
                let GangStage {
                    gang,
                    memory,
                    shards,
                    prepared,
                    pending,
                    running: ranks_on,
                    done,
                    written,
                } = *stage;
                let executors = reach(&self.pool, gang.device).executors();
                let holders = prepared.map_or_else(Vec::new, |id| self.prepared.holders(id));
                let run = self.runs.entry(&gang.train);
                run.is_of(&gang);
                let begins = pending && !run.has_begun();
                if let Some(limits) = limits.filter(|_| begins)
                    && self.awaits_gpu_hours(&gang, (&job, &account.user), limits, now)
                {
                    return None;
                }
                let run = self.runs.entry(&gang.train);
                if pending && let Some(end) = run.misses_a_rank(&attempt, now) {
                    self.commands.push(Command::Wake(Topic::Run(gang.train)));
                    if let Some(reason) = end {
                        self.end_attempt(&attempt, AttemptEnd::Failed(reason));
                        return None;
                    }
                }
                let run = self.runs.entry(&gang.train);
                // A rank that ends frees its slot before its shards are pending.
                if !(pending || run.meets_again() && !ranks_on.is_empty()) {
                    running.push(Running {
                        gang,
                        memory,
                        ranks_on,
                    });
                    return None;
                }
                let kind = Kind::Gang {
                    request: run.rank_request(&gang, executors, now.instant),
                    shards: shards.len(),
                    memory: Box::new(memory),
                    device: gang.device,
                    running: ranks_on.len(),
                    done,
                    preferred: match run.has_begun() {
                        true => vec![],
                        false => holders.into_iter().map(|(holder, _)| holder).collect(),
                    },
                };
                asked = Asked {
                    gang: Some(gang),
                    shards,
                    prepared,
                    written,
                    ..asked
                };
                kind
            }
        };
        let demand = Demand {
            promoted: self.aging.is_promoted(&job),
            job,
            stage,
            account,
            priority,
            limits,
            runs: self.slots.runs(&attempt),
            kind,
        };
        Some((asked, demand))
    }

    /// Carries out a decision about a stage; `runs` is true if a task of its job runs.
    fn act(&mut self, asked: Asked, (demand, runs): (&Demand, bool), decision: Decision, now: Now) {
        let Asked {
            attempt,
            stage,
            gang,
            shards,
            prepared,
            written,
        } = asked;
        match decision {
            Decision::Tasks(tasks) | Decision::Start(tasks) => {
                let (tasks, gang) = match gang {
                    Some(gang) => {
                        let shards = (shards, prepared);
                        let (tasks, gang) =
                            self.assign_shards((gang, shards), &attempt, tasks, now);
                        (tasks, Some(Box::new(gang)))
                    }
                    None => (tasks, None),
                };
                self.command(Command::Bind(Binding {
                    attempt,
                    stage,
                    tasks,
                    gang,
                }));
            }
            Decision::Wait(reason) => {
                if let Some(gang) = gang {
                    // The run's events are its owner's to read.
                    let owner = self.owner_of(&demand.job).unwrap_or_default();
                    let told = self.told(&reason, Some(owner));
                    if self.runs.entry(&gang.train).waits(told, now) {
                        self.wake(Topic::Run(gang.train));
                    }
                }
                if self.jobs.get(&demand.job).is_none() {
                    self.early.insert(attempt);
                }
                if !runs {
                    self.job_waits(&demand.job, Some(reason));
                }
            }
            Decision::Fail(reason) => self.end_attempt(&attempt, AttemptEnd::Failed(reason)),
            Decision::Rerun(reason) => {
                let loss = DataLost {
                    executor: "of a rank".to_owned(),
                    reason,
                };
                let data = DataLoss {
                    loss,
                    written,
                    planned: false,
                };
                self.rerun(&attempt, data);
            }
        }
    }

    /// Assigns a gang's shards to its tasks, and orders the tasks by their first shard: ranks sum in that order,
    /// whichever executors they are on.
    fn assign_shards(
        &mut self,
        (gang, (rows, prepared)): (Gang, (Vec<u64>, Option<PreparedId>)),
        attempt: &str,
        tasks: Vec<Task>,
        now: Now,
    ) -> (Vec<Task>, GangBinding) {
        let able = reach(&self.pool, gang.device).executors();
        let executors: Vec<_> = tasks.iter().map(|task| task.executor.as_str()).collect();
        let holders = prepared.map_or_else(Vec::new, |id| self.prepared.holders(id));
        if let Some(id) = prepared {
            self.prepared.binds(id, &executors);
        }
        let run = self.runs.entry(&gang.train);
        let assigned = run.assign(attempt, &rows, &executors, &holders);
        let mut ranks: Vec<_> = assigned.into_iter().zip(tasks).collect();
        ranks.sort_by(|(shards, _), (others, _)| shards.first().cmp(&others.first()));
        let (shards, mut tasks): (Vec<Vec<usize>>, Vec<Task>) = ranks.into_iter().unzip();
        for (task, shards) in tasks.iter_mut().zip(&shards) {
            task.partitions = shards.len();
        }
        run.dealt(&gang, (&rows, &shards), able, now);
        run.keeps(prepared, rows);
        (tasks, GangBinding { gang, shards })
    }

    /// Records what a job waits for, or that it no longer waits.
    pub(super) fn job_waits(&mut self, job: &str, reason: Option<WaitReason>) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.waits = reason.filter(|_| !job.is_over());
        }
    }

    /// Puts an executor's current capacity into the pool.
    pub(super) fn refresh(&mut self, executor: &str) {
        let stays = self.executors.drain(executor) == Some(Drain::No);
        let Some(slots) = self.executors.slots_of(executor).filter(|_| stays) else {
            return self.pool.remove(executor);
        };
        let (device, gpus) = self.executors.devices(executor);
        let capacity = Capacity {
            slots,
            held: self.slots.held_by(executor),
            role: self.executors.role(executor),
            slot_memory: self.executors.slot_memory(executor),
            rank_memory: self.executors.rank_memory(executor),
            device,
            gpus,
        };
        self.pool.put(executor, capacity);
    }

    /// Checks that a queue exists.
    ///
    /// # Errors
    /// When it does not; names it and the existing queues.
    pub(crate) fn check_queue(&self, queue: &str) -> Result<(), String> {
        self.policy.queues.check(queue)
    }

    /// Returns the slots of all executors that run queries.
    pub(crate) fn query_slots(&self) -> usize {
        self.pool.query_slots()
    }

    /// Describes why a stage waits. The id of another user's job is left out.
    fn told(&self, reason: &WaitReason, viewer: Viewer<'_>) -> String {
        let ahead = match reason {
            WaitReason::Slot { ahead: Some(job) } | WaitReason::Turn { ahead: job } => job,
            _ => return reason.to_string(),
        };
        let owner = self.owner_of(ahead).unwrap_or_default();
        match viewer.is_none_or(|viewer| viewer == owner) {
            true => reason.to_string(),
            false => reason.without_job().to_owned(),
        }
    }

    /// Returns the current holders of slots, to describe to somebody what any number of jobs wait for.
    pub(crate) fn holders<'a>(&'a self, viewer: Viewer<'a>) -> Holders<'a> {
        Holders {
            controller: self,
            viewer,
            of_queries: OnceCell::new(),
            of_ranks: OnceCell::new(),
            of_gpus: OnceCell::new(),
        }
    }

    /// Ends generations that idle executors could join.
    fn grow_gangs(&mut self, running: &[Running], now: Now) {
        for gang in running {
            let Running {
                gang:
                    Gang {
                        train,
                        most,
                        device,
                        ..
                    },
                memory,
                ranks_on,
            } = gang;
            let run = self.runs.get(train);
            if run.and_then(|run| run.may_grow(now.instant)).is_none() {
                continue;
            }
            let ranks = (memory, *device);
            let joins = grows_by(&self.pool, self.slots.gpus(), ranks_on, *most, ranks);
            if let Some(executor) = joins {
                let reason = format!("executor {executor} joins");
                self.change_run(*train, |run| run.regroup(reason, now));
            }
        }
    }
}
