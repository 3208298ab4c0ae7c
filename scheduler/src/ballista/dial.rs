//! How the scheduler dials executors: over TLS or in the clear, with a proof that it is of their cluster.
//!
//! The dialling is Ballista's; this is what it is told of an endpoint before it is dialled.

use std::error::Error;
use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tonic::transport::Endpoint;
use volley_proto::access::ClusterSecret;
use volley_proto::limits::LAUNCH_LIMIT;
use volley_proto::tls::{Tls, url};

/// How often connections to executors are tried.
const TRIED: Duration = Duration::from_secs(5);

/// What connections to executors are made with.
pub(super) struct ToExecutors {
    pub(super) tls: Option<Tls>,
    /// Executors take tasks from their scheduler only.
    pub(super) secret: ClusterSecret,
    /// How long an executor may not answer.
    pub(super) patience: Duration,
}

impl ToExecutors {
    /// An executor's endpoint as it is to be dialled.
    ///
    /// # Errors
    /// When it is no address that can be dialled.
    pub(super) fn endpoint(
        &self,
        endpoint: Endpoint,
    ) -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
        let endpoint = match &self.tls {
            Some(tls) => over_tls(&endpoint, tls)?,
            None => endpoint,
        };
        // An executor that is cut off closes nothing, and some networks forget connections that are idle.
        let endpoint = endpoint
            .http2_keep_alive_interval(TRIED)
            .keep_alive_timeout(self.patience)
            .keep_alive_while_idle(true);
        Ok(self.secret.prove(endpoint)?)
    }
}

/// Has one of Ballista's clients of executors speak TLS. It makes them for a URL in the clear; what else it sets is set
/// again.
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
