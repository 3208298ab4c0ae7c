//! The audit log: a line for each login, submission, refusal, cancellation and administrative act.
//!
//! Its lines go to the log under the target `volley::audit`, as `key=value`, and hold no token.

use std::fmt;
use std::net::SocketAddr;

use volley_proto::access::Principal;

/// Outcome of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Done,
    Refused(&'a str),
}

/// Logs an act of a principal, or its refusal.
pub(crate) fn audit(
    who: Option<&Principal>,
    peer: Option<SocketAddr>,
    (action, object): (&str, &str),
    outcome: Outcome<'_>,
) {
    let role = who.map(|who| who.role.to_string());
    let (role, who) = (
        role.as_deref().unwrap_or("-"),
        who.map_or("-", |who| who.name.as_str()),
    );
    let peer = Peer(peer);
    match outcome {
        Outcome::Done => {
            tracing::info!(target: "volley::audit", who, role, %peer, action, object, outcome = "done");
        }
        Outcome::Refused(reason) => {
            tracing::warn!(target: "volley::audit", who, role, %peer, action, object, outcome = "refused", reason);
        }
    }
}

/// Address of a peer, shown as `-` if there is none.
struct Peer(Option<SocketAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("-"),
        }
    }
}
