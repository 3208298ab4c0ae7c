//! The wire's side of training runs.

use std::time::{Duration, Instant};

use tonic::{Request, Response, Status};
use volley_proto::wire::rendezvous_server::{Rendezvous, RendezvousServer};
use volley_proto::wire::training_server::{Training, TrainingServer};
use volley_proto::wire::{self, event, progress_request};
use volley_proto::{Error, TrainId};

use super::Runs;
use super::run::{Event, Failure, Membership, Verdict};
use crate::access::Caller;
use crate::heard::shortened;
use crate::jobs::Book;

/// How long a rank that lost a peer is kept waiting for the peer's own account.
const ROOT_CAUSE_PATIENCE: Duration = Duration::from_secs(3);
/// How long those who watch or hold a seat are kept waiting for news.
const WATCH_PATIENCE: Duration = Duration::from_secs(2);

/// The services over a registry of runs, and the jobs that they are.
pub(crate) fn services(book: Book) -> (RendezvousServer<Service>, TrainingServer<Service>) {
    let runs = book.runs().clone();
    let service = Service { runs, book };
    (
        RendezvousServer::new(service.clone()),
        TrainingServer::new(service),
    )
}

#[derive(Debug, Clone)]
pub(crate) struct Service {
    runs: Runs,
    /// Whose runs they are.
    book: Book,
}

#[tonic::async_trait]
impl Rendezvous for Service {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::Membership>, Status> {
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
        let seat = self.runs.change(&train, |run| {
            run.joins((&attempt, task), &executor, endpoint)
        });
        let generation = seat.ok_or_else(|| unknown(train))?.map_err(|reason| {
            Status::failed_precondition(format!(
                "task {task} of attempt {attempt} on executor {executor} has no seat in training {train}: {reason}"
            ))
        })?;
        let patience = Duration::from_millis(timeout_ms);
        let all_joined = self.runs.wait(
            &train,
            patience,
            |run| match (run.ended(generation), run.root()) {
                // Not a failure of this rank's: it meets the others again.
                (Some(reason), _) => Some(Err(Status::cancelled(reason))),
                (None, Some(failure)) => Some(Err(Status::aborted(describe(failure)))),
                (None, None) => run.membership(task).map(Ok),
            },
            |run| {
                Err(Status::deadline_exceeded(format!(
                    "rendezvous: waited {patience:?} for {}",
                    run.missing()
                )))
            },
        );
        let membership = all_joined.await.ok_or_else(|| unknown(train))??;
        Ok(Response::new(membership.into()))
    }

    async fn progress(
        &self,
        request: Request<wire::ProgressRequest>,
    ) -> Result<Response<wire::ProgressResponse>, Status> {
        let progress = request.into_inner();
        let train = train_id(&progress.train_id)?;
        let event = match progress.event {
            Some(progress_request::Event::Loaded(wire::Loaded { rows, seconds })) => {
                Event::Loaded {
                    rank: index(progress.rank)?,
                    rows,
                    seconds,
                }
            }
            Some(progress_request::Event::Epoch(json)) => Event::Epoch(
                serde_json::from_slice(&json)
                    .map_err(|e| invalid(&Error::malformed("epoch record", e)))?,
            ),
            Some(progress_request::Event::Note(note)) => Event::Note(shortened(note)),
            Some(progress_request::Event::Steps(steps)) => {
                let rank = index(progress.rank)?;
                let now = Instant::now();
                self.runs.change(&train, |run| {
                    run.steps(progress.generation, rank, steps, now)
                });
                return Ok(Response::new(wire::ProgressResponse {}));
            }
            Some(progress_request::Event::Streamed(wire::Streamed { shards })) => {
                self.runs
                    .change(&train, |run| run.streams(progress.generation, shards));
                return Ok(Response::new(wire::ProgressResponse {}));
            }
            None => return Err(Status::invalid_argument("progress without an event")),
        };
        self.runs
            .change(&train, |run| run.reports(progress.generation, event));
        Ok(Response::new(wire::ProgressResponse {}))
    }

