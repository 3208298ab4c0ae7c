//! Addresses of a process: where it listens, and where others dial it. The two differ on a host of several interfaces,
//! in a container, or behind address translation.
//!
//! This module resolves no names: the advertised name may mean something only to those who dial it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::str::FromStr;

use crate::{Error, Result};

/// Parses an address and a port to listen on.
///
/// # Errors
/// The expected form, for text that has another.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let expected =
        "expected ADDRESS:PORT, such as 127.0.0.1:50050 or [::1]:50050, without a host's name";
    text.parse().map_err(|_| expected.to_owned())
}

/// Parses an address to listen on.
///
/// # Errors
/// The expected form, for text that has another.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    let expected = "expected an address without a port, such as 127.0.0.1 or ::1";
    text.parse().map_err(|_| expected.to_owned())
}

/// Address and ports that a process listens on, and the host name that it advertises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    bind: IpAddr,
    ports: PortRange,
    advertise_host: String,
}

impl ListenAddress {
    /// Creates an address on `bind`, with the free ports of the range. Others dial `advertise_host`; without one,
    /// `bind`.
    ///
    /// # Errors
    /// [`Error::Option`] when nobody can dial it: `0.0.0.0` and `::` cannot be dialled, and the advertised host must be
    /// a name or an address, without a port.
    pub fn new(bind: IpAddr, ports: PortRange, advertise_host: Option<&str>) -> Result<Self> {
        let advertise_host = match advertise_host {
            Some(host) => dialled(host)?,
            None if bind.is_unspecified() => {
                return Err(Error::option(
                    "--bind",
                    bind.to_string(),
                    "this listens on every interface: also pass --advertise-host, the name or address that others use \
                     to reach this host",
                ));
            }
            None => in_brackets(bind),
        };
        Ok(Self {
            bind,
            ports,
            advertise_host,
        })
    }

    /// Creates an address on free ports that only this host reaches, at `127.0.0.1`.
    pub fn loopback() -> Self {
        let bind = IpAddr::from(Ipv4Addr::LOCALHOST);
        Self {
            bind,
            ports: PortRange::FREE,
            advertise_host: in_brackets(bind),
        }
    }

    /// Returns the address of this host to listen on.
    pub fn bind(&self) -> IpAddr {
        self.bind
    }

    /// Returns the range to take a listening port from.
    pub fn ports(&self) -> PortRange {
        self.ports
    }

    /// Returns the name or address that others dial, ready for `host:port`: an IPv6 address is in brackets.
    pub fn advertise_host(&self) -> &str {
        &self.advertise_host
    }

    /// Returns the address to bind, ready for `host:port`: an IPv6 address is in brackets.
    pub fn bind_host(&self) -> String {
        in_brackets(self.bind)
    }

    /// Listens on the first free port of the range. The socket blocks.
    ///
    /// # Errors
    /// The operating system's error; it names the range if all ports are in use.
    pub fn listen(&self) -> io::Result<TcpListener> {
        let PortRange { first, last } = self.ports;
        for port in first..=last {
            match TcpListener::bind((self.bind, port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound,
            }
        }
        let used = match self.ports.count() {
            Some(1) => format!("port {} is in use", self.ports),
            _ => format!("each port of {} is in use", self.ports),
        };
        Err(io::Error::new(io::ErrorKind::AddrInUse, used))
    }
}

impl fmt::Display for ListenAddress {
    /// Writes `host`, or `host:ports` if ports are given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            PortRange::FREE => f.write_str(&self.bind_host()),
            ports => write!(f, "{}:{ports}", self.bind_host()),
        }
    }
}

