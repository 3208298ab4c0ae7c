//! Addresses of a cluster's schedulers, of which one leads and the others stand by.
//!
//! ```text
//!   channel, first dial ─► the address that served last ─► the next one ─► … ─► the first that accepts
//!            again ──────► the address after its last one ─► …
//! ```
//!
//! A scheduler that stands by accepts a connection, and closes it on the first request: so the channel dials again, and
//! finds another. A caller whose request fails otherwise says so: see [`Schedulers::distrust`]. Nobody is told who leads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for an answer of one of several addresses.
const EACH: Duration = Duration::from_millis(1500);

/// Addresses `host:port`; cheap to clone, and clones share which one is preferred.
#[derive(Debug, Clone)]
pub struct Schedulers {
    addresses: Arc<[String]>,
    /// Index of the address that was dialled last, or is to be dialled next.
    preferred: Arc<AtomicUsize>,
}

impl Schedulers {
    /// Parses addresses with commas between them.
    pub fn new(text: &str) -> Self {
        let addresses = text.split(',').map(str::trim);
        let addresses = addresses.filter(|address| !address.is_empty());
        let addresses: Arc<[String]> = addresses.map(str::to_owned).collect();
        Self {
            addresses: match addresses.is_empty() {
                true => [text.to_owned()].into(),
                false => addresses,
            },
            preferred: Arc::default(),
        }
    }

    /// Checks that each address has a host and a port, and nothing before them.
    ///
    /// # Errors
    /// The form of an address, for text that has another.
    pub fn check(text: &str) -> Result<(), String> {
        if let Some((scheme, _)) = text.split_once("://") {
            let scheme = scheme.rsplit(',').next().unwrap_or(scheme).trim();
            return Err(format!("expected HOST:PORT without {scheme}://"));
        }
        let is_address = |address: &str| {
            let parts = address.trim().rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        match text.split(',').all(is_address) {
            true => Ok(()),
            false => Err("expected HOST:PORT, or several with commas between them".to_owned()),
        }
    }

    /// Returns the host names of all addresses.
    pub fn hosts(&self) -> Vec<String> {
        self.addresses.iter().map(|address| host(address)).collect()
    }

    /// Returns the address that was dialled last, or is to be dialled next.
    pub fn current(&self) -> &str {
        &self.addresses[self.preferred.load(Ordering::Relaxed)]
    }

    /// Prefers the address after this one, which has not answered, if no other one is preferred already.
    pub fn distrust(&self, address: &str) {
        let tried = self.addresses.iter().position(|known| known == address);
        if let Some(tried) = tried {
            let (next, relaxed) = ((tried + 1) % self.addresses.len(), Ordering::Relaxed);
            self.preferred
                .compare_exchange(tried, next, relaxed, relaxed)
                .ok();
        }
    }

    /// Returns the time within which one address has to answer, of all that there is.
    pub fn share_of(&self, patience: Duration) -> Duration {
        match self.addresses.len() {
            1 => patience,
            _ => patience.min(EACH),
        }
    }

    /// Creates the way of one channel to them.
    pub(crate) fn way(&self) -> Way {
        Way {
            to: self.clone(),
            last: Arc::new(AtomicUsize::new(usize::MAX)),
        }
    }
}

/// Way of one channel to the scheduler that leads; clones are the same channel's.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    to: Schedulers,
    /// Index of the address that the channel dialled last; `usize::MAX` if it has not dialled.
    last: Arc<AtomicUsize>,
}

impl Way {
    /// Connects to the first address that accepts. Returns its host name as well.
    ///
    /// # Errors
    /// When none accepts, with the reason of each.
    pub(crate) async fn dial(&self) -> io::Result<(String, TcpStream)> {
        let addresses = &self.to.addresses;
        let count = addresses.len();
        let first = match self.last.load(Ordering::Relaxed) {
            usize::MAX => self.to.preferred.load(Ordering::Relaxed),
            last => last + 1,
        };
        let mut failures = Vec::new();
        for index in (first..first + count).map(|index| index % count) {
            let address = &addresses[index];
            let connected = match count {
                1 => TcpStream::connect(address).await,
                _ => match timeout(EACH, TcpStream::connect(address)).await {
                    Ok(connected) => connected,
                    Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
                },
            };
            match connected {
                Ok(stream) => {
                    self.last.store(index, Ordering::Relaxed);
                    self.to.preferred.store(index, Ordering::Relaxed);
                    return Ok((host(address), stream));
                }
                Err(error) if count == 1 => return Err(error),
                Err(error) => failures.push(format!("{address}: {error}")),
            }
        }
        let reasons = failures.join("; ");
        Err(io::Error::new(io::ErrorKind::NotConnected, reasons))
    }
}

