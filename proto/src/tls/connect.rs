//! Dialling gRPC servers, over TLS or in the clear.
//!
//! Tonic's own TLS keeps the certificate that a channel was made with for as long as there is the channel. This
//! connector asks [`Tls`] at each connection, so that a channel which connects again shows the renewed one.

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

/// How long a connection may take, greeting included, where the endpoint does not say.
const PATIENCE: Duration = Duration::from_secs(20);

/// The URL of an address `host:port`, over TLS or in the clear.
pub fn url(address: &str, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Connects, with the settings of an endpoint of `http://host:port`.
///
/// # Errors
/// When the connection fails, or the server's certificate is not right.
pub async fn connect(endpoint: Endpoint, tls: Option<&Tls>) -> Result<Channel, Error> {
    match tls {
        None => endpoint.connect().await,
        Some(tls) => {
            let (endpoint, connector) = over(endpoint, tls);
            endpoint.connect_with_connector(connector).await
        }
    }
}

/// A channel that connects when it is first used, with the settings of an endpoint of `http://host:port`.
pub fn channel(endpoint: Endpoint, tls: Option<&Tls>) -> Channel {
    match tls {
        None => endpoint.connect_lazy(),
        Some(tls) => {
            let (endpoint, connector) = over(endpoint, tls);
            endpoint.connect_with_connector_lazy(connector)
        }
    }
}

/// Requests name the server by a URL of `https`, and the connector is dialled by one of `http`: tonic would look for
/// TLS of its own otherwise.
fn over(endpoint: Endpoint, tls: &Tls) -> (Endpoint, Connector) {
    let keepalive = endpoint.get_tcp_keepalive().map(|time| {
        let keepalive = TcpKeepalive::new().with_time(time);
        match endpoint.get_tcp_keepalive_interval() {
            Some(interval) => keepalive.with_interval(interval),
            None => keepalive,
        }
    });
    let connector = Connector {
        tls: tls.clone(),
        keepalive,
        patience: endpoint.get_connect_timeout().unwrap_or(PATIENCE),
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

#[derive(Debug, Clone)]
struct Connector {
    tls: Tls,
    keepalive: Option<TcpKeepalive>,
    patience: Duration,
}

impl Connector {
    async fn dial(self, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
            return Err(invalid(format!("{uri}: expected HOST:PORT")));
        };
        let stream = TcpStream::connect(format!("{host}:{port}")).await?;
        stream.set_nodelay(true)?;
        if let Some(keepalive) = &self.keepalive {
            SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
        }
        self.tls.agree(host, stream).await.map(TokioIo::new)
    }
}

impl Tls {
    /// Agrees on TLS with a server that has been connected with, an IPv6 address with or without brackets.
    ///
    /// # Errors
    /// What may help, where its certificate is not right.
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

    /// Says what may help.
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

/// Why a server was not believed, or did not take a client.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Why two ends could not agree on TLS, if that is at the bottom of an error of a gRPC client's.
pub fn disagreement(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // The source of an I/O error is that of the error in it.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(Refused(reason)) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(reason.clone());
        }
        // Of what the other end said there is only the text.
        let text = error.to_string();
        if text.contains(SPOKEN) {
            return Some(
                "it speaks TLS: give --tls-ca FILE, its authority's certificates".to_owned(),
            );
        }
        if text.contains("received fatal alert") {
            return Some(format!(
                "it does not take this process's certificate, or none ({text})"
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

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let patience = connector.patience;
            match timeout(patience, connector.dial(uri)).await {
                Ok(dialled) => dialled,
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not connected within {patience:?}"),
                )),
            }
        })
    }
}
