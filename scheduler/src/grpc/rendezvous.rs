//! The Rendezvous service: ranks meet, and report their progress and failures.

use std::time::Duration;

use tonic::{Request, Response, Status};
use volley_proto::tables::millis;
use volley_proto::wire::join_response::Answer;
use volley_proto::wire::rendezvous_server::{Rendezvous, RendezvousServer};
use volley_proto::wire::{self, progress_request};
use volley_proto::{Error, TrainId};

use super::{index, invalid, train_id, unknown_run};
use crate::control::{
    Controller, Event, Failure, Generation, Membership, RankProgress, Resolution, RunEvent,
    StepReport, Topic, shortened,
};
use crate::handle::Control;

/// Time that a rank that lost a peer waits for the peer's own account.
const ROOT_CAUSE_PATIENCE: Duration = Duration::from_secs(3);
/// Long-poll limit of a rank that holds its seat.
const HOLD: Duration = Duration::from_secs(2);

/// Builds the service.
pub(crate) fn rendezvous_service(control: Control) -> RendezvousServer<Service> {
    RendezvousServer::new(Service { control })
}

#[derive(Debug)]
pub(crate) struct Service {
    control: Control,
}

/// Seat of a rank that calls.
struct Seat {
    train: TrainId,
    generation: Generation,
    rank: usize,
    executor: String,
}

impl Seat {
    fn of(seat: Option<wire::Seat>) -> Result<Self, Status> {
        let seat =
            seat.ok_or_else(|| Status::invalid_argument("a rank that does not say which"))?;
        let wire::Seat {
            train_id: train,
            job_id: attempt,
            generation: number,
            rank,
            executor_id: executor,
        } = seat;
        Ok(Self {
            train: train_id(&train)?,
            generation: Generation { attempt, number },
            rank: index(rank)?,
            executor,
        })
    }
}

#[tonic::async_trait]
impl Rendezvous for Service {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::JoinResponse>, Status> {
        let join = request.into_inner();
        let train = train_id(&join.train_id)?;
        let task = index(join.task_id)?;
        let endpoint = join.endpoint.into();
        let wire::JoinRequest {
            job_id: attempt,
            executor_id: executor,
            timeout_ms,
            ..
        } = join;
        let seat = self
            .control
            .ask(|control, _| control.join(train, (&attempt, task), &executor, endpoint));
        let generation = seat.ok_or_else(|| unknown_run(train))?.map_err(|reason| {
            Status::failed_precondition(format!(
                "task {task} of attempt {attempt} on executor {executor} has no seat in training {train}: {reason}"
            ))
        })?;
        let patience = Duration::from_millis(timeout_ms);
        let all_joined = self.control.wait(Topic::Run(train), patience, |control| {
            let Some(run) = control.run(train) else {
                return Some(Err(unknown_run(train)));
            };
            match (run.ended(&generation), run.root()) {
                // This is not a failure of the rank: it meets the others again.
                (Some(reason), _) => Some(Ok(Answer::Ended(reason))),
                (None, Some(failure)) => Some(Err(Status::aborted(describe(failure)))),
                (None, None) => run
                    .membership(task)
                    .map(|joined| Ok(Answer::Membership(seated(joined, control, train)))),
            }
        });
        let answer = match all_joined.await {
            Some(answer) => answer?,
            None => {
                let run = |control: &Controller| Some(control.run(train)?.missing());
                let missing = self.control.look(run).unwrap_or_default();
                return Err(Status::deadline_exceeded(format!(
                    "rendezvous: waited {patience:?} for {missing}"
                )));
            }
        };
        Ok(Response::new(wire::JoinResponse {
            answer: Some(answer),
        }))
    }

    async fn progress(
        &self,
        request: Request<wire::ProgressRequest>,
    ) -> Result<Response<wire::ProgressResponse>, Status> {
        let progress = request.into_inner();
        let Seat {
            train,
            generation,
            rank,
            ..
        } = Seat::of(progress.seat)?;
        let report = match progress.event {
            Some(progress_request::Event::Loaded(wire::Loaded { rows, seconds })) => {
                RankProgress::Event(RunEvent::Loaded {
                    rank,
                    rows,
                    seconds,
                })
            }
            Some(progress_request::Event::Epoch(json)) => RankProgress::Event(RunEvent::Epoch(
                serde_json::from_slice(&json)
                    .map_err(|e| invalid(&Error::malformed("epoch record", e)))?,
            )),
            Some(progress_request::Event::Note(note)) => {
                RankProgress::Event(RunEvent::Note(shortened(note)))
            }
            Some(progress_request::Event::Steps(steps)) => RankProgress::Steps {
                rank,
                steps: steps.into(),
            },
            Some(progress_request::Event::Streamed(wire::Streamed { shards, kept_bytes })) => {
                RankProgress::Streamed { shards, kept_bytes }
            }
            None => return Err(Status::invalid_argument("progress without an event")),
        };
        self.control.on(Event::RankReported {
            train,
            generation,
            report,
        });
        let is_stopped =
            |control: &Controller| control.run(train).is_some_and(|run| run.is_stopped());
        let stop = self.control.look(is_stopped);
        Ok(Response::new(wire::ProgressResponse { stop }))
    }

