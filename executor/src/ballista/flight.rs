//! The executor's Flight service: shuffle data for peers, results for clients.

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_executor::flight_service::BallistaFlightService;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

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
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned())
        .await
}
