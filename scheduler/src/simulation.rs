//! A simulation of a cluster in virtual time: what the control core takes of real time for each event, offer and task.
//!
//! ```text
//!   jobs come, tasks end (virtual time) ──► events ──► Controller ──► bindings ──► ends of tasks (virtual time)
//!                                             └── each call is timed
//! ```
//!
//! The controller is the one that the scheduler runs, told of everything that it would be: executors, submissions, bound
//! tasks, ends of tasks, offers with all stages that have partitions left and with the executors that are alive, and
//! passing time. An offer follows each end of a task, as Ballista makes one. Not here: Ballista, its graphs and plans, and
//! the network, which take time of their own. For benchmarks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::{Duration, Instant};

use url::Url;
use volley_proto::settings::OnClientLoss;
use volley_proto::spec::{Device, Elastic, Ranks, TooFew};
use volley_proto::{ModelName, TrainId, splitmix};

use crate::control::{
    AttemptEnd, Binding, BoundTask, Command, Controller, DeviceRequest, Event, ExecutorEndpoint,
    ExecutorRole, Gang, GangStage, Memory, Now, Offer, Policy, Profile, Queue, Queues,
    RetentionPolicy, Stage, Submission, Task, Work,
};

/// Longer than any simulation.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// The scheduler tells the controller that time passes, so often.
const TICK: Duration = Duration::from_millis(250);

/// Users who submit jobs, in turn.
const USERS: usize = 7;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Executors.
    pub executors: usize,
    /// Slots of each.
    pub slots: usize,
    /// Jobs, one after the other.
    pub jobs: usize,
    /// Partitions of all queries together.
    pub partitions: usize,
    /// How many of the jobs train, with a rank on a tenth of the executors each.
    pub gangs: usize,
    /// Queues, which jobs name in turn.
    pub queues: Vec<Queue>,
    /// Virtual time from one submission to the next.
    pub every: Duration,
    /// Of the durations of tasks.
    pub seed: u64,
}

/// What the controller took, in real time.
#[derive(Debug, Default)]
pub struct Timings {
    /// Of each event that it was told of, ticks among them.
    pub events: Vec<Duration>,
    /// Of each offer.
    pub offers: Vec<Duration>,
    /// Of each task: its part of the offer that placed it, and the events of its binding and its end.
    pub tasks: Vec<Duration>,
    /// All of it.
    pub total: Duration,
    /// Virtual time until the last job was over.
    pub virtual_time: Duration,
}

/// Plays a workload to its end.
///
/// # Panics
/// When two queues have one name, or the controller does not bring all jobs to their end.
pub fn simulate(workload: &Workload) -> Timings {
    let mut simulation = Simulation::new(workload);
    simulation.play();
    assert_eq!(
        simulation.over, workload.jobs,
        "jobs that came to their end"
    );
    simulation.timings
}

/// What happens at a point in virtual time; of those at one point, in the order in which they were foreseen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submitted(usize),
    TaskEnds { executor: String, task: Task },
    Tick,
}

/// A job as the engine below the controller would know it.
struct SimulatedJob {
    /// Partitions, or shards, that no task has.
    pending: usize,
    /// Tasks that run.
    running: usize,
    /// Tasks that have been bound.
    bound: usize,
    gang: Option<Gang>,
}

struct Simulation<'a> {
    workload: &'a Workload,
    controller: Controller,
    start: Now,
    /// Virtual time since the start.
    at: Duration,
    happenings: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    foreseen: u64,
    alive: HashSet<String>,
    /// Those that are not over, by the ids of their attempts.
    jobs: BTreeMap<String, SimulatedJob>,
    over: usize,
    timings: Timings,
    /// What a running task has taken so far.
    taken: BTreeMap<Task, Duration>,
}

impl<'a> Simulation<'a> {
    fn new(workload: &'a Workload) -> Self {
        let policy = Policy {
            executor_timeout: FOREVER,
            client_timeout: FOREVER,
            retention: RetentionPolicy {
                unread: FOREVER,
                idle: FOREVER,
            },
            queues: Queues::new(&workload.queues).expect("queues of different names"),
            reservation_limit: Duration::from_secs(60),
        };
        let mut simulation = Self {
            workload,
            controller: Controller::new(policy),
            start: Now::read(),
            at: Duration::ZERO,
            happenings: BinaryHeap::new(),
            foreseen: 0,
            alive: HashSet::new(),
            jobs: BTreeMap::new(),
            over: 0,
            timings: Timings::default(),
            taken: BTreeMap::new(),
        };
        for number in 0..workload.executors {
            simulation.joins(format!("executor-{number:05}"));
        }
        for job in 0..workload.jobs {
            let at = workload.every * u32::try_from(job).unwrap_or(u32::MAX);
            simulation.foresee(at, Happening::Submitted(job));
        }
        simulation.foresee(TICK, Happening::Tick);
        simulation
    }

