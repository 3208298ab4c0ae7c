//! The Jobs service: clients follow jobs, and report that they read rows.
//!
//! Follow is a long poll, not a stream: a client that keeps calling is known to be there.

use std::time::{Duration, SystemTime};

use tonic::{Request, Response, Status};
use volley_proto::tables::millis;
use volley_proto::wire::jobs_server::{Jobs, JobsServer};
use volley_proto::wire::{
    self, FollowJobRequest, FollowJobResponse, ReadRowsRequest, ReadRowsResponse,
};

use crate::access::Caller;
use crate::control::{Controller, Event, Job, Note, Reading, Topic};
use crate::handle::Control;

/// Long-poll limit of Follow.
const FOLLOW: Duration = Duration::from_secs(2);

/// Builds the service.
pub(crate) fn jobs_service(control: Control) -> JobsServer<Service> {
    JobsServer::new(Service { control })
}

#[derive(Debug)]
pub(crate) struct Service {
    control: Control,
}

#[tonic::async_trait]
impl Jobs for Service {
    async fn follow(
        &self,
        request: Request<FollowJobRequest>,
    ) -> Result<Response<FollowJobResponse>, Status> {
        let caller = Caller::of(&request)?;
        let FollowJobRequest { id, seen } = request.into_inner();
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        self.check(&caller, "follow", &id)?;
        // A client that follows a job is there to read its rows.
        self.control.on(Event::ClientAsked { job: id.clone() });
        // Whoever has seen more has seen the notes of an earlier scheduler.
        let seen_of = |job: &Job| Some(seen).filter(|seen| *seen <= job.notes.len());
        let is_news = |job: &Job| Some(job.notes.len()) != seen_of(job) || job.has_ended();
        let topic = Topic::Job(id.clone());
        let news = self.control.wait(topic, FOLLOW, |control| {
            control.job(&id).is_none_or(is_news).then_some(())
        });
        // The answer tells the state of the job, with or without news.
        news.await;
        let known = self.control.look(|control| {
            let job = control.job(&id)?;
            let notes = job.notes.iter().skip(seen_of(job).unwrap_or(0));
            let notes: Vec<_> = notes.map(wire::Note::from).collect();
            let row = control
                .rows(std::iter::once(job), caller.sees(), SystemTime::now())
                .pop()?;
            Some((row, notes, job.notes.len() as u64))
        });
        let (row, notes, seen) = known.ok_or_else(|| unknown(&id))?;
        let job = serde_json::to_vec(&row);
        let job = job.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(FollowJobResponse { job, notes, seen }))
    }

    async fn read(
        &self,
        request: Request<ReadRowsRequest>,
    ) -> Result<Response<ReadRowsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        self.check(&caller, "read", &request.id)?;
        let reading = Reading::from(&request);
        let gone = self
            .control
            .ask(|control, now| control.read_rows(&request.id, reading, now));
        let gone = gone.ok_or_else(|| unknown(&request.id))?;
        Ok(Response::new(ReadRowsResponse { gone }))
    }
}

impl Service {
    /// # Errors
    /// When the job belongs to somebody else.
    fn check(&self, caller: &Caller, action: &str, id: &str) -> Result<(), Status> {
        let owner = |control: &Controller| control.owner_of(id).map(str::to_owned);
        match self.control.look(owner) {
            Some(owner) => caller.may_touch(action, id, &owner),
            // The caller of `check` reports an unknown job.
            None => Ok(()),
        }
    }
}

fn unknown(id: &str) -> Status {
    Status::not_found(format!("job {id} is not known to this scheduler"))
}

/// The reader and its progress.
impl From<&ReadRowsRequest> for Reading {
    fn from(request: &ReadRowsRequest) -> Self {
        Self {
            reader: request.reader,
            batches: request.batches,
            done: request.done,
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
