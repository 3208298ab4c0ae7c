//! Checks of gRPC requests before anything decodes them: whole within a deadline, not too large, not nested too deeply.
//!
//! Every request of the scheduler's services is one message. A decoder recurses for each level of a message, so one
//! that nests too deeply would end the process and every job with it. A role can have a lower size limit than the
//! general one.

use std::fmt;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::LengthLimitError;
use tokio::time::timeout;
use tonic::{Code, Status};
use volley_proto::access::Role;
use volley_proto::limits::{MESSAGE_LIMIT, size};
use volley_proto::nesting;

use crate::access::{Caller, is_grpc};

/// Time within which a request's message must arrive.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Length of the prefix of a message: a compression flag, and the message's length.
const PREFIX: usize = 5;
/// Largest message that is checked in place; larger ones are checked on a blocking thread.
const SMALL: usize = 256 * 1024;

/// Refuses gRPC requests that must not be decoded.
pub(crate) async fn check_message(request: Request, next: Next) -> Response {
    if !is_grpc(request.headers()) {
        return next.run(request).await;
    }
    let most = LargestMessage::of(request.extensions().get::<Caller>());
    let (parts, body) = request.into_parts();
    match arrived(body, ARRIVAL, most).await {
        Ok(message) => {
            next.run(Request::from_parts(parts, Body::from(message)))
                .await
        }
        Err(status) => {
            let (path, error) = (parts.uri.path(), status.message());
            match status.code() {
                // The client has ended, or no longer waits.
                Code::Cancelled => tracing::debug!(path, error, "a request broke off"),
                _ => tracing::warn!(path, error, "refused a request"),
            }
            status.into_http()
        }
    }
}

/// Size limit of a message.
#[derive(Debug, Clone, Copy)]
struct LargestMessage {
    bytes: usize,
    /// Role that sets the limit, if it is lower than the general one.
    role: Option<Role>,
}

impl LargestMessage {
    const OF_ALL: Self = Self {
        bytes: MESSAGE_LIMIT,
        role: None,
    };

    fn of(caller: Option<&Caller>) -> Self {
        let of_role = caller.and_then(|caller| {
            Some(Self {
                bytes: caller.limits.message_bytes?,
                role: Some(caller.principal.role),
            })
        });
        of_role.unwrap_or(Self::OF_ALL)
    }
}

impl fmt::Display for LargestMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Some(role) => write!(
                f,
                "{} bytes, the limit message_bytes of the role {role}",
                self.bytes
            ),
            None => f.write_str(&size(self.bytes)),
        }
    }
}

/// Reads the message with its prefix, and checks it.
async fn arrived(body: Body, within: Duration, most: LargestMessage) -> Result<Bytes, Status> {
    let message = timeout(within, to_bytes(body, most.bytes + PREFIX)).await;
    let message = message.map_err(|_| {
        Status::deadline_exceeded(format!("the request did not arrive within {within:?}"))
    })?;
    let message = message.map_err(|error| match is_too_large(&error) {
        true => Status::out_of_range(format!("the request is larger than {most}")),
        false => Status::cancelled(format!("the request did not arrive whole: {error}")),
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

fn is_too_large(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(|source| source.is::<LengthLimitError>())
}

fn check(message: &[u8]) -> Result<(), String> {
    nesting::check(message.get(PREFIX..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use volley_proto::access::Principal;

    use super::*;
    use crate::access::RoleLimits;

    const OF_ALL: LargestMessage = LargestMessage::OF_ALL;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut body = vec![0; PREFIX];
        body[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend(message);
        body
    }

    #[tokio::test]
    async fn what_nests_too_deeply_does_not_pass() {
        let plain = framed(&[0x08, 1]);
        let passed = arrived(plain.clone().into(), ARRIVAL, OF_ALL).await;
        assert_eq!(passed.unwrap(), plain);
        for bytes in [100_000, 2_000_000] {
            let refused = arrived(framed(&vec![0x0b; bytes]).into(), ARRIVAL, OF_ALL).await;
            assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        }
        let large = vec![0; MESSAGE_LIMIT + PREFIX + 1];
        let refused = arrived(large.into(), ARRIVAL, OF_ALL).await;
        assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    }

    #[tokio::test]
    async fn a_message_that_breaks_off_is_told_from_one_that_is_too_large() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let broken = futures::stream::iter([Ok(Bytes::from_static(&[0; 3])), Err(reset)]);
        let refused = arrived(Body::from_stream(broken), ARRIVAL, OF_ALL).await;
        assert_eq!(refused.unwrap_err().code(), Code::Cancelled);
    }

    #[tokio::test]
    async fn a_message_that_does_not_arrive_is_not_waited_for() {
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let within = Duration::from_millis(20);
        let refused = arrived(Body::from_stream(never), within, OF_ALL).await;
        assert_eq!(refused.unwrap_err().code(), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_role_s_messages_are_bounded_by_its_limit() {
        let caller = |message_bytes| Caller {
            principal: Principal {
                name: "rita".to_owned(),
                role: Role::Read,
            },
            limits: RoleLimits {
                message_bytes,
                ..RoleLimits::default()
            },
            peer: None,
        };
        // A field of bytes.
        let message = |bytes: u8| {
            let mut message = vec![0x0a, bytes];
            message.resize(2 + usize::from(bytes), 0);
            framed(&message)
        };
        let small = LargestMessage::of(Some(&caller(Some(64))));
        assert!(arrived(message(62).into(), ARRIVAL, small).await.is_ok());
        let refused = arrived(message(63).into(), ARRIVAL, small).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange);
        let said = "64 bytes, the limit message_bytes of the role read";
        assert!(refused.message().contains(said), "{refused}");
        for other in [None, Some(&caller(None))] {
            let most = LargestMessage::of(other);
            assert!(arrived(message(63).into(), ARRIVAL, most).await.is_ok());
        }
    }
}
