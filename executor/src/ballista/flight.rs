//! The executor's Flight service: shuffle data for peers, results for clients.
//!
//! ```text
//!   peer, with a proof ─────────────► names a job ─► a file under the work folder ─► Ballista's service
//!   client, with a ticket of a job ─► that job    ┘    │ anything else: refused
//!   anybody else: refused
//! ```
//!
//! [`Rows`] is served at the same port, to peers only.
//!
//! Ballista's service opens any file whose path can be made from a ticket's job id, for any client. [`Tickets`]
//! passes on fetches only, and only of files under the work folder: a peer of the cluster names the job, any other
//! client sends a ticket in place of the job's id.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use ballista_core::execution_plans::create_shuffle_path;
use ballista_core::execution_plans::range_shuffle::index_path;
use ballista_core::execution_plans::sort_shuffle::get_index_path;
use ballista_core::serde::decode_protobuf;
use ballista_core::serde::protobuf;
use ballista_core::serde::protobuf::action::ActionType as Asked;
use ballista_core::serde::scheduler::{Action as Fetch, ShuffleLayout};
use ballista_executor::flight_service::BallistaFlightService;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, TryStreamExt};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use volley_proto::connections::{Listener, server};
use volley_proto::limits::TICKET_LIMIT;
use volley_proto::wire::rows_server::RowsServer;

use super::handover::Rows;
use super::proof::{Proven, refused};
use crate::counts::Counts;

/// Maximum size of a message to a client.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;
/// Time limit for a request to arrive and be checked; its answer is not included.
const REQUEST: Duration = Duration::from_secs(60);

/// Serves the shuffle files under a work folder until told to stop.
pub(super) async fn serve(
    listener: Listener,
    rows: Rows,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let Rows {
        work_dir,
        proven,
        counts,
        ..
    } = rows.clone();
    let service = FlightServiceServer::new(Tickets::new(work_dir, proven, counts))
        .max_decoding_message_size(TICKET_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    server()
        .timeout(REQUEST)
        .add_service(service)
        .add_service(RowsServer::new(rows))
        .serve_with_incoming_shutdown(listener.into_stream(), stop.cancelled_owned())
        .await
}

/// Messages to a client.
type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Ballista's service behind a check of the requests.
struct Tickets {
    work_dir: PathBuf,
    files: BallistaFlightService,
    proven: Proven,
    counts: Arc<Counts>,
}

impl Tickets {
    fn new(work_dir: PathBuf, proven: Proven, counts: Arc<Counts>) -> Self {
        Self {
            files: BallistaFlightService::new(work_dir.display().to_string()),
            work_dir,
            proven,
            counts,
        }
    }

    /// Counts the bytes of a stream as they are sent.
    fn counted<T: 'static>(&self, sent: Sent<T>, size: fn(&T) -> usize) -> Sent<T> {
        let counts = Arc::clone(&self.counts);
        let count = move |message: &T| counts.shuffle_served_bytes.add(size(message) as u64);
        Box::pin(sent.inspect_ok(count))
    }

    /// Returns the fetch to pass on: a peer's as it is, any other client's with the job in place of its ticket.
    ///
    /// # Errors
    /// When the request comes neither from a peer nor with a ticket, or cannot be fetched.
    #[allow(clippy::result_large_err)] // tonic's own error type
    fn admit<T>(&self, request: &Request<T>, asked: &Bytes) -> Result<Bytes, Status> {
        let asked = match self.proven.is_peer(request) {
            true => asked.clone(),
            false => self.with_job(request, asked)?,
        };
        self.check(&asked)?;
        Ok(asked)
    }

    /// Returns the fetch with its ticket replaced by the ticket's job.
    #[allow(clippy::result_large_err)] // tonic's own error type
    fn with_job<T>(&self, request: &Request<T>, asked: &Bytes) -> Result<Bytes, Status> {
        let mut action = protobuf::Action::decode(asked.as_ref())
            .map_err(|error| Status::invalid_argument(format!("it is not a ticket: {error}")))?;
        let Some(Asked::FetchPartition(fetch)) = &mut action.action_type else {
            return Err(Status::invalid_argument(
                "it is not a ticket: it names no job",
            ));
        };
        let job = self.proven.secret().job_of(&fetch.job_id);
        let job = job.map(str::to_owned);
        fetch.job_id = job.ok_or_else(|| refused(request, "read rows"))?;
        Ok(action.encode_to_vec().into())
    }

    /// Rejects fetches of anything but a job's files in the work folder.
    #[allow(clippy::result_large_err)] // tonic's own error type
    fn check(&self, ticket: &[u8]) -> Result<(), Status> {
        let Fetch::FetchPartition {
            job_id,
            stage_id,
            partition_id,
            file_id,
            layout,
            ..
        } = decode_protobuf(ticket)
            .map_err(|error| Status::invalid_argument(format!("it is not a ticket: {error}")))?;
        if !is_name(job_id.as_str()) {
            return Err(Status::invalid_argument(format!(
                "a ticket for job {:?}: expected a job's id, of letters, digits, - and _",
                job_id.as_str()
            )));
        }
        let sorted = matches!(layout, ShuffleLayout::Sort);
        let nowhere = Path::new("");
        let data = create_shuffle_path(nowhere, &job_id, stage_id, partition_id, file_id, sorted)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let index = match layout {
            ShuffleLayout::Sort => get_index_path(&data),
            ShuffleLayout::Passthrough => index_path(&data),
        };
        match leads_elsewhere(&self.work_dir, &data) || leads_elsewhere(&self.work_dir, &index) {
            false => Ok(()),
            true => Err(Status::permission_denied(format!(
                "a ticket for {}, which is a link: only files in this executor's work folder are sent",
                data.display()
            ))),
        }
    }
}

