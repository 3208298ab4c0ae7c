//! Agreeing on TLS with who connects, and who that is.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::refuse::{self, Greeting};
use super::{Tls, is_for_host};

/// Whose connections are taken where TLS is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificate {
    /// Anybody's: what a peer without a certificate may ask for is decided request by request.
    Optional,
    /// Those of a process of the cluster, whose certificate is for this host.
    MemberAt(String),
}

/// The peer of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether TLS is spoken.
    pub encrypted: bool,
    /// Whether it has shown the certificate of a process of the cluster.
    pub member: bool,
}

/// Why a connection was not taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It does not speak TLS, and has been told to.
    InTheClear,
    /// Anything else.
    Other(String),
}

/// The server's side of a TLS handshake. Also says whether the client is a process of the cluster.
pub(crate) async fn greet(
    mut stream: TcpStream,
    tls: &Tls,
    wanted: &ClientCertificate,
) -> Result<(TlsStream<TcpStream>, bool), Refused> {
    let other = |reason: &dyn std::fmt::Display| Refused::Other(reason.to_string());
    match refuse::look(&stream).await {
        Ok(Greeting::Tls) => {}
        Ok(Greeting::Other(protocol)) => {
            refuse::tell(&mut stream, protocol).await;
            return Err(Refused::InTheClear);
        }
        Err(error) => return Err(other(&error)),
    }
    let config = server_config(tls, wanted);
    let config = config.ok_or_else(|| other(&"there is no certificate to show"))?;
    let accepted = TlsAcceptor::from(config).accept(stream).into_fallible();
    let stream = match accepted.await {
        Ok(stream) => stream,
        Err((error, mut stream)) => {
            refuse::linger(&mut stream).await;
            return Err(other(&error));
        }
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let member = !chain.is_empty() && tls.is_member(chain);
    check(chain, member, wanted).map_err(Refused::Other)?;
    Ok((stream, member))
}

fn server_config(tls: &Tls, wanted: &ClientCertificate) -> Option<Arc<ServerConfig>> {
    let loaded = tls.current();
    let servers = loaded.servers.as_ref()?;
    Some(Arc::clone(match wanted {
        ClientCertificate::Optional => &servers.optional,
        ClientCertificate::MemberAt(_) => &servers.required,
    }))
}

fn check(
    chain: &[CertificateDer<'_>],
    member: bool,
    wanted: &ClientCertificate,
) -> Result<(), String> {
    let ClientCertificate::MemberAt(host) = wanted else {
        return Ok(());
    };
    if !member {
        return Err("its certificate is for clients, not for a process of the cluster".to_owned());
    }
    match chain.first().is_some_and(|own| is_for_host(own, host)) {
        true => Ok(()),
        false => Err(format!("its certificate is not for {host}")),
    }
}
