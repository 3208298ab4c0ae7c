//! The executor's Flight service: shuffle data for peers, results for clients.

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_executor::flight_service::BallistaFlightService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;

/// The largest message it sends or takes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Serves the shuffle files under a work folder until told to stop.
pub(super) async fn serve(
    listener: TcpListener,
    work_dir: String,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = FlightServiceServer::new(BallistaFlightService::new(work_dir))
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    // The builder's own setting is for listeners of its own.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
}
