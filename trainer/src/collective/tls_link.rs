//! A [`Link`] over TLS: rustls' connection between a rank's calls and its socket.
//!
//! ```text
//!   write ──► encrypted ──► socket        read ◄── decrypted ◄── ciphertext ◄── socket
//!               │ not all taken by the kernel: WouldBlock, and the same bytes are offered again
//! ```
//!
//! What is written counts as written once all of it was handed to the kernel, as on any other link: a rank that goes
//! back to computing leaves nothing behind that a peer waits for. What was read from the socket may be more than was
//! asked for, which `poll(2)` knows nothing of: [`Link::may_have_more`] tells.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::PollFlags;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::link::Link;

/// Bytes that are encrypted at a time: as many as a network send carries.
const MOST: usize = 128 * 1024;
/// Ciphertext that is taken from the kernel at a time, and while who is at the other end is not known.
const WIRE: usize = 128 * 1024;
const UNKNOWN: usize = 4 * 1024;

#[derive(Debug)]
pub(super) struct TlsLink {
    socket: TcpStream,
    tls: Connection,
    /// Bytes of the caller's that are encrypted, of which some wait for the kernel.
    taken: usize,
    wire: Wire,
    may_have_more: bool,
}

/// Ciphertext from the kernel that rustls has not taken. It reads 4 KiB at a time by itself.
#[derive(Debug)]
struct Wire {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl TlsLink {
    /// The dialling end, over a non-blocking socket. Nothing is said before the first read or write.
    pub(super) fn dial(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self::over(socket, tls.into()))
    }

    /// The accepting end, over a non-blocking socket.
    pub(super) fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::over(socket, tls.into()))
    }

    fn over(socket: TcpStream, mut tls: Connection) -> Self {
        // What is taken at a time is the limit.
        tls.set_buffer_limit(None);
        Self {
            socket,
            tls,
            taken: 0,
            wire: Wire {
                bytes: vec![0; UNKNOWN],
                start: 0,
                end: 0,
            },
            may_have_more: false,
        }
    }

    /// Hands what is encrypted to the kernel.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes what the kernel has and decrypts some of it.
    fn receive(&mut self) -> io::Result<()> {
        let Wire { bytes, start, end } = &mut self.wire;
        if start == end {
            if bytes.len() < WIRE && !self.tls.is_handshaking() {
                bytes.resize(WIRE, 0);
            }
            let came = self.socket.read(bytes)?;
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (*start, *end) = (0, came);
        }
        *start += self.tls.read_tls(&mut &bytes[*start..*end])?;
        if let Err(error) = self.tls.process_new_packets() {
            // The peer is told why, if that goes out at once.
            self.send().ok();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Goes on with the greeting until it is done.
    fn greet(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() {
            if self.tls.wants_write() {
                self.send()?;
            } else {
                self.receive()?;
            }
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.greet()?;
        // The end of the greeting, or what a write has left. Whether there is room for it must not keep what came.
        match self.send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => sent?,
        }
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            match self.receive() {
                // Ranks are cut off, or end, in mid-stream: whoever waits for bytes learns of it either way.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                received => received?,
            }
        }
    }
}

impl Link for TlsLink {
    fn is_local(&self) -> bool {
        false
    }

    fn may_have_more(&self) -> bool {
        self.may_have_more
    }

    fn greeting(&self) -> Option<PollFlags> {
        let writes = self.tls.wants_write();
        match self.tls.is_handshaking() {
            true if writes => Some(PollFlags::POLLOUT),
            true => Some(PollFlags::POLLIN),
            false => None,
        }
    }

    fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        Some(self.tls.peer_certificates().unwrap_or_default())
    }
}

impl Read for TlsLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_some(buffer);
        self.may_have_more = read.is_ok();
        read
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            match self.read(part) {
                Ok(read) => {
                    total += read;
                    if read < part.len() {
                        break;
                    }
                }
                // It comes again at the next read, which finds nothing before it.
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }
}

impl Write for TlsLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.greet()?;
        if self.taken == 0 {
            let mut room = MOST;
            for part in parts {
                let offered = &part[..part.len().min(room)];
                self.tls.writer().write_all(offered)?;
                self.taken += offered.len();
                room -= offered.len();
            }
        }
        self.send()?;
        Ok(std::mem::take(&mut self.taken))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
