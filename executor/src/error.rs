//! The crate's errors: failures of the executor to start or continue, and failures of ranks.

use std::path::PathBuf;
use std::time::Duration;

use ballista_core::error::BallistaError;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of an executor to start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The executor must not listen on this address.
    #[error("this executor cannot start")]
    Exposed(#[source] volley_proto::Error),
    /// No usable join token.
    #[error("cannot use the token to join with")]
    JoinToken(#[source] volley_proto::Error),
    /// The work folder cannot be used.
    #[error("cannot use the work folder {path}")]
    WorkDir {
        /// Path of the folder.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another executor has the work folder.
    #[error(
        "the work folder {path} is in use by another executor{process}: give each executor a --work-dir of its own"
    )]
    WorkDirInUse {
        /// Path of the folder.
        path: PathBuf,
        /// Process of the other executor in brackets, if it is known.
        process: String,
    },
    /// None of the ports can be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address, with the port range if one is configured.
        address: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The scheduler's address is not `host:port`.
    #[error("{address:?} is not a scheduler's address: expected HOST:PORT")]
    SchedulerAddress {
        /// The address as typed.
        address: String,
    },
    /// No process answers at the scheduler's address.
    #[error("no scheduler answers at {address} within {waited:?}: is it running?")]
    Connect {
        /// The scheduler's address.
        address: String,
        /// Time spent trying.
        waited: Duration,
        /// Error of the last attempt.
        #[source]
        source: tonic::transport::Error,
    },
    /// TLS with the scheduler failed.
    #[error("the scheduler at {address} cannot be joined: {reason}")]
    Tls {
        /// The scheduler's address.
        address: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The scheduler did not accept the executor.
    #[error("the scheduler at {address} does not accept executor {id}")]
    Register {
        /// The scheduler's address.
        address: String,
        /// The executor's id.
        id: String,
        /// The scheduler's answer.
        #[source]
        source: BallistaError,
    },
    /// The scheduler rejects the executor.
    #[error("the scheduler at {address} rejected executor {id}: {reason}")]
    Attend {
        /// The scheduler's address.
        address: String,
        /// The executor's id.
        id: String,
        /// The scheduler's answer.
        reason: String,
    },
    /// The scheduler does not answer.
    #[error("cannot reach the scheduler at {address}: {reason}")]
    Unreachable {
        /// The scheduler's address.
        address: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The scheduler was gone and did not come back in time.
    #[error(
        "executor {id} has lost its scheduler at {address}, and did not reach it again within {waited:?}"
    )]
    SchedulerLost {
        /// The executor's id.
        id: String,
        /// The scheduler's address.
        address: String,
        /// Time spent trying.
        waited: Duration,
        /// Error of the last attempt.
        #[source]
        source: Box<Error>,
    },
    /// The device cannot be used.
    #[error("device {device}")]
    Device {
        /// The requested device.
        device: String,
        /// Reason why the device cannot be used.
        #[source]
        source: Box<volley_trainer::Error>,
    },
}

/// Failure of a rank.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RankError {
    /// The rendezvous failed.
    #[error("rendezvous of training {train} failed: {message}")]
    Rendezvous { train: String, message: String },
    /// The scheduler sent a malformed membership.
    #[error("rendezvous of training {train} gave a malformed membership")]
    Membership {
        train: String,
        #[source]
        source: serde_json::Error,
    },
    /// The rank itself failed.
    #[error("rank {rank} of {world_size} on executor {executor} failed")]
    Rank {
        rank: usize,
        world_size: usize,
        executor: String,
        #[source]
        source: volley_trainer::Error,
    },
    /// A peer failed first.
    #[error("rank {rank} of {world_size} on executor {executor} failed: {message}")]
    Peer {
        rank: u64,
        world_size: usize,
        executor: String,
        message: String,
    },
    /// The rank could not start: no device, no such custom layer, or no socket to listen on.
    #[error("a rank cannot start on executor {executor}")]
    Start {
        executor: String,
        #[source]
        source: volley_trainer::Error,
    },
    /// An internal failure, such as a panicked thread.
    #[error("rank {rank} on executor {executor} failed internally: {message}")]
    Broken {
        rank: usize,
        executor: String,
        message: String,
    },
    /// The state or model that training was to start from cannot be loaded.
    #[error("model {model}: {reason}")]
    Origin { model: String, reason: String },
    /// The earlier rank of the same training does not end.
    #[error("an earlier rank of training {train} on executor {executor} does not end")]
    Occupied { train: String, executor: String },
    /// The job was cancelled.
    #[error("training {train} was cancelled")]
    Cancelled { train: String },
    /// The generation is over; the ranks meet again.
    #[error("training {train}: {reason}")]
    Regroup { train: String, reason: String },
}
