//! The wire's side of jobs: who asks what there is and what happened.

use std::time::Duration;

use tonic::{Request, Response, Status};
use volley_proto::wire::jobs_server::{Jobs, JobsServer};
use volley_proto::wire::{
    self, FollowJobRequest, FollowJobResponse, JobState, ListJobsRequest, ListJobsResponse,
    ReadRowsRequest, ReadRowsResponse,
};

use super::Book;
use super::job::{Job, Note, Now, State};
use super::rows::Reading;
use crate::access::Caller;
use crate::watched::Ends;
use volley_proto::tables::millis;

/// How long those who follow are kept waiting for news.
const PATIENCE: Duration = Duration::from_secs(2);

/// The service over a book.
pub(crate) fn jobs_service(book: Book) -> JobsServer<Service> {
    JobsServer::new(Service { book })
}

#[derive(Debug)]
pub(crate) struct Service {
    book: Book,
}

#[tonic::async_trait]
impl Jobs for Service {
    async fn list(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut jobs = self.book.jobs.scan(|_, job| {
            let shown = caller.principal.may_touch(&job.owner);
            shown.then(|| wire::Job::from(job))
        });
        jobs.reverse();
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn follow(
        &self,
        request: Request<FollowJobRequest>,
    ) -> Result<Response<FollowJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        let FollowJobRequest { id, seen } = request.into_inner();
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        self.check(&caller, "follow", &id)?;
        // Who follows a job is there to read its rows.
        self.book.jobs.change(&id, |job| job.heard(Now::read()));
        let news = |job: &Job| FollowJobResponse {
            job: Some(job.into()),
            notes: job.notes.iter().skip(seen).map(Into::into).collect(),
        };
        let found = self.book.jobs.wait(
            &id,
            PATIENCE,
            |job| (job.notes.len() > seen || job.is_over()).then(|| news(job)),
            news,
        );
        let known = found.await;
        known
            .map(Response::new)
            .ok_or_else(|| Status::not_found(format!("job {id} is not known to this scheduler")))
    }

    async fn read(
        &self,
        request: Request<ReadRowsRequest>,
    ) -> Result<Response<ReadRowsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        self.check(&caller, "read", &request.id)?;
        let reading = Reading::from(&request);
        let gone = self.book.jobs.change(&request.id, |job| {
            let rows = job.rows.as_mut();
            let reads = rows.and_then(|rows| rows.reads(reading, Now::read().instant));
            reads.map(str::to_owned)
        });
        let gone = gone.ok_or_else(|| {
            Status::not_found(format!("job {} is not known to this scheduler", request.id))
        })?;
        Ok(Response::new(ReadRowsResponse { gone }))
    }
}

impl Service {
    /// # Errors
    /// When the job is another's.
    fn check(&self, caller: &Caller, action: &str, id: &str) -> Result<(), Status> {
        match self.book.owner_of(id) {
            Some(owner) => caller.may_touch(action, id, &owner),
            // That there is none is told below.
            None => Ok(()),
        }
    }
}

/// Who reads, and how far they are.
impl From<&ReadRowsRequest> for Reading {
    fn from(request: &ReadRowsRequest) -> Self {
        Self {
            reader: request.reader,
            batches: request.batches,
            done: request.done,
        }
    }
}

impl From<&Job> for wire::Job {
    fn from(job: &Job) -> Self {
        let (state, error) = match &job.state {
            State::Running => (JobState::Running, None),
            State::Rerunning => (JobState::Rerunning, None),
            State::Succeeded => (JobState::Succeeded, None),
            State::Failed(error) => (JobState::Failed, Some(error.clone())),
            State::Cancelled => (JobState::Cancelled, None),
        };
        Self {
            id: job.id.clone(),
            name: job.name.clone(),
            state: state.into(),
            attempts: job.attempts.clone(),
            submitted_ms: millis(job.submitted),
            ended_ms: job.ended.map(millis),
            error,
            train_id: job.train.map(|train| train.to_string()),
        }
    }
}

impl From<&Note> for wire::Note {
    fn from(note: &Note) -> Self {
        Self {
            at_ms: millis(note.at),
            text: note.text.clone(),
        }
    }
}
