//! What an executor is told at start.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use volley_proto::spec::Device;

/// What an executor is told at start.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// The executor's id: unique in the cluster, the same as long as it lives.
    pub id: String,
    /// The scheduler, as `host:port`.
    pub scheduler: String,
    /// How long to try to reach the scheduler at start.
    pub connect_timeout: Duration,
    /// The address that its services listen on, each on a port of its own choosing.
    pub bind: IpAddr,
    /// The host name that peers reach it by.
    pub advertise_host: String,
    /// Slots: how many partitions it works on at once.
    pub vcores: usize,
    /// Where shuffle files and sockets go; it is made if need be.
    pub work_dir: PathBuf,
    /// Memory for queries; operators that need more spill to the work folder.
    pub memory: ByteSize,
    /// Where its ranks compute, unless a job says.
    pub device: Device,
    /// How often it tells the scheduler that it lives.
    pub heartbeat: Duration,
}

impl ExecutorConfig {
    /// An executor on loopback.
    pub fn local(id: impl Into<String>, scheduler: impl Into<String>, work_dir: PathBuf) -> Self {
        Self {
            id: id.into(),
            scheduler: scheduler.into(),
            connect_timeout: Duration::from_secs(10),
            bind: Ipv4Addr::LOCALHOST.into(),
            advertise_host: Ipv4Addr::LOCALHOST.to_string(),
            vcores: 1,
            work_dir,
            memory: ByteSize::gib(4),
            device: Device::Auto,
            heartbeat: Duration::from_secs(2),
        }
    }
}
