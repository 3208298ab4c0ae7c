//! The crate's errors: why an executor could not start or go on, and why a rank failed.

use std::path::PathBuf;
use std::time::Duration;

use ballista_core::error::BallistaError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an executor could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It must not listen there.
    #[error("this executor does not start")]
    Exposed(#[source] volley_proto::Error),
    /// No token to join with.
    #[error("cannot use the token to join with")]
    JoinToken(#[source] volley_proto::Error),
    /// The work folder cannot be used.
    #[error("cannot use the work folder {path}")]
    WorkDir {
        /// The folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// No port of the address can be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address, and the ports where these are given.
        address: String,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The scheduler's address is not `host:port`.
    #[error("{address:?} is not a scheduler's address: expected HOST:PORT")]
    SchedulerAddress {
        /// What was typed.
        address: String,
    },
    /// Nobody answers at the scheduler's address.
    #[error("no scheduler answers at {address} within {waited:?}: is it running?")]
    Connect {
        /// The address.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's error.
        #[source]
        source: tonic::transport::Error,
    },
    /// The two could not agree on TLS.
    #[error("the scheduler at {address} cannot be joined: {reason}")]
    Tls {
        /// The address.
        address: String,
        /// Why not.
        reason: String,
    },
    /// The scheduler did not accept the executor.
    #[error("the scheduler at {address} does not accept executor {id}")]
    Register {
        /// The scheduler's address.
        address: String,
        /// The executor's id.
        id: String,
        /// Its answer.
        #[source]
        source: BallistaError,
    },
    /// The scheduler does not let the executor attend.
    #[error("the scheduler at {address} does not let executor {id} in: {reason}")]
    Attend {
        /// The scheduler's address.
        address: String,
        /// The executor's id.
        id: String,
        /// Its answer.
        reason: String,
    },
    /// The scheduler was gone and did not come back.
    #[error("executor {id} has lost its scheduler at {address}: it was tried for {waited:?}")]
    SchedulerLost {
        /// The executor's id.
        id: String,
        /// The scheduler's address.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's error.
        #[source]
        source: Box<Error>,
    },
    /// The device cannot be used.
    #[error("device {device}")]
    Device {
        /// The device asked for.
        device: String,
        /// Why not.
        #[source]
        source: Box<volley_trainer::Error>,
    },
}

/// Why a rank failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RankError {
    /// The rendezvous failed.
    #[error("rendezvous of training {train} failed: {message}")]
    Rendezvous { train: String, message: String },
    /// The scheduler gave something that is no membership.
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
    /// Something that should not happen did.
    #[error("rank {rank} on executor {executor} broke: {message}")]
    Broken {
        rank: usize,
        executor: String,
        message: String,
    },
    /// What the training was to start from cannot be had.
    #[error("model {model}: {reason}")]
    Origin { model: String, reason: String },
    /// The earlier rank of the same training does not leave.
    #[error("an earlier rank of training {train} on executor {executor} does not end")]
    Occupied { train: String, executor: String },
    /// The job was cancelled.
    #[error("training {train} was cancelled")]
    Cancelled { train: String },
    /// The generation is over: the ranks meet again.
    #[error("training {train}: {reason}")]
    Regroup { train: String, reason: String },
}
