//! The configuration of a scheduler.

use std::time::Duration;

use url::Url;
use volley_proto::access::AllowedPaths;
use volley_proto::address::ListenAddress;
use volley_proto::tls::Tls;
use volley_proto::traces::OtlpEndpoint;

use crate::access::{JwtConfig, Limits, Tokens};
use crate::control::Queue;

/// Configuration of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Address to listen on, and the host that executors and clients dial.
    pub listen: ListenAddress,
    /// Executor heartbeat timeout.
    pub executor_timeout: Duration,
    /// Client keepalive timeout: a client that does not ask about its query for this long is gone.
    pub client_timeout: Duration,
    /// Time that the rows of a finished job are kept after a reader's last sign of life.
    pub rows_timeout: Duration,
    /// Time that the rows of a finished job are kept for a reader that is connected and reads nothing.
    pub reader_timeout: Duration,
    /// Queues that share the slots, in addition to `default` or redefining it.
    pub queues: Vec<Queue>,
    /// Time after which queries starved by the reservation of a waiting gang are promoted ahead of it.
    pub reservation_limit: Duration,
    /// URL of the record of jobs, from which a restarted scheduler knows them; without it, jobs are not recorded.
    pub record: Option<Url>,
    /// Tokens that callers are recognized by.
    pub tokens: Tokens,
    /// Verification of clients' JSON Web Tokens, if these are accepted.
    pub jwt: Option<JwtConfig>,
    /// Limits on the requests and jobs of each role.
    pub limits: Limits,
    /// Permission to listen where the scheduler otherwise must not: see
    /// [`may_listen`](volley_proto::access::may_listen).
    pub insecure: bool,
    /// Paths that plans may read and write.
    pub allowed_paths: AllowedPaths,
    /// TLS certificates and key; connections are in the clear without.
    pub tls: Option<Tls>,
    /// Collector that traces of jobs are sent to, if any is.
    pub otlp: Option<OtlpEndpoint>,
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
            record: None,
            tokens: Tokens::Local,
            jwt: None,
            limits: Limits::default(),
            insecure: false,
            allowed_paths: AllowedPaths::default(),
            tls: None,
            otlp: None,
        }
    }
}
