//! The controller: the state of the cluster's work, and the consequences of each event.
//!
//! ```text
//!   executor lost ─► ranks of it: generation over, or given up ─┐
//!                    data of it: attempt ends ──────────────────┴─► CancelAttempt ─► AttemptEnded ─┬─► Resubmit
//!                                                                                                  └─► job over
//! ```
//!
//! This file handles executors, tasks, and the ends of attempts and jobs; [`super::gangs`] handles training, and
//! [`super::offers`] placement.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use volley_proto::TrainId;
use volley_proto::tables::{self, ExecutorTasks, Line, millis};

use super::aging::Aging;
use super::clock::Now;
use super::devices::{Grant, HostGpu};
use super::event::{
    AttemptEnd, BoundTask, Command, DataLoss, Event, GangBinding, LossEffect, Submission, Taken,
    Topic,
};
use super::executors::{Drain, Executors, Presence, Profile, RegisteredExecutor, process};
use super::jobs::{AttemptOutcome, Death, Job, Jobs, Reading, RetentionPolicy};
use super::notices::{Notice, NoticeLog};
use super::offers::unknown_account;
use super::placement::{Pool, WaitReason};
use super::prepared::Prepared;
use super::queues::Queues;
use super::quotas::MemoryQuota;
use super::recorded::{Change, EXECUTORS_PATIENCE, FUTILE, Recorded, Recovery};
use super::retained::Ends;
use super::slots::{Claim, Holder, Slots, Task};
use super::training::{BoundRank, Run, Runs};
use super::unmet::Unmet;

/// Time that a job waits on a cluster without executors.
const EMPTY_PATIENCE: Duration = Duration::from_secs(30);

/// Time for which the refusal of an executor is told.
const REFUSED: Duration = Duration::from_secs(60);

/// Timeouts of executors, clients and readers of rows, and the sharing of slots.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// Executor heartbeat timeout, after which an executor is lost.
    pub(crate) executor_timeout: Duration,
    /// Client keepalive timeout, after which a client is gone.
    pub(crate) client_timeout: Duration,
    /// Retention times of unread rows.
    pub(crate) retention: RetentionPolicy,
    pub(crate) queues: Queues,
    /// Time that a waiting gang's reservation may starve queries before some are promoted ahead of it.
    pub(crate) reservation_limit: Duration,
}

/// The scheduler's core.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(super) policy: Policy,
    pub(super) jobs: Jobs,
    pub(super) runs: Runs,
    pub(super) prepared: Prepared,
    pub(super) executors: Executors,
    pub(super) slots: Slots,
    /// Executors as placement sees them, from the registry and the slots.
    pub(super) pool: Pool,
    /// Queries that the reservation of a waiting gang starves.
    pub(super) aging: Aging,
    /// Executors that have left without having been told to, since the scheduler started.
    lost_executors: u64,
    /// Work that the last offer has left waiting, by attempt.
    pub(super) unmet: Vec<(String, Unmet)>,
    /// Attempts that the last offer let wait before their jobs were known, hence in the wrong queue.
    pub(super) early: BTreeSet<String>,
    notices: NoticeLog,
    /// Time since which no executor has been registered.
    empty_since: Option<Instant>,
    /// Last refusal of an executor at the door, and its reason.
    refused: Option<(Instant, &'static str)>,
    /// Number of submissions that the engine may have accepted, and whose jobs are not known yet.
    pub(super) opening: usize,
    /// Day on which the last offer left a training waiting for GPU hours.
    pub(super) awaits_day: Option<u32>,
    /// Time when usage was last recorded.
    pub(super) usage_recorded: Option<Instant>,
    /// Jobs of an earlier scheduler that have not been submitted again.
    recovery: Option<Recovery>,
    /// Commands that have not been taken yet.
    pub(super) commands: Vec<Command>,
}

