//! What a scheduler is told at start.

use std::time::Duration;

use volley_proto::access::AllowedPaths;
use volley_proto::address::ListenAddress;
use volley_proto::tls::Tls;

use crate::access::{JwtConfig, Limits, Tokens};
use crate::control::Queue;

/// What a scheduler is told at start.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Where to listen, and the host that executors and clients dial.
    pub listen: ListenAddress,
    /// An executor that has not been heard of for this long is lost.
    pub executor_timeout: Duration,
    /// A client that has not asked about its query for this long is gone.
    pub client_timeout: Duration,
    /// Rows of a finished job are kept for this long after the last sign of somebody who reads them.
    pub rows_timeout: Duration,
    /// Rows of a finished job are kept for this long for somebody who is there and reads nothing.
    pub reader_timeout: Duration,
    /// The queues between which slots are shared, besides `default`, or in its place.
    pub queues: Vec<Queue>,
    /// Queries are promoted ahead of a waiting gang once its reservation has starved them for this long.
    pub reservation_limit: Duration,
    /// Whose requests it answers.
    pub tokens: Tokens,
    /// What JSON Web Tokens of clients are verified with, where they are taken.
    pub jwt: Option<JwtConfig>,
    /// What requests and jobs of a role may take.
    pub limits: Limits,
    /// Whether it listens where it must not without this: see [`may_listen`](volley_proto::access::may_listen).
    pub insecure: bool,
    /// Where plans may read and write.
    pub allowed_paths: AllowedPaths,
    /// What is spoken TLS with; in the clear without.
    pub tls: Option<Tls>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            listen: ListenAddress::loopback(),
            executor_timeout: Duration::from_secs(10),
            client_timeout: Duration::from_secs(30),
            rows_timeout: Duration::from_secs(5 * 60),
            reader_timeout: Duration::from_secs(60 * 60),
            queues: Vec::new(),
            reservation_limit: Duration::from_secs(60),
            tokens: Tokens::Local,
            jwt: None,
            limits: Limits::default(),
            insecure: false,
            allowed_paths: AllowedPaths::default(),
            tls: None,
        }
    }
}
