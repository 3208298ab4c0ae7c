//! Connections to gRPC servers, over TLS or in the clear.
//!
//! Tonic's own TLS keeps a channel's first certificate for the channel's lifetime. This connector asks [`Tls`] at each
//! connection, so that a channel that reconnects shows the renewed certificate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Error};

use super::{SPOKEN, Tls, server_name};
use crate::schedulers::{Schedulers, Way};

/// Default connection timeout, handshake included.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the URL of an address `host:port`, over TLS or in the clear.
pub fn url(address: &str, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Connects to the scheduler that leads, with the settings of an endpoint of `http://host:port`.
///
/// # Errors
/// When the connection fails, or the server's certificate is invalid.
pub async fn connect(
    endpoint: Endpoint,
    to: &Schedulers,
    tls: Option<&Tls>,
) -> Result<Channel, Error> {
    let dial = Dial::of(&endpoint, to);
    match tls {
        None => endpoint.connect_with_connector(InTheClear(dial)).await,
        Some(tls) => {
            let (endpoint, connector) = over(endpoint, dial, tls);
            endpoint.connect_with_connector(connector).await
        }
    }
}

/// Returns a channel to the scheduler that leads, which connects when it is first used and whenever the connection is
/// lost, with the settings of an endpoint of `http://host:port`.
pub fn channel(endpoint: Endpoint, to: &Schedulers, tls: Option<&Tls>) -> Channel {
    let dial = Dial::of(&endpoint, to);
    match tls {
        None => endpoint.connect_with_connector_lazy(InTheClear(dial)),
        Some(tls) => {
            let (endpoint, connector) = over(endpoint, dial, tls);
            endpoint.connect_with_connector_lazy(connector)
        }
    }
}

/// Returns an endpoint whose requests name the server by an `https` URL, while its connector is dialled by an `http`
/// one: otherwise tonic would require its own TLS.
fn over(endpoint: Endpoint, dial: Dial, tls: &Tls) -> (Endpoint, Connector) {
    let connector = Connector {
        tls: tls.clone(),
        patience: endpoint.get_connect_timeout().unwrap_or(PATIENCE),
        dial,
    };
    let origin = endpoint.uri().authority().cloned().and_then(|authority| {
        let parts = Uri::builder().scheme("https").authority(authority);
        parts.path_and_query("/").build().ok()
    });
    let endpoint = match origin {
        Some(origin) => endpoint.origin(origin),
        None => endpoint,
    };
    (endpoint, connector)
}

/// Way to a scheduler, with the settings of an endpoint.
#[derive(Debug, Clone)]
struct Dial {
    way: Way,
    keepalive: Option<TcpKeepalive>,
}

impl Dial {
    fn of(endpoint: &Endpoint, to: &Schedulers) -> Self {
        let keepalive = endpoint.get_tcp_keepalive().map(|time| {
            let keepalive = TcpKeepalive::new().with_time(time);
            match endpoint.get_tcp_keepalive_interval() {
                Some(interval) => keepalive.with_interval(interval),
                None => keepalive,
            }
        });
        Self {
            way: to.way(),
            keepalive,
        }
    }

    async fn dial(self) -> io::Result<(String, TcpStream)> {
        let (host, stream) = self.way.dial().await?;
        stream.set_nodelay(true)?;
        if let Some(keepalive) = &self.keepalive {
            SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
        }
        Ok((host, stream))
    }
}

/// Connector without TLS.
#[derive(Debug, Clone)]
struct InTheClear(Dial);

impl Service<Uri> for InTheClear {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.0.clone();
        // The endpoint's own timeout applies.
        Box::pin(async move { Ok(TokioIo::new(dial.dial().await?.1)) })
    }
}

/// Connector over TLS.
#[derive(Debug, Clone)]
struct Connector {
    tls: Tls,
    dial: Dial,
    patience: Duration,
}

impl Connector {
    async fn connect(self) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let (host, stream) = self.dial.dial().await?;
        self.tls.agree(&host, stream).await.map(TokioIo::new)
    }
}

impl Tls {
    /// Performs the TLS handshake with a connected server; an IPv6 address may have brackets.
    ///
    /// # Errors
    /// The failure, with advice if its certificate is invalid.
    pub(crate) async fn agree(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = server_name(host).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{host}: {error}"))
        })?;
        let config = Arc::clone(&self.current().client);
        let stream = TlsConnector::from(config).connect(name, stream).await;
        stream.map_err(|error| self.explain(host, error))
    }

    /// Adds advice to an error.
    fn explain(&self, host: &str, error: io::Error) -> io::Error {
        let source = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let reason = match source {
            Some(rustls::Error::InvalidMessage(_)) => {
                "it does not speak TLS: was it started without --tls-ca?".to_owned()
            }
            Some(rustls::Error::InvalidCertificate(
                rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
            )) => {
                let ca = self.ca().display();
                format!("its certificate is not signed by the authority in {ca}")
            }
            Some(rustls::Error::InvalidCertificate(
                rustls::CertificateError::NotValidForName
                | rustls::CertificateError::NotValidForNameContext { .. },
            )) => format!("its certificate is not for {host}"),
            Some(other) => format!("TLS with it failed: {other}"),
            None => return error,
        };
        io::Error::new(error.kind(), Refused(reason))
    }
}

/// Reason why the handshake with a server failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Returns the reason why two ends could not agree on TLS, if that caused a gRPC client's error.
pub fn disagreement(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // `source` of an I/O error skips the error within it.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(Refused(reason)) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(reason.clone());
        }
        // The other end's reason is available as text only.
        let text = error.to_string();
        if text.contains(SPOKEN) {
            return Some(
                "it speaks TLS: give --tls-ca FILE, its authority's certificates".to_owned(),
            );
        }
        if text.contains("received fatal alert") {
            return Some(format!(
                "it rejects this process's certificate, or the lack of one ({text})"
            ));
        }
        next = error.source();
    }
    None
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let patience = connector.patience;
            match timeout(patience, connector.connect()).await {
                Ok(dialled) => dialled,
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not connected within {patience:?}"),
                )),
            }
        })
    }
}
