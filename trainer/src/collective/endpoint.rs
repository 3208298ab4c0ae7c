//! A rank's address ([`Endpoint`]) and its listening sockets ([`Listener`]).
//!
//! TLS is for TCP only: traffic within a host is not encrypted.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use volley_proto::address::ListenAddress;
use volley_proto::tls::Tls;

use super::error::{Error, Result};
use super::link::{self, Link};
use super::tls_link::TlsLink;

/// Address at which peers reach a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Id of the rank's host: ranks with the same one try the Unix socket. Empty if unknown.
    pub host_id: String,
    /// `host:port`, with an IPv6 address in brackets.
    pub tcp: Option<String>,
    /// The path of a Unix socket.
    pub unix: Option<PathBuf>,
}

impl Endpoint {
    /// Returns true if both are known to be on one host.
    pub(super) fn is_on_host_of(&self, other: &Self) -> bool {
        !self.host_id.is_empty() && self.host_id == other.host_id
    }

    /// Returns the host name or address that peers dial by TCP.
    pub(super) fn host(&self) -> Option<&str> {
        Some(self.tcp.as_deref()?.rsplit_once(':')?.0)
    }
}

/// Sockets on which a rank waits for its peers to dial. Dropping it closes them and removes the Unix socket's
/// file.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    unix: Option<UnixSocket>,
    endpoint: Endpoint,
    tls: Option<Tls>,
}

impl Listener {
    /// Listens on a TCP port of `address` and, if `unix_dir` is given, on a Unix socket in that directory. If
    /// the Unix socket is unusable (the path is too long, the directory not writable), logs a warning and
    /// listens on TCP alone. Peers dial the host that `address` advertises.
    ///
    /// # Errors
    ///
    /// [`Error::Bind`].
    pub fn bind(address: &ListenAddress, unix_dir: Option<&Path>) -> Result<Self> {
        let bind = || -> io::Result<(TcpListener, u16)> {
            let listener = address.listen()?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let (tcp, port) = bind().map_err(|source| Error::Bind {
            address: address.to_string(),
            source,
        })?;
        let unix = unix_dir.and_then(|dir| {
            UnixSocket::bind(dir)
                .inspect_err(|error| {
                    tracing::warn!(dir = %dir.display(), %error, "no Unix socket for peers on this host; they use TCP");
                })
                .ok()
        });
        let endpoint = Endpoint {
            host_id: host_id(),
            tcp: Some(format!("{}:{port}", address.advertise_host())),
            unix: unix.as_ref().map(|socket| socket.path.clone()),
        };
        Ok(Self {
            tcp,
            unix,
            endpoint,
            tls: None,
        })
    }

    /// Uses TLS with peers over TCP, if `tls` is given. Either all ranks do or none.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Returns the endpoint to announce to peers.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the next connection, if one is waiting.
    pub(super) fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let link = if let Some((stream, _)) = pending(self.tcp.accept())? {
            self.over_tcp(stream)
        } else if let Some(socket) = &self.unix
            && let Some((stream, _)) = pending(socket.listener.accept())?
        {
            link::unix(stream)
        } else {
            return Ok(None);
        };
        // An unusable socket counts as no caller; others are accepted at the next wait.
        let unusable =
            |error: &io::Error| tracing::debug!(%error, "dropped an unusable connection");
        Ok(link.inspect_err(unusable).ok())
    }

    fn over_tcp(&self, stream: TcpStream) -> io::Result<Box<dyn Link>> {
        let stream = link::tcp(stream)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let none = || io::Error::other("there is no certificate to show");
        let config = tls.rank_server().ok_or_else(none)?;
        Ok(Box::new(TlsLink::accept(stream, config)?))
    }

    /// Returns the descriptors that become readable when a peer dials.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let unix = self.unix.as_ref().map(|socket| socket.listener.as_fd());
        std::iter::once(self.tcp.as_fd()).chain(unix)
    }
}

/// Returns `None` if there is nothing to accept, or the caller hung up before it was accepted.
fn pending<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
    match accepted {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted => Ok(None),
            _ => Err(error),
        },
    }
}

/// A listening Unix socket that owns its file.
#[derive(Debug)]
struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    fn bind(dir: &Path) -> io::Result<Self> {
        // Kept short: a socket's path is limited to about 100 bytes.
        let path = dir.join(format!("{:016x}", rand::random::<u64>()));
        let socket = Self {
            listener: UnixListener::bind(&path)?,
            path,
        };
        socket.listener.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

/// Identifies this host by its boot id, which is unique to a running kernel; else by its name.
///
/// Containers on one host share the boot id but not their files: a peer whose socket is out of reach is
/// dialled by TCP instead.
pub fn host_id() -> String {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if !boot_id.trim().is_empty() {
        return boot_id.trim().to_owned();
    }
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use volley_proto::address::PortRange;

    use super::*;

    #[test]
    fn an_endpoint_names_both_sockets_and_dropping_removes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&ListenAddress::loopback(), Some(dir.path())).unwrap();
        let endpoint = listener.endpoint().clone();
        assert!(
            endpoint
                .tcp
                .is_some_and(|tcp| tcp.starts_with("127.0.0.1:") && !tcp.ends_with(":0"))
        );
        let path = endpoint.unix.unwrap();
        assert!(path.exists());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn without_a_usable_unix_socket_there_is_tcp() {
        let dir = tempfile::tempdir().unwrap();
        for dir in [dir.path().join("x".repeat(120)), dir.path().join("missing")] {
            let endpoint = Listener::bind(&ListenAddress::loopback(), Some(&dir))
                .unwrap()
                .endpoint()
                .clone();
            assert_eq!((endpoint.unix, endpoint.tcp.is_some()), (None, true));
        }
    }

    #[test]
    fn peers_dial_what_is_advertised() {
        let everywhere = Ipv4Addr::UNSPECIFIED.into();
        let address = ListenAddress::new(everywhere, PortRange::FREE, Some("b.example.com"));
        let listener = Listener::bind(&address.unwrap(), None).unwrap();
        let tcp = listener.endpoint().tcp.clone().unwrap();
        let (host, port) = tcp.split_once(':').unwrap();
        assert_eq!(host, "b.example.com");
        let bound = listener.tcp.local_addr().unwrap();
        assert_eq!(port.parse(), Ok(bound.port()));
        assert!(bound.ip().is_unspecified());
    }

    #[test]
    fn an_address_of_another_host_is_refused() {
        let foreign = Ipv4Addr::new(192, 0, 2, 1).into();
        let foreign = ListenAddress::new(foreign, PortRange::FREE, None).unwrap();
        let error = Listener::bind(&foreign, None).unwrap_err();
        assert!(matches!(error, Error::Bind { .. }), "{error}");
    }
}
