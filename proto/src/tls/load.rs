//! Loading of TLS files: all of them are valid, or none is used.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, Error as TlsError, InconsistentKeys, RootCertStore,
    ServerConfig,
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::{Error, Result, TlsFiles};

/// ALPN protocols of connections from gRPC clients or browsers.
const HTTP: [&[u8]; 2] = [b"h2", b"http/1.1"];
const GRPC: &[u8] = b"h2";
/// ALPN protocol of ranks, which keeps their connections apart from the others.
const RANKS: &[u8] = b"volley-ranks";
/// Handshake timeout of Ballista's clients.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum size of a certificate file.
const LARGEST: u64 = 1 << 20;

/// Contents of the files when they were last read.
pub(super) struct Loaded {
    members: Arc<WebPkiServerVerifier>,
    /// Certificate of the process, with the intermediate ones up to the authority.
    pub(super) own: Vec<CertificateDer<'static>>,
    /// Client configuration for gRPC.
    pub(super) client: Arc<ClientConfig>,
    pub(super) rank_client: Arc<ClientConfig>,
    pub(super) tonic_client: ClientTlsConfig,
    /// Server configurations; `None` without a certificate.
    pub(super) servers: Option<Servers>,
}

/// Configurations with which a process accepts connections.
pub(super) struct Servers {
    /// Configuration for HTTP, with or without a client's certificate.
    pub(super) optional: Arc<ServerConfig>,
    /// Configuration for gRPC that requires a client's certificate.
    pub(super) required: Arc<ServerConfig>,
    pub(super) ranks: Arc<ServerConfig>,
}

