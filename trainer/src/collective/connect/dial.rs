//! A [`Dial`]: the attempts to reach one lower rank, as a state machine that never blocks.
//!
//! ```text
//!            connect                 connected               Reply: proven; Answer sent
//!   Idle ───────────────▶ Connecting ─────────▶ Greeting ────────────────────────────▶ linked
//!    ▲  after a pause         │ failed             │ closed, garbage, unproven   └────▶ refused
//!    └────────────────────────┴────────────────────┘
//!            the next route: Unix, TCP, Unix, …
//! ```
//!
//! A greeting has no deadline: the peer's kernel accepts before the peer itself can answer, and a second
//! connection would be a second caller. The kernel's accept has one: the peer does not know of an attempt
//! that its kernel does not answer, and the next attempt succeeds once the network is back.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use rustls::pki_types::ServerName;
use socket2::{Domain, SockAddr, Socket, Type};
use volley_proto::tls::{Tls, server_name};

use super::proof;
use crate::collective::endpoint::Endpoint;
use crate::collective::error::Refusal;
use crate::collective::link::{self, Link};
use crate::collective::tls_link::TlsLink;
use crate::collective::wire::{
    ANSWER_BYTES, HELLO_BYTES, Hello, REPLY_BYTES, REPLY_HEAD_BYTES, Reply, encode_answer,
};
use volley_proto::Secret;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the peer's kernel to accept.
const ACCEPTING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Dial {
    peer: usize,
    hello: Hello,
    secret: Secret,
    tls: Option<Tls>,
    routes: Vec<Route>,
    attempts: usize,
    state: State,
    failure: Option<io::Error>,
    /// Start of the period in which no host was reached.
    unreached: Option<Instant>,
}

/// Progress of a dial.
pub(super) enum DialState {
    Pending,
    Linked(Box<dyn Link>),
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Unix(PathBuf),
    /// `host:port`; each attempt resolves the name and takes its next address.
    Tcp(String),
}

#[derive(Debug)]
enum State {
    Idle {
        until: Option<Instant>,
    },
    Connecting {
        socket: Socket,
        /// Name that the peer's certificate must have; `None` without TLS.
        name: Option<ServerName<'static>>,
        is_unix: bool,
        until: Instant,
    },
    Greeting(Box<Greeting>),
}

/// A connection that sends the hello, receives the reply and sends the answer.
#[derive(Debug)]
struct Greeting {
    link: Box<dyn Link>,
    hello: [u8; HELLO_BYTES],
    sent: usize,
    reply: [u8; REPLY_BYTES],
    received: usize,
    /// Set once the reply has proven that the peer is a member.
    answer: Option<[u8; ANSWER_BYTES]>,
    answered: usize,
}

impl Dial {
    pub(super) fn new(
        (peer, theirs): (usize, &Endpoint),
        own: &Endpoint,
        hello: Hello,
        secret: &Secret,
        tls: Option<&Tls>,
    ) -> Self {
        Self {
            peer,
            hello,
            secret: secret.clone(),
            tls: tls.cloned(),
            routes: routes(theirs, own),
            attempts: 0,
            state: State::Idle { until: None },
            failure: None,
            unreached: None,
        }
    }

