//! Meaning of the TLS options.

use volley_proto::tls::TlsFiles;

use super::super::args::TlsArgs;
use super::{EngineConfig, Result, Surroundings, mistake};

impl TlsArgs {
    /// Returns the TLS files, with absolute paths.
    ///
    /// # Errors
    /// When one option needs another that is missing.
    pub(super) fn resolve(self, around: &Surroundings) -> Result<Option<TlsFiles>> {
        let [ca, cert, key] = [self.tls_ca, self.tls_cert, self.tls_key]
            .map(|path| path.map(|path| around.absolute(&path)));
        TlsFiles::from_options(ca, cert, key).map_err(mistake)
    }

    /// Returns the TLS files for a running cluster.
    ///
    /// # Errors
    /// When there are TLS files for a cluster inside this process.
    pub(super) fn resolve_for(
        self,
        engine: &EngineConfig,
        around: &Surroundings,
    ) -> Result<Option<TlsFiles>> {
        let files = self.resolve(around)?;
        match (&files, engine) {
            (Some(_), EngineConfig::Embedded(_)) => Err(mistake(
                "--tls-ca: expected --scheduler HOST:PORT too, a cluster inside this process is not spoken to \
                 over a network",
            )),
            _ => Ok(files),
        }
    }

    /// Returns the TLS files for processes of a cluster.
    ///
    /// # Errors
    /// When there are TLS files without a certificate.
    pub(super) fn resolve_for_members(self, around: &Surroundings) -> Result<Option<TlsFiles>> {
        match self.resolve(around)? {
            Some(TlsFiles { identity: None, .. }) => Err(mistake(
                "--tls-ca: expected --tls-cert and --tls-key too, processes of a cluster have a certificate",
            )),
            files => Ok(files),
        }
    }
}