    fn play(&mut self) {
        while self.over < self.workload.jobs {
            let Some(Reverse((at, _, happening))) = self.happenings.pop() else {
                break;
            };
            self.at = at;
            match happening {
                Happening::Submitted(job) => self.submit(job),
                Happening::TaskEnds { executor, task } => self.task_ends(executor, task),
                Happening::Tick => {
                    self.on(Event::Tick);
                    // Nothing goes on without a task: then there is nothing to come either.
                    if self.taken.is_empty() && self.happenings.is_empty() {
                        break;
                    }
                    self.foresee(TICK, Happening::Tick);
                }
            }
        }
        self.timings.virtual_time = self.at;
    }

    fn now(&self) -> Now {
        Now {
            instant: self.start.instant + self.at,
            time: self.start.time + self.at,
        }
    }

    fn foresee(&mut self, after: Duration, happening: Happening) {
        self.foreseen += 1;
        let at = self.at + after;
        self.happenings
            .push(Reverse((at, self.foreseen, happening)));
    }

    /// Tells the controller of an event. Returns what that took, and what is to be done.
    fn on(&mut self, event: Event) -> (Duration, Vec<Command>) {
        let now = self.now();
        let begun = Instant::now();
        let commands = self.controller.on(event, now);
        let took = begun.elapsed();
        self.timings.events.push(took);
        self.timings.total += took;
        (took, commands)
    }

    fn joins(&mut self, executor: String) {
        let profile = Profile {
            role: ExecutorRole::Any,
            device: Device::Cpu,
            host: String::new(),
            gpus: Vec::new(),
            memory_bytes: 1 << 30,
            rank_memory_bytes: 1 << 30,
            version: String::new(),
        };
        let (now, incarnation) = (self.now(), "simulated/1");
        let admitted = self.controller.admit(&executor, incarnation);
        debug_assert_eq!(admitted, Ok(false), "ids differ");
        let controller = &mut self.controller;
        controller.attends(&executor, incarnation, profile, now);
        self.alive.insert(executor.clone());
        self.on(Event::ExecutorRegistered {
            executor,
            endpoint: ExecutorEndpoint {
                host: "localhost".to_owned(),
                port: 1,
                task_port: 2,
            },
            slots: self.workload.slots,
        });
    }

    fn submit(&mut self, number: usize) {
        let Workload {
            jobs,
            partitions,
            gangs,
            executors,
            queues,
            ..
        } = self.workload;
        let id = format!("job-{number:05}");
        // Spread over the others.
        let trains = *gangs > 0 && number.is_multiple_of(jobs.div_ceil(*gangs));
        let gang = trains.then(|| gang((executors / 10).max(1)));
        let queue = match queues.is_empty() {
            true => volley_proto::settings::QUEUE_DEFAULT,
            false => queues[number % queues.len()].name.as_str(),
        };
        let submission = Submission {
            job: id.clone(),
            name: "SELECT 1".to_owned(),
            owner: format!("user-{}", number % USERS),
            train: gang.as_ref().map(|gang| gang.train),
            on_client_loss: OnClientLoss::Keep,
            limits: None,
            queue: queue.to_owned(),
            // Jobs of a user in a queue differ in it.
            priority: i32::try_from(number / USERS % 3).unwrap_or(0),
        };
        self.on(Event::JobSubmitted(submission));
        let job = SimulatedJob {
            pending: match &gang {
                Some(gang) => gang.most,
                None => partitions.div_ceil(jobs.saturating_sub(*gangs).max(1)),
            },
            running: 0,
            bound: 0,
            gang,
        };
        self.jobs.insert(id, job);
        self.offer();
    }

    fn task_ends(&mut self, executor: String, task: Task) {
        let attempt = task.attempt.clone();
        let before = self.taken.remove(&task).unwrap_or_default();
        let (took, _) = self.on(Event::TaskSucceeded { executor, task });
        self.timings.tasks.push(before + took);
        if let Some(job) = self.jobs.get_mut(&attempt) {
            job.running -= 1;
            if job.running == 0 && job.pending == 0 {
                self.jobs.remove(&attempt);
                self.over += 1;
                let end = AttemptEnd::Succeeded { rows: None };
                self.on(Event::AttemptEnded { attempt, end });
            }
        }
        self.offer();
    }