impl Controller {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            jobs: Jobs::default(),
            runs: Runs::default(),
            prepared: Prepared::default(),
            executors: Executors::default(),
            slots: Slots::default(),
            pool: Pool::default(),
            aging: Aging::default(),
            lost_executors: 0,
            unmet: Vec::new(),
            early: BTreeSet::new(),
            notices: NoticeLog::default(),
            empty_since: None,
            refused: None,
            opening: 0,
            awaits_day: None,
            usage_recorded: None,
            recovery: None,
            commands: Vec::new(),
        }
    }

    /// Handles an event. Returns the commands to carry out.
    pub(crate) fn on(&mut self, event: Event, now: Now) -> Vec<Command> {
        self.slots.pass(now);
        match event {
            Event::Tick => self.tick(now),
            Event::Resumed => {
                self.jobs.all_heard(now);
                self.executors.all_heard(now.instant);
            }
            Event::JobSubmitted(submission) => self.job_submitted(submission, now),
            Event::JobResubmitted { job, attempt } => self.job_resubmitted(&job, &attempt, now),
            Event::ResubmissionFailed { job, error } => {
                let error = format!("the job could not be run again: {error}");
                self.end_job(&job, Some(error), now);
            }
            Event::ClientAsked { job } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.heard(now);
                }
            }
            Event::AttemptEnded { attempt, end } => self.attempt_ended(&attempt, end, now),
            Event::AttemptFails { attempt, reason } => {
                self.end_attempt(&attempt, AttemptEnd::Failed(reason));
            }
            Event::RowsKept { job, taken } => self.rows_kept(&job, taken, now),
            Event::TasksBound { binding, tasks } => {
                let (attempt, stage) = (&binding.attempt, binding.stage);
                self.tasks_bound(attempt, stage, binding.gang.as_deref(), tasks, now);
            }
            Event::TaskSucceeded { executor, task } => {
                self.slots.succeeds(&executor, &task);
                self.refresh(&executor);
                self.find_drained(&executor);
            }
            Event::TaskFailed { executor, task } => {
                self.slots.fails(&executor, &task);
                self.refresh(&executor);
                self.find_drained(&executor);
            }
            Event::TasksEnded { executor, tasks } => {
                if self.slots.ended(&executor, &tasks) {
                    self.refresh(&executor);
                    self.find_drained(&executor);
                    self.command(Command::Offer);
                }
            }
            Event::ExecutorRegistered {
                executor,
                endpoint,
                slots,
            } => {
                tracing::info!(executor, slots, "executor registered");
                self.slots.joins(&executor);
                self.prepared.leaves(&executor);
                self.executors
                    .registers(&executor, endpoint, slots, now.instant);
                self.refresh(&executor);
                self.empty_since = None;
                self.record_executors();
                self.wake(Topic::Executor(executor));
            }
            Event::ExecutorHeartbeat { executor } => self.executors.heard(&executor, now.instant),
            Event::ExecutorMeasured(vitals) => self.executors.measured(*vitals, now.time),
            Event::ExecutorDrains { executor, knows } => {
                self.executor_drains(&executor, knows, now);
            }
            Event::ExecutorDrained { executor } => {
                if self.slots.held_by(&executor) == 0 {
                    self.executors.drained(&executor);
                    self.wake(Topic::Executor(executor));
                }
            }
            Event::ExecutorLeaves { executor } => {
                let planned = self.executors.leaves_as_planned(&executor);
                if self.executors.leaves(&executor) {
                    tracing::info!(executor, "executor has left");
                    self.lost_executors += u64::from(!planned);
                    self.slots.leaves(&executor);
                    self.prepared.leaves(&executor);
                    self.refresh(&executor);
                    self.record_executors();
                }
                self.wake(Topic::Executor(executor));
            }
            Event::ExecutorLost { executor, effects } => {
                self.executor_lost(&executor, effects, now);
            }
            Event::ExecutorDisconnected {
                executor,
                incarnation,
            } => {
                let planned = self.executors.leaves_as_planned(&executor);
                if self.executors.departs(&executor, &incarnation) {
                    if !planned {
                        self.executor_died(&executor, &incarnation);
                    }
                    let reason = "its connection closed".to_owned();
                    self.command(Command::RemoveExecutor { executor, reason });
                }
            }
            Event::ExecutorRefused { reason } => self.refused = Some((now.instant, reason)),
            Event::Noticed(notice) => self.noticed(notice),
            Event::RankReported {
                train,
                generation,
                report,
            } => self.rank_reported(train, &generation, report, now),
        }
        self.take_commands()
    }

    /// Takes the pending commands.
    pub(crate) fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    pub(super) fn command(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub(super) fn wake(&mut self, topic: Topic) {
        self.command(Command::Wake(topic));
    }

    // Jobs and their attempts.

    /// Returns the job with this id.
    pub(crate) fn job(&self, id: &str) -> Option<&Job> {
        self.jobs.get(id)
    }

    /// Returns the owner of a job, by the id of the job or of an attempt.
    pub(crate) fn owner_of(&self, id: &str) -> Option<&str> {
        let job = self.jobs.get(self.jobs.job_of(id))?;
        Some(&job.owner)
    }

    /// Returns the id of the job that an owner's submission became, if it was accepted.
    pub(crate) fn job_of_operation(&self, owner: &str, operation: &str) -> Option<&str> {
        let mut newest_first = self.jobs.iter().rev();
        let job = newest_first.find(|job| job.operation == operation && job.owner == owner)?;
        (!operation.is_empty()).then_some(&job.id)
    }

    /// Returns the job of a training run.
    pub(crate) fn job_of_run(&self, train: TrainId) -> Option<&Job> {
        self.jobs.iter().find(|job| job.train == Some(train))
    }

    /// Returns jobs as rows of their table, for a reader: of others' jobs that they wait for, only an administrator, without
    /// a name here, sees which they are.
    pub(crate) fn rows<'a>(
        &self,
        jobs: impl Iterator<Item = &'a Job>,
        viewer: Option<&str>,
        now: SystemTime,
    ) -> Vec<tables::Job> {
        let holders = self.holders(viewer);
        jobs.map(|job| job.row(holders.waits(job), now)).collect()
    }

    /// Returns all jobs and their attempts.
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns the number of executors that have left unplanned, since the scheduler started.
    pub(crate) fn lost_executors(&self) -> u64 {
        self.lost_executors
    }

    /// Returns the work of jobs that have not ended that waits for slots.
    pub(crate) fn unmet(&self) -> Unmet {
        let mut all = Unmet::default();
        for (attempt, unmet) in &self.unmet {
            // Jobs may have ended since the last offer.
            let job = self.jobs.of_live_attempt(attempt).flatten();
            if job.is_some_and(|job| !job.has_ended()) {
                all.add(*unmet);
            }
        }
        all
    }

    fn job_submitted(&mut self, submission: Submission, now: Now) {
        let (id, job) = (submission.job.clone(), Job::new(submission, now));
        if let Some(train) = job.train {
            self.wake(Topic::Run(train));
        }
        self.slots.count_to(&id, &job.account);
        if self.early.remove(&id) {
            self.command(Command::Offer);
        }
        if let Some(end) = self.jobs.open(job) {
            self.attempt_ended(&id, end, now);
        }
    }

    fn job_resubmitted(&mut self, job: &str, attempt: &str, now: Now) {
        let (wanted, early) = self.jobs.resubmitted(job, attempt, now);
        if let Some(job) = self.jobs.get(job) {
            self.slots.count_to(attempt, &job.account);
        }
        if self.early.remove(attempt) {
            self.command(Command::Offer);
        }
        if wanted {
            let (job, attempt) = (job.to_owned(), attempt.to_owned());
            self.command(Command::Record(Change::Attempt { job, attempt }));
        }
        self.wake(Topic::Job(job.to_owned()));
        match early {
            Some(end) => self.attempt_ended(attempt, end, now),
            // The job has been cancelled meanwhile.
            None if !wanted => self.end_attempt(attempt, AttemptEnd::Cancelled),
            None => {}
        }
    }

    /// Takes over the jobs of an earlier scheduler. Those that have not ended are submitted again once the executors that
    /// it had have come back.
    pub(crate) fn restore(&mut self, jobs: Vec<Recorded>, executors: BTreeSet<String>, now: Now) {
        let mut waiting = Vec::new();
        for recorded in jobs {
            let (id, train) = (recorded.submission.job.clone(), recorded.submission.train);
            let (futile, generation) = (recorded.futile, recorded.generation);
            let job = Job::restored(recorded, now);
            let is_over = job.has_ended();
            self.jobs.restore(job);
            if is_over {
                continue;
            }
            if futile >= FUTILE {
                let error = format!(
                    "the scheduler ended {FUTILE} times while it planned this job: it is not tried again"
                );
                self.end_job(&id, Some(error), now);
                continue;
            }
            if let Some((train, (generation, ranks))) = train.zip(generation) {
                self.runs.entry(&train).continues(generation, ranks, now);
            }
            waiting.push(id);
        }
        if !waiting.is_empty() || !executors.is_empty() {
            self.recovery = Some(Recovery {
                jobs: waiting,
                executors,
                since: now.instant,
                first: None,
                ready: false,
            });
        }
    }

    /// Submits the jobs of an earlier scheduler again: when its executors are back or, after their timeout, with those
    /// that are.
    fn recover(&mut self, now: Now) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let registered = self.executors.slots().count();
        if registered > 0 {
            recovery.first.get_or_insert(now.instant);
        }
        let waited = |since| now.instant.saturating_duration_since(since);
        let mut missing = recovery.executors.iter();
        let are_missing = missing.any(|executor| !self.executors.is_registered(executor));
        let all_are_back = !recovery.executors.is_empty() && !are_missing;
        let timeout = self.policy.executor_timeout;
        recovery.ready |= recovery
            .first
            .is_some_and(|first| all_are_back || waited(first) >= timeout);
        let is_hopeless = registered == 0 && waited(recovery.since) >= EXECUTORS_PATIENCE;
        if !is_hopeless && (registered == 0 || !recovery.ready) {
            let needed = recovery.executors.len().max(registered + 1);
            for job in recovery.jobs.clone() {
                if self.jobs.get(&job).is_some_and(|job| !job.has_ended()) {
                    self.job_waits(&job, Some(WaitReason::Executors { needed, registered }));
                }
            }
            return;
        }
        let Some(mut recovery) = self.recovery.take() else {
            return;
        };
        for id in std::mem::take(&mut recovery.jobs) {
            let job = self.jobs.get(&id).filter(|job| !job.has_ended());
            let Some(job) = job else {
                continue;
            };
            if is_hopeless {
                let error = format!(
                    "no executor has come back to the scheduler within {EXECUTORS_PATIENCE:?} of its restart"
                );
                self.end_job(&id, Some(error), now);
            } else if job.awaits_client() {
                recovery.jobs.push(id);
            } else {
                self.job_waits(&id, None);
                self.command(Command::Resubmit { job: id });
            }
        }
        // Those that have not come by now are not of this scheduler.
        let are_known = std::mem::take(&mut recovery.executors).is_empty();
        self.recovery = (!recovery.jobs.is_empty()).then_some(recovery);
        if !are_known {
            self.record_executors();
        }
    }

    /// Checks whether executors of an earlier scheduler may yet come back, so that it is too early to say what the cluster
    /// has.
    pub(crate) fn expects_executors(&self) -> bool {
        let recovery = self.recovery.as_ref();
        recovery.is_some_and(|recovery| !recovery.ready)
    }

    /// Records which executors are registered; those that have not come back still count.
    fn record_executors(&mut self) {
        let registered = self.executors.slots().map(|(id, _)| id.to_owned());
        let missing = self
            .recovery
            .iter()
            .flat_map(|recovery| &recovery.executors);
        let all = registered.chain(missing.cloned()).collect();
        self.command(Command::Record(Change::Executors(all)));
    }

    /// Orders the end of an attempt. From now on, nothing of it is started.
    pub(super) fn end_attempt(&mut self, attempt: &str, end: AttemptEnd) {
        let end = self.planned(end);
        if self.jobs.end_attempt(attempt, end) {
            let attempt = attempt.to_owned();
            self.command(Command::CancelAttempt { attempt });
        }
    }

    fn attempt_ended(&mut self, attempt: &str, end: AttemptEnd, now: Now) {
        let end = self.planned(end);
        // Tasks that still compute hold their slots until the executor reports their end.
        if self.slots.attempt_ends(attempt, now.instant) {
            self.wake(Topic::Endings);
        }
        let job = self.jobs.job_of(attempt).to_owned();
        if self.jobs.get(&job).is_none() {
            self.finish_runs_of(attempt);
        }
        let train = self.jobs.get(&job).and_then(|job| job.train);
        let run = train.and_then(|train| self.runs.get(&train));
        let steps = run.map_or(0, Run::steps_done);
        let succeeded = matches!(end, AttemptEnd::Succeeded { .. });
        match self.jobs.attempt_ended(attempt, end, steps, now) {
            AttemptOutcome::Nothing => {
                // The job of one that has succeeded may not be known yet.
                let is_of_no_use = match self.jobs.get(&job) {
                    Some(job) => job.has_ended() && !job.gives_out(attempt),
                    None => !succeeded,
                };
                if is_of_no_use {
                    let attempt = attempt.to_owned();
                    self.command(Command::RemoveRows { attempt });
                }
            }
            AttemptOutcome::JobEnded => self.job_ended(&job),
            AttemptOutcome::Resubmit => {
                self.wake(Topic::Job(job.clone()));
                self.command(Command::Resubmit { job });
            }
        }
        if !succeeded {
            // The attempt's place in the queue is free, and the engine makes no offer for that.
            self.command(Command::Offer);
        }
    }

    fn rows_kept(&mut self, job: &str, taken: Taken, now: Now) {
        let Taken {
            stage,
            partitions,
            all,
        } = taken;
        if let Some(job) = self.jobs.get_mut(job) {
            let partitions = match partitions == all {
                true => "all partitions".to_owned(),
                false => format!("{partitions} of {all} partitions"),
            };
            job.note(format!("stage {stage}: {partitions} are still there"), now);
        }
    }

    /// Fails a running job with an error, or cancels it, and ends its current attempt.
    fn end_job(&mut self, id: &str, error: Option<String>, now: Now) {
        if let Some(attempt) = self.jobs.end(id, error, now) {
            self.job_ended(id);
            self.end_attempt(&attempt, AttemptEnd::Cancelled);
        }
    }

    /// Releases what is kept for a job that is over.
    fn job_ended(&mut self, id: &str) {
        let train = self.jobs.get(id).and_then(|job| job.train);
        if let Some(train) = train {
            self.change_run(train, Run::finishes);
        }
        // Rows of attempts that have ended stayed, because the next one might take them.
        let attempts = self.jobs.get(id).into_iter().flat_map(|job| {
            let ended = job.attempts.iter();
            ended.filter(|attempt| self.jobs.has_ended(attempt) && !job.gives_out(attempt))
        });
        for attempt in attempts.cloned().collect::<Vec<_>>() {
            self.command(Command::RemoveRows { attempt });
        }
        let job = id.to_owned();
        if let Some(end) = self.jobs.get(id).and_then(Job::end) {
            let job = job.clone();
            self.command(Command::Record(Change::Ended { job, end }));
        }
        self.wake(Topic::Job(job.clone()));
        self.command(Command::Release { job });
    }

    /// Cancels a job; gives up the rows of one that has succeeded. Returns false if there is no such job.
    pub(crate) fn cancel(&mut self, id: &str, now: Now) -> bool {
        self.end_job(id, None, now);
        let Some(job) = self.jobs.get_mut(id) else {
            return false;
        };
        if let Some(rows) = &mut job.rows {
            rows.given_up();
        }
        true
    }

    /// Records the progress of a reader of a job's rows. Returns why they are no longer kept, if so; `None` if there
    /// is no such job.
    pub(crate) fn read_rows(
        &mut self,
        id: &str,
        reading: Reading,
        now: Now,
    ) -> Option<Option<String>> {
        let rows = self.jobs.get_mut(id)?.rows.as_mut();
        let removed = rows.and_then(|rows| rows.reads(reading, now.instant));
        Some(removed.map(str::to_owned))
    }

    // Effects of time.

    fn tick(&mut self, now: Now) {
        self.recover(now);
        self.sweep_prepared();
        // The engine now knows attempts that were being planned when they were to end.
        let ending: Vec<_> = self.jobs.ending().map(str::to_owned).collect();
        for attempt in ending {
            self.command(Command::CancelAttempt { attempt });
        }
        if self.time_matters(now) || self.gpu_hours_come_back(now) {
            self.command(Command::Offer);
        }
        self.record_usage_in_time(now);
        self.remove_silent_executors(now);
        self.cancel_abandoned(now);
        self.end_overrun(now);
        self.end_without_executors(now);
        self.remove_rows(now);
    }

    /// Removes all silent executors at once: the engine removes them one by one, each after it has tried to reach the
    /// one before.
    fn remove_silent_executors(&mut self, now: Now) {
        let timeout = self.policy.executor_timeout;
        for executor in self.executors.silent(timeout, now.instant) {
            if self.executors.begins_removal(&executor) {
                let reason = format!("no heartbeat for {timeout:?}");
                tracing::warn!(executor, reason, "an executor counts as lost");
                self.command(Command::RemoveExecutor { executor, reason });
            }
        }
    }

    fn cancel_abandoned(&mut self, now: Now) {
        let timeout = self.policy.client_timeout;
        let abandoned = self
            .jobs
            .iter()
            .filter(|job| job.is_abandoned(timeout, now));
        let abandoned: Vec<_> = abandoned.map(|job| job.id.clone()).collect();
        for id in abandoned {
            if let Some(job) = self.jobs.get_mut(&id) {
                let note = format!("its client has sent no request for {timeout:?}");
                job.note(note, now);
            }
            self.end_job(&id, None, now);
        }
    }

    /// Ends jobs that have used up the time that their owner's role allows for one.
    fn end_overrun(&mut self, now: Now) {
        let jobs = self.jobs.iter();
        let overrun = jobs.filter_map(|job| Some((job.id.clone(), job.overrun(now)?)));
        for (id, error) in overrun.collect::<Vec<_>>() {
            self.end_job(&id, Some(error), now);
        }
    }

    fn end_without_executors(&mut self, now: Now) {
        if self.executors.slots().next().is_some() {
            self.empty_since = None;
            return;
        }
        let since = *self.empty_since.get_or_insert(now.instant);
        let is_patient = |train: Option<TrainId>| {
            let run = train.and_then(|train| self.runs.get(&train));
            run.is_some_and(Run::is_patient)
        };
        let refused = self.refused.filter(|(at, _)| now.instant - *at <= REFUSED);
        let refused = refused.map_or_else(String::new, |(_, why)| {
            format!("; an executor was refused in the last minute: {why}")
        });
        let is_empty_for_long = now.instant - since >= EMPTY_PATIENCE;
        let alive = self.jobs.iter().filter(|job| !job.is_over());
        let alive = alive.map(|job| {
            let waited = now.time.duration_since(job.submitted).unwrap_or_default();
            let ends = is_empty_for_long && waited >= EMPTY_PATIENCE && !is_patient(job.train);
            (job.id.clone(), job.attempt().to_owned(), ends)
        });
        for (job, attempt, ends) in alive.collect::<Vec<_>>() {
            self.job_waits(&job, Some(WaitReason::NoExecutor));
            if ends {
                let reason =
                    format!("no executor has been registered for {EMPTY_PATIENCE:?}{refused}");
                self.end_attempt(&attempt, AttemptEnd::Failed(reason));
            }
        }
    }

    /// Makes executors remove expired rows.
    fn remove_rows(&mut self, now: Now) {
        let due = self.jobs.iter().filter_map(|job| {
            let rows = job.rows.as_ref()?;
            let reason = rows.due(&self.policy.retention, now.instant)?;
            Some((job.id.clone(), reason))
        });
        for (id, reason) in due.collect::<Vec<_>>() {
            self.remove_rows_of(id, reason, now);
        }
        self.jobs.evict();
    }

    fn remove_rows_of(&mut self, id: String, reason: Option<String>, now: Now) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if let Some(reason) = &reason {
            job.note(format!("its rows are removed: {reason}"), now);
        }
        if let Some(rows) = &mut job.rows {
            rows.remove(reason);
        }
        let attempt = job.attempt().to_owned();
        self.command(Command::RemoveRows { attempt });
        self.wake(Topic::Job(id));
    }

    /// Records that a client has all rows of a job, so that they are soon removed. Returns false if the client must
    /// report first that it has them: the job does not end with its client, which may be gone.
    pub(crate) fn hand_out_rows(&mut self, id: &str, now: Now) -> bool {
        let Some(job) = self.jobs.get_mut(id) else {
            return false;
        };
        let is_there = job.ends_with_client();
        if let Some(rows) = job.rows.as_mut().filter(|_| is_there) {
            rows.asked(now.instant);
            rows.given_up();
        }
        is_there
    }

    /// Removes the rows of a job whose attempt has succeeded, if they are kept. Rows that were read need no reason.
    pub(crate) fn give_up_rows(&mut self, attempt: &str, reason: &str, now: Now) {
        let id = self.jobs.job_of(attempt).to_owned();
        let job = self.jobs.get(&id).filter(|job| job.attempt() == attempt);
        if let Some(rows) = job.and_then(|job| job.rows.as_ref())
            && !rows.are_removed()
        {
            let reason = (!rows.are_read()).then(|| reason.to_owned());
            self.remove_rows_of(id, reason, now);
        }
    }

    // Executors and their tasks.

    /// Admits an incarnation of an executor. Returns whether an earlier one is being removed: the new one attends
    /// when that is no longer registered.
    ///
    /// # Errors
    /// When another process has the id.
    pub(crate) fn admit(&mut self, executor: &str, incarnation: &str) -> Result<bool, String> {
        let replaces = self.executors.admit(executor, incarnation)?;
        self.jobs.survives(executor, process(incarnation));
        if self.executors.begins_removal(executor) {
            let (executor, reason) = (executor.to_owned(), "it has restarted".to_owned());
            self.command(Command::RemoveExecutor { executor, reason });
        }
        Ok(replaces)
    }

    /// Begins the attendance of an admitted incarnation. Returns false if another one is there by now.
    pub(crate) fn attends(
        &mut self,
        executor: &str,
        incarnation: &str,
        profile: Profile,
        now: Now,
    ) -> bool {
        let executors = &mut self.executors;
        let attends = executors.attends(executor, incarnation, profile, now.time);
        self.refresh(executor);
        attends
    }

    /// Returns what an attending incarnation must do.
    pub(crate) fn presence(&self, executor: &str, incarnation: &str) -> Presence {
        self.executors.presence(executor, incarnation)
    }

    /// Returns since when an executor is there, if tasks may be placed on it.
    pub(crate) fn takes_tasks_since(&self, executor: &str) -> Option<SystemTime> {
        let takes = self.executors.drain(executor) == Some(Drain::No);
        takes.then(|| self.executors.since(executor))?
    }

    /// Checks whether the rows of an attempt may be read, or taken by the next one: they are not removed yet.
    pub(crate) fn keeps_rows(&self, attempt: &str) -> bool {
        let job = self.jobs.get(self.jobs.job_of(attempt));
        job.is_some_and(|job| match job.gives_out(attempt) {
            true => job.rows.as_ref().is_some_and(|rows| !rows.are_removed()),
            false => !job.has_ended(),
        })
    }

    /// Returns an executor to which another one's rows can move: of those that run queries and stay, the one that came
    /// last, because executors are often replaced one after the other. Skips this many, and begins again.
    pub(crate) fn heir(&self, executor: &str, skipped: usize) -> Option<String> {
        let others = self.executors.slots().map(|(id, _)| id);
        let mut heirs: Vec<_> = others
            .filter(|id| *id != executor && self.executors.role(id).runs_queries())
            .filter_map(|id| Some((self.takes_tasks_since(id)?, id)))
            .collect();
        heirs.sort_unstable_by(|one, other| other.cmp(one));
        let heir = heirs.get(skipped % heirs.len().max(1));
        heir.map(|(_, id)| (*id).to_owned())
    }

    /// Returns the executors on which tasks of queries may be placed, ordered by id.
    pub(crate) fn query_executors(&self) -> Vec<String> {
        let takes = |executor: &RegisteredExecutor| {
            executor.role.runs_queries() && self.executors.drain(&executor.id) == Some(Drain::No)
        };
        let executors = self.executors.registered().filter(takes);
        executors.map(|executor| executor.id).collect()
    }

    /// Checks whether an executor is registered.
    pub(crate) fn is_registered(&self, executor: &str) -> bool {
        self.executors.is_registered(executor)
    }

    /// Returns one of the registered executors.
    pub(crate) fn any_executor(&self) -> Option<&str> {
        self.executors.slots().next().map(|(id, _)| id)
    }

    /// Returns the executors as others dial them, ordered by id.
    pub(crate) fn registered_executors(&self) -> Vec<RegisteredExecutor> {
        self.executors.registered().collect()
    }

    /// Returns the executors as rows of their table, for a reader as of [`rows`](Self::rows).
    pub(crate) fn executor_rows(&self, viewer: Option<&str>) -> Vec<tables::Executor> {
        let holders = self.slots.gpu_holders(viewer);
        self.executors.rows(&self.slots.held(), &holders)
    }

    /// Returns the vital signs of an executor, or of all, as rows of their table.
    pub(crate) fn vitals_rows(&self, executor: Option<&str>) -> Vec<tables::Vitals> {
        self.executors.vitals_rows(executor)
    }

    /// Returns the tasks that run on an executor, by job and stage, the jobs being those of `owner` if one is given.
    pub(crate) fn running_on(&self, executor: &str, owner: Option<&str>) -> Vec<ExecutorTasks> {
        let tasks = self.slots.tasks_of(executor).into_iter();
        let row = |((attempt, stage), (tasks, slots)): ((&str, usize), (usize, usize))| {
            let job = self.jobs.job_of(attempt);
            let is_shown = owner.is_none_or(|owner| self.owner_of(job) == Some(owner));
            is_shown.then(|| ExecutorTasks {
                job_id: job.to_owned(),
                stage_id: stage as u64,
                tasks: tasks as u64,
                slots: slots as u64,
            })
        };
        tasks.filter_map(row).collect()
    }

    /// Returns the numbers of registered executors, of slots for queries, and of those slots that no task holds.
    pub(crate) fn size(&self) -> (usize, usize, usize) {
        let held = self.slots.held();
        let executors = self.executors.slots();
        executors.fold((0, 0, 0), |(executors, all, free), (id, slots)| {
            let held = held.get(id).copied().unwrap_or(0);
            match self.executors.role(id).runs_queries() {
                true => (
                    executors + 1,
                    all + slots,
                    free + slots.saturating_sub(held),
                ),
                false => (executors + 1, all, free),
            }
        })
    }

    /// Returns the tasks of an executor that must end; logs those that take long.
    pub(crate) fn ending_tasks(&mut self, executor: &str, now: Now) -> Vec<Task> {
        let (tasks, lines) = self.slots.ending(executor, now.instant);
        for text in lines {
            tracing::warn!(executor, "{text}");
            self.notices.keep(Line {
                at: millis(now.time),
                job_id: None,
                train_id: None,
                executor_id: Some(executor.to_owned()),
                rank: None,
                failure: false,
                text,
            });
        }
        tasks
    }

    /// Returns the wanted warnings of executors.
    pub(crate) fn notices(&self, wanted: impl Fn(&Line) -> bool) -> Vec<Line> {
        self.notices.lines(wanted)
    }

    fn noticed(&mut self, notice: Notice) {
        let job = notice.attempt.as_deref();
        let job = job.map(|attempt| self.jobs.job_of(attempt).to_owned());
        let known = job.as_ref().and_then(|job| self.jobs.get(job));
        let train = known.and_then(|job| job.train);
        self.notices.keep(Line {
            at: notice.at,
            job_id: job,
            train_id: train.map(|train| train.to_string()),
            executor_id: Some(notice.executor),
            rank: None,
            failure: notice.failure,
            text: notice.text,
        });
    }

    fn tasks_bound(
        &mut self,
        attempt: &str,
        stage: usize,
        gang: Option<&GangBinding>,
        tasks: Vec<BoundTask>,
        now: Now,
    ) {
        let id = self.jobs.job_of(attempt).to_owned();
        let job = self.jobs.get(&id);
        let limits = job.and_then(Job::limits);
        let memory = limits.map_or_else(MemoryQuota::default, |limits| limits.memory);
        let (holder, account) = match gang {
            Some(GangBinding { gang, .. }) => (Holder::Training(gang.model.to_string()), None),
            None => {
                let account = job.map_or_else(unknown_account, |job| job.account.clone());
                (Holder::Query(id), Some(account))
            }
        };
        let of_run = gang.map(|GangBinding { gang, .. }| (gang.train, gang.device.shares));
        let rank_of = job.filter(|_| gang.is_some());
        let rank_of = rank_of.map(|job| Arc::clone(&job.account.user));
        for task in &tasks {
            let held = Task {
                attempt: attempt.to_owned(),
                stage,
                number: task.number,
            };
            let grant = |((train, shares), gpu): (_, &HostGpu)| Grant {
                gpu: gpu.clone(),
                train,
                shares,
            };
            let share = self.executors.slot_memory(&task.executor);
            let of_slot = account.as_ref().map_or(0, |_| memory.of_slot(share));
            let claim = Claim {
                holder: holder.clone(),
                account: account.clone(),
                rank_of: rank_of.clone(),
                gpu: of_run.zip(task.gpu.as_ref()).map(grant),
                memory: of_slot.saturating_mul(task.slots as u64),
            };
            self.slots.bind(&task.executor, held, task.slots, claim);
            self.refresh(&task.executor);
        }
        if let Some(GangBinding { gang, shards }) = gang {
            // A client other than Volley's may not have said what it trains.
            let job = self.jobs.job_of(attempt).to_owned();
            if let Some(job) = self.jobs.get_mut(&job) {
                job.train.get_or_insert(gang.train);
            }
            let ranks = tasks.into_iter().zip(shards);
            let rank = |(task, shards): (BoundTask, &Vec<usize>)| BoundRank {
                task: task.number,
                executor: task.executor,
                shards: shards.clone(),
                gpu: task.gpu.map(|gpu| gpu.uuid),
            };
            self.gang_starts(gang, attempt, ranks.map(rank).collect(), now);
        }
    }

    /// Records which stages of a job an executor ran when it died, if it ran no other job's.
    fn executor_died(&mut self, executor: &str, incarnation: &str) {
        let Some((attempt, stages)) = self.slots.only_attempt(executor) else {
            return;
        };
        let job = self.jobs.job_of(&attempt).to_owned();
        if let Some(job) = self.jobs.get_mut(&job) {
            job.died(Death {
                attempt,
                executor: executor.to_owned(),
                process: process(incarnation).to_owned(),
                stages,
            });
        }
    }

    /// Begins an executor's planned departure: nothing is placed there from now on. Once the executor knows, its ranks
    /// meet elsewhere: before, they would leave their state there.
    fn executor_drains(&mut self, executor: &str, knows: bool, now: Now) {
        if self.executors.drains(executor) {
            tracing::info!(executor, "executor is draining");
            self.refresh(executor);
            // The executor is told with the tasks that are to end there.
            self.wake(Topic::Endings);
        }
        if !knows || !self.executors.leaves_as_planned(executor) {
            return;
        }
        let runs = self.runs.iter();
        let there = runs.filter(|(_, run)| run.trains_on(executor));
        let there: Vec<_> = there.map(|(train, _)| *train).collect();
        for train in &there {
            self.change_run(*train, |run| run.leaves(executor, now));
        }
        if !there.is_empty() {
            self.command(Command::Offer);
        }
        self.find_drained(executor);
    }

    /// Orders to find out whether a draining executor without tasks is needed.
    fn find_drained(&mut self, executor: &str) {
        let drains = self.executors.drain(executor) == Some(Drain::Draining);
        if drains && self.slots.held_by(executor) == 0 {
            self.command(Command::FindDrained);
        }
    }

    /// Returns the draining executors without tasks that may still be needed.
    pub(crate) fn idle_draining(&self) -> Vec<String> {
        let draining = self.executors.draining();
        let idle = draining.filter(|executor| self.slots.held_by(executor) == 0);
        idle.map(str::to_owned).collect()
    }

    /// Marks the loss of data with an executor that leaves as planned.
    fn planned(&self, end: AttemptEnd) -> AttemptEnd {
        match end {
            AttemptEnd::Lost(loss) => AttemptEnd::Lost(DataLoss {
                planned: self.executors.leaves_as_planned(&loss.loss.executor),
                ..loss
            }),
            end => end,
        }
    }

    /// Returns the current attempts of the jobs that may yet have result rows, or whose rows are wanted.
    pub(crate) fn attempts_with_rows(&self) -> Vec<String> {
        let wanted = self.jobs.iter().filter(|job| match &job.rows {
            Some(rows) => rows.are_wanted(),
            None => !job.has_ended(),
        });
        wanted.map(|job| job.attempt().to_owned()).collect()
    }

    /// Returns the progress of an executor's planned departure; `None` if it is not registered.
    pub(crate) fn drain(&self, executor: &str) -> Option<Drain> {
        self.executors.drain(executor)
    }

    fn executor_lost(&mut self, executor: &str, effects: Vec<LossEffect>, now: Now) {
        let planned = self.executors.leaves_as_planned(executor);
        for effect in effects {
            let LossEffect {
                attempt,
                rank_of,
                data,
            } = effect;
            let given_up = rank_of.and_then(|train| match planned {
                true => {
                    self.change_run(train, |run| run.leaves(executor, now));
                    None
                }
                false => self.rank_lost(train, executor, now),
            });
            if let Some(reason) = given_up {
                self.end_attempt(&attempt, AttemptEnd::Failed(reason));
            }
            if let Some(data) = data {
                self.end_attempt(&attempt, AttemptEnd::Lost(data));
            }
        }
    }

    /// Ends an attempt of a gang's job that must be run again from its start.
    pub(super) fn rerun(&mut self, attempt: &str, data: DataLoss) {
        self.end_attempt(attempt, AttemptEnd::Lost(data));
    }
}