    async fn fail(
        &self,
        request: Request<wire::FailRequest>,
    ) -> Result<Response<wire::FailResponse>, Status> {
        let fail = request.into_inner();
        let Seat {
            train,
            generation,
            rank,
            executor,
        } = Seat::of(fail.seat)?;
        let job = |control: &Controller| control.job_of_run(train).map(|job| job.id.clone());
        let job = self.control.look(job).unwrap_or_default();
        tracing::warn!(job, %train, rank, executor, error = %fail.error, "rank failed");
        let failure = Failure {
            rank,
            executor,
            error: fail.error,
        };
        let peer_lost = fail.peer_lost;
        let told = failure.clone();
        self.control.ask(|control, now| {
            control.rank_failed(train, &generation, told, peer_lost, now);
        });
        let patience = if peer_lost {
            ROOT_CAUSE_PATIENCE
        } else {
            Duration::ZERO
        };
        let known = self.control.wait(Topic::Run(train), patience, |control| {
            let run = control.run(train);
            match run {
                Some(run) => run.resolution(&generation, rank).map(Ok),
                None => Some(Err(unknown_run(train))),
            }
        });
        let resolution = match known.await {
            Some(known) => known?,
            None => {
                let resolved = self
                    .control
                    .ask(|control, now| control.resolve(train, &generation, &failure, now));
                resolved.ok_or_else(|| unknown_run(train))?
            }
        };
        let (root, regroup) = match resolution {
            Resolution::Own => (None, false),
            Resolution::Root(root) => (Some(root.into()), false),
            Resolution::Regroup => (None, true),
        };
        Ok(Response::new(wire::FailResponse { root, regroup }))
    }

    async fn hold(
        &self,
        request: Request<wire::HoldRequest>,
    ) -> Result<Response<wire::HoldResponse>, Status> {
        let Seat {
            train, generation, ..
        } = Seat::of(request.into_inner().seat)?;
        let void = self.control.wait(Topic::Run(train), HOLD, |control| {
            let run = control.run(train);
            match run {
                Some(run) => run.void(&generation).map(Ok),
                None => Some(Err(unknown_run(train))),
            }
        });
        let ended = void.await.transpose()?;
        Ok(Response::new(wire::HoldResponse { ended }))
    }
}

/// Returns a rank's membership, with the time at which its job was submitted.
fn seated(membership: Membership, control: &Controller, train: TrainId) -> wire::Membership {
    let job = control.job_of_run(train);
    wire::Membership {
        generation: membership.generation,
        rank: membership.rank as u64,
        endpoints: membership.endpoints.into_iter().map(Into::into).collect(),
        secret: membership.secret.bytes().to_vec(),
        gpu: membership.gpu.map(|gpu| gpu.to_string()),
        begun: job.map_or(0, |job| millis(job.submitted)),
    }
}

impl From<Failure> for wire::Failure {
    fn from(failure: Failure) -> Self {
        let Failure {
            rank,
            executor,
            error,
        } = failure;
        Self {
            rank: rank as u64,
            executor_id: executor,
            error,
        }
    }
}

fn describe(failure: &Failure) -> String {
    let Failure {
        rank,
        executor,
        error,
    } = failure;
    format!("rank {rank} on executor {executor} failed: {error}")
}

impl From<wire::Steps> for StepReport {
    fn from(steps: wire::Steps) -> Self {
        Self {
            epoch: steps.epoch,
            epochs: steps.epochs,
            step: steps.step,
            steps_per_epoch: steps.steps_per_epoch,
            total: steps.total,
            rows: steps.rows,
            loss: steps.loss,
            seconds: steps.seconds,
            reduce_seconds: steps.reduce_seconds,
        }
    }
}
