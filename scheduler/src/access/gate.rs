//! The layer in front of all services: authentication, authorization by path, and the protocol that the caller speaks.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use tonic::Status;
use volley_proto::access::{Principal, Role, bearer};
use volley_proto::tls::Peer;
use volley_proto::version::{HEADER, Version};

use super::rules::{Need, needs};
use super::{Access, Outcome, RoleLimits, Unidentified, audit};

/// Refusal of requests without a token.
const WANTED: &str = "this scheduler wants a token: --token-file FILE or VOLLEY_TOKEN";
/// Refusal of executors without a token.
const WANTED_OF_EXECUTORS: &str =
    "this scheduler wants the token of its executors: --join-token FILE or VOLLEY_JOIN_TOKEN_FILE";

/// Refusal of executors without a certificate, where TLS is spoken.
const CERTIFICATE_WANTED: &str = "this is for processes of the cluster: give --tls-cert and --tls-key, a certificate of \
                                  the cluster's authority for servers and clients";

/// Function that is told why an executor was refused, without names.
pub(crate) type OnRefusal = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    /// Limits of the principal's role.
    pub(crate) limits: RoleLimits,
    pub(crate) peer: Option<SocketAddr>,
}

impl Caller {
    /// Returns the caller of a service.
    ///
    /// # Errors
    /// When the request has not passed [`admit`].
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        let caller = request.extensions().get::<Self>();
        caller
            .cloned()
            .ok_or_else(|| Status::internal("the request was not authenticated"))
    }

    /// Writes an act of the caller to the audit log.
    pub(crate) fn did(&self, action: &str, object: &str) {
        audit(
            Some(&self.principal),
            self.peer,
            (action, object),
            Outcome::Done,
        );
    }

    /// Writes a refusal to the audit log, and returns it as a status.
    pub(crate) fn refused(&self, action: &str, object: &str, reason: &str) -> Status {
        let outcome = Outcome::Refused(reason);
        audit(Some(&self.principal), self.peer, (action, object), outcome);
        Status::permission_denied(reason)
    }

    /// # Errors
    /// When the caller may not touch a job of this owner.
    pub(crate) fn may_touch(&self, action: &str, job: &str, owner: &str) -> Result<(), Status> {
        if self.principal.may_touch(owner) {
            return Ok(());
        }
        let Principal { name, role } = &self.principal;
        let reason = format!(
            "job {job} belongs to another user: it needs its owner, or the role {}, and {name} has the role {role}",
            Role::Administer
        );
        Err(self.refused(action, job, &reason))
    }

    /// Returns the owner whose jobs the caller may see; `None` for everybody's.
    pub(crate) fn sees(&self) -> Option<&str> {
        (self.principal.role != Role::Administer).then_some(self.principal.name.as_str())
    }
}

