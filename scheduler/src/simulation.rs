//! A simulation of a cluster in virtual time, for benchmarks. It measures the real time that the control core takes
//! for each event, offer and task.
//!
//! ```text
//!   jobs come, tasks end (virtual time) ──► events ──► Controller ──► bindings ──► ends of tasks (virtual time)
//!                                             └── each call is timed
//! ```
//!
//! The controller is the scheduler's own. It is told of everything that the scheduler would tell it: executors,
//! submissions, bound tasks, ends of tasks, offers with all stages that have partitions left and with the executors
//! that are alive, and passing time. As in Ballista, an offer follows each end of a task. Ballista, its graphs and
//! plans, and the network take time of their own and are not simulated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::{Duration, Instant};

use url::Url;
use volley_proto::settings::OnClientLoss;
use volley_proto::spec::{Device, Elastic, Ranks, ThreadSpeed, TooFew};
use volley_proto::{ModelName, TrainId, splitmix};

use crate::control::{
    AttemptEnd, Binding, BoundTask, Command, Controller, DeviceRequest, Event, ExecutorEndpoint,
    ExecutorRole, Gang, GangStage, Memory, Now, Offer, Policy, Profile, Queue, Queues,
    RetentionPolicy, Stage, Submission, Task, Work,
};

/// Duration longer than any simulation.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// Interval at which the scheduler tells the controller that time passes.
const TICK: Duration = Duration::from_millis(250);

/// Number of users who submit jobs, in turn.
const USERS: usize = 7;

/// Cluster and jobs to simulate.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Number of executors.
    pub executors: usize,
    /// Slots of each executor.
    pub slots: usize,
    /// Number of jobs, submitted one after the other.
    pub jobs: usize,
    /// Partitions of all queries together.
    pub partitions: usize,
    /// Number of jobs that train, each with a rank on a tenth of the executors.
    pub gangs: usize,
    /// Queues, which jobs name in turn.
    pub queues: Vec<Queue>,
    /// Virtual time from one submission to the next.
    pub every: Duration,
    /// Seed of the durations of tasks and of the order of offered stages.
    pub seed: u64,
}

/// Real time that the controller took.
#[derive(Debug, Default)]
pub struct Timings {
    /// Time of each event, ticks included.
    pub events: Vec<Duration>,
    /// Time of each offer.
    pub offers: Vec<Duration>,
    /// Time of each task: its part of the offer that placed it, and the events of its binding and its end.
    pub tasks: Vec<Duration>,
    /// Total time.
    pub total: Duration,
    /// Virtual time until the last job was over.
    pub virtual_time: Duration,
}

/// Runs a workload to its end.
///
/// # Panics
/// When two queues have the same name, or the controller does not end all jobs.
pub fn simulate(workload: &Workload) -> Timings {
    let mut simulation = Simulation::new(workload);
    simulation.play();
    assert_eq!(
        simulation.over, workload.jobs,
        "jobs that came to their end"
    );
    simulation.timings
}

/// Occurrence at a point in virtual time; those at the same point are ordered as they were foreseen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submitted(usize),
    TaskEnds { executor: String, task: Task },
    Tick,
}

/// A job as the engine below the controller knows it.
struct SimulatedJob {
    /// Partitions, or shards, that have no task yet.
    pending: usize,
    /// Running tasks.
    running: usize,
    /// Tasks bound so far.
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
    /// Jobs that are not over, by attempt id.
    jobs: BTreeMap<String, SimulatedJob>,
    over: usize,
    timings: Timings,
    /// Time that each running task has taken so far.
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
                    // Without running tasks and foreseen happenings, nothing more can happen.
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

    /// Passes an event to the controller. Returns the time it took, and the controller's commands.
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
            speed: ThreadSpeed::default(),
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
        // Training jobs are spread among the queries.
        let trains = *gangs > 0 && number.is_multiple_of(jobs.div_ceil(*gangs));
        let gang = trains.then(|| gang((executors / 10).max(1)));
        let queue = match queues.is_empty() {
            true => volley_proto::settings::QUEUE_DEFAULT,
            false => queues[number % queues.len()].name.as_str(),
        };
        let submission = Submission {
            job: id.clone(),
            operation: String::new(),
            name: "SELECT 1".to_owned(),
            statement: String::new(),
            owner: format!("user-{}", number % USERS),
            train: gang.as_ref().map(|gang| gang.train),
            on_client_loss: OnClientLoss::Keep,
            limits: None,
            queue: queue.to_owned(),
            // Jobs of one user in a queue have different priorities.
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

    /// Offers every stage that has partitions left, and carries out the bindings.
    fn offer(&mut self) {
        let stages = self.jobs.iter().filter(|(_, job)| job.pending > 0);
        let stages = stages.map(|(attempt, job)| stage(attempt, job));
        let mut stages: Vec<_> = stages.collect();
        // Shuffles the stages, as if they came from a hash map.
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

    /// Carries out a binding; `placing` is the time that placing took per task.
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
            // Between 0.1 and 1 second.
            let random = splitmix::unit(splitmix::at(self.workload.seed, self.foreseen));
            let lasts = Duration::from_millis(100) + Duration::from_millis(900).mul_f64(random);
            self.foresee(lasts, Happening::TaskEnds { executor, task });
        }
    }
}

/// Builds the stage of a job's remaining partitions.
fn stage(attempt: &str, job: &SimulatedJob) -> Stage {
    let work = match &job.gang {
        Some(gang) => Work::Gang(Box::new(GangStage {
            gang: gang.clone(),
            memory: Memory::default(),
            shards: vec![0; gang.most],
            prepared: None,
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

/// Builds a gang of this many ranks.
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
