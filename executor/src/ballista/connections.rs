//! Idle connections to other executors' Flight services, kept for the next fetch.
//!
//! A host that is cut off closes no connection. Each connection, used or idle, pings its peer at intervals and is
//! closed when there is no answer: a running fetch then fails, and a later fetch does not reuse the dead connection.
//! Connections carry a proof that they come from the cluster. They run where the pool was made, not on the threads of tasks,
//! which compute for longer than a ping may take.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::BallistaError;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::transport::{Channel, Endpoint, Error as TransportError};
use volley_proto::access::ClusterSecret;
use volley_proto::tls::{Tls, url};

/// Number of idle connections kept per peer; more are closed when they come back.
const KEPT: usize = 16;
/// Maximum number of peers with idle connections. With more, most have left, and all connections are closed.
const PEERS: usize = 256;
/// Timeout of connecting to a peer.
const CONNECTING: Duration = Duration::from_secs(10);
/// Interval between pings of a connection.
const TRIED: Duration = Duration::from_secs(3);
/// Timeout of a ping's answer; long enough for a process that stalls for a moment.
const ALIVE: Duration = Duration::from_secs(10);

type Key = (String, u16, GrpcClientConfig);
type Idle = Arc<Mutex<HashMap<Key, Vec<BallistaClient>>>>;

/// The executor's idle connections, by peer.
pub(super) struct Connections {
    idle: Idle,
    tls: Option<Tls>,
    secret: ClusterSecret,
    /// Runtime of new connections; without one, they run in their first user's.
    runtime: Option<Handle>,
}

impl Connections {
    /// Returns an empty pool. With `tls`, connections use TLS whatever a session's settings say.
    pub(super) fn new(tls: Option<Tls>, secret: ClusterSecret) -> Self {
        Self {
            idle: Idle::default(),
            tls,
            secret,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Returns the setup of new connections.
    fn endpoint(&self) -> BallistaConfigGrpcEndpoint {
        let (tls, secret) = (self.tls.clone(), self.secret.clone());
        BallistaConfigGrpcEndpoint::new(Arc::new(move |endpoint| {
            Ok(configured(endpoint, tls.as_ref(), &secret)?)
        }))
    }

    /// Opens a connection that is not kept.
    ///
    /// # Errors
    /// When there is none to this address, `host:port`.
    pub(super) async fn dial(&self, address: &str) -> Result<Channel, TransportError> {
        let endpoint = Endpoint::from_shared(url(address, self.tls.is_some()))?;
        let endpoint = configured(endpoint, self.tls.as_ref(), &self.secret)?;
        endpoint.connect().await
    }
}

/// Sets up connections: they notice when their peer is gone, present this executor's certificate and check the peer's, and
/// prove that they come from the cluster.
fn configured(
    endpoint: Endpoint,
    tls: Option<&Tls>,
    secret: &ClusterSecret,
) -> Result<Endpoint, TransportError> {
    let endpoint = match tls {
        Some(tls) => tls.endpoint(endpoint)?,
        None => endpoint,
    };
    let endpoint = endpoint
        .connect_timeout(CONNECTING)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(TRIED)
        .keep_alive_timeout(ALIVE)
        .keep_alive_while_idle(true);
    secret.prove(endpoint)
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

#[async_trait]
impl BallistaClientPool for Connections {
    async fn acquire(
        &self,
        host: &str,
        port: u16,
        config: &GrpcClientConfig,
        // Sessions configure no endpoint.
        _: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> ballista_core::error::Result<PooledClient> {
        let key = (host.to_owned(), port, config.clone());
        let idle = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        let client = match idle {
            Some(client) => client,
            None => {
                let (host, config) = (host.to_owned(), config.clone());
                let (is_encrypted, endpoint) = (self.tls.is_some(), Arc::new(self.endpoint()));
                let connecting = async move {
                    BallistaClient::try_new(
                        &host,
                        port,
                        config.max_message_size,
                        is_encrypted,
                        Some(endpoint),
                        config.io_retries_times,
                        config.io_retry_wait_time_ms,
                        config.initial_connection_window_size,
                        config.initial_stream_window_size,
                    )
                    .await
                };
                match &self.runtime {
                    Some(runtime) => {
                        let connected = runtime.spawn(connecting).await;
                        connected.map_err(|gone| {
                            BallistaError::GrpcConnectionError(gone.to_string())
                        })??
                    }
                    None => connecting.await?,
                }
            }
        };
        let idle = Arc::clone(&self.idle);
        let give_back = move |client| {
            let mut idle = idle.lock();
            if idle.len() > PEERS {
                idle.clear();
            }
            let kept = idle.entry(key).or_default();
            if kept.len() < KEPT {
                kept.push(client);
            }
        };
        Ok(PooledClient::new(client, Box::new(give_back)))
    }

    async fn evict_idle(&self) {
        self.idle.lock().clear();
    }
}
