//! One job: a state machine of attempts.
//!
//! ```text
//!   Running ──► Succeeded │ Failed │ Cancelled
//!     │  ▲
//!     ▼  │ submitted again
//!   Rerunning ──► Failed (it could not be)
//! ```
//!
//! The rows of a job that has succeeded lie on executors for as long as somebody reads them, which
//! is for [`Rows`] to say.

use std::time::{Duration, Instant, SystemTime};

use volley_proto::TrainId;
use volley_proto::failure::{DataLost, TaskFailure};
use volley_proto::settings::OnClientLoss;

use super::rows::Rows;
use crate::watched::Ends;

/// Attempts that may lose data without progress in between.
const ATTEMPTS: usize = 5;

/// Ballista's word for the failure of a job that was cancelled.
pub(super) const CANCELLED: &str = "Cancelled";

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) id: String,
    pub(super) name: String,
    /// Who has submitted it.
    pub(super) owner: String,
    pub(super) train: Option<TrainId>,
    on_client_loss: OnClientLoss,
    pub(super) attempts: Vec<String>,
    pub(super) state: State,
    pub(super) submitted: SystemTime,
    pub(super) ended: Option<SystemTime>,
    pub(super) notes: Vec<Note>,
    /// When its client last asked about it.
    heard: Instant,
    /// Attempts that lost data since the last progress.
    fruitless: usize,
    /// Optimizer steps done when the last attempt ended.
    steps: u64,
    /// What it waits for, where none of its tasks runs.
    pub(super) waits: Option<String>,
    /// What is kept of it, once it has succeeded.
    pub(super) rows: Option<Rows>,
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// The next attempt is being submitted.
    Rerunning,
    Succeeded,
    Failed(String),
    Cancelled,
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(super) at: SystemTime,
    pub(super) text: String,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Cancelled,
    Failed(String),
    /// Data was lost that cannot be had any more.
    Lost {
        loss: DataLost,
        /// What would be written twice if the job were run again.
        written: Option<String>,
    },
}

impl Ending {
    /// How Ballista's words for a failed job read.
    pub(crate) fn of_failure(error: &str) -> Self {
        match error {
            CANCELLED => Self::Cancelled,
            error => Self::Failed(error.to_owned()),
        }
    }
}

/// The two clocks: one to measure with, one to tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) time: SystemTime,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

impl Ends for Job {
    fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Its rows must be removed first.
    fn is_forgettable(&self) -> bool {
        self.is_over() && self.rows.as_ref().is_none_or(Rows::are_gone)
    }
}

impl Job {
    /// A job whose first attempt is `id`.
    pub(super) fn new(
        id: String,
        name: String,
        train: Option<TrainId>,
        on_client_loss: OnClientLoss,
        now: Now,
    ) -> Self {
        Self {
            attempts: vec![id.clone()],
            id,
            name,
            owner: String::new(),
            train,
            on_client_loss,
            state: State::Running,
            submitted: now.time,
            ended: None,
            notes: Vec::new(),
            heard: now.instant,
            fruitless: 0,
            steps: 0,
            waits: None,
            rows: None,
        }
    }

    /// It is somebody's.
    pub(super) fn owned_by(self, owner: &str) -> Self {
        let owner = owner.to_owned();
        Self { owner, ..self }
    }

    /// The current attempt.
    pub(super) fn attempt(&self) -> &str {
        self.attempts.last().unwrap_or(&self.id)
    }

    pub(super) fn note(&mut self, text: impl Into<String>, now: Now) {
        let (at, text) = (now.time, text.into());
        tracing::info!(job = %self.id, "{text}");
        self.notes.push(Note { at, text });
    }

    /// The client has asked about it.
    pub(super) fn heard(&mut self, now: Now) {
        self.heard = now.instant;
        if let Some(rows) = &mut self.rows {
            rows.asked(now.instant);
        }
    }

    /// Whether it is to be cancelled because its client is gone.
    pub(super) fn is_abandoned(&self, patience: Duration, now: Now) -> bool {
        let matters = match self.on_client_loss {
            OnClientLoss::Auto => self.train.is_none(),
            OnClientLoss::Cancel => true,
            OnClientLoss::Keep => false,
        };
        matters && !self.is_over() && now.instant - self.heard > patience
    }

    /// An attempt has ended, with so many optimizer steps done. Returns whether the job is to be
    /// submitted again.
    pub(super) fn attempt_ends(
        &mut self,
        attempt: &str,
        ending: Ending,
        steps: u64,
        now: Now,
    ) -> bool {
        if attempt != self.attempt() || self.state != State::Running {
            return false;
        }
        match ending {
            Ending::Succeeded => self.ends(State::Succeeded, now),
            Ending::Cancelled => self.ends(State::Cancelled, now),
            Ending::Failed(error) => self.ends(State::Failed(error), now),
            Ending::Lost { loss, written } => return self.loses(&loss, written, steps, now),
        };
        false
    }

