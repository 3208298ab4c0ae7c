//! An HTTP proxy before one server that makes requests fail.
//!
//! ```text
//!   request ──► read whole ──► draw a fault ──► a connection of its own to the server ──► answer
//!                                  │ SlowDown, InternalError: answered here
//!                                  │ ResetBefore: reset here                 ResetAfter, Truncate: there
//! ```
//!
//! Requests are passed on byte for byte except for `Connection: close`: the `Host` header, which signatures cover, is
//! the client's. A connection serves one request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::SockRef;

use super::faults::{Counts, Fault, FaultPlan, Planted};

/// Time for which either end may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Size of the longest head of a message, in bytes.
const HEAD: u64 = 64 * 1024;
/// Size of the longest body of a request, in bytes.
const BODY: u64 = 256 * 1024 * 1024;

/// Proxy in front of an HTTP server; dropping it stops it.
#[derive(Debug)]
pub struct FaultyProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: FaultPlan,
    on: bool,
    closed: bool,
    planted: Vec<Planted>,
    counts: Counts,
}

/// Request as it is passed on.
struct Request {
    method: String,
    path: String,
    bytes: Vec<u8>,
}

impl FaultyProxy {
    /// Starts a proxy on loopback in front of `host:port`, with its faults on.
    ///
    /// # Panics
    /// When there is no free port.
    pub fn to(target: &str, plan: FaultPlan) -> Self {
        Self::on(Ipv4Addr::LOCALHOST, target, plan)
    }

