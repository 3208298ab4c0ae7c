//! The crate's error: why a scheduler could not start or serve.

use std::net::SocketAddr;
use std::path::PathBuf;

use ballista_core::error::BallistaError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a scheduler could not start or serve.
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
    /// It must not listen there.
    #[error("this scheduler does not start")]
    Exposed(#[source] volley_proto::Error),
    /// Beyond loopback, nobody would know whom it makes tokens for.
    #[error(
        "tokens are made for the same user on loopback only: give --tokens FILE, with lines that `volley cluster token` \
         prints, or say --insecure where whoever reaches the scheduler may do everything"
    )]
    NoTokens,
    /// A file of tokens that cannot be used.
    #[error("cannot use the tokens in {}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and in which line.
        #[source]
        source: std::io::Error,
    },
    /// A key set that cannot be used.
    #[error("cannot use the key set {location}")]
    KeySet {
        /// Its file or URL.
        location: String,
        /// What is wrong with it.
        #[source]
        source: std::io::Error,
    },
    /// JSON Web Tokens are for clients, and executors would have nothing to show.
    #[error(
        "--jwks lets in clients, and executors need tokens of their own: give --tokens FILE in place of --insecure alone"
    )]
    JwtWithoutTokens,
    /// Tokens of its own have no place.
    #[error(
        "cannot keep tokens for this user's clients: set VOLLEY_STATE_DIR, or give --tokens FILE"
    )]
    LocalTokens(#[source] std::io::Error),
    /// Queues that cannot be.
    #[error("cannot share slots between these queues")]
    Queues(#[source] volley_proto::Error),
    /// Ballista's scheduler did not start.
    #[error("cannot start the scheduler")]
    Start(#[source] BallistaError),
    /// Serving ended early.
    #[error("the scheduler's server on {address} ended")]
    Serve {
        /// The address served.
        address: SocketAddr,
        /// What ended it.
        #[source]
        source: std::io::Error,
    },
}
