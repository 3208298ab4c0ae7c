//! TLS between the processes of a cluster, and between clients and a cluster: one certificate authority, and a
//! certificate and key for each process, reloaded when they are renewed.
//!
//! ```text
//!   TlsFiles ──open──► Tls ──► connect:  channels of our own clients        rank_client:  ranks' client configuration
//!   (options)           │      endpoint: channels of Ballista's clients     rank_server:  ranks' server configuration
//!                       └ files are checked now and then; new ones apply from the next connection on
//! ```
//!
//! A process of the cluster is identified by its certificate, which is signed by the authority and valid for servers
//! *and* clients (extended key usage). A certificate for clients alone identifies a user's program, which is not a
//! process of the cluster.
//!
//! This is not authorization: the service that a peer asks decides what it may do.

mod accept;
mod connect;
mod error;
mod load;
mod refuse;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ServerConfig};
use tonic::transport::Endpoint;

pub use accept::{ClientCertificate, Peer};
pub(crate) use accept::{Refused, greet};
pub use connect::{channel, connect, disagreement, url};
pub use error::Error;

use load::{Loaded, Signature};

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Message to clients that do not speak TLS where it is required.
const SPOKEN: &str = "this port speaks TLS";

/// Minimum interval between two checks of the files.
const LOOK: Duration = Duration::from_secs(2);

/// TLS files of a process: options `--tls-ca`, `--tls-cert` and `--tls-key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authority, PEM.
    pub ca: PathBuf,
    /// Certificate of the process, followed by the intermediate ones up to the authority, and its key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Returns the files of the typed options; `None` if none is given.
    ///
    /// # Errors
    /// [`Error::Incomplete`] when an option lacks another that it needs.
    pub fn from_options(
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>> {
        let incomplete = |given, missing| Err(Error::Incomplete { given, missing });
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), None, None) => Ok(Some(Self { ca, identity: None })),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(Self {
                ca,
                identity: Some((cert, key)),
            })),
            (_, Some(_), None) => incomplete("--tls-cert", "--tls-key"),
            (_, None, Some(_)) => incomplete("--tls-key", "--tls-cert"),
            (None, Some(_), Some(_)) => incomplete("--tls-cert", "--tls-ca"),
        }
    }
}

/// TLS configuration of a process. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    loaded: Arc<Loaded>,
    /// Signature of the files that were last tried, even if they could not be loaded.
    tried: Signature,
    looked: Instant,
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn open(files: TlsFiles) -> Result<Self> {
        // Taken before loading: a file that changes meanwhile is read again.
        let tried = Signature::of(&files);
        let loaded = Arc::new(load::load(&files)?);
        let state = State {
            loaded,
            tried,
            looked: Instant::now(),
        };
        Ok(Self(Arc::new(Shared {
            files,
            state: Mutex::new(state),
        })))
    }

    /// Loads the files of a process of the cluster, which has a certificate.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and when there is no certificate or it is not valid for servers and clients.
    pub fn open_member(files: TlsFiles) -> Result<Self> {
        let Some((cert, _)) = files.identity.clone() else {
            return Err(Error::Incomplete {
                given: "--tls-ca",
                missing: "--tls-cert and --tls-key",
            });
        };
        let tls = Self::open(files)?;
        match tls.current().is_own_member() {
            Ok(()) => Ok(tls),
            Err(source) => Err(Error::Unusable { path: cert, source }),
        }
    }

    /// Loads the files of the typed options, for a process of the cluster; returns `None` if none is given.
    ///
    /// # Errors
    /// The errors of [`TlsFiles::from_options`] and [`open_member`](Self::open_member).
    pub fn member_from_options(
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>> {
        let files = TlsFiles::from_options(ca, cert, key)?;
        files.map(Self::open_member).transpose()
    }

    /// Returns the paths of the files.
    pub fn files(&self) -> &TlsFiles {
        &self.0.files
    }

    /// Returns the path of the authority's file.
    pub fn ca(&self) -> &Path {
        &self.0.files.ca
    }

    /// Returns the client configuration of ranks.
    pub fn rank_client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current().rank_client)
    }

    /// Returns the server configuration of ranks; `None` without a certificate.
    pub fn rank_server(&self) -> Option<Arc<ServerConfig>> {
        let loaded = self.current();
        loaded.servers.as_ref().map(|s| Arc::clone(&s.ranks))
    }

    /// Checks whether a chain of certificates, the peer's own first, is that of a process of this cluster.
    pub fn is_member(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.current().verify_member(chain).is_ok()
    }

    /// Adds TLS to the endpoint of a Ballista client. The endpoint's URL must be one of `https`.
    ///
    /// # Errors
    /// When the host of the endpoint is not a valid name for a certificate.
    pub fn endpoint(&self, endpoint: Endpoint) -> Result<Endpoint, tonic::transport::Error> {
        endpoint.tls_config(self.current().tonic_client.clone())
    }

    /// Returns the files' contents, read again if the files have changed.
    fn current(&self) -> Arc<Loaded> {
        self.look(LOOK)
    }

    fn look(&self, interval: Duration) -> Arc<Loaded> {
        let Shared { files, state } = &*self.0;
        let mut state = state.lock();
        if state.looked.elapsed() < interval {
            return Arc::clone(&state.loaded);
        }
        state.looked = Instant::now();
        let signature = Signature::of(files);
        if signature == state.tried {
            return Arc::clone(&state.loaded);
        }
        state.tried = signature;
        match load::load(files) {
            Ok(loaded) => {
                tracing::info!(ca = %files.ca.display(), "TLS files were renewed");
                state.loaded = Arc::new(loaded);
            }
            Err(error) => {
                let error = crate::failure::chain(&error);
                tracing::warn!(%error, "renewed TLS files cannot be used; the ones before stay in use");
            }
        }
        Arc::clone(&state.loaded)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

/// Checks whether a certificate is for a host, by name or address; an IPv6 address may have brackets.
pub fn is_for_host(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(name) = server_name(host) else {
        return false;
    };
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

/// Returns the name that a host's certificate must have.
///
/// # Errors
/// When it is neither a name nor an address.
pub fn server_name(
    host: &str,
) -> std::result::Result<ServerName<'static>, rustls::pki_types::InvalidDnsNameError> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(inner.unwrap_or(host).to_owned())
}
