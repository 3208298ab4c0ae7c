//! Accepting connections, over TLS or in the clear: a [`Listener`].
//!
//! ```text
//!   accept ──► in the clear: handed out
//!          └─► TLS: greeted aside, many at once, each with a deadline ──► certificate right: handed out
//!                    └ not TLS: told so      └ else: dropped, and said now and then
//! ```
//!
//! Who connects and says nothing holds up nobody.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::unfold;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::refuse::{self, Greeting};
use super::{Tls, is_for_host};

/// How long a greeting may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Greetings under way at once; more wait in the kernel's queue.
const AT_ONCE: usize = 1024;
/// After an accept that failed for want of files, and the like.
const PAUSE: Duration = Duration::from_millis(100);

/// Whose connections are taken where TLS is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificate {
    /// Anybody's: what a peer without a certificate may ask for is decided request by request.
    Optional,
    /// Those of a process of the cluster, whose certificate is for this host.
    MemberAt(String),
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether TLS is spoken.
    pub encrypted: bool,
    /// Whether it has shown the certificate of a process of the cluster.
    pub member: bool,
}

/// Accepts connections on a port.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    keepalive: Option<Duration>,
    tls: Option<(Tls, ClientCertificate)>,
    greetings: JoinSet<Result<(Stream, Peer), Refused>>,
    refused: u64,
    ready: VecDeque<(Stream, Peer)>,
}

/// Why a connection was not taken.
#[derive(Debug)]
struct Refused {
    address: SocketAddr,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    InTheClear,
    Other(String),
}

impl Listener {
    /// On a socket that listens, over TLS if that is given. Answers are sent at once, however small.
    pub fn new(tcp: TcpListener, tls: Option<(Tls, ClientCertificate)>) -> Self {
        Self {
            tcp,
            keepalive: None,
            tls,
            greetings: JoinSet::new(),
            refused: 0,
            ready: VecDeque::new(),
        }
    }

    /// Has the kernel look after a silence of this length whether a peer is still there.
    pub fn with_keepalive(self, after: Duration) -> Self {
        Self {
            keepalive: Some(after),
            ..self
        }
    }

    /// The address that is listened on.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next connection.
    pub async fn accept(&mut self) -> (Stream, Peer) {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready;
            }
            let room = self.greetings.len() < AT_ONCE;
            tokio::select! {
                accepted = self.tcp.accept(), if room => match accepted {
                    Ok((stream, address)) => self.greet(stream, address),
                    Err(error) if is_callers(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        sleep(PAUSE).await;
                    }
                },
                Some(greeted) = self.greetings.join_next() => match greeted {
                    Ok(Ok(ready)) => return ready,
                    Ok(Err(refused)) => self.refuse(&refused),
                    Err(error) => tracing::error!(%error, "a greeting broke"),
                },
            }
        }
    }

    /// The connections as tonic's servers take them.
    pub fn into_stream(self) -> impl futures::Stream<Item = io::Result<Stream>> {
        unfold(self, |mut listener| async move {
            let (stream, _) = listener.accept().await;
            Some((Ok(stream), listener))
        })
    }

    fn greet(&mut self, stream: TcpStream, address: SocketAddr) {
        if let Err(error) = self.fit(&stream) {
            tracing::debug!(%error, "a connection waits to fill its packets");
        }
        let Some((tls, wanted)) = self.tls.clone() else {
            let peer = Peer {
                address,
                encrypted: false,
                member: false,
            };
            let stream = Stream {
                kind: Kind::Plain(stream),
                peer: peer.clone(),
            };
            self.ready.push_back((stream, peer));
            return;
        };
        self.greetings.spawn(async move {
            let greeted = timeout(HANDSHAKE, greet(stream, address, &tls, &wanted)).await;
            let greeted = greeted.unwrap_or_else(|_| {
                let late = format!("it was not done within {HANDSHAKE:?}");
                Err(Reason::Other(late))
            });
            greeted.map_err(|reason| Refused { address, reason })
        });
    }

    fn fit(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        if let Some(after) = self.keepalive {
            let keepalive = socket2::TcpKeepalive::new().with_time(after);
            socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(())
    }

    /// Each is logged, and how many there were each time that they have doubled.
    fn refuse(&mut self, refused: &Refused) {
        let Refused { address, reason } = refused;
        let reason = match reason {
            Reason::Other(reason) => reason.as_str(),
            // Ballista's scheduler looks in the clear whether an executor listens.
            Reason::InTheClear if self.is_for_members() => return,
            Reason::InTheClear => "it does not speak TLS",
        };
        self.refused += 1;
        tracing::debug!(%address, reason, "refused a connection");
        if self.refused.is_power_of_two() {
            let (count, port) = (self.refused, self.tcp.local_addr().ok());
            tracing::info!(count, ?port, %address, reason, "connections were refused, of which this is the last");
        }
    }

    fn is_for_members(&self) -> bool {
        let wanted = self.tls.as_ref().map(|(_, wanted)| wanted);
        matches!(wanted, Some(ClientCertificate::MemberAt(_)))
    }
}

/// Whether the caller is at fault, who hung up.
fn is_callers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

async fn greet(
    mut stream: TcpStream,
    address: SocketAddr,
    tls: &Tls,
    wanted: &ClientCertificate,
) -> Result<(Stream, Peer), Reason> {
    let other = |reason: &dyn std::fmt::Display| Reason::Other(reason.to_string());
    match refuse::look(&stream).await {
        Ok(Greeting::Tls) => {}
        Ok(Greeting::Other(protocol)) => {
            refuse::tell(&mut stream, protocol).await;
            return Err(Reason::InTheClear);
        }
        Err(error) => return Err(other(&error)),
    }
    let config = server_config(tls, wanted);
    let config = config.ok_or_else(|| other(&"there is no certificate to show"))?;
    let stream = TlsAcceptor::from(config).accept(stream).await;
    let stream = stream.map_err(|error| other(&error))?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let member = !chain.is_empty() && tls.is_member(chain);
    check(chain, member, wanted).map_err(Reason::Other)?;
    let peer = Peer {
        address,
        encrypted: true,
        member,
    };
    let stream = Stream {
        kind: Kind::Tls(Box::new(stream)),
        peer: peer.clone(),
    };
    Ok((stream, peer))
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

/// One accepted connection.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    peer: Peer,
}

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Stream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Kind::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(context),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
