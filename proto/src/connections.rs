//! Connections that a server accepts, over TLS or in the clear: limited in number, and closed if the peer stays silent.
//!
//! ```text
//! accept ──► greeting within GREETING ──► HTTP: its own deadlines
//!    │           │       └── TLS: concurrent handshakes, within the same time; not TLS where it is wanted: told so
//!    │           └── silent: closed
//!    └── at the limit: the next waits in the kernel's queue
//! ```
//!
//! After the first bytes, the server is in charge: HTTP/1 has a deadline for the request head, and HTTP/2 requires
//! answers to pings. A connection whose peer accepts no bytes is closed here too. A silent client delays no other.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::tls::{ClientCertificate, Peer, Refused, Tls, greet};

/// Time limit for a caller's greeting and TLS handshake.
const GREETING: Duration = Duration::from_secs(10);
/// Interval between pings of a connection over HTTP/2.
const PING: Duration = Duration::from_secs(30);
/// Time limit for the answer to a ping.
const PONG: Duration = Duration::from_secs(30);
/// TCP user timeout: time that sent data may stay unacknowledged until the connection is closed.
const USER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a peer may accept no bytes.
const STALL: Duration = Duration::from_secs(120);

/// Length of HTTP/2's preface in bytes; hardly any HTTP/1 request is shorter.
const GREETING_BYTES: usize = 24;
/// Maximum number of connections, if the process may open enough files.
const MOST: usize = 4096;
/// Pause when no connection can be accepted, for lack of files.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns a gRPC server that closes connections on which a keep-alive ping is not answered.
pub fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PONG))
}

/// Listener that accepts at most half as many connections as this process may open files, and at most 4096.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<(Tls, ClientCertificate)>,
    permits: Arc<Semaphore>,
    greeting: Duration,
    greetings: JoinSet<Result<Connection, (SocketAddr, Refused)>>,
    refused: u64,
}

impl Listener {
    /// Creates a listener on a listening socket, over TLS if given. Answers are sent at once, however small.
    pub fn new(tcp: TcpListener, tls: Option<(Tls, ClientCertificate)>) -> Self {
        Self::with(tcp, tls, MOST.min(files() / 2).max(1), GREETING)
    }

    /// Creates the same listener, which accepts fewer connections.
    pub fn at_most(
        tcp: TcpListener,
        tls: Option<(Tls, ClientCertificate)>,
        connections: usize,
    ) -> Self {
        Self::with(tcp, tls, connections, GREETING)
    }