    /// Offers every stage that has something left, and binds what is asked for.
    fn offer(&mut self) {
        let stages = self.jobs.iter().filter(|(_, job)| job.pending > 0);
        let stages = stages.map(|(attempt, job)| stage(attempt, job));
        let mut stages: Vec<_> = stages.collect();
        // As from a hash map: in another order than they have come.
        stages.sort_by_cached_key(|stage| {
            let bytes = stage.attempt.bytes();
            splitmix::at(
                self.workload.seed,
                bytes.fold(0, |hash, byte| (hash << 5) ^ u64::from(byte)),
            )
        });
        let offer = Offer {
            stages,
            alive: Some(&self.alive),
        };
        let now = self.now();
        let begun = Instant::now();
        let commands = self.controller.place(offer, now);
        let took = begun.elapsed();
        self.timings.offers.push(took);
        self.timings.total += took;
        let bindings = commands.into_iter().filter_map(|command| match command {
            Command::Bind(binding) => Some(binding),
            _ => None,
        });
        let bindings: Vec<_> = bindings.collect();
        let tasks: usize = bindings.iter().map(|binding| binding.tasks.len()).sum();
        for binding in bindings {
            self.bind(
                binding,
                took / u32::try_from(tasks.max(1)).unwrap_or(u32::MAX),
            );
        }
    }

    /// Carries a binding out, each of whose tasks has taken so much to be placed.
    fn bind(&mut self, binding: Binding, placing: Duration) {
        let Some(job) = self.jobs.get_mut(&binding.attempt) else {
            return;
        };
        let mut tasks = Vec::new();
        for task in &binding.tasks {
            job.pending = job.pending.saturating_sub(task.partitions);
            job.running += 1;
            tasks.push(BoundTask {
                executor: task.executor.clone(),
                number: job.bound,
                slots: task.slots,
                gpu: None,
            });
            job.bound += 1;
        }
        let (attempt, stage, bound) = (binding.attempt.clone(), binding.stage, tasks.clone());
        let (took, _) = self.on(Event::TasksBound { binding, tasks });
        let each = placing + took / u32::try_from(bound.len().max(1)).unwrap_or(u32::MAX);
        for BoundTask {
            executor, number, ..
        } in bound
        {
            let task = Task {
                attempt: attempt.clone(),
                stage,
                number,
            };
            self.taken.insert(task.clone(), each);
            // From a tenth of a second to a second.
            let random = splitmix::unit(splitmix::at(self.workload.seed, self.foreseen));
            let lasts = Duration::from_millis(100) + Duration::from_millis(900).mul_f64(random);
            self.foresee(lasts, Happening::TaskEnds { executor, task });
        }
    }
}

/// What a job has left.
fn stage(attempt: &str, job: &SimulatedJob) -> Stage {
    let work = match &job.gang {
        Some(gang) => Work::Gang(Box::new(GangStage {
            gang: gang.clone(),
            memory: Memory::default(),
            shards: gang.most,
            pending: true,
            running: Vec::new(),
            done: 0,
            written: None,
        })),
        None => Work::Slices {
            pending: job.pending,
            most: Some(1),
        },
    };
    Stage {
        attempt: attempt.to_owned(),
        stage: 1,
        work,
    }
}

/// A gang of so many ranks.
fn gang(ranks: usize) -> Gang {
    Gang {
        train: TrainId::generate(),
        model: model(),
        store: store(),
        ranks: Ranks::Exactly(ranks),
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: FOREVER,
            too_few: TooFew::Wait,
        },
        most: ranks,
        device: DeviceRequest {
            device: Device::Auto,
            shares: false,
        },
        resumes: false,
    }
}

fn model() -> ModelName {
    "simulated".parse().expect("a model's name")
}

fn store() -> Url {
    Url::parse("file:///simulated/").expect("a URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jobs_of_a_workload_come_to_their_end() {
        let workload = Workload {
            executors: 20,
            slots: 1,
            jobs: 12,
            partitions: 200,
            gangs: 2,
            queues: vec!["etl=3,user_slots=8".parse().unwrap()],
            every: Duration::from_millis(10),
            seed: 1,
        };
        let timings = simulate(&workload);
        assert!(timings.tasks.len() >= 200, "{}", timings.tasks.len());
        assert!(timings.virtual_time > Duration::from_secs(1));
    }
}
