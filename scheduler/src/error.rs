//! The crate's error: reasons why a scheduler could not start or serve.

use std::net::SocketAddr;
use std::path::PathBuf;

use ballista_core::error::BallistaError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a scheduler could not start or serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The port is taken, or the address is not this host's.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address and port asked for.
        address: String,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The access rules forbid listening on the address.
    #[error("this scheduler cannot start")]
    Exposed(#[source] volley_proto::Error),
    /// Local tokens beyond loopback, where the scheduler cannot tell whom it makes them for.
    #[error(
        "tokens are made for the same user on loopback only: give --tokens FILE, with lines that `volley cluster token` \
         prints, or give --insecure if everyone who can reach the scheduler may do everything"
    )]
    NoTokens,
    /// The file of tokens cannot be used.
    #[error("cannot use the tokens in {}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// The defect, and its line.
        #[source]
        source: std::io::Error,
    },
    /// The key set cannot be used.
    #[error("cannot use the key set {location}")]
    KeySet {
        /// The key set's file or URL.
        location: String,
        /// The defect of the key set.
        #[source]
        source: std::io::Error,
    },
    /// JSON Web Tokens identify clients only, so executors would have no token to show.
    #[error(
        "--jwks lets in clients, and executors need tokens of their own: give --tokens FILE in place of --insecure alone"
    )]
    JwtWithoutTokens,
    /// The scheduler has no place for its own tokens.
    #[error(
        "cannot keep tokens for this user's clients: set VOLLEY_STATE_DIR, or give --tokens FILE"
    )]
    LocalTokens(#[source] std::io::Error),
    /// The queues are invalid.
    #[error("cannot share slots between these queues")]
    Queues(#[source] volley_proto::Error),
    /// The record of jobs cannot be used.
    #[error("cannot use the record of jobs, {url}")]
    Record {
        /// The record's URL.
        url: String,
        /// Reason.
        #[source]
        source: Box<volley_proto::Error>,
    },
    /// Another scheduler has taken over the record of jobs.
    #[error("another scheduler has taken over the record of jobs, {url}: this one ends")]
    Superseded {
        /// The record's URL.
        url: String,
    },
    /// Ballista's scheduler did not start.
    #[error("cannot start the scheduler")]
    Start(#[source] BallistaError),
    /// Serving ended early.
    #[error("the scheduler's server on {address} ended")]
    Serve {
        /// The address served.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
