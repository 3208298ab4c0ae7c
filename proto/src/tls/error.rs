//! What can be wrong with the files of TLS.

use std::path::PathBuf;

/// What is wrong with the files of TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is missing.
    #[error("{given}: expected {missing} too")]
    Incomplete {
        /// The option that was given.
        given: &'static str,
        /// What it needs.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read the TLS file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A file has nothing of what it is to have.
    #[error("TLS file {path}: there is no {expected} in it; expected PEM (-----BEGIN …-----)")]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it is to have.
        expected: &'static str,
    },
    /// A file is no PEM.
    #[error("TLS file {path} is malformed")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The key is another certificate's.
    #[error("TLS file {key}: the key does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// The certificate has expired.
    #[error("TLS file {path}: the certificate has expired")]
    Expired {
        /// The file.
        path: PathBuf,
        /// When.
        #[source]
        source: rustls::Error,
    },
    /// The certificate is not valid yet.
    #[error("TLS file {path}: the certificate is not valid yet; is the clock right?")]
    NotValidYet {
        /// The file.
        path: PathBuf,
        /// From when on.
        #[source]
        source: rustls::Error,
    },
    /// The certificate is not the authority's.
    #[error("TLS file {path}: the certificate is not signed by the authority in {ca}")]
    Foreign {
        /// The certificate's file.
        path: PathBuf,
        /// The authority's file.
        ca: PathBuf,
        /// What the check said.
        #[source]
        source: rustls::Error,
    },
    /// The certificate or key cannot be used for something else.
    #[error(
        "TLS file {path} cannot be used: a process of a cluster needs a certificate for servers and clients \
         (extended key usage serverAuth, clientAuth), a client needs one for clients"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
}
