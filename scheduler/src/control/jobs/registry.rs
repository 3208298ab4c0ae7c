//! The job registry: all jobs by the id that their clients know, and all attempts by the engine's id.
//!
//! The intended end of an attempt is recorded before the engine ends it, because the engine reports one word for all
//! of them. From then on nothing of the attempt is started.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use volley_proto::tables::JobState;

use super::job::Job;
use super::limits::JobLimits;
use crate::control::Now;
use crate::control::event::AttemptEnd;
use crate::control::retained::{Ends, Retained};

/// Most attempts that are kept, besides those of known jobs.
const ATTEMPTS_KEPT: usize = 4096;

/// Most users whose jobs are counted apart; with tokens of an identity provider, anybody may come.
const OWNERS: usize = 10_000;
/// Name to which the jobs of all other users are counted.
const OTHERS: &str = "(others)";

/// Jobs and their attempts.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: Retained<String, Job>,
    /// Attempts by id, in the order in which they were made.
    attempts: IndexMap<String, Attempt>,
    totals: Totals,
    owners: BTreeMap<String, OfOwner>,
    /// Users whose numbers have changed since they were last recorded.
    changed: BTreeSet<String>,
}

/// Jobs of a user.
#[derive(Debug, Default)]
pub(in crate::control) struct OfOwner {
    /// Numbers of jobs, since the first scheduler on the record.
    pub(in crate::control) totals: Totals,
    /// Limits of the newest job.
    pub(in crate::control) limits: Option<JobLimits>,
}

/// Job of the engine.
#[derive(Debug, Default)]
struct Attempt {
    /// Job of the attempt; `None` if it is not known yet.
    job: Option<String>,
    state: AttemptState,
}

#[derive(Debug, Default)]
enum AttemptState {
    #[default]
    Running,
    /// The attempt must end in this way.
    Ending(AttemptEnd),
    /// The attempt ended in this way before its job was known.
    EndedEarly(AttemptEnd),
    Ended,
}

/// Consequence of an attempt's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// Nothing: the attempt is not the current one, or its job is unknown.
    Nothing,
    /// The job has ended.
    JobEnded,
    /// The job must be submitted again.
    Resubmit,
}

/// Number of jobs since the scheduler started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) submitted: u64,
    /// Attempts after the first one; not recorded.
    #[serde(skip)]
    pub(crate) reruns: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
}

impl Totals {
    fn count(&mut self, state: JobState) {
        match state {
            JobState::Succeeded => self.succeeded += 1,
            JobState::Failed => self.failed += 1,
            JobState::Cancelled => self.cancelled += 1,
            JobState::Running | JobState::Rerunning => {}
        }
    }
}

impl Jobs {
    /// Returns the jobs of each user.
    pub(in crate::control) fn owners(&self) -> &BTreeMap<String, OfOwner> {
        &self.owners
    }

    /// Restores the numbers of a user's jobs from an earlier scheduler.
    pub(in crate::control) fn restore_totals(&mut self, owner: String, totals: Totals) {
        self.owners.entry(owner).or_default().totals = totals;
    }

    /// Takes the users whose numbers have changed since the last call.
    pub(in crate::control) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Notes the limits of a user's newest job; users who share an entry have none.
    fn note_limits(&mut self, owner: &str, limits: Option<JobLimits>) {
        if let Some(of_owner) = self.owners.get_mut(owner) {
            of_owner.limits = limits;
        }
    }

    /// Counts the end of a job.
    fn count_end(&mut self, owner: &str, state: JobState) {
        self.totals.count(state);
        self.of_owner(owner).count(state);
    }

    fn of_owner(&mut self, owner: &str) -> &mut Totals {
        let is_known = self.owners.contains_key(owner);
        let owner = match is_known || self.owners.len() < OWNERS {
            true => owner,
            false => OTHERS,
        };
        if !self.changed.contains(owner) {
            self.changed.insert(owner.to_owned());
        }
        &mut self.owners.entry(owner.to_owned()).or_default().totals
    }