    async fn fail(
        &self,
        request: Request<wire::FailRequest>,
    ) -> Result<Response<wire::FailResponse>, Status> {
        let fail = request.into_inner();
        let train = train_id(&fail.train_id)?;
        let rank = index(fail.rank)?;
        tracing::warn!(%train, rank, executor = %fail.executor_id, error = %fail.error, "rank failed");
        let failure = Failure {
            rank,
            executor: fail.executor_id,
            error: fail.error,
        };
        let (generation, peer_lost) = (fail.generation, fail.peer_lost);
        let told = failure.clone();
        self.runs
            .change(&train, |run| run.fails(generation, told, peer_lost));
        let patience = if peer_lost {
            ROOT_CAUSE_PATIENCE
        } else {
            Duration::ZERO
        };
        let known = self.runs.wait(
            &train,
            patience,
            |run| run.verdict(generation, rank).map(Some),
            |_| None,
        );
        let verdict = match known.await.ok_or_else(|| unknown(train))? {
            Some(verdict) => verdict,
            None => {
                let give_up =
                    |run: &mut super::Run| run.gives_up(generation, &failure, Instant::now());
                self.runs
                    .change(&train, give_up)
                    .ok_or_else(|| unknown(train))?
            }
        };
        let (root, regroup) = match verdict {
            Verdict::Own => (None, false),
            Verdict::Root(root) => (Some(root.into()), false),
            Verdict::Regroup => (None, true),
        };
        Ok(Response::new(wire::FailResponse { root, regroup }))
    }

    async fn hold(
        &self,
        request: Request<wire::HoldRequest>,
    ) -> Result<Response<wire::HoldResponse>, Status> {
        let hold = request.into_inner();
        let train = train_id(&hold.train_id)?;
        let ended = self.runs.wait(
            &train,
            WATCH_PATIENCE,
            |run| run.void(hold.generation).map(Some),
            |_| None,
        );
        let ended = ended.await.ok_or_else(|| unknown(train))?;
        Ok(Response::new(wire::HoldResponse { ended }))
    }
}

#[tonic::async_trait]
impl Training for Service {
    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<wire::WatchResponse>, Status> {
        let caller = Caller::of(&request)?;
        let watch = request.into_inner();
        let (train, seen) = (train_id(&watch.train_id)?, index(watch.seen)?);
        if let Some((job, owner)) = self.book.owner_of_run(train) {
            caller.may_touch("watch", &job, &owner)?;
        }
        let news = self.runs.wait(
            &train,
            WATCH_PATIENCE,
            |run| {
                run.events()
                    .get(seen..)
                    .filter(|news| !news.is_empty())
                    .map(<[_]>::to_vec)
            },
            |_| Vec::new(),
        );
        // A run is unknown until its gang is first looked at.
        let events = news.await.unwrap_or_default();
        let events = events
            .into_iter()
            .map(|(_, event)| event.try_into())
            .collect::<Result<_, _>>()?;
        Ok(Response::new(wire::WatchResponse { events }))
    }
}

impl From<Membership> for wire::Membership {
    fn from(membership: Membership) -> Self {
        Self {
            generation: membership.generation,
            rank: membership.rank as u64,
            endpoints: membership.endpoints.into_iter().map(Into::into).collect(),
            executors: membership.executors,
            secret: membership.secret.bytes().to_vec(),
        }
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

impl TryFrom<Event> for wire::Event {
    type Error = Status;

    fn try_from(event: Event) -> Result<Self, Status> {
        let event = match event {
            Event::Waiting { reason } => event::Event::Waiting(wire::Waiting { reason }),
            Event::Started {
                generation,
                executors,
            } => event::Event::Started(wire::Started {
                generation,
                executors,
            }),
            Event::Loaded {
                rank,
                rows,
                seconds,
            } => event::Event::Loaded(wire::RankLoaded {
                rank: rank as u64,
                rows,
                seconds,
            }),
            Event::Epoch(record) => event::Event::Epoch(
                serde_json::to_vec(&record).map_err(|e| Status::internal(e.to_string()))?,
            ),
            Event::Failed(failure) => event::Event::Failed(failure.into()),
            Event::Note(note) => event::Event::Note(note),
        };
        Ok(Self { event: Some(event) })
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

fn train_id(text: &str) -> Result<TrainId, Status> {
    text.parse().map_err(|error| invalid(&error))
}

fn index(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| Status::invalid_argument(format!("{number}: too large")))
}

fn invalid(error: &Error) -> Status {
    Status::invalid_argument(error.to_string())
}

fn unknown(train: TrainId) -> Status {
    Status::not_found(format!("training {train} is not known to this scheduler"))
}
