//! What the core is told, and what it asks to be done: plain facts, owned by their sender.

use std::collections::HashSet;

use url::Url;
use volley_proto::failure::DataLost;
use volley_proto::settings::OnClientLoss;
#[cfg(test)]
use volley_proto::settings::QUEUE_DEFAULT;
use volley_proto::spec::{Elastic, Ranks};
use volley_proto::{ModelName, TrainId};

use super::devices::{DeviceRequest, HostGpu};
use super::executors::ExecutorEndpoint;
use super::jobs::JobLimits;
use super::notices::Notice;
use super::placement::{self, Memory};
use super::slots::Task;
use super::training::{Generation, RankReport};

/// Something that has happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Time has passed.
    Tick,
    /// The engine has taken a job: its first attempt.
    JobSubmitted(Submission),
    /// The engine has taken a job again, as another attempt.
    JobResubmitted { job: String, attempt: String },
    /// The engine does not take a job again.
    ResubmissionFailed { job: String, error: String },
    /// A client asks about a job, so it is there.
    ClientAsked { job: String },
    /// An attempt has ended in the engine.
    AttemptEnded { attempt: String, end: AttemptEnd },
    /// An attempt cannot go on, and must end.
    AttemptFails { attempt: String, reason: String },
    /// Tasks have been bound as was asked, and are about to be sent.
    TasksBound {
        binding: Binding,
        tasks: Vec<BoundTask>,
    },
    /// A task has succeeded.
    TaskSucceeded { executor: String, task: Task },
    /// A task is said to have failed.
    TaskFailed { executor: String, task: Task },
    /// Nothing computes for these tasks any more.
    TasksEnded { executor: String, tasks: Vec<Task> },
    /// The engine has registered an executor.
    ExecutorRegistered {
        executor: String,
        endpoint: ExecutorEndpoint,
        slots: usize,
    },
    /// An executor's heartbeat.
    ExecutorHeartbeat { executor: String },
    /// The engine removes an executor: nothing is placed there from now on.
    ExecutorLeaves { executor: String },
    /// An executor is gone, which means this for the attempts that had to do with it.
    ExecutorLost {
        executor: String,
        effects: Vec<LossEffect>,
    },
    /// The stream of an executor's incarnation has ended.
    ExecutorDisconnected {
        executor: String,
        incarnation: String,
    },
    /// An executor warns of something.
    Noticed(Notice),
    /// A rank of a generation tells of itself.
    RankReported {
        train: TrainId,
        generation: Generation,
        report: RankReport,
    },
}

/// Something that is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    /// Bind these tasks, and say [`Event::TasksBound`].
    Bind(Binding),
    /// End an attempt, if the engine has it; said again until it has ended.
    CancelAttempt { attempt: String },
    /// Submit a job again.
    Resubmit { job: String },
    /// What was submitted as a job is not needed any more.
    Release { job: String },
    /// Have executors remove the rows of an attempt.
    RemoveRows { attempt: String },
    /// Remove an executor.
    RemoveExecutor { executor: String, reason: String },
    /// Look for stages to place: see [`Offer`].
    Offer,
    /// Wake the waiters of a topic.
    Wake(Topic),
}

/// What can be waited on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Job(String),
    Run(TrainId),
    Executor(String),
    /// Tasks that are to end.
    Endings,
}

/// A job that the engine has taken.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    /// The id of its first attempt, which is its own.
    pub(crate) job: String,
    pub(crate) name: String,
    /// Who has submitted it.
    pub(crate) owner: String,
    pub(crate) train: Option<TrainId>,
    pub(crate) on_client_loss: OnClientLoss,
    /// What its owner's role lets it take, where that is limited.
    pub(crate) limits: Option<JobLimits>,
    /// The queue whose slots its tasks hold.
    pub(crate) queue: String,
    /// Of its owner's queries, the highest comes first.
    pub(crate) priority: i32,
}

#[cfg(test)]
impl Submission {
    /// A query, without limits.
    pub(crate) fn query(job: &str) -> Self {
        Self {
            job: job.into(),
            name: "SELECT 1".into(),
            owner: "o".into(),
            train: None,
            on_client_loss: OnClientLoss::Auto,
            limits: None,
            queue: QUEUE_DEFAULT.into(),
            priority: 0,
        }
    }
}

/// How an attempt ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// With a result of so many rows, where they were counted.
    Succeeded {
        rows: Option<u64>,
    },
    Cancelled,
    Failed(String),
    /// Data was lost that cannot be had any more.
    Lost(DataLoss),
}

/// Data of an attempt that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataLoss {
    pub(crate) loss: DataLost,
    /// What would be written twice if the job were run again.
    pub(crate) written: Option<String>,
}

/// What the loss of an executor means for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LossEffect {
    pub(crate) attempt: String,
    /// The training run that has a running rank there.
    pub(crate) rank_of: Option<TrainId>,
    /// Set where the attempt needs data that was there, or had other tasks than running ranks there.
    pub(crate) data: Option<DataLoss>,
}

/// The stages that could be placed now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer<'a> {
    /// In each attempt in the order of their numbers.
    pub(crate) stages: Vec<Stage>,
    /// Executors that were heard of lately; all, where that is not known.
    pub(crate) alive: Option<&'a HashSet<String>>,
}

/// A running stage of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) attempt: String,
    pub(crate) stage: usize,
    pub(crate) work: Work,
}

/// What a stage has to do yet.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Partitions that no task has taken.
    Slices {
        pending: usize,
        /// Partitions one task may take; `None` for as many as there are slots.
        most: Option<usize>,
    },
    /// All partitions in one task: the plan collapses its input.
    Whole,
    /// A barrier stage.
    Gang(Box<GangStage>),
}

/// How far a barrier stage is.
#[derive(Debug, Clone)]
pub(crate) struct GangStage {
    pub(crate) gang: Gang,
    pub(crate) memory: Memory,
    pub(crate) shards: usize,
    /// Whether there are shards that no rank has taken.
    pub(crate) pending: bool,
    /// Where its ranks run.
    pub(crate) running: Vec<String>,
    /// Ranks that have come to their end.
    pub(crate) done: usize,
    /// What would be written twice if the job were run again.
    pub(crate) written: Option<String>,
}

/// What a barrier stage trains, and with how many ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gang {
    pub(crate) train: TrainId,
    pub(crate) model: ModelName,
    pub(crate) store: Url,
    pub(crate) ranks: Ranks,
    pub(crate) elastic: Elastic,
    /// The most ranks there can be.
    pub(crate) most: usize,
    /// Where they compute.
    pub(crate) device: DeviceRequest,
    /// Whether it goes on from another run's checkpoint.
    pub(crate) resumes: bool,
}

/// Tasks of a stage that are to be bound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Binding {
    pub(crate) attempt: String,
    pub(crate) stage: usize,
    pub(crate) tasks: Vec<placement::Task>,
    /// Set where they are the ranks of a gang.
    pub(crate) gang: Option<Box<GangBinding>>,
}

/// The gang that tasks are the ranks of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GangBinding {
    pub(crate) gang: Gang,
    /// Of each task, the shards that it takes.
    pub(crate) shards: Vec<Vec<usize>>,
}

/// A task that has been bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundTask {
    pub(crate) executor: String,
    /// Its number in the stage.
    pub(crate) number: usize,
    pub(crate) slots: usize,
    /// The GPU that it was dealt.
    pub(crate) gpu: Option<HostGpu>,
}
