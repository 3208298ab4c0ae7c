//! A job as the scheduler tells of it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use volley_proto::{Error, TrainId, wire};

use crate::error::plain;

/// A job that was submitted to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The id that its client was given.
    pub id: String,
    /// What was submitted, shortened.
    pub name: String,
    /// How far it is.
    pub state: JobState,
    /// The engine's job of each attempt, the current one last.
    pub attempts: Vec<String>,
    /// When it was submitted, by the scheduler's clock.
    pub submitted: SystemTime,
    /// When it ended, if it has.
    pub ended: Option<SystemTime>,
    /// Why it failed.
    pub error: Option<String>,
    /// The training run, if it is one.
    pub train_id: Option<TrainId>,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It runs, or waits to.
    Running,
    /// An attempt lost data; the next one is being submitted.
    Rerunning,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEvent {
    /// When, by the scheduler's clock.
    pub at: SystemTime,
    /// What.
    pub text: String,
}

impl Job {
    /// How long it has run, or ran.
    pub fn duration(&self, now: SystemTime) -> Duration {
        let end = self.ended.unwrap_or(now);
        // The scheduler's clock may be ahead of ours.
        end.duration_since(self.submitted).unwrap_or_default()
    }
}

impl JobState {
    /// Whether nothing more happens to the job.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Running | Self::Rerunning => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Rerunning => "rerunning",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

impl TryFrom<wire::Job> for Job {
    type Error = Error;

    fn try_from(job: wire::Job) -> Result<Self, Error> {
        let state = match job.state() {
            wire::JobState::Running => JobState::Running,
            wire::JobState::Rerunning => JobState::Rerunning,
            wire::JobState::Succeeded => JobState::Succeeded,
            wire::JobState::Failed => JobState::Failed,
            wire::JobState::Cancelled => JobState::Cancelled,
            wire::JobState::Unspecified => {
                let reason = format!("unknown state {} of job {}", job.state, job.id);
                return Err(Error::malformed("answer about jobs", reason));
            }
        };
        Ok(Self {
            state,
            submitted: time(job.submitted_ms)?,
            ended: job.ended_ms.map(time).transpose()?,
            train_id: job.train_id.map(|id| id.parse()).transpose()?,
            id: job.id,
            name: job.name,
            attempts: job.attempts,
            error: job.error.map(|text| plain(&text)),
        })
    }
}

impl TryFrom<wire::Note> for JobEvent {
    type Error = Error;

    fn try_from(note: wire::Note) -> Result<Self, Error> {
        Ok(Self {
            at: time(note.at_ms)?,
            text: note.text,
        })
    }
}

/// Milliseconds since 1970 as a time.
fn time(millis: u64) -> Result<SystemTime, Error> {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(millis))
        .ok_or_else(|| Error::malformed("time", format!("{millis} ms since 1970")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> wire::Job {
        wire::Job {
            id: "J1".into(),
            name: "SELECT 1".into(),
            state: wire::JobState::Rerunning.into(),
            attempts: vec!["J1".into(), "J2".into()],
            submitted_ms: 2_000,
            ended_ms: None,
            error: Some("Job J2 failed: [[volley 13: label is null]]".into()),
            train_id: None,
        }
    }

    #[test]
    fn is_read_off_the_wire() {
        let job = Job::try_from(wire()).unwrap();
        assert_eq!(job.state, JobState::Rerunning);
        assert!(!job.state.has_ended());
        assert_eq!(job.error.as_deref(), Some("label is null"));
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(job.duration(at(5)), Duration::from_secs(3));
        assert_eq!(job.duration(at(1)), Duration::ZERO);
        let ended = wire::Job {
            ended_ms: Some(2_500),
            ..wire()
        };
        let job = Job::try_from(ended).unwrap();
        assert_eq!(job.duration(at(5)), Duration::from_millis(500));
    }

    #[test]
    fn is_refused_where_it_makes_no_sense() {
        let no_state = wire::Job {
            state: 77,
            ..wire()
        };
        let no_id = wire::Job {
            train_id: Some("x".into()),
            ..wire()
        };
        for job in [no_state, no_id] {
            let error = Job::try_from(job).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{error}");
        }
    }
}
