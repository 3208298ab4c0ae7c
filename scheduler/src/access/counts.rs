//! Numbers of logins and refusals since the scheduler started, for its metrics.

use volley_proto::metrics::Count;

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
