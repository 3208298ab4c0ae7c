//! What an executor is told at start.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use volley_proto::access::{AllowedPaths, Credential};
use volley_proto::address::ListenAddress;
use volley_proto::spec::Device;
use volley_proto::tls::Tls;
use volley_trainer::custom::CustomLayers;

use crate::memory::rank_memory;

/// What an executor is told at start.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// The executor's id: unique in the cluster, the same as long as it lives.
    pub id: String,
    /// The scheduler, as `host:port`.
    pub scheduler: String,
    /// How long to try to reach the scheduler at start.
    pub connect_timeout: Duration,
    /// Without a sign of life for this long, the scheduler is gone.
    pub scheduler_timeout: Duration,
    /// How long to try to reach a scheduler that is gone.
    pub reconnect_timeout: Duration,
    /// What the executor is there for.
    pub role: ExecutorRole,
    /// Where its services and ranks listen, each on a port of its own, and what others dial.
    pub listen: ListenAddress,
    /// Slots: how many partitions it works on at once.
    pub vcores: usize,
    /// Where shuffle files and sockets go; it is made if need be.
    pub work_dir: PathBuf,
    /// Memory for queries; operators that need more spill to the work folder.
    pub memory: ByteSize,
    /// Memory that each of its ranks may take: rows beyond it are in files, and training whose ranks need more all the same
    /// does not run here.
    pub rank_memory: ByteSize,
    /// Where its ranks compute, unless a job says.
    pub device: Device,
    /// The custom layers of its binary.
    pub layers: CustomLayers,
    /// How often it tells the scheduler that it lives.
    pub heartbeat: Duration,
    /// Where it has the token from that it joins with.
    pub join_token: Credential,
    /// Whether it listens where it must not without this: see [`may_listen`](volley_proto::access::may_listen).
    pub insecure: bool,
    /// Where tasks may read and write, whatever the scheduler allows.
    pub allowed_paths: AllowedPaths,
    /// What is spoken TLS with; in the clear without.
    pub tls: Option<Tls>,
}

/// What an executor is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecutorRole {
    /// Queries and ranks.
    #[default]
    Any,
    /// Queries only.
    Query,
    /// Ranks only: it never holds shuffle data, so losing it never costs more than its rank.
    Train,
}

impl FromStr for ExecutorRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self::Any),
            "query" => Ok(Self::Query),
            "train" => Ok(Self::Train),
            _ => Err(format!("{text:?} is no role: expected any, query or train")),
        }
    }
}

impl ExecutorConfig {
    /// An executor on loopback.
    pub fn local(id: impl Into<String>, scheduler: impl Into<String>, work_dir: PathBuf) -> Self {
        Self {
            id: id.into(),
            scheduler: scheduler.into(),
            connect_timeout: Duration::from_secs(10),
            scheduler_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(600),
            role: ExecutorRole::Any,
            listen: ListenAddress::loopback(),
            vcores: 1,
            work_dir,
            memory: ByteSize::gib(4),
            rank_memory: rank_memory(1),
            device: Device::Auto,
            layers: CustomLayers::new(),
            heartbeat: Duration::from_secs(2),
            join_token: Credential::Found,
            insecure: false,
            allowed_paths: AllowedPaths::default(),
            tls: None,
        }
    }
}
