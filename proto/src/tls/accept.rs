//! Server side of TLS: the handshake, and the identity of the client.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::refuse::{self, Greeting};
use super::{Tls, is_for_host};

/// Requirement on client certificates of a TLS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificate {
    /// Optional: each request decides what a peer without a certificate may ask for.
    Optional,
    /// Required: the certificate of a process of the cluster, valid for one of these hosts.
    MemberAt(Vec<String>),
}

/// Peer of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Address of the peer.
    pub address: SocketAddr,
    /// True if the connection uses TLS.
    pub encrypted: bool,
    /// True if it has shown the certificate of a process of the cluster.
    pub member: bool,
}

/// Reason why a connection was refused.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The client does not speak TLS, and has been told to.
    InTheClear,
    /// Any other reason.
    Other(String),
}

/// Performs the server's side of a TLS handshake. Also returns whether the client is a process of the cluster.
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
    let ClientCertificate::MemberAt(hosts) = wanted else {
        return Ok(());
    };
    if !member {
        return Err("its certificate is for clients, not for a process of the cluster".to_owned());
    }
    let is_for_one = |own| hosts.iter().any(|host| is_for_host(own, host));
    match chain.first().is_some_and(is_for_one) {
        true => Ok(()),
        false => Err(format!("its certificate is not for {}", hosts.join(" or "))),
    }
}
