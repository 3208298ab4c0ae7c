//! The scheduler's port, over TLS or in the clear, and what of it is for processes of the cluster.
//!
//! Anybody who reaches the port connects. Where TLS is spoken, what executors ask takes the certificate of a process of
//! the cluster; clients and browsers need none.

use std::error::Error;
use std::net::SocketAddr;

use axum::Extension;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tonic::Status;
use tonic::transport::Endpoint;
use volley_proto::limits::LAUNCH_LIMIT;
use volley_proto::tls::{Peer, Tls, url};

/// What only executors ask: whole services, and some requests of Ballista's.
const FOR_MEMBERS: [&str; 7] = [
    "/volley.v1.Attendance/",
    "/volley.v1.Rendezvous/",
    "/ballista.protobuf.SchedulerGrpc/PollWork",
    "/ballista.protobuf.SchedulerGrpc/RegisterExecutor",
    "/ballista.protobuf.SchedulerGrpc/HeartBeatFromExecutor",
    "/ballista.protobuf.SchedulerGrpc/UpdateTaskStatus",
    "/ballista.protobuf.SchedulerGrpc/ExecutorStopped",
];

/// Refuses what is for processes of the cluster to those that have not shown that they are one, where TLS is spoken.
/// Ballista finds the caller's address as it looks for it.
pub(crate) async fn check_caller(
    State(tls): State<bool>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if tls && !peer.member && FOR_MEMBERS.iter().any(|prefix| path.starts_with(prefix)) {
        let reason = "this is for processes of the cluster: give --tls-cert and --tls-key, a certificate of the \
                      cluster's authority for servers and clients";
        return Status::unauthenticated(reason).into_http();
    }
    let address: SocketAddr = peer.address;
    request.extensions_mut().insert(ConnectInfo(address));
    next.run(request).await
}

/// Has one of Ballista's clients of executors speak TLS. It makes them for a URL in the clear; what else it sets is set
/// again.
pub(crate) fn over_tls(
    endpoint: Endpoint,
    tls: &Tls,
) -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
    let authority = endpoint
        .uri()
        .authority()
        .ok_or("an address without a host")?;
    let settings = GrpcClientConfig {
        max_message_size: LAUNCH_LIMIT as usize,
        ..GrpcClientConfig::default()
    };
    let secure = url(authority.as_str(), true);
    let endpoint = create_grpc_client_endpoint(secure, Some(&settings))?;
    Ok(tls.endpoint(endpoint)?)
}
