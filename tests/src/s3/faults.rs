//! Which requests fail, and how: drawn from a seed, so that a run can be repeated.
//!
//! What a request meets depends on the seed, its method and path, and on how many such requests came before it, not on
//! what else is under way: threads may interleave as they like.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Answered 503 `SlowDown`; the server does not see it.
    SlowDown,
    /// Answered 500 `InternalError`; the server does not see it.
    InternalError,
    /// The connection is reset; the server does not see the request.
    ResetBefore,
    /// The server has done what was asked for, and the connection is reset instead of an answer.
    ResetAfter,
    /// Half of the answer's body arrives; nothing at all where the answer has none.
    Truncate,
    /// It is passed on later.
    Delay,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SlowDown,
        Self::InternalError,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::Truncate,
        Self::Delay,
    ];
}

/// How often each fault is met.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// What faults are drawn from.
    pub seed: u64,
    /// The share of requests that meet each fault; together at most 1.
    pub shares: Vec<(Fault, f64)>,
    /// How much later delayed requests are passed on.
    pub delay: Duration,
}

impl FaultPlan {
    /// This share of requests fails, by every fault as often.
    pub fn even(seed: u64, share: f64) -> Self {
        let each = share / Fault::ALL.len() as f64;
        Self {
            seed,
            shares: Fault::ALL.map(|fault| (fault, each)).to_vec(),
            delay: Duration::from_millis(50),
        }
    }

    /// What the n-th request of this method and path meets, counted from 0.
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

/// A fault that is waiting for a request.
#[derive(Debug)]
pub(super) struct Planted {
    pub(super) method: String,
    pub(super) path_part: String,
    pub(super) fault: Fault,
}

/// What has passed and what has failed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) injected: BTreeMap<Fault, u64>,
    /// Requests by method and path.
    pub(super) by_target: BTreeMap<(String, String), u64>,
}