/// Formats an address so that a port can follow it.
fn in_brackets(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Returns the host that others dial, an IPv6 address in brackets.
fn dialled(host: &str) -> Result<String> {
    let refuse = |expected: &str| Error::option("--advertise-host", host, expected);
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if let Ok(address) = inner.unwrap_or(host).parse::<IpAddr>() {
        return match address.is_unspecified() {
            true => Err(refuse(
                "expected the name or address of this host that others dial: this is every interface of it",
            )),
            false => Ok(in_brackets(address)),
        };
    }
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    match !host.is_empty() && host.chars().all(is_name) {
        true => Ok(host.to_owned()),
        false => Err(refuse("expected a host name or an address, without a port")),
    }
}

/// Range of ports of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Any free port.
    pub const FREE: Self = Self { first: 0, last: 0 };

    /// Returns the number of ports; `None` if any free port will do.
    pub fn count(self) -> Option<usize> {
        (self != Self::FREE).then(|| usize::from(self.last - self.first) + 1)
    }
}

impl From<u16> for PortRange {
    /// Returns the range of that port alone; any free port for 0.
    fn from(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "{text:?} is not a range of ports: expected FIRST-LAST, such as 7000-7099"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn advertised(bind: &str, host: Option<&str>) -> Result<String, String> {
        let address = ListenAddress::new(bind.parse().unwrap(), PortRange::FREE, host);
        match address {
            Ok(address) => Ok(address.advertise_host().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn an_address_of_another_form_is_told_the_right_one() {
        assert!(socket_address("[::1]:0").is_ok() && ip_address("0.0.0.0").is_ok());
        for text in ["127.0.0.1", "localhost:50050", ":50050", ""] {
            let said = socket_address(text).unwrap_err();
            assert!(said.starts_with("expected ADDRESS:PORT"), "{said}");
        }
        for text in ["127.0.0.1:1", "localhost", "[::1]"] {
            let said = ip_address(text).unwrap_err();
            assert!(said.starts_with("expected an address"), "{said}");
        }
    }

    #[test]
    fn others_dial_what_is_advertised_or_else_what_is_bound() {
        for (bind, host, dialled) in [
            ("10.0.0.1", None, "10.0.0.1"),
            ("0.0.0.0", Some("b.example.com"), "b.example.com"),
            ("::", Some("b"), "b"),
            ("::1", None, "[::1]"),
            ("::", Some("fd00::2"), "[fd00::2]"),
            ("::", Some("[fd00::2]"), "[fd00::2]"),
            ("127.0.0.1", Some("192.0.2.7"), "192.0.2.7"),
        ] {
            assert_eq!(advertised(bind, host).unwrap(), dialled, "{bind} {host:?}");
        }
    }

    #[test]
    fn what_nobody_can_dial_is_refused() {
        for (bind, host, said) in [
            ("0.0.0.0", None, "also pass --advertise-host"),
            ("::", None, "also pass --advertise-host"),
            ("0.0.0.0", Some("0.0.0.0"), "every interface"),
            ("0.0.0.0", Some("[::]"), "every interface"),
            ("0.0.0.0", Some("b:7000"), "without a port"),
            ("0.0.0.0", Some("http://b"), "without a port"),
            ("0.0.0.0", Some(""), "without a port"),
        ] {
            let error = advertised(bind, host).unwrap_err();
            assert!(error.contains(said), "{bind} {host:?}: {error}");
        }
    }

    #[test]
    fn ranges_are_read_and_what_is_none_is_refused() {
        for (text, count) in [("7000-7099", 100), ("7000", 1), ("1 - 65535", 65_535)] {
            assert_eq!(text.parse::<PortRange>().unwrap().count(), Some(count));
        }
        for text in ["", "0", "7099-7000", "7000-", "0-9", "70000", "a-b"] {
            let error = text.parse::<PortRange>().unwrap_err();
            assert!(error.contains("FIRST-LAST"), "{error}");
        }
    }

    #[test]
    fn a_port_of_the_range_is_taken_until_none_is_free() {
        for host in [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
        ] {
            // A host may have no IPv6.
            let Ok(taken) = TcpListener::bind((host, 0)) else {
                continue;
            };
            let port = taken.local_addr().unwrap().port();
            let address = ListenAddress::new(host, port.into(), None).unwrap();
            let error = address.listen().unwrap_err().to_string();
            assert!(error.contains(&format!("{port} is in use")), "{error}");
            drop(taken);
            assert_eq!(address.listen().unwrap().local_addr().unwrap().port(), port);
        }
    }
}
