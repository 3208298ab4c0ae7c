//! Configuration of a session.

use std::time::Duration;

use url::Url;
use volley_proto::access::Credential;
use volley_proto::tls::TlsFiles;
use volley_proto::traces::OtlpEndpoint;

/// Configuration of a session: scheduler, model store, settings, TLS and credential.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// The scheduler's address, `host:port`.
    pub scheduler: String,
    /// The model store; see [`ModelStore::directory_url`](volley_proto::store::ModelStore::directory_url).
    pub store: Url,
    /// Settings of DataFusion, Ballista and Volley, each as in SQL's `SET key = value`.
    pub settings: Vec<(String, String)>,
    /// Timeout of the scheduler's first answer.
    pub connect_timeout: Duration,
    /// TLS files; without them, connections are not encrypted. A client needs the authority's certificates, and no
    /// certificate of its own.
    pub tls: Option<TlsFiles>,
    /// Source of the token for the scheduler.
    pub credential: Credential,
    /// Collector that spans of the session's jobs are sent to, if any is. The scheduler and the executors have their own.
    pub otlp: Option<OtlpEndpoint>,
}

impl SessionConfig {
    /// Returns the defaults: no settings, TLS or traces, a connect timeout of five seconds, and the token of a scheduler that
    /// the same user has started on this host.
    pub fn new(scheduler: impl Into<String>, store: Url) -> Self {
        let connect_timeout = Duration::from_secs(5);
        Self {
            scheduler: scheduler.into(),
            store,
            settings: Vec::new(),
            connect_timeout,
            tls: None,
            credential: Credential::Found,
            otlp: None,
        }
    }
}
