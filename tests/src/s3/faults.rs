//! The faults of requests, drawn from a seed so that a run can be repeated.
//!
//! The fault of a request depends on the seed, on its method and path, and on the number of such requests before it,
//! not on other requests under way: threads may interleave freely.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Answered 503 `SlowDown`; the server does not see it.
    SlowDown,
    /// Answered 500 `InternalError`; the server does not see it.
    InternalError,
    /// The connection is reset; the server does not see the request.
    ResetBefore,
    /// The server carries out the request, and the connection is reset instead of an answer.
    ResetAfter,
    /// Half of the answer's body arrives; nothing at all if the answer has no body.
    Truncate,
    /// The request is passed on later.
    Delay,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::SlowDown,
        Self::InternalError,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::Truncate,
        Self::Delay,
    ];
}

/// Frequencies of the faults.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// Seed that faults are drawn from.
    pub seed: u64,
    /// Shares of requests that meet each fault; together at most 1.
    pub shares: Vec<(Fault, f64)>,
    /// Delay of delayed requests.
    pub delay: Duration,
}

impl FaultPlan {
    /// Creates a plan in which this share of requests fails, evenly by every fault.
    pub fn even(seed: u64, share: f64) -> Self {
        let each = share / Fault::ALL.len() as f64;
        Self {
            seed,
            shares: Fault::ALL.map(|fault| (fault, each)).to_vec(),
            delay: Duration::from_millis(50),
        }
    }

    /// Draws the fault of the n-th request with this method and path, counted from 0.
    pub(super) fn draw(&self, method: &str, path: &str, n: u64) -> Option<Fault> {
        let mut hasher = DefaultHasher::new();
        (self.seed, method, path, n).hash(&mut hasher);
        let drawn = ChaCha8Rng::seed_from_u64(hasher.finish()).next_u32();
        let mut left = f64::from(drawn) / (f64::from(u32::MAX) + 1.0);
        for (fault, share) in &self.shares {
            if left < *share {
                return Some(*fault);
            }
            left -= share;
        }
        None
    }
}

/// Fault that waits for a request.
#[derive(Debug)]
pub(super) struct Planted {
    pub(super) method: String,
    pub(super) path_part: String,
    pub(super) fault: Fault,
}

/// Numbers of requests and of injected faults.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) injected: BTreeMap<Fault, u64>,
    /// Number of requests by method and path.
    pub(super) by_target: BTreeMap<(String, String), u64>,
}