/// Refuses requests that are not authorized, and adds the caller to the others.
pub(crate) async fn admit(
    State((access, refuses)): State<(Arc<Access>, OnRefusal)>,
    mut request: Request,
    next: Next,
) -> Response {
    let connection = request.extensions().get::<Peer>().cloned();
    let peer = connection.as_ref().map(|connection| connection.address);
    if let Some(address) = peer {
        // Other code looks for the address where axum puts it.
        request.extensions_mut().insert(ConnectInfo(address));
    }
    let path = request.uri().path().to_owned();
    let is_grpc = is_grpc(request.headers());
    let need = needs(&path);
    if need == Need::Unknown {
        return nothing_there(is_grpc, &path);
    }
    let identified = access.identify(request.headers()).await;
    let principal = identified.as_ref().ok();
    if let Need::Role(needed) = need {
        let is_member = connection.is_none_or(|peer| !peer.encrypted || peer.member);
        if needed == Role::Executor && !is_member {
            let outcome = Outcome::Refused(CERTIFICATE_WANTED);
            audit(principal, peer, ("ask", &path), outcome);
            access.counts.unauthenticated.add(1);
            refuses("it has no certificate of the cluster");
            return answer(is_grpc, Status::unauthenticated(CERTIFICATE_WANTED));
        }
        let principal = match &identified {
            Ok(principal) => principal,
            Err(why) => {
                let wanted = match needed {
                    Role::Executor => WANTED_OF_EXECUTORS,
                    _ => WANTED,
                };
                let reason = match why {
                    Unidentified::NoToken => wanted.to_owned(),
                    Unidentified::Unknown => format!(
                        "the token is not valid for this scheduler; pass another with {}",
                        match needed {
                            Role::Executor => "--join-token FILE or VOLLEY_JOIN_TOKEN_FILE",
                            _ => "--token-file or VOLLEY_TOKEN",
                        }
                    ),
                    sent => format!("{wanted}; the one that was sent {sent}"),
                };
                audit(None, peer, ("ask", &path), Outcome::Refused(&reason));
                access.counts.unauthenticated.add(1);
                if needed == Role::Executor {
                    refuses(match why {
                        Unidentified::NoToken => "it has no token",
                        _ => "its token is unknown",
                    });
                }
                return answer(is_grpc, Status::unauthenticated(reason));
            }
        };
        if let Err(mut reason) = principal.needs(needed) {
            if needed == Role::Executor {
                let Principal { name, role } = principal;
                refuses("its token has another role");
                reason = format!(
                    "its token belongs to {name}, whose role is {role}; the role {needed} is required"
                );
            }
            let outcome = Outcome::Refused(&reason);
            audit(Some(principal), peer, ("ask", &path), outcome);
            access.counts.forbidden.add(1);
            return answer(is_grpc, Status::permission_denied(reason));
        }
        if is_grpc && let Some(reason) = misunderstood(request.headers(), needed) {
            let outcome = Outcome::Refused(&reason);
            audit(Some(principal), peer, ("ask", &path), outcome);
            access.counts.other_versions.add(1);
            return answer(is_grpc, Status::failed_precondition(reason));
        }
    } else if path == "/" && principal.is_none() {
        return Redirect::to("/login").into_response();
    }
    if let Ok(principal) = identified {
        let limits = access.limits(principal.role);
        let caller = Caller {
            principal,
            limits,
            peer,
        };
        request.extensions_mut().insert(caller);
    }
    let answer = next.run(request).await;
    // The services answer a path of none of them in gRPC: not implemented.
    let status = answer.headers().get("grpc-status");
    match !is_grpc && status.is_some_and(|status| status == "12") {
        true => nothing_there(false, &path),
        false => answer,
    }
}

/// Returns why the sender of a gRPC request does not speak this scheduler's protocol, if it does not.
fn misunderstood(headers: &HeaderMap, needed: Role) -> Option<String> {
    let sent = headers.get(HEADER).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(Version::of_header);
    let sender = match needed {
        Role::Executor => "the executor",
        _ => "the client",
    };
    Version::disagreement((sender, sent.as_ref()), ("the scheduler", &Version::own()))
}

fn nothing_there(is_grpc: bool, path: &str) -> Response {
    let reason = format!("nothing is at {path}");
    match is_grpc {
        true => Status::unimplemented(reason).into_http::<Body>(),
        false => (StatusCode::NOT_FOUND, reason + "\n").into_response(),
    }
}

impl Access {
    /// Returns the principal of a request, by its token or by its login cookie.
    async fn identify(&self, headers: &HeaderMap) -> Result<Principal, Unidentified> {
        if self.asks_nobody() {
            return Ok(Principal::anybody());
        }
        if let Some(token) = sent(headers) {
            return Ok(self.recognize(token).await?.1);
        }
        let login = self.logins.credential(headers);
        let principal = login.and_then(|credential| self.principal(&credential));
        principal.ok_or(match headers.contains_key(header::AUTHORIZATION) {
            true => Unidentified::Unknown,
            false => Unidentified::NoToken,
        })
    }
}

/// Returns the bearer token in the headers.
fn sent(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(header::AUTHORIZATION)?;
    bearer(header.to_str().ok()?)
}

/// Checks by its content type whether a request is gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn answer(is_grpc: bool, status: Status) -> Response {
    if is_grpc {
        return status.into_http::<Body>();
    }
    let text = format!("{}\n", status.message());
    match status.code() {
        tonic::Code::Unauthenticated => {
            let headers = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, text).into_response()
        }
        _ => (StatusCode::FORBIDDEN, text).into_response(),
    }
}
