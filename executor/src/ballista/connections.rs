//! Idle connections to other executors' Flight services, kept for the next fetch.
//!
//! A host that is cut off closes nothing. Each connection, used or idle, asks its peer now and then whether it is
//! there, and is closed when there is no answer: a fetch fails then, and a later one does not begin on a connection
//! from before. They prove to peers that they are the cluster's own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ballista_core::client::BallistaClient;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::error::Result;
use ballista_core::extension::BallistaConfigGrpcEndpoint;
use ballista_core::utils::GrpcClientConfig;
use parking_lot::Mutex;
use volley_proto::access::ClusterSecret;
use volley_proto::tls::Tls;

/// Connections kept for one peer; more are closed when they come back.
const KEPT: usize = 16;
/// Peers that connections are kept for; most have left when there are more.
const PEERS: usize = 256;
/// How long a peer may take to be connected with.
const CONNECTING: Duration = Duration::from_secs(10);
/// How often a connection is tried.
const TRIED: Duration = Duration::from_secs(3);
/// How long a peer may take to answer then: a process that stands still for a moment is not lost.
const ALIVE: Duration = Duration::from_secs(10);

type Key = (String, u16, GrpcClientConfig);
type Idle = Arc<Mutex<HashMap<Key, Vec<BallistaClient>>>>;

/// The executor's idle connections, by peer.
pub(super) struct Connections {
    idle: Idle,
    tls: Option<Tls>,
    secret: ClusterSecret,
}

impl Connections {
    /// None yet; over TLS, if that is given, whatever a session says.
    pub(super) fn new(tls: Option<Tls>, secret: ClusterSecret) -> Self {
        Self {
            idle: Idle::default(),
            tls,
            secret,
        }
    }

    /// What is set up of a connection before it is made: it notices when its peer is gone, shows the certificate of this
    /// executor and looks at the other's, and proves that it is the cluster's own.
    fn endpoint(&self) -> BallistaConfigGrpcEndpoint {
        let (tls, secret) = (self.tls.clone(), self.secret.clone());
        BallistaConfigGrpcEndpoint::new(Arc::new(move |endpoint| {
            let endpoint = match &tls {
                Some(tls) => tls.endpoint(endpoint)?,
                None => endpoint,
            };
            let endpoint = endpoint
                .connect_timeout(CONNECTING)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(TRIED)
                .keep_alive_timeout(ALIVE)
                .keep_alive_while_idle(true);
            Ok(secret.prove(endpoint)?)
        }))
    }
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
        // Sessions set up none.
        _: Option<Arc<BallistaConfigGrpcEndpoint>>,
    ) -> Result<PooledClient> {
        let key = (host.to_owned(), port, config.clone());
        let idle = self.idle.lock().get_mut(&key).and_then(Vec::pop);
        let client = match idle {
            Some(client) => client,
            None => {
                BallistaClient::try_new(
                    host,
                    port,
                    config.max_message_size,
                    self.tls.is_some(),
                    Some(Arc::new(self.endpoint())),
                    config.io_retries_times,
                    config.io_retry_wait_time_ms,
                    config.initial_connection_window_size,
                    config.initial_stream_window_size,
                )
                .await?
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
