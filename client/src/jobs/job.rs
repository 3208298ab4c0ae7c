//! A job, as listed by the scheduler.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use volley_proto::tables::{self, JobState};
use volley_proto::{Error, TrainId, wire};

use crate::root_cause::plain;

/// Job that was submitted to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// Job id, the same over all attempts.
    pub id: String,
    /// Shortened text of the submission.
    pub name: String,
    /// User who submitted it.
    pub owner: String,
    /// State of the job.
    pub state: JobState,
    /// Reason why none of its tasks runs yet, if it waits.
    pub waits: Option<String>,
    /// Ids of the attempts, the current one last.
    pub attempts: Vec<String>,
    /// Time of submission, by the scheduler's clock.
    pub submitted: SystemTime,
    /// Time of its end, if it has ended.
    pub ended: Option<SystemTime>,
    /// Reason of its failure.
    pub error: Option<String>,
    /// Id of the training run, if it is one.
    pub train_id: Option<TrainId>,
    /// Queue whose slots its tasks hold.
    pub queue: String,
    /// Priority among its owner's queries in the queue: the highest comes first.
    pub priority: i64,
}

/// Event of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEvent {
    /// Time of the event, by the scheduler's clock.
    pub at: SystemTime,
    /// Text of the event.
    pub text: String,
}

impl Job {
    /// Returns its run time so far, or in total if it has ended.
    pub fn duration(&self, now: SystemTime) -> Duration {
        let end = self.ended.unwrap_or(now);
        // The scheduler's clock may be ahead of this host's.
        end.duration_since(self.submitted).unwrap_or_default()
    }
}

impl TryFrom<tables::Job> for Job {
    type Error = Error;

    fn try_from(row: tables::Job) -> Result<Self, Error> {
        Ok(Self {
            id: row.job_id,
            name: row.name,
            owner: row.owner,
            state: row.state,
            waits: row.waits,
            attempts: row.attempt_ids,
            submitted: time(row.submitted)?,
            ended: row.ended.map(time).transpose()?,
            error: row.error.map(|text| plain(&text)),
            train_id: row.train_id.map(|id| id.parse()).transpose()?,
            queue: row.queue,
            priority: row.priority,
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

/// Converts milliseconds since 1970 to a time.
fn time(millis: u64) -> Result<SystemTime, Error> {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(millis))
        .ok_or_else(|| Error::malformed("time", format!("{millis} ms since 1970")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> tables::Job {
        tables::Job {
            job_id: "J1".into(),
            name: "SELECT 1".into(),
            statement: None,
            owner: "o".into(),
            state: JobState::Rerunning,
            attempts: 2,
            attempt_ids: vec!["J1".into(), "J2".into()],
            submitted: 2_000,
            ended: None,
            seconds: 1.0,
            train_id: None,
            queue: "default".into(),
            priority: 0,
            waits: None,
            error: Some("label is null".into()),
        }
    }

    #[test]
    fn is_made_of_a_row() {
        let job = Job::try_from(row()).unwrap();
        assert_eq!(job.state, JobState::Rerunning);
        assert_eq!(job.error.as_deref(), Some("label is null"));
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(job.duration(at(5)), Duration::from_secs(3));
        assert_eq!(job.duration(at(1)), Duration::ZERO);
        let ended = tables::Job {
            ended: Some(2_500),
            ..row()
        };
        let job = Job::try_from(ended).unwrap();
        assert_eq!(job.duration(at(5)), Duration::from_millis(500));
    }

    #[test]
    fn is_refused_where_it_makes_no_sense() {
        let no_id = tables::Job {
            train_id: Some("x".into()),
            ..row()
        };
        Job::try_from(no_id).unwrap_err();
    }
}