    /// Starts a proxy that listens on another address of this host.
    ///
    /// # Panics
    /// When the address has no free port.
    pub fn on(address: Ipv4Addr, target: &str, plan: FaultPlan) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            state: Mutex::new(State {
                plan,
                on: true,
                closed: false,
                planted: Vec::new(),
                counts: Counts::default(),
            }),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Returns its address as `host:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns its address as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Switches drawn faults on or off. Planted faults happen either way.
    pub fn switch(&self, on: bool) {
        self.shared.lock().on = on;
    }

    /// Draws from another plan from now on.
    pub fn plan(&self, plan: FaultPlan) {
        self.shared.lock().plan = plan;
    }

    /// Makes the next request with this method and a path that contains this text fail with this fault, once.
    pub fn plant(&self, method: &str, path_part: &str, fault: Fault) {
        self.shared.lock().planted.push(Planted {
            method: method.to_owned(),
            path_part: path_part.to_owned(),
            fault,
        });
    }

    /// Counts the planted faults that no request has met yet.
    pub fn planted(&self) -> usize {
        self.shared.lock().planted.len()
    }

    /// Counts the requests that have met this fault.
    pub fn injected(&self, fault: Fault) -> u64 {
        let state = self.shared.lock();
        state.counts.injected.get(&fault).copied().unwrap_or(0)
    }

    /// Counts the requests that have come, failed ones included.
    pub fn requests(&self) -> u64 {
        self.shared.lock().counts.requests
    }

    /// Counts the requests with this method and a path that contains this text.
    pub fn requests_of(&self, method: &str, path_part: &str) -> u64 {
        let state = self.shared.lock();
        let counted = state.counts.by_target.iter();
        counted
            .filter(|((of, path), _)| of == method && path.contains(path_part))
            .map(|(_, count)| count)
            .sum()
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        // Wakes the accepting thread, which then sees that the proxy is closed.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.lock().closed {
                return;
            }
            let Ok(stream) = stream else { continue };
            let shared = Arc::clone(&self);
            std::thread::spawn(move || {
                // Errors of a client that has gone do not concern the proxy.
                shared.serve(&stream).ok();
            });
        }
    }

    fn serve(&self, client: &TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(SILENCE))?;
        client.set_write_timeout(Some(SILENCE))?;
        let Some(request) = read_request(client)? else {
            return Ok(());
        };
        let (fault, delay) = self.draw(&request);
        match fault {
            Some(Fault::SlowDown) => {
                return answer(client, "503 Slow Down", "SlowDown");
            }
            Some(Fault::InternalError) => {
                return answer(client, "500 Internal Server Error", "InternalError");
            }
            Some(Fault::ResetBefore) => return reset(client),
            Some(Fault::Delay) => std::thread::sleep(delay),
            Some(Fault::ResetAfter | Fault::Truncate) | None => {}
        }
        let Ok(server) = TcpStream::connect(&self.target) else {
            return reset(client);
        };
        server.set_nodelay(true)?;
        server.set_read_timeout(Some(SILENCE))?;
        (&server).write_all(&request.bytes)?;
        let mut answered = BufReader::new(&server);
        let head = read_head(&mut answered)?;
        if fault == Some(Fault::ResetAfter) {
            return reset(client);
        }
        let mut to_client = client;
        if fault == Some(Fault::Truncate) {
            let length = content_length(&head).unwrap_or(0);
            if length > 0 && request.method != "HEAD" {
                to_client.write_all(&head)?;
                std::io::copy(&mut answered.take(length / 2), &mut to_client)?;
            }
            return client.shutdown(Shutdown::Both);
        }
        to_client.write_all(&head)?;
        std::io::copy(&mut answered, &mut to_client)?;
        client.shutdown(Shutdown::Write)
    }

    fn draw(&self, request: &Request) -> (Option<Fault>, Duration) {
        let mut state = self.lock();
        state.counts.requests += 1;
        let target = (request.method.clone(), request.path.clone());
        let count = state.counts.by_target.entry(target).or_default();
        let before = *count;
        *count += 1;
        let planted = state.planted.iter().position(|planted| {
            planted.method == request.method && request.path.contains(&planted.path_part)
        });
        let fault = match planted {
            Some(place) => Some(state.planted.remove(place).fault),
            None if state.on => state.plan.draw(&request.method, &request.path, before),
            None => None,
        };
        if let Some(fault) = fault {
            *state.counts.injected.entry(fault).or_default() += 1;
        }
        (fault, state.plan.delay)
    }
}

/// Reads a request whole; returns `None` if none came.
fn read_request(client: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut from = BufReader::new(client);
    let head = read_head(&mut from)?;
    if head.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default().to_owned(),
        words.next().unwrap_or_default().to_owned(),
    );
    if header(&text, "transfer-encoding").is_some() {
        let unsupported = "a request of unknown length cannot be passed on";
        answer(client, "501 Not Implemented", "NotImplemented")?;
        return Err(std::io::Error::other(unsupported));
    }
    let length = content_length(&head).unwrap_or(0);
    if length > BODY {
        answer(client, "413 Content Too Large", "EntityTooLarge")?;
        return Err(std::io::Error::other("a request is too long"));
    }
    let mut bytes = format!("{line}\r\n").into_bytes();
    for header in lines.filter(|header| !header.is_empty()) {
        if !header.to_ascii_lowercase().starts_with("connection:") {
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes.extend_from_slice(b"Connection: close\r\n\r\n");
    let body = from.take(length).read_to_end(&mut bytes)?;
    if body as u64 != length {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Request {
        method,
        path,
        bytes,
    }))
}

/// Reads the head of a message with the empty line that ends it; returns nothing if the other end closed first.
fn read_head(from: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut limited = from.take(HEAD);
    loop {
        let read = limited.read_until(b'\n', &mut head)?;
        if read == 0 && head.is_empty() {
            return Ok(head);
        }
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if head.ends_with(b"\r\n\r\n") {
            return Ok(head);
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn content_length(head: &[u8]) -> Option<u64> {
    header(&String::from_utf8_lossy(head), "content-length")?
        .parse()
        .ok()
}

/// Answers like S3 when it refuses a request.
fn answer(mut client: &TcpStream, status: &str, code: &str) -> std::io::Result<()> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    );
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())?;
    client.shutdown(Shutdown::Write)
}

/// Closes the connection with RST.
fn reset(client: &TcpStream) -> std::io::Result<()> {
    // The caller drops the connection, which closes it at once.
    SockRef::from(client).set_linger(Some(Duration::ZERO))
}
