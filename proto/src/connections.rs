//! Connections that a server accepts: so many at once, and none that says nothing.
//!
//! ```text
//! accept ──► says what it speaks within GREETING ──► HTTP: its own deadlines
//!    │           └── silent: closed
//!    └── as many as there may be: the next waits in the kernel's queue
//! ```
//!
//! What comes after the first bytes is for the server: a head has a deadline in HTTP/1, and in HTTP/2 pings must be
//! answered. A connection that takes no bytes is closed here too.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long a caller may take to say what it speaks.
pub const GREETING: Duration = Duration::from_secs(10);
/// How often a connection over HTTP/2 is pinged.
pub const PING: Duration = Duration::from_secs(30);
/// How long it may take to answer.
pub const PONG: Duration = Duration::from_secs(30);
/// How long a connection may take no bytes that are to be sent.
const STALL: Duration = Duration::from_secs(120);

/// What HTTP/2 begins with has so many bytes; a request of HTTP/1 has hardly fewer.
const GREETING_BYTES: usize = 24;
/// The most connections, where the process may have as many files.
const MOST: usize = 4096;
/// How long to wait when none can be accepted, for lack of files.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections to a listener, as many at once as half of the files that this process may open, and 4096 at most.
pub fn accepted(listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> + Send {
    at_most(listener, MOST.min(files() / 2).max(1), GREETING)
}

fn at_most(
    listener: TcpListener,
    connections: usize,
    greeting: Duration,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let permits = Arc::new(Semaphore::new(connections));
    futures::stream::unfold((listener, permits), move |(listener, permits)| async move {
        let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    sleep(PAUSE).await;
                }
            }
        };
        // Answers are small: they must not wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection waits to fill its packets");
        }
        let connection = Connection {
            stream,
            heard: 0,
            greeting: Some(Box::pin(sleep(greeting))),
            stalled: None,
            _permit: permit,
        };
        Some((Ok(connection), (listener, permits)))
    })
}

/// Files that this process may have open; few, where that is not known.
fn files() -> usize {
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

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Bytes so far, until they are as many as a greeting.
    heard: usize,
    greeting: Option<Pin<Box<Sleep>>>,
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// What writing came to, with a deadline for what has to wait.
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
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
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
            tracing::debug!(peer = ?self.stream.peer_addr().ok(), "closed a connection that said nothing");
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
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
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
        let mut accepted = Box::pin(at_most(listener, 2, Duration::from_millis(50)));
        let mut caller = TcpStream::connect(address).await.unwrap();
        let mut connection = accepted.next().await.unwrap().unwrap();
        caller.write_all(b"PRI * HTTP").await.unwrap();
        let mut heard = Vec::new();
        let error = connection.read_to_end(&mut heard).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(heard, b"PRI * HTTP");
    }

    #[tokio::test]
    async fn who_has_greeted_may_be_silent() {
        let (listener, address) = listener().await;
        let mut accepted = Box::pin(at_most(listener, 2, Duration::from_millis(50)));
        let mut caller = TcpStream::connect(address).await.unwrap();
        let mut connection = accepted.next().await.unwrap().unwrap();
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
        let mut accepted = Box::pin(at_most(listener, 2, GREETING));
        let mut callers = Vec::new();
        for _ in 0..3 {
            callers.push(TcpStream::connect(address).await.unwrap());
        }
        let first = accepted.next().await.unwrap().unwrap();
        let _second = accepted.next().await.unwrap().unwrap();
        let third = tokio::time::timeout(Duration::from_millis(50), accepted.next());
        assert!(third.await.is_err(), "it waits");
        drop(first);
        assert!(accepted.next().await.unwrap().is_ok());
    }

    #[test]
    fn half_of_the_files_are_for_others() {
        assert!(files() > 2);
    }
}