impl Loaded {
    /// Checks that a chain is that of a process of the cluster.
    pub(super) fn verify_member(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> std::result::Result<(), TlsError> {
        let Some((own, between)) = chain.split_first() else {
            return Err(TlsError::NoCertificatesPresented);
        };
        // The verifier needs a name, and checks it last: everything else has been verified by then.
        let name = ServerName::try_from("volley.invalid").expect("it is a name");
        let verified = self
            .members
            .verify_server_cert(own, between, &name, &[], UnixTime::now());
        match verified {
            Ok(_)
            | Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Checks that the process's own certificate is that of a process of the cluster.
    pub(super) fn is_own_member(&self) -> std::result::Result<(), TlsError> {
        self.verify_member(&self.own)
    }
}

/// Identity of a file's contents, by which changes are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Identity of all files' contents; a missing file has no mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signature(Vec<Option<Mark>>);

impl Signature {
    pub(super) fn of(files: &TlsFiles) -> Self {
        let identity = files.identity.iter().flat_map(|(cert, key)| [cert, key]);
        let mark = |path| {
            let metadata = fs::metadata(path).ok()?;
            Some(Mark {
                inode: metadata.ino(),
                bytes: metadata.len(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
            })
        };
        Self(
            std::iter::once(&files.ca)
                .chain(identity)
                .map(mark)
                .collect(),
        )
    }
}

/// Reads and checks the files.
pub(super) fn load(files: &TlsFiles) -> Result<Loaded> {
    let ca_pem = read(&files.ca)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca, &ca_pem)? {
        roots.add(certificate).map_err(|source| Error::Unusable {
            path: files.ca.clone(),
            source,
        })?;
    }
    let roots = Arc::new(roots);
    let unusable = |source| Error::Unusable {
        path: files.ca.clone(),
        source,
    };
    let provider = Arc::new(ring::default_provider());
    let no_verifier = |error: rustls::server::VerifierBuilderError| {
        unusable(TlsError::General(error.to_string()))
    };
    let members =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(no_verifier)?;
    let clients = |is_required: bool| {
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let builder = match is_required {
            true => builder,
            false => builder.allow_unauthenticated(),
        };
        builder.build().map_err(no_verifier)
    };
    let required = clients(true)?;
    let identity = match &files.identity {
        Some((cert, key)) => Some(own(files, cert, key, required.as_ref(), &provider)?),
        None => None,
    };
    let ranks = Arc::new(fast(ring::default_provider()));
    let client = client(&roots, identity.as_ref(), &provider, GRPC);
    let rank_client = client_of_ranks(&roots, identity.as_ref(), &ranks);
    let mut tonic_client = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ca_pem))
        .timeout(HANDSHAKE);
    if let Some(own) = &identity {
        tonic_client = tonic_client.identity(Identity::from_pem(&own.pem.0, &own.pem.1));
    }
    let servers = match &identity {
        None => None,
        Some(own) => Some(Servers {
            optional: server(&provider, clients(false)?, own, &HTTP).map_err(unusable)?,
            required: server(&provider, Arc::clone(&required), own, &[GRPC]).map_err(unusable)?,
            ranks: server(&ranks, required, own, &[RANKS]).map_err(unusable)?,
        }),
    };
    Ok(Loaded {
        members,
        own: identity.map(|own| own.chain).unwrap_or_default(),
        client: client.map_err(unusable)?,
        rank_client: rank_client.map_err(unusable)?,
        tonic_client,
        servers,
    })
}

/// Certificate chain and key of a process.
struct Own {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pem: (Vec<u8>, Vec<u8>),
}

/// Reads a certificate and its key, and checks them as a peer will.
fn own(
    files: &TlsFiles,
    cert: &Path,
    key: &Path,
    verifier: &dyn ClientCertVerifier,
    provider: &CryptoProvider,
) -> Result<Own> {
    let pem = (read(cert)?, read(key)?);
    let chain = certificates(cert, &pem.0)?;
    let private = PrivateKeyDer::from_pem_slice(&pem.1).map_err(|source| match source {
        PemError::NoItemsFound => Error::Empty {
            path: key.to_owned(),
            expected: "private key",
        },
        source => Error::Malformed {
            path: key.to_owned(),
            source,
        },
    })?;
    let unusable = |path: &Path, source| Error::Unusable {
        path: path.to_owned(),
        source,
    };
    match CertifiedKey::from_der(chain.clone(), private.clone_key(), provider) {
        Ok(_) => {}
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            return Err(Error::KeyMismatch {
                key: key.to_owned(),
                cert: cert.to_owned(),
            });
        }
        Err(source @ TlsError::InvalidCertificate(_)) => return Err(unusable(cert, source)),
        Err(source) => return Err(unusable(key, source)),
    }
    let verified = match chain.split_first() {
        Some((own, between)) => verifier.verify_client_cert(own, between, UnixTime::now()),
        None => Err(TlsError::NoCertificatesPresented),
    };
    if let Err(source) = verified {
        let path = cert.to_owned();
        return Err(match &source {
            TlsError::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => Error::Expired { path, source },
            TlsError::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            ) => Error::NotValidYet { path, source },
            TlsError::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => Error::Foreign {
                path,
                ca: files.ca.clone(),
                source,
            },
            _ => Error::Unusable { path, source },
        });
    }
    Ok(Own {
        chain,
        key: private,
        pem,
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let refuse = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    // A device or a log given by mistake is not read to its end.
    let bytes = fs::metadata(path).map_err(refuse)?.len();
    if bytes > LARGEST {
        let text = format!("it has {bytes} bytes, which no certificate has");
        return Err(refuse(std::io::Error::other(text)));
    }
    fs::read(path).map_err(refuse)
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| Error::Malformed {
        path: path.to_owned(),
        source,
    })?;
    match all.is_empty() {
        true => Err(Error::Empty {
            path: path.to_owned(),
            expected: "certificate",
        }),
        false => Ok(all),
    }
}

/// Puts the fastest cipher first, for gradients: AES with 128 bits is secure, and a quarter faster than with 256.
fn fast(provider: CryptoProvider) -> CryptoProvider {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..provider
    }
}

fn client(
    roots: &Arc<RootCertStore>,
    own: Option<&Own>,
    provider: &Arc<CryptoProvider>,
    protocol: &[u8],
) -> std::result::Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?;
    finish(builder, roots, own, protocol)
}

fn client_of_ranks(
    roots: &Arc<RootCertStore>,
    own: Option<&Own>,
    provider: &Arc<CryptoProvider>,
) -> std::result::Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])?;
    finish(builder, roots, own, RANKS)
}

fn finish(
    builder: rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>,
    roots: &Arc<RootCertStore>,
    own: Option<&Own>,
    protocol: &[u8],
) -> std::result::Result<Arc<ClientConfig>, TlsError> {
    let builder = builder.with_root_certificates(Arc::clone(roots));
    let mut config = match own {
        Some(own) => builder.with_client_auth_cert(own.chain.clone(), own.key.clone_key())?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Disables session resumption: a resumed connection would outlive the certificate it began with.
fn server(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    own: &Own,
    protocols: &[&[u8]],
) -> std::result::Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain.clone(), own.key.clone_key())?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
