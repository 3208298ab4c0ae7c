//! The members of a mesh, their shared secret, and their timeouts and sizes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use volley_proto::Secret;

use super::endpoint::Endpoint;
use super::error::{Error, Result};
use super::wire::GROUP_BYTES;

/// The outcome of a rendezvous, as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Id of the training run, at most 64 bytes.
    pub group: String,
    /// The numbered outcome of the rendezvous.
    pub generation: u64,
    /// This rank.
    pub rank: usize,
    /// Endpoints of all ranks, by rank, this one's included.
    pub peers: Vec<Endpoint>,
    /// Secret that only the ranks of this generation know.
    pub secret: Secret,
}

impl Membership {
    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn validate(&self) -> Result<()> {
        let problem = if self.rank >= self.peers.len() {
            "the rank is not below the number of peers"
        } else if u32::try_from(self.peers.len()).is_err() {
            "there are more peers than a rank can number"
        } else if self.group.len() > GROUP_BYTES {
            "the group's id is longer than 64 bytes"
        } else {
            return Ok(());
        };
        Err(Error::InvalidMembership {
            group: self.group.clone(),
            generation: self.generation,
            rank: self.rank,
            problem,
        })
    }
}

/// Timeouts and sizes. All ranks of a group must have the same `direct_below`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time limit for all ranks to connect; timeout of [patient](super::Communicator::patiently) calls.
    pub connect_timeout: Duration,
    /// Time without a byte moving after which an operation counts its peers as stuck. It must outlast the
    /// slowest rank's step; a rank that dies is noticed at once. It also limits the time that dialling takes
    /// to reach a peer's host.
    pub op_timeout: Duration,
    /// Maximum bytes per network send; values below 1 KiB are raised to it.
    pub chunk: usize,
    /// Bytes from which an all-reduce goes around the ring, or through the memory that ranks on one host
    /// share. A smaller one uses direct exchange, or recursive doubling among many ranks.
    pub direct_below: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            op_timeout: Duration::from_secs(120),
            chunk: 128 * 1024,
            // About the break-even point with 4 ranks on one host; it is a little lower with more ranks.
            direct_below: 64 * 1024,
        }
    }
}
