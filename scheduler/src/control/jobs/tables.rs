//! Jobs as rows of tables.

use std::time::SystemTime;

use volley_proto::TrainId;
use volley_proto::tables::{Job as Row, JobState, Line, millis};

use super::job::{Job, Note};
use super::registry::Jobs;

/// Filter on jobs; absent fields do not filter.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobsFilter {
    pub(crate) job: Option<String>,
    pub(crate) train: Option<TrainId>,
    /// Owner of the jobs.
    pub(crate) owner: Option<String>,
}

impl JobsFilter {
    /// Checks whether a job with this id, training run and owner is wanted.
    pub(crate) fn takes(&self, job: &str, train: Option<TrainId>, owner: &str) -> bool {
        self.owner.as_ref().is_none_or(|wanted| wanted == owner)
            && self.job.as_ref().is_none_or(|wanted| wanted == job)
            && self.train.is_none_or(|wanted| train == Some(wanted))
    }
}

impl Jobs {
    /// Returns the wanted jobs, the newest first.
    pub(crate) fn wanted(&self, filter: &JobsFilter) -> impl Iterator<Item = &Job> {
        let newest = self.iter().rev();
        newest.filter(move |job| filter.takes(&job.id, job.train, &job.owner))
    }
}

impl Job {
    /// Returns the job as a row of its table; `waits` describes what it waits for.
    pub(in crate::control) fn row(&self, waits: Option<String>, now: SystemTime) -> Row {
        let end = self.ended.unwrap_or(now);
        let lasted = end.duration_since(self.submitted).unwrap_or_default();
        Row {
            job_id: self.id.clone(),
            name: self.name.clone(),
            statement: None,
            owner: self.owner.clone(),
            state: self.state,
            attempts: self.attempts.len() as u64,
            attempt_ids: self.attempts.clone(),
            submitted: millis(self.submitted),
            ended: self.ended.map(millis),
            seconds: lasted.as_secs_f64(),
            train_id: self.train.map(|train| train.to_string()),
            queue: self.account.queue.to_string(),
            priority: i64::from(self.priority),
            waits,
            error: self.shown_error().map(str::to_owned),
        }
    }

    /// Returns the lines of its log.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line> {
        let failed = self.state == JobState::Failed;
        // A job ends with its last note.
        let last = self.notes.len().saturating_sub(1);
        let line = move |(number, Note { at, text }): (usize, &Note)| Line {
            at: millis(*at),
            job_id: Some(self.id.clone()),
            train_id: self.train.map(|train| train.to_string()),
            executor_id: None,
            rank: None,
            failure: failed && number == last,
            text: text.clone(),
        };
        self.notes.iter().enumerate().map(line)
    }
}
