//! A [`Link`] over TLS: rustls' connection between a rank's calls and its socket.
//!
//! ```text
//!   write ──► encrypted ──► socket        read ◄── decrypted ◄── ciphertext ◄── socket
//!               │ not all taken by the kernel: WouldBlock, and the same bytes are offered again
//! ```
//!
//! A write counts as done once the kernel has taken all its bytes, as on any other link: a rank that returns
//! to computing leaves nothing behind that a peer waits for. A read from the socket may take more bytes than
//! the caller asked for, which `poll(2)` does not know: [`Link::may_have_more`] tells.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::poll::PollFlags;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::link::Link;

/// Maximum bytes encrypted at a time: as many as a network send carries.
const MOST: usize = 128 * 1024;
/// Ciphertext bytes taken from the kernel at a time; `UNKNOWN` applies until the handshake is done.
const WIRE: usize = 128 * 1024;
const UNKNOWN: usize = 4 * 1024;

#[derive(Debug)]
pub(super) struct TlsLink {
    socket: TcpStream,
    tls: Connection,
    /// The caller's bytes that are encrypted; some of them may still wait for the kernel.
    taken: usize,
    wire: Wire,
    may_have_more: bool,
}

/// Ciphertext from the kernel that rustls has not taken. By itself rustls reads 4 KiB at a time.
#[derive(Debug)]
struct Wire {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl TlsLink {
    /// Opens the dialling end, over a non-blocking socket. It sends nothing before the first read or write.
    pub(super) fn dial(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self::over(socket, tls.into()))
    }

    /// Opens the accepting end, over a non-blocking socket.
    pub(super) fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::over(socket, tls.into()))
    }

    fn over(socket: TcpStream, mut tls: Connection) -> Self {
        // `MOST` limits the bytes taken at a time instead.
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

    /// Hands encrypted bytes to the kernel.
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

    /// Takes the bytes that the kernel has, and decrypts some of them.
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
            // Tells the peer the reason, if the kernel takes the alert at once.
            self.send().ok();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Continues the TLS handshake until it is done.
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
        // Sends the end of the handshake, or the rest of a write. A full socket must not hold back received
        // bytes.
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
                // A rank that is cut off or ends stops in mid-stream: a reader learns of it either way.
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
                // The error comes again at the next read, with no bytes before it.
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
