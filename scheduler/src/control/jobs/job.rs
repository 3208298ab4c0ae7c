//! One job: a state machine of attempts.
//!
//! ```text
//!   Running ──► Succeeded │ Failed │ Cancelled
//!     │  ▲
//!     ▼  │ submitted again
//!   Rerunning ──► Failed (it could not be)
//! ```
//!
//! The rows of a job that has succeeded stay on executors for as long as somebody reads them; [`Rows`] decides for
//! how long.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use volley_proto::TrainId;
use volley_proto::failure::{DataLost, TaskFailure};
use volley_proto::notes::runs_again;
use volley_proto::tables::JobState;

use super::limits::JobLimits;
use super::retention::Rows;
use crate::control::Now;
use crate::control::event::{AttemptEnd, DataLoss, Submission};
use crate::control::placement::WaitReason;
use crate::control::queues::Account;
use crate::control::recorded::{JobEnd, Recorded};
use crate::control::retained::Ends;

/// Number of attempts that lose data without progress in between, after which a job fails.
const ATTEMPTS: usize = 5;

/// Time for a client to find a restarted scheduler.
const FINDING: Duration = Duration::from_secs(30);

/// Most lines of a job's log that are recorded for a later scheduler.
const NOTES_RECORDED: usize = 64;

/// Job with its attempts.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    /// Id that its client gave the submission; empty if it gave none.
    pub(in crate::control) operation: String,
    pub(crate) name: String,
    pub(crate) statement: String,
    /// User who has submitted it.
    pub(crate) owner: String,
    pub(crate) train: Option<TrainId>,
    /// Account that its tasks' slots count to.
    pub(crate) account: Account,
    pub(crate) priority: i32,
    ends_with_client: bool,
    limits: Option<JobLimits>,
    pub(crate) attempts: Vec<String>,
    pub(crate) state: JobState,
    /// Error with which it failed.
    pub(crate) error: Option<String>,
    pub(crate) submitted: SystemTime,
    /// Time of submission, by the monotonic clock.
    began: Instant,
    pub(crate) ended: Option<SystemTime>,
    pub(crate) notes: Vec<Note>,
    /// Time of its client's last question about it.
    heard: Instant,
    /// True if an earlier scheduler ran it for a client that has not come back.
    awaits_client: bool,
    /// Attempts that lost data since the last progress.
    fruitless: usize,
    /// Executors that died with tasks of this job alone: one of each attempt.
    deaths: Vec<Death>,
    /// Optimizer steps done when the last attempt ended.
    steps: u64,
    /// True once the current attempt is planned.
    planned: bool,
    /// Reason why none of its tasks runs yet.
    pub(crate) waits: Option<WaitReason>,
    /// Result rows, once it has succeeded.
    pub(crate) rows: Option<Rows>,
}

/// Death of an executor that ran tasks of one job and of no other.
#[derive(Debug, Clone)]
pub(in crate::control) struct Death {
    pub(in crate::control) attempt: String,
    pub(in crate::control) executor: String,
    /// Process of the executor.
    pub(in crate::control) process: String,
    /// Stages of its tasks.
    pub(in crate::control) stages: BTreeSet<usize>,
}

/// Line of a job's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) at: SystemTime,
    pub(crate) text: String,
}

impl Ends for Job {
    fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Checks that its rows are removed first.
    fn is_evictable(&self) -> bool {
        self.is_over() && self.rows.as_ref().is_none_or(Rows::are_removed)
    }
}

impl Job {
    /// Creates a job whose first attempt was submitted now.
    pub(in crate::control) fn new(submission: Submission, now: Now) -> Self {
        let ends_with_client = submission.ends_with_client();
        let Submission {
            job: id,
            operation,
            name,
            statement,
            owner,
            train,
            on_client_loss: _,
            limits,
            queue,
            priority,
        } = submission;
        Self {
            account: Account::new(&queue, &owner),
            priority,
            attempts: vec![id.clone()],
            id,
            operation,
            name,
            statement,
            owner,
            train,
            ends_with_client,
            limits,
            state: JobState::Running,
            error: None,
            submitted: now.time,
            began: now.instant,
            ended: None,
            notes: Vec::new(),
            heard: now.instant,
            awaits_client: false,
            fruitless: 0,
            deaths: Vec::new(),
            steps: 0,
            planned: false,
            waits: None,
            rows: None,
        }
    }