    /// Returns the time for which no host was reached, not even by an attempt that failed later.
    pub(super) fn unreached(&self, now: Instant) -> Duration {
        let since = self.unreached;
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    pub(super) fn peer(&self) -> usize {
        self.peer
    }

    /// Takes the error of the last failed attempt.
    pub(super) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Returns the event to wait for; `None` while a pause runs.
    pub(super) fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Idle { .. } => None,
            State::Connecting { socket, .. } => {
                Some(PollFd::new(socket.as_fd(), PollFlags::POLLOUT))
            }
            State::Greeting(greeting) => {
                let waits_for_reply = greeting.sent == HELLO_BYTES && greeting.answer.is_none();
                let events = if waits_for_reply {
                    PollFlags::POLLIN
                } else {
                    PollFlags::POLLOUT
                };
                let events = greeting.link.greeting().unwrap_or(events);
                Some(PollFd::new(greeting.link.as_fd(), events))
            }
        }
    }

    /// Advances as far as possible without waiting.
    pub(super) fn advance(&mut self, now: Instant) -> DialState {
        match self.try_advance(now) {
            Ok(progress) => progress,
            Err(error) => {
                tracing::debug!(peer = self.peer, attempts = self.attempts, %error, "dialling failed");
                self.failure = Some(error);
                self.state = State::Idle {
                    until: Some(now + PAUSE),
                };
                DialState::Pending
            }
        }
    }

    fn try_advance(&mut self, now: Instant) -> io::Result<DialState> {
        if let State::Idle { until } = self.state {
            if until.is_some_and(|until| now < until) {
                return Ok(DialState::Pending);
            }
            self.unreached.get_or_insert(now);
            self.state = self.connect(now)?;
        }
        // Every other way out leaves the state idle: an error ends the attempt.
        let mut greeting = match std::mem::replace(&mut self.state, State::Idle { until: None }) {
            State::Connecting {
                socket,
                name,
                is_unix,
                ..
            } if is_connected(&socket)? => {
                self.unreached = None;
                let link = self.open(socket, name, is_unix)?;
                // Each connection has its own nonce.
                Box::new(Greeting::new(link, &self.hello.anew()))
            }
            State::Connecting { until, .. } if now >= until => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer's host does not answer",
                ));
            }
            State::Greeting(greeting) => greeting,
            unfinished @ (State::Idle { .. } | State::Connecting { .. }) => {
                self.state = unfinished;
                return Ok(DialState::Pending);
            }
        };
        match greeting.advance(&self.secret)? {
            Some(Some(refusal)) => Ok(DialState::Refused(refusal)),
            Some(None) => Ok(DialState::Linked(greeting.link)),
            None => {
                self.state = State::Greeting(greeting);
                Ok(DialState::Pending)
            }
        }
    }

    fn connect(&mut self, now: Instant) -> io::Result<State> {
        let attempt = self.attempts;
        let round = attempt.checked_div(self.routes.len()).unwrap_or(0);
        let route = attempt
            .checked_rem(self.routes.len())
            .map(|index| &self.routes[index]);
        self.attempts += 1;
        let (domain, address, is_unix) = match route {
            Some(Route::Unix(path)) => (Domain::UNIX, SockAddr::unix(path)?, true),
            Some(Route::Tcp(address)) => {
                let resolved = resolve(address, round)?;
                (Domain::for_address(resolved), resolved.into(), false)
            }
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrNotAvailable,
                    "the endpoint has no address",
                ));
            }
        };
        let name = match route {
            Some(Route::Tcp(address)) if self.tls.is_some() => Some(name_of(address)?),
            _ => None,
        };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address) {
            Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
            _ => Ok(State::Connecting {
                socket,
                name,
                is_unix,
                until: now + ACCEPTING,
            }),
        }
    }

    fn open(
        &self,
        socket: Socket,
        name: Option<ServerName<'static>>,
        is_unix: bool,
    ) -> io::Result<Box<dyn Link>> {
        let fd = OwnedFd::from(socket);
        if is_unix {
            return link::unix(UnixStream::from(fd));
        }
        let stream = link::tcp(TcpStream::from(fd))?;
        let (Some(tls), Some(name)) = (&self.tls, name) else {
            return Ok(Box::new(stream));
        };
        Ok(Box::new(TlsLink::dial(stream, tls.rank_client(), name)?))
    }
}

impl Greeting {
    fn new(link: Box<dyn Link>, hello: &Hello) -> Self {
        Self {
            link,
            hello: hello.encode(),
            sent: 0,
            reply: [0; REPLY_BYTES],
            received: 0,
            answer: None,
            answered: 0,
        }
    }

