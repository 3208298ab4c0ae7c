//! The executor's Flight service: shuffle data for peers, results for clients.
//!
//! Ballista's service opens whatever file a ticket's job id makes a path of. [`Tickets`] lets only those pass that name a
//! file under the work folder, and nothing but fetches.
//!
//! Both fetch from it, and clients need no certificate. What is for peers alone is refused to others where TLS is
//! spoken.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
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
use ballista_core::serde::scheduler::{Action as Fetch, ShuffleLayout};
use ballista_executor::flight_service::BallistaFlightService;
use futures::stream::BoxStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::{Request, Response, Status, Streaming};
use volley_proto::connections::{PING, PONG};
use volley_proto::limits::TICKET_LIMIT;
use volley_proto::tls::{Listener, Peer};

/// The largest message it sends.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;
/// How long a request may take to arrive and to be looked at; not its answer.
const REQUEST: Duration = Duration::from_secs(60);
/// What clients ask for: the rows of a partition.
const FOR_CLIENTS: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// Whether a request is let through, by its path, its headers and who sent it. A request that is not is answered with
/// the status.
pub(super) type Check =
    Arc<dyn Fn(&http::request::Parts, &Peer) -> Result<(), Status> + Send + Sync>;

/// Lets processes of the cluster ask for anything, and clients for rows; everybody for anything in the clear.
pub(super) fn check() -> Check {
    Arc::new(|request, peer| {
        if !peer.encrypted || peer.member || request.uri.path() == FOR_CLIENTS {
            return Ok(());
        }
        Err(Status::unauthenticated(
            "this is for processes of the cluster, which have a certificate of its authority",
        ))
    })
}

/// Serves the shuffle files under a work folder until told to stop.
pub(super) async fn serve(
    listener: Listener,
    work_dir: String,
    check: Check,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = FlightServiceServer::new(Tickets::new(work_dir))
        .max_decoding_message_size(TICKET_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    tonic::transport::Server::builder()
        .timeout(REQUEST)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PONG))
        .add_service(Checked { service, check })
        .serve_with_incoming_shutdown(listener.into_stream(), stop.cancelled_owned())
        .await
}

/// A service whose requests are checked first.
#[derive(Clone)]
struct Checked<S> {
    service: S,
    check: Check,
}

impl<S: tonic::server::NamedService> tonic::server::NamedService for Checked<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Checked<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let checked = match parts.extensions.get::<Peer>() {
            Some(peer) => (self.check)(&parts, peer),
            None => Err(Status::internal("a connection without a peer")),
        };
        match checked {
            Ok(()) => Box::pin(self.service.call(http::Request::from_parts(parts, body))),
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}


/// Ballista's service behind a check of what is asked for.
struct Tickets {
    work_dir: PathBuf,
    files: BallistaFlightService,
}

impl Tickets {
    fn new(work_dir: String) -> Self {
        Self {
            work_dir: PathBuf::from(&work_dir),
            files: BallistaFlightService::new(work_dir),
        }
    }

    /// Refuses a ticket for anything but a job's files in the work folder.
    #[allow(clippy::result_large_err)] // as tonic has it
    fn check(&self, ticket: &[u8]) -> Result<(), Status> {
        let Fetch::FetchPartition {
            job_id,
            stage_id,
            partition_id,
            file_id,
            layout,
            ..
        } = decode_protobuf(ticket)
            .map_err(|error| Status::invalid_argument(format!("it is no ticket: {error}")))?;
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

/// Whether a job may be called so: no path leads elsewhere by such a name.
fn is_name(job: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=128).contains(&job.len()) && job.chars().all(plain)
}

/// Whether a file, or a folder on the way to it, is a link. Only who may write to the work folder makes any.
fn leads_elsewhere(work_dir: &Path, file: &Path) -> bool {
    let mut at = work_dir.to_owned();
    file.components().any(|part| {
        at.push(part);
        fs::symlink_metadata(&at).is_ok_and(|found| found.is_symlink())
    })
}

#[allow(clippy::result_large_err)] // as tonic has it
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
        request: Request<Ticket>,
    ) -> Result<Response<Self::DoGetStream>, Status> {
        self.check(&request.get_ref().ticket)?;
        self.files.do_get(request).await
    }

    async fn do_action(
        &self,
        request: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        self.check(&request.get_ref().body)?;
        self.files.do_action(request).await
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

    use ballista_core::serde::protobuf;
    use prost::Message;
    use tonic::Code;

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
            action_type: Some(protobuf::action::ActionType::FetchPartition(fetch)),
            ..Default::default()
        };
        action.encode_to_vec()
    }

    fn tickets(work_dir: &Path) -> Tickets {
        Tickets::new(work_dir.display().to_string())
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
            // Who is refused has no file opened; the rest is under the work folder.
            let _ = tickets.check(bytes);
        });
    }
}
