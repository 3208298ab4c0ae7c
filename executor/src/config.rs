//! The executor's configuration, set at start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
pub use volley_proto::ExecutorRole;
use volley_proto::access::{AllowedPaths, Credential, TokenHash};
use volley_proto::address::ListenAddress;
use volley_proto::schedulers::Schedulers;
use volley_proto::spec::Device;
use volley_proto::tls::Tls;
use volley_proto::traces::OtlpEndpoint;
use volley_trainer::custom::CustomLayers;

use crate::memory::rank_memory;

/// Default space for prepared rows.
const PREPARED_SPACE: ByteSize = ByteSize::gib(10);

/// Configuration of an executor.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// Id of the executor: unique in the cluster and constant for the executor's lifetime.
    pub id: String,
    /// Address of the scheduler, as `host:port`, or of several with commas between them, of which one leads.
    pub scheduler: Schedulers,
    /// Time limit for reaching the scheduler at start.
    pub connect_timeout: Duration,
    /// Time without a sign of life after which the scheduler counts as gone.
    pub scheduler_timeout: Duration,
    /// Time limit for reaching a scheduler that is gone.
    pub reconnect_timeout: Duration,
    /// Role of the executor: queries, ranks or both.
    pub role: ExecutorRole,
    /// Address where its services and ranks listen, each on its own port, and the host name that others dial.
    pub listen: ListenAddress,
    /// Slots: number of partitions processed at once.
    pub vcores: usize,
    /// Folder for shuffle files and sockets; created if missing.
    pub work_dir: PathBuf,
    /// Memory for queries; operators that need more spill to the work folder.
    pub memory: ByteSize,
    /// Memory that each rank may take. Rows beyond it are kept in files; training whose ranks still need more does
    /// not run here.
    pub rank_memory: ByteSize,
    /// Space in the work folder for prepared rows: encoded rows that are kept for the next training on them.
    pub prepared_space: ByteSize,
    /// Device on which ranks compute, unless the job names one.
    pub device: Device,
    /// Custom layers of the binary.
    pub layers: CustomLayers,
    /// Interval between heartbeats to the scheduler.
    pub heartbeat: Duration,
    /// Time limit of a planned departure: for tasks that run here to end, and data that is here to be read.
    pub drain_timeout: Duration,
    /// Source of the join token.
    pub join_token: Credential,
    /// Permission to listen on exposed addresses without protection: see
    /// [`may_listen`](volley_proto::access::may_listen).
    pub insecure: bool,
    /// Paths where tasks may read and write, whatever the scheduler allows.
    pub allowed_paths: AllowedPaths,
    /// TLS configuration; connections are unencrypted without it.
    pub tls: Option<Tls>,
    /// Server of metrics and probes, if there is one.
    pub metrics: Option<MetricsConfig>,
    /// Collector that traces of jobs are sent to, if any is.
    pub otlp: Option<OtlpEndpoint>,
}

/// Configuration of the server of an executor's metrics and probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Hashes of the tokens that the metrics are read with. Without any, they are read with the token that a scheduler of
    /// the same user on this host has made for clients.
    pub tokens: Vec<TokenHash>,
}

impl ExecutorConfig {
    /// Returns the configuration of an executor on loopback.
    pub fn local(
        id: impl Into<String>,
        scheduler: impl Into<Schedulers>,
        work_dir: PathBuf,
    ) -> Self {
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
            prepared_space: PREPARED_SPACE,
            device: Device::Auto,
            layers: CustomLayers::new(),
            heartbeat: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(25),
            join_token: Credential::Found,
            insecure: false,
            allowed_paths: AllowedPaths::default(),
            tls: None,
            metrics: None,
            otlp: None,
        }
    }
}
