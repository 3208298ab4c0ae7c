//! Events and commands of the core: plain facts, owned by their sender.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use url::Url;
use volley_proto::failure::DataLost;
use volley_proto::settings::OnClientLoss;
#[cfg(test)]
use volley_proto::settings::QUEUE_DEFAULT;
use volley_proto::spec::{Elastic, Ranks};
use volley_proto::tables::Vitals;
use volley_proto::{ModelName, PreparedId, TrainId};

use super::devices::{DeviceRequest, HostGpu};
use super::executors::ExecutorEndpoint;
use super::jobs::JobLimits;
use super::notices::Notice;
use super::placement::{self, Memory};
use super::recorded::Change;
use super::slots::Task;
use super::training::{Generation, RankProgress};

/// Event that the core is told of.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Time has passed.
    Tick,
    /// This process runs again after a stop, during which it received no messages.
    Resumed,
    /// The engine has accepted a job: its first attempt.
    JobSubmitted(Submission),
    /// The engine has accepted a job again, as another attempt.
    JobResubmitted { job: String, attempt: String },
    /// The engine has refused to run a job again.
    ResubmissionFailed { job: String, error: String },
    /// A client has asked about a job, so it is there.
    ClientAsked { job: String },
    /// An attempt has ended in the engine.
    AttemptEnded { attempt: String, end: AttemptEnd },
    /// Partitions of a stage of a job that runs again need not be computed: their rows are still there.
    RowsKept { job: String, taken: Taken },
    /// An attempt cannot continue, and must end.
    AttemptFails { attempt: String, reason: String },
    /// Tasks have been bound as ordered, and are about to be sent.
    TasksBound {
        binding: Binding,
        tasks: Vec<BoundTask>,
    },
    /// A task has succeeded.
    TaskSucceeded { executor: String, task: Task },
    /// A task has been reported as failed.
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
    /// An executor has sent its vital signs; the time of the row is not known yet.
    ExecutorMeasured(Box<Vitals>),
    /// An executor is to leave: nothing is placed there from now on. Its ranks meet elsewhere once it knows.
    ExecutorDrains { executor: String, knows: bool },
    /// The engine needs no data of a draining executor.
    ExecutorDrained { executor: String },
    /// The engine removes an executor: nothing is placed there from now on.
    ExecutorLeaves { executor: String },
    /// An executor is gone, with these effects on attempts.
    ExecutorLost {
        executor: String,
        effects: Vec<LossEffect>,
    },
    /// The stream of an executor's incarnation has ended.
    ExecutorDisconnected {
        executor: String,
        incarnation: String,
    },
    /// An executor was refused at the door: why, without names.
    ExecutorRefused { reason: &'static str },
    /// An executor has sent a warning.
    Noticed(Notice),
    /// A rank of a generation has reported.
    RankReported {
        train: TrainId,
        generation: Generation,
        report: RankProgress,
    },
}

/// Command to carry out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    /// Bind these tasks, and report [`Event::TasksBound`].
    Bind(Binding),
    /// End an attempt, if the engine has it; repeated until it has ended.
    CancelAttempt { attempt: String },
    /// Submit a job again.
    Resubmit { job: String },
    /// Drop a job's submission, which is no longer needed.
    Release { job: String },
    /// Have executors remove the rows of an attempt.
    RemoveRows { attempt: String },
    /// Remove an executor.
    RemoveExecutor { executor: String, reason: String },
    /// Report [`Event::ExecutorDrained`] of draining executors; the engine also does so from time to time.
    FindDrained,
    /// Look for stages to place: see [`Offer`].
    Offer,
    /// Record a change for a later scheduler.
    Record(Change),
    /// Wake the waiters of a topic.
    Wake(Topic),
}

/// Subject that can be waited on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Job(String),
    Run(TrainId),
    Executor(String),
    /// Tasks that must end.
    Endings,
}

/// Job that the engine has accepted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Submission {
    /// Id of the job, and of its first attempt.
    pub(crate) job: String,
    /// Id that its client gave the submission, the same each time the client sends it; empty if it gave none.
    pub(crate) operation: String,
    pub(crate) name: String,
    /// Statement that it runs; empty if its client has not sent it.
    pub(crate) statement: String,
    /// User who has submitted the job.
    pub(crate) owner: String,
    pub(crate) train: Option<TrainId>,
    pub(crate) on_client_loss: OnClientLoss,
    /// Limits by its owner's role, if there are any.
    pub(crate) limits: Option<JobLimits>,
    /// Queue whose slots its tasks hold.
    pub(crate) queue: String,
    /// Priority among its owner's queries: the highest comes first.
    pub(crate) priority: i32,
}

