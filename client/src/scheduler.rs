//! The address of a scheduler, with TLS and a credential.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tonic::transport::Endpoint;
use volley_proto::access::{Authorized, Bearer, Credential, Holder, Token};
use volley_proto::tls::{self, Tls, TlsFiles};

use crate::{Error, Result};

/// Interval of HTTP/2 keep-alive pings.
const PING: Duration = Duration::from_secs(10);
/// Timeout of a ping: a process that is frozen for a moment is not lost.
const PONG: Duration = Duration::from_secs(20);

/// A scheduler's address, TLS files and credential.
#[derive(Debug, Clone)]
pub struct SchedulerAddress {
    address: String,
    tls: Option<Tls>,
    credential: Credential,
}

impl SchedulerAddress {
    /// The scheduler at `host:port`, over TLS if there are files for it.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn open(
        address: impl Into<String>,
        tls: Option<&TlsFiles>,
        credential: &Credential,
    ) -> Result<Self> {
        Ok(Self {
            address: address.into(),
            tls: tls.cloned().map(Tls::open).transpose()?,
            credential: credential.clone(),
        })
    }

    /// `host:port`
    pub fn as_str(&self) -> &str {
        &self.address
    }

    /// TLS files, where connections are encrypted.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        tls::url(&self.address, self.tls.is_some())
    }

    /// Connects to a service of the scheduler. Requests carry the credential.
    ///
    /// # Errors
    /// When it does not answer, or not as it is expected to, and when there is to be a token that cannot be read: that
    /// is an [`Error::Token`].
    pub async fn connect(
        &self,
    ) -> std::result::Result<Authorized, Box<dyn std::error::Error + Send + Sync>> {
        let bearer = self.bearer()?;
        let channel = tls::connect(self.endpoint(None)?, self.tls()).await?;
        Ok(bearer.over(channel))
    }

    /// A channel that connects lazily.
    ///
    /// # Errors
    /// When the address is none, or there is to be a token that cannot be read.
    pub(crate) fn channel(&self, grpc: &GrpcClientConfig) -> Result<Authorized> {
        let endpoint = self.endpoint(Some(grpc)).map_err(|error| Error::Connect {
            address: self.address.clone(),
            waited: Duration::ZERO,
            source: Some(error.into()),
        })?;
        Ok(self.bearer()?.over(tls::channel(endpoint, self.tls())))
    }

    /// The credential as requests carry it, for clients of other crates.
    ///
    /// # Errors
    /// When there is to be a token that cannot be read.
    pub(crate) fn headers(&self) -> Result<HashMap<String, String>> {
        let token = self.credential.token(&self.address, Holder::Client);
        let token = token.map_err(|source| self.unusable(source))?;
        let header = |token: Token| {
            let bearer = format!("Bearer {}", token.reveal());
            ("authorization".to_owned(), bearer)
        };
        Ok(token.map(header).into_iter().collect())
    }

    fn bearer(&self) -> Result<Bearer> {
        let bearer = Bearer::new(&self.credential, &self.address, Holder::Client);
        bearer.map_err(|source| self.unusable(source))
    }

    fn unusable(&self, source: volley_proto::Error) -> Error {
        Error::Token {
            address: self.address.clone(),
            source: Box::new(source),
        }
    }

    fn endpoint(
        &self,
        grpc: Option<&GrpcClientConfig>,
    ) -> std::result::Result<Endpoint, tonic::transport::Error> {
        // Whether TLS is spoken is for who connects.
        let endpoint = create_grpc_client_endpoint(tls::url(&self.address, false), grpc)?;
        // A host that is cut off closes no connection.
        Ok(endpoint
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true))
    }
}

impl fmt::Display for SchedulerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}
