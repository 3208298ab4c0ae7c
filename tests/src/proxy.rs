//! A TCP proxy between two processes that can behave like a bad network.
//!
//! ```text
//!   a ══► proxy ══► b      Forward
//!   a ══►   │              Hold: nothing passes and nothing closes, as with a pulled cable; what
//!   a ──╳ proxy            was sent arrives once it is healed. Cut: both ends see it close.
//! ```
//!
//! The proxy does not interpret what passes through it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the dialling side to the target.
    Up,
    /// From the target to the dialling side.
    Down,
}

/// Proxy in front of one address; dropping it closes its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    hold_up: bool,
    hold_down: bool,
    refuse: bool,
    delay: Duration,
    closed: bool,
    /// Both ends of every connection.
    streams: Vec<TcpStream>,
}

impl Proxy {
    /// Starts a proxy in front of `host:port`, which need not be there yet.
    ///
    /// # Panics
    /// When there is no free port on loopback.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, shared }
    }

    /// Returns its address as `host:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Closes all connections, and lets new ones pass.
    pub fn cut(&self) {
        self.shared.lock().close_all();
    }

    /// Closes all connections, and new ones at once.
    pub fn refuse(&self) {
        let mut state = self.shared.lock();
        state.refuse = true;
        state.close_all();
    }

    /// Stops all bytes in this direction, without closing anything.
    pub fn hold(&self, direction: Direction) {
        let mut state = self.shared.lock();
        match direction {
            Direction::Up => state.hold_up = true,
            Direction::Down => state.hold_down = true,
        }
    }

    /// Stops all bytes in both directions, without closing anything.
    pub fn hold_both(&self) {
        self.hold(Direction::Up);
        self.hold(Direction::Down);
    }

    /// Delays all bytes by this much.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Forwards like a good network; held bytes arrive.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        (state.hold_up, state.hold_down, state.refuse) = (false, false, false);
        state.delay = Duration::ZERO;
        self.shared.changed.notify_all();
    }

    /// Counts the connections that were not cut.
    pub fn connections(&self) -> usize {
        self.shared.lock().streams.len() / 2
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.close_all();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the accepting thread, which then sees that the proxy is closed.
        TcpStream::connect(self.address).ok();
    }
}

impl State {
    fn close_all(&mut self) {
        for stream in self.streams.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn holds(&self, direction: Direction) -> bool {
        match direction {
            Direction::Up => self.hold_up,
            Direction::Down => self.hold_down,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for dialled in listener.incoming() {
            if self.lock().closed {
                return;
            }
            let Ok(dialled) = dialled else { continue };
            if let Err(error) = Arc::clone(&self).join(dialled) {
                eprintln!("proxy to {}: {error}", self.target);
            }
        }
    }

    /// Connects to the target and forwards both ways.
    fn join(self: Arc<Self>, dialled: TcpStream) -> std::io::Result<()> {
        if self.lock().refuse {
            return dialled.shutdown(Shutdown::Both);
        }
        // A target that is not there closes the connection, as it would without a proxy.
        let Ok(target) = TcpStream::connect(&self.target) else {
            return dialled.shutdown(Shutdown::Both);
        };
        dialled.set_nodelay(true)?;
        target.set_nodelay(true)?;
        let ends = [dialled.try_clone()?, target.try_clone()?];
        self.lock().streams.extend(ends);
        for (from, to, direction) in [
            (dialled.try_clone()?, target.try_clone()?, Direction::Up),
            (target, dialled, Direction::Down),
        ] {
            let shared = Arc::clone(&self);
            std::thread::spawn(move || shared.forward(from, to, direction));
        }
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            // Reading ends when the proxy closes the stream.
            let read = from.read(&mut buffer).unwrap_or(0);
            if !self.pass(direction) {
                return;
            }
            if read == 0 {
                to.shutdown(Shutdown::Write).ok();
                return;
            }
            if to.write_all(&buffer[..read]).is_err() {
                from.shutdown(Shutdown::Both).ok();
                return;
            }
        }
    }

    /// Waits until bytes that have been read may pass. Returns false if the proxy is gone.
    fn pass(&self, direction: Direction) -> bool {
        let state = self.lock();
        let delay = state.delay;
        let waiting = self
            .changed
            .wait_timeout_while(state, delay, |state| !state.closed && !delay.is_zero());
        let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        let held = |state: &mut State| state.holds(direction) && !state.closed;
        let state = self
            .changed
            .wait_while(state, held)
            .unwrap_or_else(PoisonError::into_inner);
        !state.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a target that sends every byte back.
    fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut from = stream.try_clone().unwrap();
                    std::io::copy(&mut from, &mut stream).ok();
                });
            }
        });
        address.to_string()
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        stream.write_all(&[byte])?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    }

    fn dial(proxy: &Proxy, patience: Duration) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(patience)).unwrap();
        stream
    }

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn forwards_and_delays() {
        let proxy = Proxy::to(&echo());
        let mut stream = dial(&proxy, LONG);
        assert_eq!(ask(&mut stream, 7).unwrap(), 7);
        proxy.delay(SHORT);
        let started = std::time::Instant::now();
        assert_eq!(ask(&mut stream, 8).unwrap(), 8);
        assert!(started.elapsed() >= 2 * SHORT, "there and back");
    }

    #[test]
    fn what_is_held_arrives_once_it_is_healed() {
        for direction in [Direction::Up, Direction::Down] {
            let proxy = Proxy::to(&echo());
            let mut stream = dial(&proxy, SHORT);
            assert_eq!(ask(&mut stream, 7).unwrap(), 7);
            proxy.hold(direction);
            assert!(ask(&mut stream, 8).is_err(), "nothing passes {direction:?}");
            proxy.heal();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let mut answer = [0];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [8]);
        }
    }

    #[test]
    fn cuts_what_is_open_and_refuses_what_is_new() {
        let proxy = Proxy::to(&echo());
        let mut stream = dial(&proxy, LONG);
        assert_eq!(ask(&mut stream, 7).unwrap(), 7);
        assert_eq!(proxy.connections(), 1);
        proxy.cut();
        assert!(ask(&mut stream, 8).is_err());
        assert_eq!(ask(&mut dial(&proxy, LONG), 9).unwrap(), 9);
        proxy.refuse();
        assert!(ask(&mut dial(&proxy, LONG), 9).is_err());
        proxy.heal();
        assert_eq!(ask(&mut dial(&proxy, LONG), 9).unwrap(), 9);
    }
}
