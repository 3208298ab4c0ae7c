//! Scripts of the controller: events in, commands out.
//!
//! A [`Script`] plays the engine below: it carries out bindings at once, and numbers a stage's tasks.

mod gangs;
mod gpus;
mod jobs;
mod limits;
mod quotas;
mod recovery;
mod sharing;

use std::collections::HashMap;
use std::time::Duration;

use url::Url;
use volley_proto::failure::DataLost;
use volley_proto::spec::{Clocks, Device, Elastic, Ranks, ThreadSpeed, TooFew};
use volley_proto::tables::JobState;
use volley_proto::{Capability, Gpu, GpuId, TrainId};

use super::placement::{ExecutorRole, Memory};
use super::retained::Ends;
use super::training::{Failure, RankProgress, Resolution, RunEvent, StepReport};
use super::*;

/// Timeout longer than other scripts last: their executors send no heartbeats.
const EXECUTOR_TIMEOUT: Duration = Duration::from_secs(1_000_000);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
const RESERVATION_LIMIT: Duration = Duration::from_secs(60);

/// Controller, the time, and the tasks bound so far.
struct Script {
    controller: Controller,
    now: Now,
    /// Process and number of executors that join.
    incarnation: String,
    /// Number of bound tasks of each stage.
    numbers: HashMap<(String, usize), usize>,
}

impl Script {
    /// Creates a script with executors that attend and are registered, with a slot each.
    fn new(executors: &[&str]) -> Self {
        Self::sharing(executors, &[])
    }

    /// Creates the same script, with queues.
    fn sharing(executors: &[&str], queues: &[&str]) -> Self {
        let queues: Vec<Queue> = queues.iter().map(|text| text.parse().unwrap()).collect();
        let controller = Controller::new(Policy {
            executor_timeout: EXECUTOR_TIMEOUT,
            client_timeout: CLIENT_TIMEOUT,
            retention: RetentionPolicy {
                unread: Duration::from_secs(300),
                idle: Duration::from_secs(3600),
            },
            queues: Queues::new(&queues).unwrap(),
            reservation_limit: RESERVATION_LIMIT,
        });
        let mut script = Self {
            controller,
            now: Now::read(),
            incarnation: "p/1".to_owned(),
            numbers: HashMap::new(),
        };
        for executor in executors {
            script.joins(executor);
        }
        script
    }

    /// Adds an executor.
    fn joins(&mut self, executor: &str) {
        self.joins_with(executor, Device::Auto, ("h", &[]));
    }

    /// Adds an executor with a default device for ranks, which sees these GPUs of a host, by number.
    fn joins_with(&mut self, executor: &str, device: Device, (host, gpus): (&str, &[u8])) {
        let profile = Profile {
            role: ExecutorRole::Any,
            device,
            host: host.into(),
            gpus: gpus.iter().map(|number| described(*number)).collect(),
            memory_bytes: 1 << 30,
            rank_memory_bytes: 1 << 30,
            speed: ThreadSpeed::default(),
            version: "0".into(),
        };
        let (controller, incarnation) = (&mut self.controller, self.incarnation.as_str());
        assert_eq!(controller.admit(executor, incarnation), Ok(false));
        assert!(controller.attends(executor, incarnation, profile, self.now));
        self.on(Event::ExecutorRegistered {
            executor: executor.into(),
            endpoint: ExecutorEndpoint {
                host: "h".into(),
                port: 1,
                task_port: 2,
            },
            slots: 1,
        });
    }

    /// Returns the commands after an event, except wakes.
    fn on(&mut self, event: Event) -> Vec<String> {
        let commands = self.controller.on(event, self.now);
        commands.iter().filter_map(text).collect()
    }

    /// Lets time pass.
    fn after(&mut self, seconds: u64) -> Vec<String> {
        self.now = self.now + Duration::from_secs(seconds);
        self.on(Event::Tick)
    }

    fn submit(&mut self, job: &str, train: Option<TrainId>) {
        self.submit_with(Submission {
            train,
            ..Submission::query(job)
        });
    }

    fn submit_with(&mut self, submission: Submission) {
        assert!(self.on(Event::JobSubmitted(submission)).is_empty());
    }

    /// Offers stages, and carries out the bindings.
    fn offer(&mut self, stages: &[Stage]) -> Vec<String> {
        let offer = Offer {
            stages: stages.to_vec(),
            alive: None,
        };
        let commands = self.controller.place(offer, self.now);
        for command in &commands {
            if let Command::Bind(binding) = command {
                self.bind(binding);
            }
        }
        commands.iter().filter_map(text).collect()
    }

    fn bind(&mut self, binding: &Binding) {
        let stage = (binding.attempt.clone(), binding.stage);
        let number = self.numbers.entry(stage).or_default();
        let tasks = binding.tasks.iter().map(|task| {
            *number += 1;
            BoundTask {
                executor: task.executor.clone(),
                number: *number - 1,
                slots: task.slots,
                gpu: task.gpu.clone(),
            }
        });
        let tasks = tasks.collect();
        let binding = binding.clone();
        assert!(self.on(Event::TasksBound { binding, tasks }).is_empty());
    }

    /// Removes an executor as the engine does, with these effects.
    fn loses(&mut self, executor: &str, effects: Vec<LossEffect>) -> Vec<String> {
        let executor = executor.to_owned();
        let leaves = Event::ExecutorLeaves {
            executor: executor.clone(),
        };
        assert!(self.on(leaves).is_empty());
        self.on(Event::ExecutorLost { executor, effects })
    }

