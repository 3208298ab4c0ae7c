//! Address of a scheduler, or of several of which one leads, with TLS and a credential.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tokio::time::sleep;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use volley_proto::access::{Authorized, Bearer, Credential, Holder, Token};
use volley_proto::schedulers::Schedulers;
use volley_proto::tls::{self, Tls, TlsFiles};
use volley_proto::version::{HEADER, Version};

use crate::{Error, Result};

/// Interval of HTTP/2 keep-alive pings.
const PING: Duration = Duration::from_secs(10);
/// Timeout of a ping, long enough for a process that is frozen for a moment.
const PONG: Duration = Duration::from_secs(20);

/// Address, TLS files and credential of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerAddress {
    address: String,
    schedulers: Schedulers,
    tls: Option<Tls>,
    credential: Credential,
}

impl SchedulerAddress {
    /// Returns the address of the scheduler at `host:port`, or of several with commas between them, with TLS if there are
    /// files for it.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn open(
        address: impl Into<String>,
        tls: Option<&TlsFiles>,
        credential: &Credential,
    ) -> Result<Self> {
        let address = address.into();
        Ok(Self {
            schedulers: Schedulers::new(&address),
            address,
            tls: tls.cloned().map(Tls::open).transpose()?,
            credential: credential.clone(),
        })
    }

    /// Returns the address or addresses, as given.
    pub fn as_str(&self) -> &str {
        &self.address
    }

    /// Returns the addresses.
    pub(crate) fn schedulers(&self) -> &Schedulers {
        &self.schedulers
    }

    /// Returns the TLS files, if connections are encrypted.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Returns the scheduler's URL.
    pub(crate) fn url(&self) -> String {
        tls::url(self.schedulers.current(), self.tls.is_some())
    }

    /// Connects to a service of the scheduler. Requests carry the credential.
    ///
    /// # Errors
    /// When the scheduler does not answer, or answers unexpectedly. When a required token cannot be read, the error is
    /// an [`Error::Token`].
    pub async fn connect(
        &self,
    ) -> std::result::Result<Authorized, Box<dyn std::error::Error + Send + Sync>> {
        let bearer = self.bearer()?;
        let channel = tls::connect(self.endpoint(None)?, &self.schedulers, self.tls()).await?;
        Ok(bearer.over(channel))
    }

    /// Connects for a request, which the error names.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) async fn connect_for(&self, request: &'static str) -> Result<Authorized> {
        let connected = self.connect().await;
        connected.map_err(|source| Error::request(&self.address, request, source))
    }

    /// Returns a channel that connects lazily.
    ///
    /// # Errors
    /// When the address is not valid, or a required token cannot be read.
    pub(crate) fn channel(&self, grpc: &GrpcClientConfig) -> Result<Authorized> {
        let endpoint = self.endpoint(Some(grpc)).map_err(|error| Error::Connect {
            address: self.address.clone(),
            waited: Duration::ZERO,
            source: Some(error.into()),
        })?;
        let channel = tls::channel(endpoint, &self.schedulers, self.tls());
        Ok(self.bearer()?.over(channel))
    }

    /// Sends a request, and once more if the scheduler does not know its token: a scheduler that was restarted has made
    /// another one, which is found by the time it answers.
    ///
    /// # Errors
    /// The scheduler's last answer.
    pub(crate) async fn authenticated<T, Sent>(
        &self,
        mut send: impl FnMut() -> Sent,
    ) -> std::result::Result<T, Status>
    where
        Sent: Future<Output = std::result::Result<T, Status>>,
    {
        match send().await {
            Err(status)
                if status.code() == Code::Unauthenticated
                    && !matches!(self.credential, Credential::Given(_)) =>
            {
                sleep(Bearer::FRESH).await;
                send().await
            }
            answer => answer,
        }
    }

    /// Returns the headers with the credential and the version, for clients of other crates.
    ///
    /// # Errors
    /// When a required token cannot be read.
    pub(crate) fn headers(&self) -> Result<HashMap<String, String>> {
        let token = self
            .credential
            .token(self.schedulers.current(), Holder::Client);
        let token = token.map_err(|source| self.unusable(source))?;
        let header = |token: Token| {
            let bearer = format!("Bearer {}", token.reveal());
            ("authorization".to_owned(), bearer)
        };
        let version = (HEADER.to_owned(), Version::own().header());
        Ok(token.map(header).into_iter().chain([version]).collect())
    }

    fn bearer(&self) -> Result<Bearer> {
        let bearer = Bearer::new(&self.credential, self.schedulers.clone(), Holder::Client);
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
        // The caller that connects decides about TLS.
        let endpoint =
            create_grpc_client_endpoint(tls::url(self.schedulers.current(), false), grpc)?;
        // A host that is cut off does not close its connections.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use tonic::Request;
    use tonic::service::Interceptor;

    use super::*;

    #[tokio::test]
    async fn a_token_that_is_not_known_is_read_once_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let [earlier, later] = [Token::generate(), Token::generate()];
        // A scheduler that knows the later token; the earlier one may have been read before it had made its own.
        for (in_file, known, expected) in [
            (&earlier, &earlier, (true, 1)),
            (&earlier, &later, (true, 2)),
            (&earlier, &Token::generate(), (false, 2)),
        ] {
            fs::write(&file, in_file.reveal()).unwrap();
            let address = SchedulerAddress::open("h:1", None, &Credential::File(file.clone()));
            let address = address.unwrap();
            let (mut bearer, mut sent) = (address.bearer().unwrap(), 0);
            let answer = address.authenticated(|| {
                sent += 1;
                let request = bearer.call(Request::new(())).unwrap();
                let header = request.metadata().get("authorization").unwrap();
                let is_known = header.to_str().unwrap().ends_with(known.reveal());
                fs::write(&file, later.reveal()).unwrap();
                std::future::ready(match is_known {
                    true => Ok(()),
                    false => Err(Status::unauthenticated("the token is unknown")),
                })
            });
            assert_eq!((answer.await.is_ok(), sent), expected);
        }
    }

    #[tokio::test]
    async fn nothing_is_sent_again_where_that_is_no_use() {
        let of = |credential| SchedulerAddress::open("h:1", None, &credential).unwrap();
        for (address, status) in [
            (
                of(Credential::Given(Token::generate())),
                Status::unauthenticated("the token is unknown"),
            ),
            (of(Credential::Found), Status::permission_denied("no")),
        ] {
            let mut sent = 0;
            let answer = address.authenticated(|| {
                sent += 1;
                std::future::ready(Err::<(), _>(status.clone()))
            });
            assert!(answer.await.is_err());
            assert_eq!(sent, 1);
        }
    }
}
