//! The Training service: clients watch a run, and end it early.

use std::time::Duration;

use tonic::{Request, Response, Status};
use volley_proto::TrainId;
use volley_proto::wire::training_server::{Training, TrainingServer};
use volley_proto::wire::{self, event};

use super::{train_id, unknown_run};
use crate::access::Caller;
use crate::control::{RunEvent, Shown, Topic};
use crate::handle::Control;

/// Long-poll limit of Watch.
const WATCH: Duration = Duration::from_secs(2);

/// Builds the service.
pub(crate) fn training_service(control: Control) -> TrainingServer<Service> {
    TrainingServer::new(Service { control })
}

#[derive(Debug)]
pub(crate) struct Service {
    control: Control,
}

#[tonic::async_trait]
impl Training for Service {
    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<wire::WatchResponse>, Status> {
        let caller = Caller::of(&request)?;
        let watch = request.into_inner();
        let train = train_id(&watch.train_id)?;
        self.check(&caller, "watch", train)?;
        let news = self.control.wait(Topic::Run(train), WATCH, |control| {
            control.run(train)?.events_since(watch.seen)
        });
        // A run is unknown until its job is planned.
        let Shown { events, seen } = news.await.unwrap_or(Shown {
            events: Vec::new(),
            seen: watch.seen,
        });
        let events = events.into_iter().map(RunEvent::try_into);
        let events = events.collect::<Result<_, _>>()?;
        Ok(Response::new(wire::WatchResponse { events, seen }))
    }

    async fn stop(
        &self,
        request: Request<wire::StopRequest>,
    ) -> Result<Response<wire::StopResponse>, Status> {
        let caller = Caller::of(&request)?;
        let train = train_id(&request.into_inner().train_id)?;
        self.check(&caller, "stop", train)?;
        let stopped = self
            .control
            .ask(|control, now| control.stop_run(train, now));
        stopped.ok_or_else(|| unknown_run(train))?;
        Ok(Response::new(wire::StopResponse {}))
    }
}

impl Service {
    /// # Errors
    /// When the run's job belongs to somebody else.
    fn check(&self, caller: &Caller, action: &str, train: TrainId) -> Result<(), Status> {
        let job = self.control.look(|control| {
            let job = control.job_of_run(train)?;
            Some((job.id.clone(), job.owner.clone()))
        });
        match job {
            Some((job, owner)) => caller.may_touch(action, &job, &owner),
            None => Ok(()),
        }
    }
}

impl TryFrom<RunEvent> for wire::Event {
    type Error = Status;

    fn try_from(event: RunEvent) -> Result<Self, Status> {
        let event = match event {
            RunEvent::Waiting { reason } => event::Event::Waiting(wire::Waiting { reason }),
            RunEvent::Started {
                generation,
                executors,
            } => event::Event::Started(wire::Started {
                generation,
                executors,
            }),
            RunEvent::Loaded {
                rank,
                rows,
                seconds,
            } => event::Event::Loaded(wire::RankLoaded {
                rank: rank as u64,
                rows,
                seconds,
            }),
            RunEvent::Epoch(record) => event::Event::Epoch(
                serde_json::to_vec(&record).map_err(|e| Status::internal(e.to_string()))?,
            ),
            RunEvent::Failed(failure) => event::Event::Failed(failure.into()),
            RunEvent::Note(note) => event::Event::Note(note),
        };
        Ok(Self { event: Some(event) })
    }
}