    fn loses(&mut self, loss: &DataLost, written: Option<String>, steps: u64, now: Now) -> bool {
        let DataLost { executor, reason } = loss;
        if let Some(target) = written {
            let error = format!(
                "executor {executor} was lost while the job wrote {target} ({reason}): what is \
                 there may be incomplete, and running the job again would add to it; remove it and \
                 run the job again"
            );
            self.ends(State::Failed(error), now);
            return false;
        }
        if steps > self.steps {
            (self.steps, self.fruitless) = (steps, 0);
        }
        self.fruitless += 1;
        let attempt = self.attempts.len();
        if self.fruitless >= ATTEMPTS {
            let error = format!(
                "executor {executor} was lost with data of this job ({reason}); it was run \
                 {attempt} times and lost data each time"
            );
            self.ends(State::Failed(error), now);
            return false;
        }
        self.note(
            format!(
                "attempt {attempt} lost data with executor {executor} ({reason}): running again"
            ),
            now,
        );
        self.state = State::Rerunning;
        true
    }

    /// The next attempt has been submitted. False when the job does not want it any more.
    pub(super) fn resubmitted(&mut self, attempt: String, now: Now) -> bool {
        let wanted = self.state == State::Rerunning;
        if wanted {
            self.attempts.push(attempt.clone());
            let number = self.attempts.len();
            self.note(format!("attempt {number} is job {attempt}"), now);
            self.state = State::Running;
        }
        wanted
    }

    /// It ends, whatever its attempts do. False when it had ended before.
    pub(super) fn ends(&mut self, state: State, now: Now) -> bool {
        if self.is_over() {
            return false;
        }
        let text = match &state {
            State::Failed(error) => {
                format!("failed: {}", TaskFailure::find(error).unwrap_or(error))
            }
            State::Cancelled => "cancelled".to_owned(),
            State::Succeeded => "succeeded".to_owned(),
            State::Running | State::Rerunning => return false,
        };
        self.rows = (state == State::Succeeded).then(|| Rows::kept(now.instant));
        self.waits = None;
        self.state = state;
        self.ended = Some(now.time);
        self.note(text, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let (id, now) = ("j".to_owned(), Now::read());
        Job::new(id, "SELECT 1".into(), None, OnClientLoss::Auto, now)
    }

    fn lost(executor: &str) -> Ending {
        let loss = DataLost {
            executor: executor.into(),
            reason: "gone".into(),
        };
        Ending::Lost {
            loss,
            written: None,
        }
    }

    #[test]
    fn a_job_that_lost_data_is_run_again_under_its_id() {
        let (mut job, now) = (job(), Now::read());
        assert!(job.attempt_ends("j", lost("a"), 0, now));
        assert_eq!(job.state, State::Rerunning);
        assert!(!job.attempt_ends("j", lost("a"), 0, now), "once");
        job.resubmitted("k".into(), now);
        assert_eq!((job.attempt(), &job.state), ("k", &State::Running));
        assert!(!job.attempt_ends("j", Ending::Succeeded, 0, now), "stale");
        job.attempt_ends("k", Ending::Succeeded, 0, now);
        assert_eq!((job.id.as_str(), &job.state), ("j", &State::Succeeded));
    }

    /// How often a job is run that loses data each time, with so many steps done by then.
    fn runs(steps: impl Fn(usize) -> u64) -> usize {
        let (mut job, now) = (job(), Now::read());
        for run in 1..100 {
            let attempt = job.attempt().to_owned();
            if !job.attempt_ends(&attempt, lost("a"), steps(run), now) {
                assert!(matches!(&job.state, State::Failed(error) if error.contains("executor a")));
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
    fn what_may_have_been_written_is_not_written_twice() {
        let (mut job, now) = (job(), Now::read());
        let Ending::Lost { loss, .. } = lost("a") else {
            unreachable!()
        };
        let ending = Ending::Lost {
            loss,
            written: Some("/out/".into()),
        };
        assert!(!job.attempt_ends("j", ending, 0, now));
        assert!(
            matches!(&job.state, State::Failed(e) if e.contains("/out/") && e.contains("executor a"))
        );
    }

    #[test]
    fn a_cancelled_job_is_not_run_again() {
        let (mut job, now) = (job(), Now::read());
        job.ends(State::Cancelled, now);
        assert!(!job.attempt_ends("j", lost("a"), 0, now));
        assert_eq!(job.state, State::Cancelled);
    }

    #[test]
    fn queries_end_with_their_client_and_training_does_not() {
        let now = Now::read();
        let later = Now {
            instant: now.instant + Duration::from_secs(31),
            ..now
        };
        let abandoned = |train: bool, policy| {
            let train = train.then(TrainId::generate);
            let mut job = Job::new("j".into(), String::new(), train, policy, now);
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
