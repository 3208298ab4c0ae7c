//! A [`Link`]: one non-blocking, duplex byte stream to one peer.
//!
//! Transports differ in how they are opened (`connect`, or a pair within the process) and in
//! nothing else: an in-process link *is* a Unix socket, from `socketpair(2)`. Tests decorate links
//! with faults.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use socket2::SockRef;

/// Bytes on their way through a Unix socket.
const UNIX_BUFFER: usize = 1 << 20;

/// A duplex byte stream.
///
/// Reads and writes never block: they fail with [`io::ErrorKind::WouldBlock`], after which the
/// descriptor becomes ready in the sense of `poll(2)` once it is worth trying again.
pub(super) trait Link: Read + Write + AsFd + Debug + Send {
    /// Whether the peer is on this host, by the kind of the link.
    fn is_local(&self) -> bool;
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

pub(super) fn tcp(stream: TcpStream) -> io::Result<Box<dyn Link>> {
    stream.set_nonblocking(true)?;
    // The last chunk of a segment is small, and the next rank waits for it.
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

pub(super) fn unix(stream: UnixStream) -> io::Result<Box<dyn Link>> {
    stream.set_nonblocking(true)?;
    // By default little more than a chunk: both sides would take turns. The kernel may grant less.
    SockRef::from(&stream).set_send_buffer_size(UNIX_BUFFER)?;
    Ok(Box::new(stream))
}

/// Both ends of a link within this process.
pub(super) fn in_process() -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
    let (near, far) = UnixStream::pair()?;
    Ok((unix(near)?, unix(far)?))
}
