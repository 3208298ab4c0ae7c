//! What a scheduler is told at start.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// What a scheduler is told at start.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// The address to listen on; port 0 picks a free one.
    pub bind: SocketAddr,
    /// The host name that executors and clients reach the scheduler by.
    pub advertise_host: String,
    /// An executor that has not been heard of for this long is lost.
    pub executor_timeout: Duration,
    /// A client that has not asked about its query for this long is gone.
    pub client_timeout: Duration,
    /// Rows of a finished job are kept for this long after the last sign of somebody who reads them.
    pub rows_timeout: Duration,
    /// Rows of a finished job are kept for this long for somebody who is there and reads nothing.
    pub reader_timeout: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            bind: (Ipv4Addr::LOCALHOST, 50050).into(),
            advertise_host: Ipv4Addr::LOCALHOST.to_string(),
            executor_timeout: Duration::from_secs(10),
            client_timeout: Duration::from_secs(30),
            rows_timeout: Duration::from_secs(5 * 60),
            reader_timeout: Duration::from_secs(60 * 60),
        }
    }
}
