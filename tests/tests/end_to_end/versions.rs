//! Builds of another protocol: each side refuses the other by name. The tests speak gRPC themselves, with another number.

use std::process::Command;

use futures::stream::Empty;
use tokio::runtime::Runtime;
use tonic::metadata::MetadataValue;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use volley_proto::version::{HEADER, Version, WIRE};
use volley_proto::wire::attendance_client::AttendanceClient;
use volley_proto::wire::cluster_client::ClusterClient;
use volley_proto::wire::cluster_server::{Cluster as Service, ClusterServer};
use volley_proto::wire::{
    AttendRequest, AttendResponse, DescribeRequest, DescribeResponse, DrainRequest, DrainResponse,
    DropPreparedRequest, DropPreparedResponse, ProbeRequest, ProbeResponse, ReadTableRequest,
    ReadTableResponse,
};
use volley_tests::{Cluster, Setup, binary};

use crate::fails;

/// Answers to an executor's and to a client's first request.
type Answers = (
    Result<Streaming<AttendResponse>, Status>,
    Result<(), Status>,
);

/// Returns the version of a build after this one.
fn later() -> Version {
    Version {
        build: "9.9.9".to_owned(),
        wire: WIRE + 1,
    }
}

/// Attends and connects as processes that send this header, or none.
async fn asks(address: &str, header: Option<String>) -> Answers {
    let header = header.map(|header| MetadataValue::try_from(header).unwrap());
    let sends = |mut request: Request<()>| {
        if let Some(header) = header.clone() {
            request.metadata_mut().insert(HEADER, header);
        }
        Ok(request)
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let attend = AttendRequest {
        executor_id: "stranger".to_owned(),
        incarnation: "stranger/1".to_owned(),
        device: "cpu".to_owned(),
        ..AttendRequest::default()
    };
    let mut executor = AttendanceClient::with_interceptor(channel.clone(), sends);
    let attended = executor.attend(attend).await.map(Response::into_inner);
    let mut client = ClusterClient::with_interceptor(channel, sends);
    let described = client.describe(DescribeRequest {}).await;
    (attended, described.map(drop))
}

#[test]
fn a_scheduler_refuses_another_protocol() {
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        scheduler_args: vec!["--insecure".to_owned()],
        ..Setup::default()
    });
    let runtime = Runtime::new().unwrap();
    let own = Version::own();
    let refused = |header: Option<String>, theirs: &str| {
        let (executor, client) = runtime.block_on(asks(cluster.address(), header));
        let of_executor = executor.expect_err("it is of another protocol");
        let of_client = client.expect_err("it is of another protocol");
        for (status, who) in [(of_executor, "the executor"), (of_client, "the client")] {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            let said = status.message();
            let expected = format!("{who} {theirs} and the scheduler is {own}: ");
            assert!(said.starts_with(&expected), "{said}");
        }
        assert_eq!(cluster.registered().unwrap().len(), 1);
    };
    let theirs = format!("is {}", later());
    refused(Some(later().header()), &theirs);
    refused(None, "does not tell its version");
    refused(Some("9.9.9".to_owned()), "does not tell its version");
    // Another release of the same protocol works.
    let release = Version {
        wire: WIRE,
        ..later()
    };
    let (executor, client) = runtime.block_on(asks(cluster.address(), Some(release.header())));
    assert!(executor.is_ok(), "{executor:?}");
    client.unwrap();
}

/// Scheduler of a later protocol, which does not look at the client's.
struct Later;

#[tonic::async_trait]
impl Service for Later {
    type ProbeStream = Empty<Result<ProbeResponse, Status>>;

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let Version { build, wire } = later();
        Ok(Response::new(DescribeResponse {
            version: build,
            wire,
            ..DescribeResponse::default()
        }))
    }

    async fn read_table(
        &self,
        _: Request<ReadTableRequest>,
    ) -> Result<Response<ReadTableResponse>, Status> {
        Err(Status::unimplemented("it is only described"))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<Self::ProbeStream>, Status> {
        Err(Status::unimplemented("it is only described"))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        Err(Status::unimplemented("it is only described"))
    }

    async fn drop_prepared(
        &self,
        _: Request<DropPreparedRequest>,
    ) -> Result<Response<DropPreparedResponse>, Status> {
        Err(Status::unimplemented("it is only described"))
    }
}

#[test]
fn a_client_refuses_a_scheduler_of_another_protocol() {
    let runtime = Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = incoming.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(ClusterServer::new(Later));
        tokio::spawn(server.serve_with_incoming(incoming));
        address
    });
    let mut command = Command::new(binary("volley"));
    command.args(["--scheduler", &address, "-c", "SELECT 1"]);
    let said = fails(&mut command);
    let (own, theirs) = (Version::own(), later());
    let expected = format!(
        "cannot work with the scheduler at {address}: this volley is {own} and the scheduler is {theirs}: "
    );
    assert!(said.contains(&expected), "{said}");
}
