//! The scheduler's decisions: one synchronous core without a clock, I/O or names from Ballista.
//!
//! ```text
//!   Event (what happened), now ──► Controller::on ──► [Command] (what is to be done)
//!                                      │
//!        jobs        an id from submission to end, over however many attempts; readers of its rows
//!        training    runs: generations, seats, the root cause of a failure, progress
//!        placement   which stage gets which executors now, what waits, and why
//!        queues      weighted fair sharing of slots: queues, users, caps, priorities
//!        aging       queries that a gang's reservation starves, promoted ahead of it after a while
//!        ledger      for how long each user's tasks have held slots and GPUs
//!        quotas      what all jobs of a user may take together: memory, GPU hours
//!        slots       which task holds which slots and GPU, until it has ended
//!        devices     which GPUs a rank may take
//!        executors   attendance, registration, roles and resources
//!        prepared    rows that executors keep for the next training on them
//!        recorded    what a later scheduler is to know of jobs
//!        notices     what executors warn of
//! ```
//!
//! Facts come in as [`Event`]s. Questions that need an immediate answer (may this executor attend? has this task a
//! seat?) are methods of [`Controller`], which may leave commands too. The holder of the controller carries the
//! commands out: see [`crate::handle`]. So scripts test everything here, events in and commands out.

mod aging;
mod clock;
mod controller;
mod devices;
mod event;
mod executors;
mod gangs;
mod jobs;
mod ledger;
mod notices;
mod offers;
mod placement;
mod prepared;
mod queues;
mod quotas;
mod recorded;
mod retained;
#[cfg(test)]
mod scripts;
mod slots;
mod training;
mod unmet;
mod usage;

pub(crate) use clock::Now;
pub(crate) use controller::{Controller, Policy};
pub(crate) use devices::DeviceRequest;
pub(crate) use event::{
    AttemptEnd, Binding, BoundTask, Command, DataLoss, Event, Gang, GangStage, LossEffect, Offer,
    Stage, Submission, Taken, Topic, Work,
};
pub(crate) use executors::{Drain, ExecutorEndpoint, Presence, Profile, RegisteredExecutor};
pub(crate) use jobs::{Job, JobLimits, JobsFilter, Note, Reading, RetentionPolicy, Totals};
pub(crate) use notices::{Notice, shortened};
pub(crate) use placement::{ExecutorRole, Memory, Task as PlacedTask};
pub use queues::Queue;
pub(crate) use queues::Queues;
pub(crate) use quotas::{GpuQuota, MemoryQuota};
pub(crate) use recorded::{Change, JobEnd, Recorded, RecordedUsage, UserUsage};
pub(crate) use slots::Task;
pub(crate) use training::{
    Failure, Generation, Membership, RankProgress, Resolution, RunEvent, Shown, StepReport,
};
pub(crate) use unmet::Unmet;
#[cfg(test)]
pub(crate) use {ledger::Held, quotas::GpuDays};
