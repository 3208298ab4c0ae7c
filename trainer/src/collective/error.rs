//! Errors between ranks, each with the rank it happened to.
//!
//! An error names the peer that this rank waited for. If that peer reports no error of its own, it is the
//! culprit. Failures propagate, because a rank that fails closes its connections; so the rank without an
//! error is the one that was lost.

use std::io;
use std::time::Duration;

use super::call::Call;

/// The result of a collective.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error between ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No socket could be bound for peers to dial.
    #[error("cannot listen for peers on {address}")]
    Bind {
        /// The requested address and ports.
        address: String,
        /// The bind error.
        source: io::Error,
    },
    /// The membership contradicts itself.
    #[error(
        "invalid membership of {group:?} for rank {rank} in generation {generation}: {problem}"
    )]
    InvalidMembership {
        /// The membership's group.
        group: String,
        /// The membership's generation.
        generation: u64,
        /// The membership's rank.
        rank: usize,
        /// The contradiction.
        problem: &'static str,
    },
    /// This rank's own sockets failed while the mesh was built.
    #[error("rank {rank}, generation {generation}: cannot connect to peers")]
    Connect {
        /// The rank that failed.
        rank: usize,
        /// Its generation.
        generation: u64,
        /// The socket error.
        source: io::Error,
    },
    /// Some ranks did not come in time.
    #[error(
        "rank {rank}, generation {generation}: no connection with ranks {missing:?} within {waited:?}"
    )]
    ConnectDeadline {
        /// The rank that waited.
        rank: usize,
        /// Its generation.
        generation: u64,
        /// The ranks it waited for, ascending.
        missing: Vec<usize>,
        /// Time waited.
        waited: Duration,
        /// The last failure to dial one of them, if there was one.
        source: Option<io::Error>,
    },
    /// A peer does not accept this rank as a member of its generation.
    #[error("rank {rank}, generation {generation}: refused by rank {peer}: {refusal}")]
    ConnectRefused {
        /// The rank that was refused.
        rank: usize,
        /// Its generation.
        generation: u64,
        /// The rank that was dialled.
        peer: usize,
        /// The reason.
        refusal: Refusal,
    },
    /// The abort token was cancelled while the mesh was built.
    #[error("rank {rank}, generation {generation}: connecting was aborted")]
    ConnectAborted {
        /// The rank that was aborted.
        rank: usize,
        /// Its generation.
        generation: u64,
    },
    /// A peer's connection ended before the operation did.
    #[error("{call}: rank {peer} closed the connection")]
    PeerClosed {
        /// The call that was under way.
        call: Call,
        /// The rank at the other end.
        peer: usize,
        /// The socket's error; none after an orderly end.
        source: Option<io::Error>,
    },
    /// No byte moved for too long.
    #[error("{call}: received nothing from ranks {peers:?} for {waited:?}")]
    DeadlineExceeded {
        /// The call that was under way.
        call: Call,
        /// The ranks waited for, ascending.
        peers: Vec<usize>,
        /// Time for which no byte moved.
        waited: Duration,
    },
    /// Two ranks called different operations, or with different lengths.
    #[error("{call}: does not match the peer's call ({theirs})")]
    Mismatch {
        /// The call of this rank.
        call: Call,
        /// The call of the peer.
        theirs: Call,
    },
    /// A peer sent bytes that are not a message of this protocol.
    #[error("{call}: malformed message from rank {peer}")]
    Garbled {
        /// The call that was under way.
        call: Call,
        /// The rank that sent them.
        peer: usize,
    },
    /// The abort token was cancelled.
    #[error("{call}: aborted")]
    Aborted {
        /// The call that was under way.
        call: Call,
    },
    /// An earlier call failed and closed the connections.
    #[error("{call}: the communicator is closed by an earlier failure")]
    Broken {
        /// The call that was made too late.
        call: Call,
    },
    /// Waiting for this rank's own sockets failed.
    #[error("{call}: cannot wait for the peers' sockets")]
    Wait {
        /// The call that was under way.
        call: Call,
        /// The socket error.
        source: io::Error,
    },
}

impl Error {
    /// Returns true if a peer is gone, stuck, or of another generation: the work itself may be sound, and a
    /// new rendezvous may continue it.
    pub fn is_peer_loss(&self) -> bool {
        match self {
            Error::ConnectDeadline { .. }
            | Error::ConnectRefused { .. }
            | Error::PeerClosed { .. }
            | Error::DeadlineExceeded { .. } => true,
            Error::Bind { .. }
            | Error::InvalidMembership { .. }
            | Error::Connect { .. }
            | Error::ConnectAborted { .. }
            | Error::Mismatch { .. }
            | Error::Garbled { .. }
            | Error::Aborted { .. }
            | Error::Broken { .. }
            | Error::Wait { .. } => false,
        }
    }

    /// Returns true if the abort token caused the error.
    pub fn is_abort(&self) -> bool {
        matches!(self, Error::Aborted { .. } | Error::ConnectAborted { .. })
    }
}

/// Reason why a connection was not accepted into the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The two speak different versions of the protocol.
    #[error("it speaks another version of the protocol")]
    Version,
    /// The dialler belongs to another group.
    #[error("it belongs to another group")]
    Group,
    /// The dialler belongs to an earlier or a later generation.
    #[error("it is in another generation")]
    Generation,
    /// The dialler's rank, the rank it dials, or its world size differs from the membership.
    #[error("the ranks or the world size do not fit its membership")]
    Rank,
    /// A connection with this rank exists already.
    #[error("it is connected with that rank already")]
    Duplicate,
}
