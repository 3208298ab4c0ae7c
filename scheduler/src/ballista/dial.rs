//! Settings of the scheduler's connections to executors: TLS or in the clear, and a proof that the scheduler is of
//! their cluster.
//!
//! Ballista dials for tasks; this module configures the endpoint first, and dials for [rows that move](super::handover).

use std::error::Error;
use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tonic::transport::{Channel, Endpoint};
use volley_proto::access::ClusterSecret;
use volley_proto::limits::LAUNCH_LIMIT;
use volley_proto::tls::{Tls, url};

/// Keepalive interval of connections to executors.
const TRIED: Duration = Duration::from_secs(5);
/// Timeout of connecting to an executor.
const CONNECTING: Duration = Duration::from_secs(10);

/// Settings of connections to executors.
pub(super) struct ToExecutors {
    pub(super) tls: Option<Tls>,
    /// Cluster secret: executors take tasks from their scheduler only.
    pub(super) secret: ClusterSecret,
    /// Keepalive timeout: time within which an executor must answer.
    pub(super) patience: Duration,
}

impl ToExecutors {
    /// Configures an executor's endpoint for dialling.
    ///
    /// # Errors
    /// When the address cannot be dialled.
    pub(super) fn endpoint(
        &self,
        endpoint: Endpoint,
    ) -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
        let endpoint = match &self.tls {
            Some(tls) => over_tls(&endpoint, tls)?,
            None => endpoint,
        };
        // An executor that is cut off closes no connection, and some networks drop idle ones.
        let endpoint = endpoint
            .http2_keep_alive_interval(TRIED)
            .keep_alive_timeout(self.patience)
            .keep_alive_while_idle(true);
        Ok(self.secret.prove(endpoint)?)
    }
}

impl ToExecutors {
    /// Connects to an executor's port, at `host:port`.
    ///
    /// # Errors
    /// When nothing answers there.
    pub(super) async fn dial(
        &self,
        address: &str,
    ) -> Result<Channel, Box<dyn Error + Send + Sync>> {
        let endpoint = Endpoint::from_shared(url(address, false))?;
        let endpoint = self.endpoint(endpoint)?.connect_timeout(CONNECTING);
        Ok(endpoint.connect().await?)
    }
}

/// Switches an endpoint from one of Ballista's clients of executors to TLS. Ballista makes it for a URL in the clear,
/// so its other settings are set again.
fn over_tls(endpoint: &Endpoint, tls: &Tls) -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
    let authority = endpoint
        .uri()
        .authority()
        .ok_or("an address without a host")?;
    let settings = GrpcClientConfig {
        max_message_size: LAUNCH_LIMIT as usize,
        ..GrpcClientConfig::default()
    };
    let secure = url(authority.as_str(), true);
    let endpoint = create_grpc_client_endpoint(secure, Some(&settings))?;
    Ok(tls.endpoint(endpoint)?)
}
