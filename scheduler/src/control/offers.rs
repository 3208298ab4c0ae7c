//! Placement, as the controller goes about it: from stages that could run to tasks that are to be bound.
//!
//! Free slots are derived at every offer, from the executors' sizes and the tasks that have not ended.

use volley_proto::failure::DataLost;

use super::clock::Now;
use super::controller::Controller;
use super::event::{
    AttemptEnd, Binding, Command, DataLoss, Gang, GangStage, Offer, Stage, Topic, Work,
};
use super::placement::{
    Decision, Demand, Executor, Kind, Memory, Role, WaitReason, grows_by, place,
};

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

impl Controller {
    /// Decides what of an offer starts now. Bindings are among the commands; each is to be carried out and told of as
    /// [`super::Event::TasksBound`] before the next offer.
    pub(crate) fn place(&mut self, offer: Offer, now: Now) -> Vec<Command> {
        let Offer { mut stages, alive } = offer;
        stages.retain(|stage| !self.jobs.is_ending(&stage.attempt));
        // Job ids ascend in time, so their order is the order of arrival; a job that is run again keeps its place.
        stages.sort_by_cached_key(|stage| {
            let job = self.jobs.job_of(&stage.attempt);
            (job.to_owned(), stage.attempt.clone(), stage.stage)
        });
        let held = self.slots.held();
        let registered = self.executors.slots();
        let is_alive = |id: &str| alive.as_ref().is_none_or(|alive| alive.contains(id));
        let mut executors: Vec<_> = registered
            .filter(|(id, _)| is_alive(id))
            .map(|(id, slots)| {
                let held = held.get(id).copied().unwrap_or(0);
                Executor {
                    id: id.to_owned(),
                    free: slots.saturating_sub(held),
                    idle: held == 0,
                    role: self.executors.role(id),
                    rank_memory: self.executors.rank_memory(id),
                }
            })
            .collect();
        let ranks = executors.iter().filter(|e| e.role.runs_ranks()).count();
        let (mut asked, mut demands, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for stage in stages {
            if let Some((ask, demand)) = self.demand(stage, ranks, &mut running, now) {
                asked.push(ask);
                demands.push(demand);
            }
        }
        let decisions = place(&mut executors, &demands);
        for (ask, decision) in asked.into_iter().zip(decisions) {
            self.act(ask, decision, now);
        }
        self.grow_gangs(&running, &executors, now);
        self.take_commands()
    }

    /// What a stage asks for, where so many executors run ranks.
    fn demand(
        &mut self,
        stage: Stage,
        executors: usize,
        running: &mut Vec<Running>,
        now: Now,
    ) -> Option<(Asked, Demand)> {
        let Stage {
            attempt,
            stage,
            work,
        } = stage;
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
            job: self.jobs.job_of(&attempt).to_owned(),
            stage,
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

    fn act(&mut self, asked: Asked, decision: Decision, now: Now) {
        let Asked {
            attempt,
            stage,
            gang,
            written,
        } = asked;
        match decision {
            Decision::Tasks(tasks) | Decision::Start(tasks) => {
                self.attempt_waits(&attempt, None);
                self.command(Command::Bind(Binding {
                    attempt,
                    stage,
                    tasks,
                    gang: gang.map(Box::new),
                }));
            }
            Decision::Wait(reason) => {
                if !self.slots.runs(&attempt) {
                    let told = self.told(&reason);
                    self.attempt_waits(&attempt, Some(told));
                }
                if let Some(gang) = gang
                    && self.runs.entry(&gang.train).waits(reason.to_string(), now)
                {
                    self.wake(Topic::Run(gang.train));
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

    /// What a job waits for, as it is told, with the holders of the slots.
    fn told(&self, reason: &WaitReason) -> String {
        let suits: fn(Role) -> bool = match reason {
            WaitReason::Slot { .. } => Role::runs_queries,
            _ => Role::runs_ranks,
        };
        let executors = self.executors.slots();
        let suited: Vec<_> = executors
            .filter(|(id, _)| suits(self.executors.role(id)))
            .collect();
        let all = suited.iter().map(|(_, slots)| slots).sum();
        let holders = self.slots.told(suited.iter().map(|(id, _)| *id), all);
        match (reason, holders) {
            (WaitReason::Slot { ahead: None }, Some(holders)) => holders,
            (WaitReason::Slot { .. } | WaitReason::Slots { .. }, Some(holders)) => {
                format!("{reason}; {holders}")
            }
            _ => reason.to_string(),
        }
    }

    /// Ends generations that executors with nothing to do could join.
    fn grow_gangs(&mut self, running: &[Running], left: &[Executor], now: Now) {
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
            if let Some(executor) = grows_by(left, ranks_on, *most, memory) {
                let reason = format!("executor {executor} joins");
                self.change_run(*train, |run| run.regroup(reason, now));
            }
        }
    }
}