/// Checks that a job's name cannot lead a path elsewhere.
pub(super) fn is_name(job: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=128).contains(&job.len()) && job.chars().all(plain)
}

/// Checks for links: the file itself, and the folders on its path. Only a process that may write to the work folder
/// can make any.
fn leads_elsewhere(work_dir: &Path, file: &Path) -> bool {
    let mut at = work_dir.to_owned();
    file.components().any(|part| {
        at.push(part);
        fs::symlink_metadata(&at).is_ok_and(|found| found.is_symlink())
    })
}

#[allow(clippy::result_large_err)] // tonic's own error type
fn only_fetches<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{what}: this service sends partitions of jobs, by do_get and do_action"
    )))
}

#[tonic::async_trait]
impl FlightService for Tickets {
    type DoActionStream = <BallistaFlightService as FlightService>::DoActionStream;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoGetStream = <BallistaFlightService as FlightService>::DoGetStream;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;

    async fn do_get(
        &self,
        mut request: Request<Ticket>,
    ) -> Result<Response<Self::DoGetStream>, Status> {
        let asked = self.admit(&request, &request.get_ref().ticket)?;
        request.get_mut().ticket = asked;
        let answer = self.files.do_get(request).await?;
        let size = |data: &FlightData| data.data_header.len() + data.data_body.len();
        Ok(answer.map(|sent| self.counted(sent, size)))
    }

    async fn do_action(
        &self,
        mut request: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        let asked = self.admit(&request, &request.get_ref().body)?;
        request.get_mut().body = asked;
        let answer = self.files.do_action(request).await?;
        Ok(answer.map(|sent| self.counted(sent, |block| block.body.len())))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        only_fetches("handshake")
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        only_fetches("list_flights")
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        only_fetches("get_flight_info")
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        only_fetches("poll_flight_info")
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        only_fetches("get_schema")
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        only_fetches("do_put")
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        only_fetches("do_exchange")
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        only_fetches("list_actions")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tonic::Code;
    use volley_proto::access::ClusterSecret;

    use super::*;

    fn ticket(job: &str, file: Option<u64>) -> Vec<u8> {
        let fetch = protobuf::FetchPartition {
            job_id: job.to_owned(),
            stage_id: 1,
            partition_id: 2,
            file_id: file,
            ..Default::default()
        };
        let action = protobuf::Action {
            action_type: Some(Asked::FetchPartition(fetch)),
            ..Default::default()
        };
        action.encode_to_vec()
    }

    fn tickets(work_dir: &Path) -> Tickets {
        let proven = Proven::new(ClusterSecret::generate(), "127.0.0.1:1".to_owned());
        Tickets::new(work_dir.to_owned(), proven, Arc::default())
    }

    #[test]
    fn rows_are_for_who_has_the_job_s_ticket() {
        let dir = tempfile::tempdir().unwrap();
        let tickets = tickets(dir.path());
        let secret = tickets.proven.secret();
        let ask = |job: &str| tickets.admit(&Request::new(()), &ticket(job, None).into());
        assert_eq!(ask(&secret.ticket("J1")).unwrap(), ticket("J1", None));
        for refused in [
            "J1".to_owned(),
            ClusterSecret::generate().ticket("J1"),
            secret.ticket("J1").replace("J1", "J2"),
        ] {
            assert_eq!(ask(&refused).unwrap_err().code(), Code::Unauthenticated);
        }
        // A ticket opens only files that its job's id opens.
        let outside = ask(&secret.ticket("../J1")).unwrap_err();
        assert_eq!(outside.code(), Code::InvalidArgument);
        for malformed in [Bytes::new(), Bytes::from_static(b"nonsense")] {
            let refused = tickets.admit(&Request::new(()), &malformed).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
    }

    #[test]
    fn only_files_of_jobs_are_sent() {
        let dir = tempfile::tempdir().unwrap();
        let (work_dir, outside) = (dir.path().join("work"), dir.path().join("outside"));
        fs::create_dir_all(work_dir.join("a/1/2")).unwrap();
        fs::create_dir_all(outside.join("1/2")).unwrap();
        let tickets = tickets(&work_dir);
        let code = |job: &str, file| tickets.check(&ticket(job, file)).map_err(|s| s.code());
        for job in ["a", "000018f3c2", "not-there_yet"] {
            assert_eq!(code(job, Some(7)), Ok(()), "{job}");
        }
        let absolute = outside.display().to_string();
        for job in [
            "",
            ".",
            "..",
            "../outside",
            "a/../../outside",
            "a/1",
            &absolute,
            "a\0b",
            "ä",
        ] {
            assert_eq!(code(job, None), Err(Code::InvalidArgument), "{job}");
        }
        symlink(&outside, work_dir.join("linked")).unwrap();
        assert_eq!(code("linked", None), Err(Code::PermissionDenied));
        fs::write(outside.join("secret"), "x").unwrap();
        symlink(outside.join("secret"), work_dir.join("a/1/2/data-7.arrow")).unwrap();
        assert_eq!(code("a", Some(7)), Err(Code::PermissionDenied));
        assert_eq!(code("a", Some(8)), Ok(()));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let dir = tempfile::tempdir().unwrap();
        let tickets = tickets(dir.path());
        bolero::check!().with_iterations(10_000).for_each(|bytes| {
            // No file is opened for a refused request; the others are under the work folder.
            let _ = tickets.check(bytes);
            let _ = tickets.admit(&Request::new(()), &Bytes::copy_from_slice(bytes));
        });
    }
}
