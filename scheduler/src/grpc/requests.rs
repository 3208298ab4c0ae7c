//! Requests over gRPC, before anything decodes them: whole within a deadline, not too large, and not nested too deeply.
//!
//! Every request of the scheduler's services is one message. A decoder calls itself for each level of a message, so one
//! that nests too deeply would end the process and every job with it.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use tokio::time::timeout;
use tonic::Status;
use volley_proto::limits::{MESSAGE_LIMIT, size};
use volley_proto::nesting;

/// How long a request's message may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(60);
/// What comes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Messages that are looked at where others wait; larger ones are looked at elsewhere.
const SMALL: usize = 256 * 1024;

/// Refuses requests over gRPC that are not to be decoded.
pub(crate) async fn check_message(request: Request, next: Next) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(is_grpc) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    match arrived(body, ARRIVAL).await {
        Ok(message) => {
            next.run(Request::from_parts(parts, Body::from(message)))
                .await
        }
        Err(status) => {
            tracing::warn!(
                path = parts.uri.path(),
                error = status.message(),
                "refused a request"
            );
            status.into_http()
        }
    }
}

fn is_grpc(kind: &HeaderValue) -> bool {
    kind.as_bytes().starts_with(b"application/grpc")
}

/// The message with what comes before it.
async fn arrived(body: Body, within: Duration) -> Result<Bytes, Status> {
    let message = timeout(within, to_bytes(body, MESSAGE_LIMIT + PREFIX)).await;
    let message = message.map_err(|_| {
        Status::deadline_exceeded(format!("the request did not arrive within {within:?}"))
    })?;
    let message = message.map_err(|error| {
        // A body that breaks off ends so too; nobody hears the answer then.
        Status::out_of_range(format!(
            "the request did not arrive whole, or is larger than {}: {error}",
            size(MESSAGE_LIMIT)
        ))
    })?;
    let checked = match message.len() <= SMALL {
        true => check(&message),
        false => {
            let message = message.clone();
            let checked = tokio::task::spawn_blocking(move || check(&message)).await;
            checked.map_err(|error| Status::internal(error.to_string()))?
        }
    };
    checked.map_err(Status::invalid_argument)?;
    Ok(message)
}

fn check(message: &[u8]) -> Result<(), String> {
    nesting::check(message.get(PREFIX..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn what_nests_too_deeply_does_not_pass() {
        let framed = |message: &[u8]| {
            let mut body = vec![0; PREFIX];
            body[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
            body.extend(message);
            body
        };
        let plain = framed(&[0x08, 1]);
        assert_eq!(arrived(plain.clone().into(), ARRIVAL).await.unwrap(), plain);
        for bytes in [100_000, 2_000_000] {
            let refused = arrived(framed(&vec![0x0b; bytes]).into(), ARRIVAL).await;
            assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        }
        let refused = arrived(vec![0; MESSAGE_LIMIT + PREFIX + 1].into(), ARRIVAL).await;
        assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    }

    #[tokio::test]
    async fn a_message_that_does_not_arrive_is_not_waited_for() {
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let refused = arrived(Body::from_stream(never), Duration::from_millis(20)).await;
        assert_eq!(refused.unwrap_err().code(), Code::DeadlineExceeded);
    }
}
