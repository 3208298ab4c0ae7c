//! Errors of TLS files.

use std::path::PathBuf;

/// Fault of a TLS file or option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is missing.
    #[error("{given}: expected {missing} too")]
    Incomplete {
        /// Option that was given.
        given: &'static str,
        /// Option that it needs.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read the TLS file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file lacks its expected content.
    #[error("TLS file {path}: there is no {expected} in it; expected PEM (-----BEGIN …-----)")]
    Empty {
        /// The file.
        path: PathBuf,
        /// Expected content.
        expected: &'static str,
    },
    /// A file is not PEM.
    #[error("TLS file {path} is malformed")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The key belongs to another certificate.
    #[error("TLS file {key}: the key does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate.
        cert: PathBuf,
    },
    /// The certificate has expired.
    #[error("TLS file {path}: the certificate has expired")]
    Expired {
        /// The file.
        path: PathBuf,
        /// Error with the time of expiry.
        #[source]
        source: rustls::Error,
    },
    /// The certificate is not valid yet.
    #[error("TLS file {path}: the certificate is not valid yet; is the clock right?")]
    NotValidYet {
        /// The file.
        path: PathBuf,
        /// Error with the start of validity.
        #[source]
        source: rustls::Error,
    },
    /// The authority did not sign the certificate.
    #[error("TLS file {path}: the certificate is not signed by the authority in {ca}")]
    Foreign {
        /// File of the certificate.
        path: PathBuf,
        /// File of the authority.
        ca: PathBuf,
        /// Error of the verifier.
        #[source]
        source: rustls::Error,
    },
    /// The certificate or key cannot be used for another reason.
    #[error(
        "TLS file {path} cannot be used: a process of a cluster needs a certificate for servers and clients \
         (extended key usage serverAuth, clientAuth), a client needs one for clients"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Reason why not.
        #[source]
        source: rustls::Error,
    },
}