    pub(crate) fn with(
        tcp: TcpListener,
        tls: Option<(Tls, ClientCertificate)>,
        connections: usize,
        greeting: Duration,
    ) -> Self {
        Self {
            tcp,
            tls,
            permits: Arc::new(Semaphore::new(connections)),
            greeting,
            greetings: JoinSet::new(),
            refused: 0,
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Accepts the next connection.
    pub async fn accept(&mut self) -> Connection {
        loop {
            tokio::select! {
                (stream, address, permit) = next(&self.tcp, &self.permits) => {
                    if let Some(connection) = self.greet(stream, address, permit) {
                        return connection;
                    }
                }
                Some(greeted) = self.greetings.join_next() => match greeted {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err((address, reason))) => self.refuse(address, reason),
                    Err(error) => tracing::error!(%error, "a greeting broke"),
                },
            }
        }
    }

    /// Returns the connections as a stream for tonic's servers.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        unfold(self, |mut listener| async move {
            let connection = listener.accept().await;
            Some((Ok(connection), listener))
        })
    }

    /// Returns a connection in the clear at once; starts the TLS handshake of others in the background.
    fn greet(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) -> Option<Connection> {
        // Answers are small: they must not wait for the acknowledgement of the previous one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection waits to fill its packets");
        }
        #[cfg(target_os = "linux")]
        if let Err(error) = SockRef::from(&stream).set_tcp_user_timeout(Some(USER_TIMEOUT)) {
            tracing::debug!(%error, "a connection keeps the default TCP user timeout");
        }
        let until = Instant::now() + self.greeting;
        let connection = move |stream, peer| Connection {
            stream,
            peer,
            heard: 0,
            greeting: Some(Box::pin(sleep_until(until))),
            stalled: None,
            _permit: permit,
        };
        let peer = Peer {
            address,
            encrypted: false,
            member: false,
        };
        let Some((tls, wanted)) = self.tls.clone() else {
            return Some(connection(Either::Left(stream), peer));
        };
        let patience = self.greeting;
        self.greetings.spawn(async move {
            let greeted = timeout_at(until, greet(stream, &tls, &wanted)).await;
            let greeted = greeted.unwrap_or_else(|_| {
                let late = format!("TLS was not agreed on within {patience:?}");
                Err(Refused::Other(late))
            });
            let (stream, member) = greeted.map_err(|reason| (address, reason))?;
            let peer = Peer {
                encrypted: true,
                member,
                ..peer
            };
            Ok(connection(Either::Right(Box::new(stream)), peer))
        });
        None
    }

    /// Logs each refusal, and their count each time it reaches a power of two.
    fn refuse(&mut self, address: SocketAddr, reason: Refused) {
        let reason = match reason {
            Refused::Other(reason) => reason,
            // Ballista's scheduler checks in the clear whether an executor listens.
            Refused::InTheClear if self.is_for_members() => return,
            Refused::InTheClear => "it does not speak TLS".to_owned(),
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

/// Accepts the next connection, once the limit allows one more.
async fn next(
    tcp: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else {
        return std::future::pending().await;
    };
    loop {
        match tcp.accept().await {
            Ok((stream, address)) => return (stream, address, permit),
            // The caller hung up.
            Err(error) if is_callers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Checks whether the caller caused the error by hanging up.
fn is_callers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Returns this process's limit on open files; 1024 if it is unknown.
pub(crate) fn files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| {
        let numbers = line.strip_prefix("Max open files")?;
        let soft = numbers.split_whitespace().next()?;
        match soft {
            "unlimited" => Some(usize::MAX),
            soft => soft.parse().ok(),
        }
    });
    limit.unwrap_or(1024)
}

/// Accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// In the clear, or over TLS.
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
    /// Bytes received so far, counted until they make up a greeting.
    heard: usize,
    greeting: Option<Pin<Box<Sleep>>>,
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns a write's result, or an error if writes have been pending for `STALL`.
    fn within_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(greeting) = &mut self.greeting
            && greeting.as_mut().poll(context).is_ready()
        {
            tracing::debug!(peer = %self.peer.address, "closed a connection that said nothing");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.greeting.is_some() && read.is_ready() {
            self.heard += buffer.filled().len() - before;
            if self.heard >= GREETING_BYTES {
                self.greeting = None;
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within_stall(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.within_stall(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.within_stall(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within_stall(context, done)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn listener() -> (TcpListener, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn who_says_nothing_is_not_waited_for() {
        let (listener, address) = listener().await;
        let mut accepted = Listener::with(listener, None, 2, Duration::from_millis(50));
        let mut caller = TcpStream::connect(address).await.unwrap();
        let mut connection = accepted.accept().await;
        caller.write_all(b"PRI * HTTP").await.unwrap();
        let mut heard = Vec::new();
        let error = connection.read_to_end(&mut heard).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(heard, b"PRI * HTTP");
    }

    #[tokio::test]
    async fn who_has_greeted_may_be_silent() {
        let (listener, address) = listener().await;
        let mut accepted = Listener::with(listener, None, 2, Duration::from_millis(50));
        let mut caller = TcpStream::connect(address).await.unwrap();
        let mut connection = accepted.accept().await;
        caller.write_all(&[b'x'; GREETING_BYTES]).await.unwrap();
        let mut greeting = [0; GREETING_BYTES];
        connection.read_exact(&mut greeting).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        caller.write_all(b"y").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'y');
    }

    #[tokio::test]
    async fn no_more_than_so_many_are_open_at_once() {
        let (listener, address) = listener().await;
        let mut accepted = Listener::with(listener, None, 2, GREETING);
        let mut callers = Vec::new();
        for _ in 0..3 {
            callers.push(TcpStream::connect(address).await.unwrap());
        }
        let first = accepted.accept().await;
        let _second = accepted.accept().await;
        let third = tokio::time::timeout(Duration::from_millis(50), accepted.accept());
        assert!(third.await.is_err(), "it waits");
        drop(first);
        accepted.accept().await;
    }

    #[test]
    fn half_of_the_files_are_for_others() {
        assert!(files() > 2);
    }
}