    /// Creates a job of an earlier scheduler; one that had not ended is to be run again.
    pub(in crate::control) fn restored(recorded: Recorded, now: Now) -> Self {
        let mut job = Self::new(recorded.submission, now);
        let age = now.time.duration_since(recorded.submitted);
        let began = now.instant.checked_sub(age.unwrap_or_default());
        job.began = began.unwrap_or(now.instant);
        job.submitted = recorded.submitted;
        // Its client has to find this scheduler first.
        job.heard = now.instant + FINDING;
        if !recorded.attempts.is_empty() {
            job.attempts = recorded.attempts;
        }
        match recorded.end {
            None => {
                job.state = JobState::Rerunning;
                job.awaits_client = job.ends_with_client;
                job.note(
                    "the scheduler was restarted; earlier lines of this log were not recorded",
                    now,
                );
            }
            Some(end) => {
                job.state = end.state;
                job.error = end.error;
                job.ended = Some(end.at);
                job.notes = end.notes;
                let gone = "the scheduler was restarted";
                let rows = || Rows::lost(gone.to_owned(), now.instant);
                job.rows = (end.state == JobState::Succeeded).then(rows);
            }
        }
        job
    }

    /// Checks whether the rows of an attempt are the job's result.
    pub(in crate::control) fn gives_out(&self, attempt: &str) -> bool {
        self.state == JobState::Succeeded && self.attempt() == attempt
    }

    /// Returns its end, for the record of jobs.
    pub(in crate::control) fn end(&self) -> Option<JobEnd> {
        let notes = self.notes.iter().take(NOTES_RECORDED);
        Some(JobEnd {
            state: self.state,
            error: self.error.clone(),
            at: self.ended?,
            notes: notes.cloned().collect(),
        })
    }

    /// Checks whether it is not to be run again before its client has come back: a client that has given it up may have
    /// it run as another job, which would write the same again.
    pub(in crate::control) fn awaits_client(&self) -> bool {
        self.awaits_client
    }

    /// Records that the current attempt is planned. Returns whether that is new.
    pub(in crate::control) fn is_planned(&mut self) -> bool {
        !std::mem::replace(&mut self.planned, true)
    }

