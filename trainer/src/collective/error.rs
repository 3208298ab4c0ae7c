//! What can go wrong between ranks, and for whom.
//!
//! An error names the peer this rank waited for. That is the culprit when the peer's own error is
//! not at hand; a failure travels, since a rank that fails closes its connections, so the rank
//! that nobody has an error from is the one that was lost.

use std::io;
use std::time::Duration;

use super::call::Call;

/// The result of a collective.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No socket could be bound for peers to dial.
    #[error("cannot listen for peers on {address}")]
    Bind {
        /// The address and ports that were asked for.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The membership contradicts itself.
    #[error(
        "invalid membership of {group:?} for rank {rank} in generation {generation}: {problem}"
    )]
    InvalidMembership {
        /// The group it names.
        group: String,
        /// The generation it names.
        generation: u64,
        /// The rank it gives.
        rank: usize,
        /// What contradicts what.
        problem: &'static str,
    },
    /// This rank's own sockets failed while the mesh was built.
    #[error("rank {rank}, generation {generation}: cannot connect to peers")]
    Connect {
        /// The rank that failed.
        rank: usize,
        /// Its generation.
        generation: u64,
        /// What failed.
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
        /// How long it waited.
        waited: Duration,
        /// The last failure to dial one of them, if there was one.
        source: Option<io::Error>,
    },
    /// A peer holds this rank for no member of its generation.
    #[error("rank {rank}, generation {generation}: refused by rank {peer}: {refusal}")]
    ConnectRefused {
        /// The rank that was refused.
        rank: usize,
        /// Its generation.
        generation: u64,
        /// The rank that was dialled.
        peer: usize,
        /// Why.
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
    #[error("{call}: nothing came from ranks {peers:?} for {waited:?}")]
    DeadlineExceeded {
        /// The call that was under way.
        call: Call,
        /// The ranks that were waited for, ascending.
        peers: Vec<usize>,
        /// How long nothing moved.
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
    /// A peer sent what is no message of this protocol.
    #[error("{call}: what rank {peer} sent is no message")]
    Garbled {
        /// The call that was under way.
        call: Call,
        /// The rank that sent it.
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
        /// The call that came too late.
        call: Call,
    },
    /// Waiting for this rank's own sockets failed.
    #[error("{call}: cannot wait for the peers' sockets")]
    Wait {
        /// The call that was under way.
        call: Call,
        /// What failed.
        source: io::Error,
    },
}

impl Error {
    /// Whether a peer is gone, stuck, or of another generation: the work itself may be sound, and
    /// a new rendezvous may go on with it.
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

    /// Whether the abort token ended it.
    pub fn is_abort(&self) -> bool {
        matches!(self, Error::Aborted { .. } | Error::ConnectAborted { .. })
    }
}

/// Why a connection was not taken into the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The two speak different versions of the protocol.
    #[error("it speaks another version of the protocol")]
    Version,
    /// The dialler trains something else.
    #[error("it belongs to another group")]
    Group,
    /// The dialler belongs to an earlier or a later generation.
    #[error("it is in another generation")]
    Generation,
    /// The dialler's rank, the rank it wants, or its world size is not as in the membership.
    #[error("the ranks or the world size do not fit its membership")]
    Rank,
    /// A connection with this rank exists already.
    #[error("it is connected with that rank already")]
    Duplicate,
}
