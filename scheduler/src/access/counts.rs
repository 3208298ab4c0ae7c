//! Numbers of logins and refusals since the scheduler started, for its metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Numbers of logins and refusals.
#[derive(Debug, Default)]
pub(crate) struct AccessCounts {
    /// Logins to the web page.
    pub(crate) logins: Count,
    pub(crate) refused_logins: Count,
    /// Requests without a valid token, or without the certificate that they need.
    pub(crate) unauthenticated: Count,
    /// Requests of principals whose role does not suffice.
    pub(crate) forbidden: Count,
    /// Requests of processes that speak another protocol.
    pub(crate) other_versions: Count,
}