    /// Advances the greeting. Returns `Some(Some(refusal))` if the peer refuses, `Some(None)` once the answer
    /// is sent, and `None` until then.
    fn advance(&mut self, secret: &Secret) -> io::Result<Option<Option<Refusal>>> {
        while self.sent < HELLO_BYTES {
            match pending(self.link.write(&self.hello[self.sent..]))? {
                Some(bytes) => self.sent += bytes,
                None => return Ok(None),
            }
        }
        while self.received < REPLY_BYTES {
            match pending(self.link.read(&mut self.reply[self.received..]))? {
                Some(bytes) => self.received += bytes,
                None => return Ok(None),
            }
        }
        let answer = match &self.answer {
            Some(answer) => answer,
            None => match self.prove(secret)? {
                Ok(answer) => self.answer.insert(answer),
                Err(refusal) => return Ok(Some(Some(refusal))),
            },
        };
        while self.answered < ANSWER_BYTES {
            match pending(self.link.write(&answer[self.answered..]))? {
                Some(bytes) => self.answered += bytes,
                None => return Ok(None),
            }
        }
        Ok(Some(None))
    }

    /// Checks the reply's proof and returns the answer to send, or the peer's refusal.
    fn prove(&self, secret: &Secret) -> io::Result<Result<[u8; ANSWER_BYTES], Refusal>> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
        let reply = Reply::decode(&self.reply)
            .ok_or_else(|| invalid("the answer is not a peer's reply"))?;
        if let Some(refusal) = reply.refusal {
            return Ok(Err(refusal));
        }
        let mut head = [0; REPLY_HEAD_BYTES];
        head.copy_from_slice(&self.reply[..REPLY_HEAD_BYTES]);
        let expected = proof::of_acceptor(secret, &self.hello, &head);
        if !proof::is_same(&reply.proof, &expected) {
            return Err(invalid(
                "the peer does not prove that it belongs to this generation",
            ));
        }
        let proof = proof::of_dialler(secret, &self.hello, &self.reply);
        Ok(Ok(encode_answer(&proof)))
    }
}

/// Returns the name that the certificate of `host:port` must have.
fn name_of(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    server_name(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Maps an operation that would block to `None`, and the end of the stream to an error: the peer did not
/// answer.
fn pending(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

fn is_connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the routes by preference: the Unix socket if both are on one host, then TCP.
fn routes(theirs: &Endpoint, own: &Endpoint) -> Vec<Route> {
    let unix = theirs
        .unix
        .iter()
        .filter(|_| theirs.is_on_host_of(own))
        .cloned()
        .map(Route::Unix);
    unix.chain(theirs.tcp.iter().cloned().map(Route::Tcp))
        .collect()
}

/// Resolves a name to one of its addresses, the next one each round: the peer may not listen on the first.
fn resolve(address: &str, round: usize) -> io::Result<SocketAddr> {
    let addresses: Vec<_> = address.to_socket_addrs()?.collect();
    let turn = round.checked_rem(addresses.len());
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    turn.map(|turn| addresses[turn]).ok_or_else(nowhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host_id: &str) -> Endpoint {
        Endpoint {
            host_id: host_id.to_owned(),
            tcp: Some("10.0.0.1:7".to_owned()),
            unix: Some(PathBuf::from("/run/volley/a")),
        }
    }

    #[test]
    fn unix_comes_first_on_one_host_and_never_across_hosts() {
        let unix = Route::Unix(PathBuf::from("/run/volley/a"));
        let tcp = Route::Tcp("10.0.0.1:7".to_owned());
        assert_eq!(routes(&endpoint("a"), &endpoint("a")), [unix, tcp.clone()]);
        assert_eq!(
            routes(&endpoint("a"), &endpoint("b")),
            std::slice::from_ref(&tcp)
        );
        assert_eq!(
            routes(&endpoint(""), &endpoint("")),
            [tcp],
            "two unknown hosts are not one"
        );
    }
}
