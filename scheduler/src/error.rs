//! The crate's error: why a scheduler could not start or serve.

use std::net::SocketAddr;

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
