//! Volley's services of queries and tasks: what Ballista's service does, with fewer requests, and with the rows of small
//! results.
//!
//! ```text
//!   client ── Submit ──► gateway.submit ─► the job's id, and its outcome if it ends soon
//!          ── Ask ─────► gateway.status ─► outcome: status, rows of a small result
//!   executor ─ Report ─► rows are kept, then gateway.update_task_status; what running tasks have read, and which tasks
//!                        have copies of their rows in a store, is noted
//! ```
//!
//! Not here: checks of callers, jobs and their attempts, which are the gateway's.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{
    ExecuteQueryParams, GetJobStatusResult, UpdateTaskStatusParams, execute_query_result,
    task_status,
};
use futures::{Stream, StreamExt, stream};
use prost::Message;
use tonic::{Request, Response, Status};
use volley_proto::limits::size;
use volley_proto::nesting;
use volley_proto::wire::queries_server::Queries;
use volley_proto::wire::submit_response::Message as Submitted;
use volley_proto::wire::tasks_server::Tasks;
use volley_proto::wire::{
    AskRequest, Outcome, ReportRequest, ReportResponse, SubmitRequest, SubmitResponse,
};

use super::JobGateway;
use super::gateway::{HOLD, has_ended, places};
use super::small_results::LIMIT;
use crate::access::Caller;

/// Wait for the outcome of a query that was just submitted. Clients ask for one that takes longer.
const SOON: Duration = Duration::from_millis(100);

/// The services, over the gateway.
#[derive(Clone)]
pub(crate) struct QueryService(pub(crate) Arc<JobGateway>);

#[tonic::async_trait]
impl Queries for QueryService {
    type SubmitStream = Pin<Box<dyn Stream<Item = Result<SubmitResponse, Status>> + Send>>;

    async fn submit(
        &self,
        request: Request<SubmitRequest>,
    ) -> Result<Response<Self::SubmitStream>, Status> {
        let caller = Caller::of(&request)?;
        // Ballista checks the version of the client, which is in the metadata.
        let (metadata, extensions, SubmitRequest { query }) = request.into_parts();
        let query: ExecuteQueryParams = decode(&query)?;
        let request = Request::from_parts(metadata, extensions, query);
        let answer = self.0.submit(request, true).await?.into_inner();
        let job = match &answer.result {
            Some(execute_query_result::Result::Success(taken)) => Some(taken.job_id.clone()),
            _ => None,
        };
        let accepted = Submitted::Answer(answer.encode_to_vec());
        let service = self.clone();
        let outcome = async move {
            let id = job?;
            // A client that is not told the outcome asks for it, and is told of an error then.
            let status = service.0.status(&caller, id.clone(), SOON).await.ok()?;
            let ended = status.status.as_ref().is_some_and(has_ended);
            ended.then(|| Submitted::Outcome(service.outcome(&id, &status)))
        };
        let outcome = stream::once(outcome).filter_map(std::future::ready);
        let messages = stream::once(std::future::ready(accepted)).chain(outcome);
        let messages = messages.map(|message| {
            let message = Some(message);
            Ok(SubmitResponse { message })
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn ask(&self, request: Request<AskRequest>) -> Result<Response<Outcome>, Status> {
        let caller = Caller::of(&request)?;
        let id = request.into_inner().id;
        let status = self.0.status(&caller, id.clone(), HOLD).await?;
        Ok(Response::new(self.outcome(&id, &status)))
    }
}

#[tonic::async_trait]
impl Tasks for QueryService {
    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let ReportRequest {
            statuses,
            rows,
            reading,
            stored,
        } = request.into_inner();
        if let Some(told) = reading {
            self.0.reading.take(told, Instant::now());
        }
        if statuses.is_empty() {
            return Ok(Response::new(ReportResponse {}));
        }
        let statuses: UpdateTaskStatusParams = decode(&statuses)?;
        let (control, kept) = (&self.0.control, &self.0.small_results);
        let runs = |attempt: &str| control.look(|control| !control.jobs().is_over(attempt));
        for rows in rows.into_iter().filter(|rows| runs(&rows.job_id)) {
            for attempt in kept.keep(rows) {
                let reason = format!(
                    "newer results take their place; the scheduler keeps {} of small results",
                    size(LIMIT)
                );
                control.ask(|control, now| control.give_up_rows(&attempt, &reason, now));
            }
        }
        // Before the tasks count as successful, for a loss may follow at once.
        for task in stored {
            let attempt = task.job_id.clone();
            let job = || {
                control.look(|control| {
                    let job = control.job(control.jobs().job_of(&attempt))?;
                    (!job.has_ended()).then(|| job.id.clone())
                })
            };
            self.0.kept.stored(job, task.into());
        }
        for status in &statuses.task_status {
            // It may have written some of its rows.
            if let Some(task_status::Status::Failed(_)) = status.status
                && runs(&status.job_id)
            {
                kept.has_files(&status.job_id);
            }
        }
        let reported = self.0.update_task_status(Request::new(statuses)).await;
        reported.map(|_| Response::new(ReportResponse {}))
    }
}

impl QueryService {
    /// Returns a job's status, with the rows of its result that are kept here.
    fn outcome(&self, id: &str, status: &GetJobStatusResult) -> Outcome {
        let (mut rows, mut kept) = (Vec::new(), false);
        if let Some(places) = places(status) {
            let attempt = self.0.attempt(id.to_owned());
            let held = self.0.small_results.of(&attempt);
            kept = true;
            if let Some(held) = held {
                rows = held.at(places);
                let are_all = places.iter().all(|place| held.hold(place));
                let control = &self.0.control;
                if are_all && control.ask(|control, now| control.hand_out_rows(id, now)) {
                    self.0.small_results.handed_out(&attempt);
                    kept = false;
                }
            }
        }
        Outcome {
            status: status.encode_to_vec(),
            rows,
            kept,
        }
    }
}

#[allow(clippy::result_large_err)] // tonic's Status is large
fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Status> {
    nesting::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))
}
