//! A [`Link`]: one non-blocking, duplex byte stream to one peer.
//!
//! Transports differ only in how they are opened (`connect`, or a pair within the process): an in-process
//! link *is* a Unix socket, from `socketpair(2)`. TCP may carry TLS: see [`tls_link`](super::tls_link). Tests
//! decorate links with faults.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::PollFlags;
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};

/// Send buffer, in bytes, of a link to a peer on this host. By default a Unix socket holds little more than a
/// chunk, so both sides would take turns. A TCP connection's buffer grows to megabytes, which a network may
/// need; within a host, that made four ranks on two cores a fifth slower.
const LOCAL_BUFFER: usize = 1 << 18;

/// A duplex byte stream.
///
/// Reads and writes never block: they fail with [`io::ErrorKind::WouldBlock`], after which the descriptor
/// becomes ready in the sense of `poll(2)` once a retry can succeed. A write that would have blocked must be
/// retried with the same bytes, perhaps followed by more: the link may have taken some of them.
pub(super) trait Link: Read + Write + AsFd + Debug + Send {
    /// Returns true if the peer is on this host, by the kind of the link.
    fn is_local(&self) -> bool;

    /// Returns true if there may be bytes to read that `poll(2)` does not know of; false after a read that
    /// would have blocked.
    fn may_have_more(&self) -> bool {
        false
    }

    /// Returns the event that the link's own handshake waits for; `None` without one, or once it is done.
    fn greeting(&self) -> Option<PollFlags> {
        None
    }

    /// Returns the certificates that the peer has shown, its own first; `None` if the link uses none.
    fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        None
    }
}

impl Link for TcpStream {
    fn is_local(&self) -> bool {
        false
    }
}

impl Link for UnixStream {
    fn is_local(&self) -> bool {
        true
    }
}

/// TCP keepalive: idle time before the first probe, and time between probes.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// TCP user timeout: time that bytes and probes may stay unacknowledged before the connection is closed.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Configures a TCP connection as a link, or to carry one, that fails when the peer's host is gone.
pub(super) fn tcp(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    let socket = SockRef::from(&stream);
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    // The last chunk of a segment is small, and the next rank waits for it.
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(super) fn unix(stream: UnixStream) -> io::Result<Box<dyn Link>> {
    stream.set_nonblocking(true)?;
    Ok(Box::new(stream))
}

/// Sets the send buffer of a link to a peer on this host. The kernel may grant less.
pub(super) fn keep_near(link: &impl AsFd) -> io::Result<()> {
    SockRef::from(link).set_send_buffer_size(LOCAL_BUFFER)
}

/// Creates both ends of a link within this process.
pub(super) fn in_process() -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
    let (near, far) = UnixStream::pair()?;
    keep_near(&near)?;
    keep_near(&far)?;
    Ok((unix(near)?, unix(far)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux only: other kernels document their buffer sizes less precisely.
    #[cfg(target_os = "linux")]
    #[test]
    fn both_ends_of_a_link_can_be_ahead_by_more_than_a_chunk() {
        let (near, far) = in_process().unwrap();
        for link in [near, far] {
            let bytes = SockRef::from(&link).send_buffer_size().unwrap();
            assert!(bytes >= LOCAL_BUFFER, "{bytes} bytes");
        }
    }
}