    /// Returns the numbers of jobs since the scheduler started.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the job with this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Job> {
        self.jobs.get(id)
    }

    pub(in crate::control) fn get_mut(&mut self, id: &str) -> Option<&mut Job> {
        self.jobs.get_mut(id)
    }

    /// Returns the job of an attempt that need not end, `Some(None)` if the job is unknown; `None` if the attempt
    /// must end.
    pub(in crate::control) fn of_live_attempt(&self, attempt: &str) -> Option<Option<&Job>> {
        let known = self.attempts.get(attempt);
        if known.is_some_and(|attempt| matches!(attempt.state, AttemptState::Ending(_))) {
            return None;
        }
        let job = known.and_then(|attempt| attempt.job.as_deref());
        Some(self.jobs.get(job.unwrap_or(attempt)))
    }

    /// Returns all jobs, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.iter().map(|(_, job)| job)
    }

    /// Adds a job. Returns the end of its attempt, if it has ended already.
    pub(in crate::control) fn open(&mut self, job: Job) -> Option<AttemptEnd> {
        let id = job.id.clone();
        self.totals.submitted += 1;
        self.of_owner(&job.owner).submitted += 1;
        self.note_limits(&job.owner, job.limits());
        self.jobs.add(id.clone(), job);
        self.assign(&id, &id)
    }

    /// Adds a job of an earlier scheduler, all of whose attempts have ended.
    pub(in crate::control) fn restore(&mut self, job: Job) {
        for attempt in &job.attempts {
            let known = self.attempt(attempt);
            known.job = Some(job.id.clone());
            known.state = AttemptState::Ended;
        }
        self.note_limits(&job.owner, job.limits());
        self.jobs.add(job.id.clone(), job);
    }

    /// Records that a job has been submitted again. Returns whether the job still wants that, and the end of the
    /// attempt, if it has ended already.
    pub(in crate::control) fn resubmitted(
        &mut self,
        job: &str,
        attempt: &str,
        now: Now,
    ) -> (bool, Option<AttemptEnd>) {
        let early = self.assign(attempt, job);
        let wanted = self.get_mut(job);
        let wanted = wanted.is_some_and(|job| job.resubmitted(attempt.to_owned(), now));
        self.totals.reruns += u64::from(wanted);
        (wanted, early)
    }

    /// Gives the clients of all jobs the time for a request again.
    pub(in crate::control) fn all_heard(&mut self, now: Now) {
        for job in self.jobs.values_mut() {
            job.counts_from(now);
        }
    }

    /// Records that a process of an executor is there.
    pub(in crate::control) fn survives(&mut self, executor: &str, process: &str) {
        for job in self.jobs.values_mut() {
            job.survives(executor, process);
        }
    }

    /// Evicts the oldest of too many jobs, once their rows are removed.
    pub(in crate::control) fn evict(&mut self) {
        self.jobs.evict();
    }

    /// Returns an attempt, added if need be; if there are too many, evicts the oldest attempts of unknown jobs first.
    fn attempt(&mut self, id: &str) -> &mut Attempt {
        let count = self.attempts.len();
        if count >= ATTEMPTS_KEPT && !self.attempts.contains_key(id) {
            let jobs = &self.jobs;
            let mut surplus = count - ATTEMPTS_KEPT / 2;
            self.attempts.retain(|_, attempt| {
                let job = attempt.job.as_ref();
                let is_known = job.is_some_and(|job| jobs.get(job).is_some());
                let evict = surplus > 0 && !is_known;
                surplus -= usize::from(evict);
                !evict
            });
        }
        self.attempts.entry(id.to_owned()).or_default()
    }

    /// Records the job of an attempt.
    fn assign(&mut self, attempt: &str, job: &str) -> Option<AttemptEnd> {
        let known = self.attempt(attempt);
        known.job = Some(job.to_owned());
        match &known.state {
            AttemptState::EndedEarly(end) => Some(end.clone()),
            _ => None,
        }
    }

    /// Returns the job of an attempt. A job has the id of its first attempt.
    pub(crate) fn job_of<'a>(&'a self, attempt: &'a str) -> &'a str {
        let known = self.attempts.get(attempt);
        let job = known.and_then(|attempt| attempt.job.as_deref());
        job.unwrap_or(attempt)
    }

    /// Checks whether the job of an attempt is known and has not been evicted.
    pub(crate) fn knows(&self, attempt: &str) -> bool {
        self.get(self.job_of(attempt)).is_some()
    }

    /// Records the intended end of an attempt. Returns false if it is ending or has ended.
    pub(in crate::control) fn end_attempt(&mut self, attempt: &str, end: AttemptEnd) -> bool {
        let known = self.attempt(attempt);
        let runs = matches!(known.state, AttemptState::Running);
        if runs {
            let job = known.job.as_deref().unwrap_or(attempt);
            tracing::warn!(job, attempt, ?end, "ending an attempt");
            known.state = AttemptState::Ending(end);
        }
        runs
    }

    /// Checks whether an attempt must end, so that nothing of it is started.
    pub(crate) fn is_ending(&self, attempt: &str) -> bool {
        let known = self.attempts.get(attempt);
        known.is_some_and(|attempt| matches!(attempt.state, AttemptState::Ending(_)))
    }

    /// Checks whether an attempt has ended, or must end.
    pub(crate) fn is_over(&self, attempt: &str) -> bool {
        let known = self.attempts.get(attempt);
        known.is_some_and(|attempt| !matches!(attempt.state, AttemptState::Running))
    }

    /// Checks whether the engine has reported the end of an attempt.
    pub(in crate::control) fn has_ended(&self, attempt: &str) -> bool {
        let known = self.attempts.get(attempt);
        known.is_some_and(|attempt| {
            matches!(
                attempt.state,
                AttemptState::Ended | AttemptState::EndedEarly(_)
            )
        })
    }

    /// Returns the attempts that must end.
    pub(in crate::control) fn ending(&self) -> impl Iterator<Item = &str> {
        let attempts = self.attempts.iter();
        let ending = attempts.filter(|(_, a)| matches!(a.state, AttemptState::Ending(_)));
        ending.map(|(id, _)| id.as_str())
    }

    /// Handles the end of an attempt as the engine reports it, after this many optimizer steps of its run. The
    /// intended end takes precedence, unless the attempt has succeeded.
    pub(in crate::control) fn attempt_ended(
        &mut self,
        attempt: &str,
        told: AttemptEnd,
        steps: u64,
        now: Now,
    ) -> AttemptOutcome {
        self.attempt(attempt);
        let Some(known) = self.attempts.get_mut(attempt) else {
            return AttemptOutcome::Nothing;
        };
        let end = match (&known.state, told) {
            (_, told @ AttemptEnd::Succeeded { .. }) => told,
            (AttemptState::Ending(noted), _) => noted.clone(),
            (_, told) => told,
        };
        let job = known.job.as_ref().and_then(|job| self.jobs.get_mut(job));
        let Some(job) = job else {
            known.state = AttemptState::EndedEarly(end);
            return AttemptOutcome::Nothing;
        };
        known.state = AttemptState::Ended;
        if job.is_over() {
            return AttemptOutcome::Nothing;
        }
        match job.attempt_ends(attempt, end, steps, now) {
            true => AttemptOutcome::Resubmit,
            false if job.is_over() => {
                let (owner, state) = (job.owner.clone(), job.state);
                self.count_end(&owner, state);
                AttemptOutcome::JobEnded
            }
            false => AttemptOutcome::Nothing,
        }
    }

    /// Fails a job with an error, or cancels it, whatever its attempts do. Returns the current attempt, which must
    /// then end; `None` if the job had ended before.
    pub(in crate::control) fn end(
        &mut self,
        id: &str,
        error: Option<String>,
        now: Now,
    ) -> Option<String> {
        let job = self.get_mut(id)?;
        let ends = match error {
            Some(error) => job.fails(error, now),
            None => job.ends(JobState::Cancelled, now),
        };
        let (attempt, state) = (job.attempt().to_owned(), job.state);
        let owner = job.owner.clone();
        if ends {
            self.count_end(&owner, state);
        }
        ends.then_some(attempt)
    }

    /// Counts the known attempts.
    #[cfg(test)]
    pub(in crate::control) fn attempts_known(&self) -> usize {
        self.attempts.len()
    }
}