    fn ended(&mut self, attempt: &str, end: AttemptEnd) -> Vec<String> {
        let attempt = attempt.into();
        self.on(Event::AttemptEnded { attempt, end })
    }

    fn resubmitted(&mut self, job: &str, attempt: &str) -> Vec<String> {
        let (job, attempt) = (job.into(), attempt.into());
        self.on(Event::JobResubmitted { job, attempt })
    }

    /// Reports from an executor that a task has ended.
    fn task_ended(&mut self, executor: &str, attempt: &str, number: usize) -> Vec<String> {
        self.on(Event::TasksEnded {
            executor: executor.into(),
            tasks: vec![task(attempt, number)],
        })
    }

    /// Reports that the ranks of attempt `t` on an executor have ended.
    fn ended_rank(&mut self, executor: &str) {
        for number in 0..self.numbers[&("t".to_owned(), 1)] {
            let (executor, task) = (executor.to_owned(), task("t", number));
            self.on(Event::TaskFailed { executor, task });
        }
    }

    fn state(&self, job: &str) -> JobState {
        self.controller.job(job).unwrap().state
    }

    /// Describes what a job waits for.
    fn waits(&self, job: &str) -> Option<String> {
        let job = self.controller.job(job).unwrap();
        self.controller.holders(None).waits(job)
    }

    /// Describes to its owner what a job waits for.
    fn waits_for_owner(&self, job: &str) -> Option<String> {
        let job = self.controller.job(job).unwrap();
        self.controller.holders(Some(&job.owner)).waits(job)
    }

    /// Returns why a job failed.
    fn error(&self, job: &str) -> String {
        let job = self.controller.job(job).unwrap();
        assert_eq!(job.state, JobState::Failed);
        job.error.clone().unwrap()
    }

    /// Returns the lines of a job's log.
    fn log(&self, job: &str) -> String {
        let lines = self.controller.job(job).unwrap().lines();
        lines.map(|line| line.text + "\n").collect()
    }
}

/// Describes a command in a word or two; `None` for a wake.
fn text(command: &Command) -> Option<String> {
    Some(match command {
        Command::Bind(binding) => {
            let tasks = binding.tasks.iter().map(|task| task.executor.as_str());
            format!(
                "bind {}: {}",
                binding.attempt,
                tasks.collect::<Vec<_>>().join(" ")
            )
        }
        Command::CancelAttempt { attempt } => format!("cancel {attempt}"),
        Command::Resubmit { job } => format!("resubmit {job}"),
        Command::Release { job } => format!("release {job}"),
        Command::RemoveRows { attempt } => format!("remove rows of {attempt}"),
        Command::RemoveExecutor { executor, reason } => format!("remove {executor}: {reason}"),
        Command::FindDrained => "find drained".to_owned(),
        Command::Offer => "offer".to_owned(),
        Command::Wake(_) | Command::Record(_) => return None,
    })
}

/// Returns a task of an attempt's stage 1.
fn task(attempt: &str, number: usize) -> Task {
    Task {
        attempt: attempt.into(),
        stage: 1,
        number,
    }
}

/// Returns a generation of attempt `t`.
fn generation(number: u64) -> Generation {
    Generation {
        attempt: "t".into(),
        number,
    }
}

/// Builds a stage with partitions that no task has.
fn slices(attempt: &str, pending: usize) -> Stage {
    Stage {
        attempt: attempt.into(),
        stage: 1,
        work: Work::Slices {
            pending,
            most: None,
        },
    }
}

fn gang(train: TrainId, ranks: Ranks, too_few: TooFew) -> Gang {
    Gang {
        train,
        model: "m".parse().unwrap(),
        store: Url::parse("file:///models/").unwrap(),
        ranks,
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(30),
            too_few,
        },
        most: 12,
        device: DeviceRequest {
            device: Device::Auto,
            shares: false,
        },
        resumes: false,
    }
}

/// Builds the GPU with this number, of which its UUID consists.
fn described(number: u8) -> Gpu {
    Gpu {
        uuid: GpuId::from_bytes([number; 16]),
        name: "NVIDIA H100".into(),
        memory: 80 << 30,
        capability: Capability { major: 9, minor: 0 },
        clocks: Clocks {
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_khz: 2_619_000,
            bus_bits: 5120,
        },
    }
}

/// Builds a barrier stage whose ranks run on these executors, and none of which has succeeded.
fn barrier(attempt: &str, gang: &Gang, running: &[&str], pending: bool) -> Stage {
    Stage {
        attempt: attempt.into(),
        stage: 1,
        work: Work::Gang(Box::new(GangStage {
            gang: gang.clone(),
            memory: Memory::default(),
            shards: vec![0; 12],
            prepared: None,
            pending,
            running: running.iter().map(ToString::to_string).collect(),
            done: 0,
            written: None,
        })),
    }
}

/// Builds the effect of a lost executor that held data of an attempt, a rank of its run, or both.
fn effect(attempt: &str, executor: &str, rank_of: Option<TrainId>, data: bool) -> LossEffect {
    let loss = || DataLoss {
        loss: DataLost {
            executor: executor.into(),
            reason: "it is gone".into(),
        },
        written: None,
        planned: false,
    };
    LossEffect {
        attempt: attempt.into(),
        rank_of,
        data: data.then(loss),
    }
}
