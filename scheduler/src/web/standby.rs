//! Answers of a standby: it is alive, and another scheduler leads.
//!
//! It speaks HTTP/1 alone, and closes each connection. So a gRPC client, which speaks HTTP/2, is told at once to dial
//! another address.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::timeout;
use volley_proto::connections::Listener;

/// Time limit for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers requests until it is dropped; `leader` returns the address of the scheduler that leads.
pub(crate) async fn stand_by<F>(mut listener: Listener, leader: F) -> Infallible
where
    F: Fn() -> String + Clone + Send + Sync + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let connection = listener.accept().await;
        while connections.try_join_next().is_some() {}
        let leader = leader.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&request, &leader());
                ready(Ok::<_, Infallible>(answer))
            });
            let answered = http1::Builder::new()
                .keep_alive(false)
                .serve_connection(TokioIo::new(connection), service);
            // Whoever speaks HTTP/2 is not answered.
            timeout(PATIENCE, answered).await.ok();
        });
    }
}

fn answer(request: &Request<Incoming>, leader: &str) -> Response<String> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/livez") => (StatusCode::OK, "ok\n".to_owned()),
        _ => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("this scheduler stands by: {leader} leads\n"),
        ),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response
}
