//! What a session needs to know before it connects.

use std::time::Duration;

use url::Url;
use volley_proto::access::Credential;
use volley_proto::tls::TlsFiles;

/// Where a session's plans run, where its models live, and how it starts out.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// The scheduler's address, `host:port`.
    pub scheduler: String,
    /// The model store; see [`ModelStore::directory_url`](volley_proto::store::ModelStore::directory_url).
    pub store: Url,
    /// Settings of DataFusion, Ballista and Volley, each as in SQL's `SET key = value`.
    pub settings: Vec<(String, String)>,
    /// How long to wait for a scheduler to answer.
    pub connect_timeout: Duration,
    /// What is spoken TLS with; in the clear without. A client needs the authority's certificates, and no certificate
    /// of its own.
    pub tls: Option<TlsFiles>,
    /// Where the token for the scheduler comes from.
    pub credential: Credential,
}

impl SessionConfig {
    /// A session with nothing set, which waits five seconds for its scheduler, and finds the token of one that the same
    /// user has started on this host.
    pub fn new(scheduler: impl Into<String>, store: Url) -> Self {
        let connect_timeout = Duration::from_secs(5);
        Self {
            scheduler: scheduler.into(),
            store,
            settings: Vec::new(),
            connect_timeout,
            tls: None,
            credential: Credential::Found,
        }
    }
}