    /// Checks whether the job has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over()
    }

    /// Returns why its rows are no longer kept, if they were removed.
    pub(crate) fn rows_removed(&self) -> Option<&str> {
        self.rows.as_ref().and_then(Rows::removed)
    }

    /// Returns the current attempt.
    pub(crate) fn attempt(&self) -> &str {
        self.attempts.last().unwrap_or(&self.id)
    }

    pub(in crate::control) fn note(&mut self, text: impl Into<String>, now: Now) {
        let (at, text) = (now.time, text.into());
        tracing::info!(job = %self.id, "{text}");
        self.notes.push(Note { at, text });
    }

    /// Counts the time without a request from now on.
    pub(in crate::control) fn counts_from(&mut self, now: Now) {
        self.heard = now.instant;
    }

    /// Records that the client has asked about the job.
    pub(in crate::control) fn heard(&mut self, now: Now) {
        self.awaits_client = false;
        self.heard = now.instant;
        if let Some(rows) = &mut self.rows {
            rows.asked(now.instant);
        }
    }

    /// Records the death of an executor; others of the same attempt may have the same cause.
    pub(in crate::control) fn died(&mut self, death: Death) {
        if self
            .deaths
            .iter()
            .all(|known| known.attempt != death.attempt)
        {
            self.deaths.push(death);
        }
    }

    /// Records that a process is there: an executor that had only lost the scheduler has not died.
    pub(super) fn survives(&mut self, executor: &str, process: &str) {
        let is_of = |death: &Death| death.executor == executor && death.process == process;
        self.deaths.retain(|death| !is_of(death));
    }

    /// Returns the error of a stage whose tasks ran alone on executors that died in two attempts, if there is one.
    fn deadly_stage(&self) -> Option<String> {
        let (last, before) = self.deaths.split_last()?;
        let mut before = before.iter();
        let (first, stage) = before.find_map(|first| {
            let stage = first.stages.intersection(&last.stages).next()?;
            Some((first, stage))
        })?;
        Some(format!(
            "executors {} and {} ended while they ran tasks of stage {stage} of this job, and of no other job, in two of \
             its attempts: the stage is not tried a third time. The system ends a process that exceeds the memory of its \
             container or host, which the log of the system says; then a lower --memory of the executors, which leaves \
             more for what it does not count, or more partitions (the setting target_partitions), which make tasks \
             smaller, help",
            first.executor, last.executor,
        ))
    }

    /// Checks whether the job must be cancelled because its client is gone.
    pub(in crate::control) fn is_abandoned(&self, patience: Duration, now: Now) -> bool {
        self.ends_with_client()
            && !self.is_over()
            && now.instant.saturating_duration_since(self.heard) > patience
    }

    /// Checks whether the job is cancelled when its client is gone.
    pub(in crate::control) fn ends_with_client(&self) -> bool {
        self.ends_with_client
    }

    /// Returns the limits on it and on its owner's other jobs, if there are any.
    pub(in crate::control) fn limits(&self) -> Option<JobLimits> {
        self.limits
    }

    /// Returns the error that ends a job beyond its time limit, if it is.
    pub(in crate::control) fn overrun(&self, now: Now) -> Option<String> {
        let limits = self.limits.filter(|_| !self.is_over())?;
        limits.overrun(now.instant.saturating_duration_since(self.began))
    }

    /// Handles the end of an attempt, with this many optimizer steps done. Returns whether the job must be submitted
    /// again.
    pub(in crate::control) fn attempt_ends(
        &mut self,
        attempt: &str,
        end: AttemptEnd,
        steps: u64,
        now: Now,
    ) -> bool {
        if attempt != self.attempt() || self.state != JobState::Running {
            return false;
        }
        match end {
            AttemptEnd::Succeeded { rows } => {
                match self.limits.and_then(|limits| limits.exceeded(rows)) {
                    Some(error) => self.fails(error, now),
                    None => self.ends(JobState::Succeeded, now),
                }
            }
            AttemptEnd::Cancelled => self.ends(JobState::Cancelled, now),
            AttemptEnd::Failed(error) => self.fails(error, now),
            AttemptEnd::Lost(loss) => return self.loses(loss, steps, now),
        };
        false
    }

    fn loses(&mut self, loss: DataLoss, steps: u64, now: Now) -> bool {
        let DataLoss {
            loss: DataLost { executor, reason },
            written,
            planned,
        } = loss;
        if let Some(target) = written {
            let lost = match planned {
                true => "left",
                false => "was lost",
            };
            let error = format!(
                "executor {executor} {lost} while the job wrote {target} ({reason}): the rows \
                 there may be incomplete, and running the job again would add to them; remove them \
                 and run the job again"
            );
            self.fails(error, now);
            return false;
        }
        if let Some(error) = self.deadly_stage() {
            self.fails(error, now);
            return false;
        }
        if steps > self.steps {
            (self.steps, self.fruitless) = (steps, 0);
        }
        // A departure that was planned says nothing of the job.
        self.fruitless += usize::from(!planned);
        let attempt = self.attempts.len();
        if self.fruitless >= ATTEMPTS {
            let error = format!(
                "executor {executor} was lost with data of this job ({reason}); it was run \
                 {attempt} times and lost data each time"
            );
            self.fails(error, now);
            return false;
        }
        let left = if planned { "left" } else { "was lost" };
        // A training that has made progress meanwhile may be run more often.
        let most = match self.train {
            None if self.fruitless == attempt => format!(" of {ATTEMPTS}"),
            _ => String::new(),
        };
        self.note(
            format!(
                "executor {executor} {left} with data of this job ({reason}): {}",
                runs_again(attempt + 1, &most)
            ),
            now,
        );
        self.waits = None;
        self.state = JobState::Rerunning;
        true
    }

    /// Records that the next attempt has been submitted. Returns false if the job no longer wants it.
    pub(in crate::control) fn resubmitted(&mut self, attempt: String, now: Now) -> bool {
        let wanted = self.state == JobState::Rerunning;
        if wanted {
            self.attempts.push(attempt.clone());
            self.planned = false;
            let number = self.attempts.len();
            self.note(
                format!("attempt {number} has the id {attempt} in the executors' logs"),
                now,
            );
            self.state = JobState::Running;
        }
        wanted
    }

    /// Fails the job, whatever its attempts do. Returns false if it had ended before.
    pub(in crate::control) fn fails(&mut self, error: String, now: Now) -> bool {
        if self.is_over() {
            return false;
        }
        self.error = Some(error);
        self.ends(JobState::Failed, now)
    }

    /// Ends the job, whatever its attempts do. Returns false if it had ended before.
    pub(in crate::control) fn ends(&mut self, state: JobState, now: Now) -> bool {
        if self.is_over() || !state.has_ended() {
            return false;
        }
        let note = match self.shown_error() {
            Some(error) => format!("{state}: {error}"),
            None => state.to_string(),
        };
        self.rows = (state == JobState::Succeeded).then(|| Rows::kept(now.instant));
        self.waits = None;
        self.state = state;
        self.ended = Some(now.time);
        self.note(note, now);
        true
    }

    /// Returns the error of a failed job, as shown to users.
    pub(crate) fn shown_error(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        Some(TaskFailure::find(error).unwrap_or(error))
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::settings::OnClientLoss;

    use super::*;

    fn submission(train: Option<TrainId>, on_client_loss: OnClientLoss) -> Submission {
        Submission {
            train,
            on_client_loss,
            ..Submission::query("j")
        }
    }

    fn job() -> Job {
        Job::new(Submission::query("j"), Now::read())
    }

    fn lost(executor: &str) -> AttemptEnd {
        lost_while_writing(executor, None)
    }

    fn lost_while_writing(executor: &str, written: Option<String>) -> AttemptEnd {
        let loss = DataLost {
            executor: executor.into(),
            reason: "gone".into(),
        };
        AttemptEnd::Lost(DataLoss {
            loss,
            written,
            planned: false,
        })
    }

    #[test]
    fn a_job_that_lost_data_is_run_again_under_its_id() {
        let (mut job, now) = (job(), Now::read());
        assert!(job.attempt_ends("j", lost("a"), 0, now));
        assert_eq!(job.state, JobState::Rerunning);
        assert!(!job.attempt_ends("j", lost("a"), 0, now), "once");
        job.resubmitted("k".into(), now);
        assert_eq!((job.attempt(), job.state), ("k", JobState::Running));
        assert!(
            !job.attempt_ends("j", AttemptEnd::Succeeded { rows: None }, 0, now),
            "stale"
        );
        job.attempt_ends("k", AttemptEnd::Succeeded { rows: None }, 0, now);
        assert_eq!((job.id.as_str(), job.state), ("j", JobState::Succeeded));
    }

    /// Counts the runs of a job that loses data each time, with this many steps done by then.
    fn runs(steps: impl Fn(usize) -> u64) -> usize {
        let (mut job, now) = (job(), Now::read());
        for run in 1..100 {
            let attempt = job.attempt().to_owned();
            if !job.attempt_ends(&attempt, lost("a"), steps(run), now) {
                assert_eq!(job.state, JobState::Failed);
                assert!(job.error.unwrap().contains("executor a"));
                return run;
            }
            job.resubmitted(format!("k{run}"), now);
        }
        100
    }

    #[test]
    fn losses_without_progress_come_to_an_end() {
        assert_eq!(runs(|_| 0), ATTEMPTS);
        assert_eq!(runs(|run| run as u64), 100);
        assert_eq!(runs(|run| (run as u64).min(3)), 2 + ATTEMPTS);
    }

    #[test]
    fn planned_departures_are_no_failures() {
        let (mut job, now) = (job(), Now::read());
        for run in 0..2 * ATTEMPTS {
            let AttemptEnd::Lost(loss) = lost("a") else {
                unreachable!("it is one")
            };
            let planned = DataLoss {
                planned: true,
                ..loss
            };
            let attempt = job.attempt().to_owned();
            assert!(job.attempt_ends(&attempt, AttemptEnd::Lost(planned), 0, now));
            job.resubmitted(format!("k{run}"), now);
        }
        assert_eq!(job.state, JobState::Running);
    }

    #[test]
    fn what_may_have_been_written_is_not_written_twice() {
        let (mut job, now) = (job(), Now::read());
        let end = lost_while_writing("a", Some("/out/".into()));
        assert!(!job.attempt_ends("j", end, 0, now));
        let error = job.error.unwrap();
        assert!(error.contains("/out/") && error.contains("executor a"));
    }

    #[test]
    fn a_cancelled_job_is_not_run_again() {
        let (mut job, now) = (job(), Now::read());
        job.ends(JobState::Cancelled, now);
        assert!(!job.attempt_ends("j", lost("a"), 0, now));
        assert_eq!(job.state, JobState::Cancelled);
    }

    #[test]
    fn queries_end_with_their_client_and_training_does_not() {
        let now = Now::read();
        let later = now + Duration::from_secs(31);
        let abandoned = |train: bool, policy| {
            let train = train.then(TrainId::generate);
            let mut job = Job::new(submission(train, policy), now);
            let patience = Duration::from_secs(30);
            assert!(!job.is_abandoned(patience, now));
            let abandoned = job.is_abandoned(patience, later);
            job.heard(later);
            assert!(!job.is_abandoned(patience, later));
            abandoned
        };
        assert!(abandoned(false, OnClientLoss::Auto) && !abandoned(true, OnClientLoss::Auto));
        assert!(abandoned(true, OnClientLoss::Cancel) && !abandoned(false, OnClientLoss::Keep));
    }
}
