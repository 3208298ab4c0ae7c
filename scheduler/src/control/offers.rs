//! Placement, as the controller goes about it: from stages that could run to tasks that are to be bound.
//!
//! An offer has the stages with partitions that no task has; no other job is looked at. What executors have free is put
//! into the pool as tasks come and go.

use volley_proto::failure::DataLost;
use volley_proto::settings::QUEUE_DEFAULT;

use super::clock::Now;
use super::controller::Controller;
use super::event::{
    AttemptEnd, Binding, Command, DataLoss, Gang, GangStage, Offer, Stage, Topic, Work,
};
use super::jobs::Job;
use super::placement::{
    Capacity, Decision, Demand, ExecutorRole, Kind, Memory, Shares, WaitReason, grows_by, place,
};
use super::queues::Account;
use super::retained::Ends;

/// A demand, and what it is of.
struct Asked {
    attempt: String,
    stage: usize,
    gang: Option<Gang>,
    written: Option<String>,
}

/// A gang whose ranks all run.
struct Running {
    gang: Gang,
    memory: Memory,
    ranks_on: Vec<String>,
}

/// Whose slots are those of an attempt that is of no job here: its states are pushed to its client.
pub(super) fn unknown_account() -> Account {
    Account::new(QUEUE_DEFAULT, "")
}

impl Controller {
    /// Decides what of an offer starts now. Bindings are among the commands; each is to be carried out and told of as
    /// [`super::Event::TasksBound`] before the next offer.
    pub(crate) fn place(&mut self, offer: Offer, now: Now) -> Vec<Command> {
        let Offer { stages, alive } = offer;
        self.pool.begin(alive.as_ref());
        let mut running = Vec::new();
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
        let yields = self.reservation_is_due(now);
        let shares = Shares {
            queues: &self.policy.queues,
            usage: self.slots.usage(),
        };
        let placed = place(&mut self.pool, &demands, shares, yields);
        self.held_up_since = match (placed.held_up, placed.yielded, self.held_up_since) {
            (false, ..) => None,
            (true, false, Some(since)) => Some(since),
            (true, ..) => Some(now.instant),
        };
        let asked = asked.into_iter().zip(&demands);
        for ((ask, demand), decision) in asked.zip(placed.decisions) {
            self.act(ask, demand, decision, now);
        }
        self.grow_gangs(&running, now);
        self.pool.end();
        self.take_commands()
    }

    /// Whether a gang's reservation is to yield.
    pub(super) fn reservation_is_due(&self, now: Now) -> bool {
        let limit = self.policy.reservation_limit;
        let due = |since| now.instant - since >= limit;
        self.held_up_since.is_some_and(due)
    }

    /// What a stage asks for; nothing, where its attempt is to end.
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
        let (job, account, priority) = match self.jobs.of_live_attempt(&attempt)? {
            Some(job) => (job.id.clone(), job.account.clone(), job.priority),
            None => (attempt.clone(), unknown_account(), 0),
        };
        let (kind, gang, written) = match work {
            Work::Slices { pending, most } => (Kind::Slices { pending, most }, None, None),
            Work::Whole => (Kind::Whole, None, None),
            Work::Gang(stage) => {
                let GangStage {
                    gang,
                    memory,
                    shards,
                    pending,
                    running: ranks_on,
                    done,
                    written,
                } = *stage;
                let executors = self.pool.able().executors();
                let run = self.runs.entry(&gang.train);
                run.is_of(&gang);
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
                    shards,
                    memory,
                    running: ranks_on.len(),
                    done,
                };
                (kind, Some(gang), written)
            }
        };
        let demand = Demand {
            job,
            stage,
            account,
            priority,
            runs: self.slots.runs(&attempt),
            kind,
        };
        let asked = Asked {
            attempt,
            stage,
            gang,
            written,
        };
        Some((asked, demand))
    }

    fn act(&mut self, asked: Asked, demand: &Demand, decision: Decision, now: Now) {
        let Asked {
            attempt,
            stage,
            gang,
            written,
        } = asked;
        match decision {
            Decision::Tasks(tasks) | Decision::Start(tasks) => {
                self.job_waits(&demand.job, None);
                self.command(Command::Bind(Binding {
                    attempt,
                    stage,
                    tasks,
                    gang: gang.map(Box::new),
                }));
            }
            Decision::Wait(reason) => {
                if let Some(gang) = gang
                    && self.runs.entry(&gang.train).waits(reason.to_string(), now)
                {
                    self.wake(Topic::Run(gang.train));
                }
                if !demand.runs {
                    self.job_waits(&demand.job, Some(reason));
                }
            }
            Decision::Fail(reason) => self.end_attempt(&attempt, AttemptEnd::Failed(reason)),
            Decision::Rerun(reason) => {
                let loss = DataLost {
                    executor: "of a rank".to_owned(),
                    reason,
                };
                self.rerun(&attempt, DataLoss { loss, written });
            }
        }
    }

    /// Notes what a job waits for, or that it does not any more.
    pub(super) fn job_waits(&mut self, job: &str, reason: Option<WaitReason>) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.waits = reason.filter(|_| !job.is_over());
        }
    }

    /// Tells placement what an executor has now.
    pub(super) fn refresh(&mut self, executor: &str) {
        let Some(slots) = self.executors.slots_of(executor) else {
            return self.pool.remove(executor);
        };
        let capacity = Capacity {
            slots,
            held: self.slots.held_by(executor),
            role: self.executors.role(executor),
            rank_memory: self.executors.rank_memory(executor),
        };
        self.pool.put(executor, capacity);
    }

    /// Refuses a queue that there is not.
    ///
    /// # Errors
    /// Names it and those that there are.
    pub(crate) fn check_queue(&self, queue: &str) -> Result<(), String> {
        self.policy.queues.check(queue)
    }

    /// What a job waits for, as it is told when it is asked for.
    pub(crate) fn waits(&self, job: &Job) -> Option<String> {
        job.waits.as_ref().map(|reason| self.told(reason))
    }

    /// A reason, with who holds the slots.
    fn told(&self, reason: &WaitReason) -> String {
        let suits: fn(ExecutorRole) -> bool = match reason {
            WaitReason::Slot { .. } | WaitReason::Share { .. } => ExecutorRole::runs_queries,
            _ => ExecutorRole::runs_ranks,
        };
        let executors = self.executors.slots();
        let suited: Vec<_> = executors
            .filter(|(id, _)| suits(self.executors.role(id)))
            .collect();
        let all = suited.iter().map(|(_, slots)| slots).sum();
        let holders = self.slots.told(suited.iter().map(|(id, _)| *id), all);
        match (reason, holders) {
            (WaitReason::Slot { ahead: None }, Some(holders)) => holders,
            (
                WaitReason::Slot { .. } | WaitReason::Share { .. } | WaitReason::Slots { .. },
                Some(holders),
            ) => format!("{reason}; {holders}"),
            _ => reason.to_string(),
        }
    }

    /// Ends generations that executors with nothing to do could join.
    fn grow_gangs(&mut self, running: &[Running], now: Now) {
        for gang in running {
            let Running {
                gang: Gang { train, most, .. },
                memory,
                ranks_on,
            } = gang;
            let run = self.runs.get(train);
            if run.and_then(|run| run.may_grow(now.instant)).is_none() {
                continue;
            }
            if let Some(executor) = grows_by(&self.pool, ranks_on, *most, memory) {
                let reason = format!("executor {executor} joins");
                self.change_run(*train, |run| run.regroup(reason, now));
            }
        }
    }
}