/// Returns what a scheduler that stands by says of itself, `this scheduler stands by: HOST:PORT leads`; `None` from any
/// other process. It is asked without TLS.
pub async fn standing_by(address: &str) -> Option<String> {
    /// Bytes of the answer that are read.
    const MOST: u64 = 1024;
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request =
            format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(MOST).read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, said) = answer.split_once("\r\n\r\n")?;
        let is_refused = head.starts_with("HTTP/1.1 503");
        let said = said.trim().strip_prefix("this scheduler stands by: ");
        said.filter(|_| is_refused).map(str::to_owned)
    };
    let said = timeout(EACH, asked).await.ok()??;
    Some(format!("this scheduler stands by: {said}"))
}

/// Returns the host of an address.
fn host(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.to_owned()
}

impl fmt::Display for Schedulers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))
    }
}

impl From<&str> for Schedulers {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Schedulers {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_channel_that_dials_again_finds_another() {
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let addresses: Vec<_> = listeners.iter().map(address).collect();
        let [one, other] = &addresses[..] else {
            unreachable!("there are two")
        };
        let schedulers = Schedulers::new(&format!("{one}, {other}"));
        let way = schedulers.way();
        assert_eq!(schedulers.current(), one);
        way.dial().await.unwrap();
        schedulers.way().dial().await.unwrap();
        assert_eq!(schedulers.current(), one, "another channel of this process");
        way.dial().await.unwrap();
        assert_eq!(schedulers.current(), other);
        way.dial().await.unwrap();
        assert_eq!(schedulers.current(), one);
        schedulers.distrust(other);
        schedulers.distrust(one);
        schedulers.distrust(one);
        schedulers.way().dial().await.unwrap();
        assert_eq!(schedulers.current(), other);
        listeners.pop();
        schedulers.way().dial().await.unwrap();
        assert_eq!(schedulers.current(), one, "the other is gone");
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for text in ["h:1", "127.0.0.1:50050", "a:1, b:2", "[::1]:7"] {
            assert_eq!(Schedulers::check(text), Ok(()), "{text}");
        }
        for text in ["127.0.0.1", "h:", ":1", "h:70000", "a:1,b", "", "a:1,"] {
            let said = Schedulers::check(text).unwrap_err();
            assert!(said.starts_with("expected HOST:PORT, or"), "{text}: {said}");
        }
        for (text, scheme) in [("http://h:1", "http"), ("a:1, https://h:1", "https")] {
            let said = Schedulers::check(text).unwrap_err();
            assert_eq!(said, format!("expected HOST:PORT without {scheme}://"));
        }
    }

    #[tokio::test]
    async fn a_standby_says_who_leads() {
        let answers = [
            (
                "HTTP/1.1 503 Service Unavailable\r\n\r\nthis scheduler stands by: h:1 leads\n",
                Some("this scheduler stands by: h:1 leads"),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nok\n", None),
            (
                "HTTP/1.1 503 Service Unavailable\r\n\r\nanother server\n",
                None,
            ),
            ("", None),
        ];
        for (answer, said) in answers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /readyz "));
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (told, ()) = tokio::join!(standing_by(&address), serve);
            assert_eq!(told.as_deref(), said, "{answer:?}");
        }
        assert_eq!(standing_by("127.0.0.1:1").await, None);
    }

    #[tokio::test]
    async fn each_reason_is_told() {
        let one = Schedulers::new("127.0.0.1:1");
        let refused = one.way().dial().await.unwrap_err().kind();
        assert_eq!(refused, io::ErrorKind::ConnectionRefused);
        let two = Schedulers::new("127.0.0.1:1,127.0.0.2:1");
        let said = two.way().dial().await.unwrap_err().to_string();
        assert!(
            said.contains("127.0.0.1:1: ") && said.contains("127.0.0.2:1: "),
            "{said}"
        );
        assert_eq!(two.to_string(), "127.0.0.1:1,127.0.0.2:1");
        assert_eq!(two.hosts(), ["127.0.0.1", "127.0.0.2"]);
    }
}
