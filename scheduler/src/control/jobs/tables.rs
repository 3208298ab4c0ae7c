//! Jobs as rows of tables.

use std::time::SystemTime;

use volley_proto::TrainId;
use volley_proto::failure::TaskFailure;
use volley_proto::tables::{Job as Row, Line};

use super::Book;
use super::job::{Job, Note, State};
use volley_proto::tables::millis;

impl Book {
    /// The jobs that are wanted, by id, training run and owner; the newest first.
    pub(crate) fn rows(&self, wanted: impl Fn(&str, Option<TrainId>, &str) -> bool) -> Vec<Row> {
        self.of(wanted, row)
    }

    /// What happened to jobs that are wanted.
    pub(crate) fn lines(&self, wanted: impl Fn(&str, Option<TrainId>, &str) -> bool) -> Vec<Line> {
        self.of(wanted, lines).into_iter().flatten().collect()
    }

    /// Jobs that are wanted: their ids, their current attempts, and their training runs.
    pub(crate) fn attempts(
        &self,
        wanted: impl Fn(&str, Option<TrainId>, &str) -> bool,
    ) -> Vec<(String, String, Option<TrainId>)> {
        self.of(wanted, |job| {
            (job.id.clone(), job.attempt().to_owned(), job.train)
        })
    }

    /// The training run that a job is.
    pub(crate) fn train_of(&self, job: &str) -> Option<TrainId> {
        self.jobs.look(&job.to_owned(), |job| job.train).flatten()
    }

    fn of<T>(
        &self,
        wanted: impl Fn(&str, Option<TrainId>, &str) -> bool,
        row: impl Fn(&Job) -> T,
    ) -> Vec<T> {
        let take = |_: &String, job: &Job| wanted(&job.id, job.train, &job.owner).then(|| row(job));
        let mut rows = self.jobs.scan(take);
        rows.reverse();
        rows
    }
}

fn row(job: &Job) -> Row {
    let (state, error) = match &job.state {
        State::Running => ("running", None),
        State::Rerunning => ("rerunning", None),
        State::Succeeded => ("succeeded", None),
        State::Failed(error) => ("failed", Some(error)),
        State::Cancelled => ("cancelled", None),
    };
    let end = job.ended.unwrap_or_else(SystemTime::now);
    let lasted = end.duration_since(job.submitted).unwrap_or_default();
    Row {
        job_id: job.id.clone(),
        name: job.name.clone(),
        owner: job.owner.clone(),
        state: state.to_owned(),
        attempts: job.attempts.len() as u64,
        submitted: millis(job.submitted),
        ended: job.ended.map(millis),
        seconds: lasted.as_secs_f64(),
        train_id: job.train.map(|train| train.to_string()),
        waits: job.waits.clone(),
        error: error.map(|error| TaskFailure::find(error).unwrap_or(error).to_owned()),
    }
}

fn lines(job: &Job) -> Vec<Line> {
    let failed = matches!(job.state, State::Failed(_));
    // A job ends with its last note.
    let last = job.notes.len().saturating_sub(1);
    let line = |(number, Note { at, text }): (usize, &Note)| Line {
        at: millis(*at),
        job_id: Some(job.id.clone()),
        train_id: job.train.map(|train| train.to_string()),
        executor_id: None,
        rank: None,
        failure: failed && number == last,
        text: text.clone(),
    };
    job.notes.iter().enumerate().map(line).collect()
}