impl Submission {
    /// Checks whether the job is cancelled when its client is gone.
    pub(crate) fn ends_with_client(&self) -> bool {
        match self.on_client_loss {
            OnClientLoss::Auto => self.train.is_none(),
            OnClientLoss::Cancel => true,
            OnClientLoss::Keep => false,
        }
    }
}

#[cfg(test)]
impl Submission {
    /// Builds a query without limits.
    pub(crate) fn query(job: &str) -> Self {
        Self {
            job: job.into(),
            operation: format!("operation of {job}"),
            name: "SELECT 1".into(),
            statement: String::new(),
            owner: "o".into(),
            train: None,
            on_client_loss: OnClientLoss::Auto,
            limits: None,
            queue: QUEUE_DEFAULT.into(),
            priority: 0,
        }
    }
}

/// End of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// Success, with the number of result rows if they were counted.
    Succeeded {
        rows: Option<u64>,
    },
    Cancelled,
    Failed(String),
    /// Loss of data that cannot be recovered.
    Lost(DataLoss),
}

/// Partitions of a stage that need not be computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) stage: usize,
    pub(crate) partitions: usize,
    /// Number of all partitions of the stage.
    pub(crate) all: usize,
}

/// Data of an attempt that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataLoss {
    pub(crate) loss: DataLost,
    /// Target that a rerun of the job would write twice, if there is one.
    pub(crate) written: Option<String>,
    /// True if the executor left as planned.
    pub(crate) planned: bool,
}

/// Effect of an executor's loss on an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LossEffect {
    pub(crate) attempt: String,
    /// Training run that has a running rank on the executor.
    pub(crate) rank_of: Option<TrainId>,
    /// Data loss, if the attempt needs data that was there, or had tasks other than running ranks there.
    pub(crate) data: Option<DataLoss>,
}

/// Stages that could be placed now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer<'a> {
    /// Stages, ordered by number within each attempt.
    pub(crate) stages: Vec<Stage>,
    /// Executors that were heard of lately; `None` if that is not known, which means all.
    pub(crate) alive: Option<&'a HashSet<String>>,
}

/// Running stage of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) attempt: String,
    pub(crate) stage: usize,
    pub(crate) work: Work,
}

/// Work that a stage has left.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Slices of the partitions that no task has taken.
    Slices {
        pending: usize,
        /// Most slices for one task; `None` for as many as there are slots.
        most: Option<usize>,
    },
    /// All partitions in one task, because the plan collapses its input.
    Whole,
    /// A barrier stage.
    Gang(Box<GangStage>),
}

/// Progress of a barrier stage.
#[derive(Debug, Clone)]
pub(crate) struct GangStage {
    pub(crate) gang: Gang,
    pub(crate) memory: Memory,
    /// Rows of each shard; zeros if they are not counted.
    pub(crate) shards: Vec<u64>,
    /// Id by which executors keep the encoded shards, if they do.
    pub(crate) prepared: Option<PreparedId>,
    /// True if there are shards that no rank has taken.
    pub(crate) pending: bool,
    /// Executors that its ranks run on.
    pub(crate) running: Vec<String>,
    /// Number of ranks that have succeeded.
    pub(crate) done: usize,
    /// Target that a rerun of the job would write twice, if there is one.
    pub(crate) written: Option<String>,
}

/// Training of a barrier stage, and its number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gang {
    pub(crate) train: TrainId,
    pub(crate) model: ModelName,
    pub(crate) store: Url,
    pub(crate) ranks: Ranks,
    pub(crate) elastic: Elastic,
    /// Largest possible number of ranks.
    pub(crate) most: usize,
    /// Devices that they compute on.
    pub(crate) device: DeviceRequest,
    /// True if it continues from another run's checkpoint.
    pub(crate) resumes: bool,
}

/// Tasks of a stage to be bound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Binding {
    pub(crate) attempt: String,
    pub(crate) stage: usize,
    pub(crate) tasks: Vec<placement::Task>,
    /// Gang, if the tasks are its ranks.
    pub(crate) gang: Option<Box<GangBinding>>,
}

/// Gang whose ranks are being bound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GangBinding {
    pub(crate) gang: Gang,
    /// Shards of each task.
    pub(crate) shards: Vec<Vec<usize>>,
}

/// Task that has been bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundTask {
    pub(crate) executor: String,
    /// Number of the task in the stage.
    pub(crate) number: usize,
    pub(crate) slots: usize,
    /// GPU assigned to the task.
    pub(crate) gpu: Option<HostGpu>,
}
