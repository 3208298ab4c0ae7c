//! Who is in the mesh, how its members prove that they are, and how patient they are.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use volley_proto::Secret;

use super::endpoint::Endpoint;
use super::error::{Error, Result};
use super::wire::GROUP_BYTES;

/// What a rendezvous agreed on, as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// What the ranks train together: a train id, at most 64 bytes.
    pub group: String,
    /// The numbered outcome of the rendezvous.
    pub generation: u64,
    /// This rank.
    pub rank: usize,
    /// How every rank may be reached, by rank, this one too.
    pub peers: Vec<Endpoint>,
    /// What the ranks of this generation know, and nobody else.
    pub secret: Secret,
}

impl Membership {
    /// How many ranks there are.
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

/// Patience and sizes. All ranks of a group must have the same `direct_below`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long to wait for all ranks to connect, and for a peer in [patient](super::Communicator::patiently) calls.
    pub connect_timeout: Duration,
    /// How long an operation may go without a byte moving before its peers count as stuck. It must
    /// outlast the slowest rank's step; a rank that dies is noticed at once, without it. As long as this,
    /// a peer's host may take to be reached at all.
    pub op_timeout: Duration,
    /// The most bytes one network send carries; at least 1 KiB is used.
    pub chunk: usize,
    /// An all-reduce of fewer bytes goes by direct exchange, or between pairs of many ranks; others around the ring, or through
    /// memory that ranks on one host share.
    pub direct_below: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            op_timeout: Duration::from_secs(120),
            chunk: 128 * 1024,
            // About where the two cross with 4 ranks on one host; more ranks cross a little earlier.
            direct_below: 64 * 1024,
        }
    }
}
