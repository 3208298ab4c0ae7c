//! The [`Mesh`]: one rank's wires to all its peers, and the one place that turns a wire's outcome into an error
//! that names a call and a peer.

use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::error::{Error, Result};
#[cfg(test)]
use super::link::Link;
use super::membership::Options;
use super::readiness::Wake;

/// Minimum chunk size in bytes; system calls dominate the cost of smaller ones.
const SMALLEST_CHUNK: usize = 1024;

/// The wires from one rank to all its peers: sockets, or those of a [simulation](super::simulated).
///
/// Reads and writes never block: they fail with [`io::ErrorKind::WouldBlock`].
pub(super) trait Wires: Debug + Send {
    fn world_size(&self) -> usize;

    /// Returns true if a peer is on this host; false for the rank itself.
    fn is_local(&self, peer: usize) -> bool;

    /// Sends as much of `parts` as the wire takes.
    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Fills `parts` with the bytes that have arrived.
    fn read(&mut self, peer: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Waits until one of the `interests` can be served, the deadline passes or the token is cancelled.
    fn wait(
        &self,
        interests: &[Interest],
        deadline: Instant,
        abort: &CancellationToken,
    ) -> io::Result<Wake>;

    /// Returns true if a peer has closed its end, whether or not bytes of it are still unread.
    fn is_closed(&self, _peer: usize) -> bool {
        false
    }

    /// Accounts for a pass of this rank over `bytes` bytes of memory. Only a simulation does not see the time that
    /// it takes.
    fn pass_over(&mut self, bytes: usize);

    /// Decorates every link.
    #[cfg(test)]
    fn wrap(&mut self, decorate: &mut dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link>);
}

/// One rank's wires to its peers.
#[derive(Debug)]
pub(super) struct Mesh {
    /// `None` once closed.
    wires: Option<Box<dyn Wires>>,
    world_size: usize,
    timeout: Duration,
    abort: CancellationToken,
    /// Maximum bytes of a read or a write.
    pub(super) chunk: usize,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

/// Events that a rank waits for from one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    pub(super) peer: usize,
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    /// Waits for a peer's bytes, if `read`.
    pub(super) fn reading(peer: usize, read: bool) -> Self {
        let write = false;
        Self { peer, read, write }
    }

    /// Waits until a peer takes bytes, if `write`.
    pub(super) fn writing(peer: usize, write: bool) -> Self {
        let read = false;
        Self { peer, read, write }
    }
}

impl Mesh {
    pub(super) fn new(wires: Box<dyn Wires>, options: &Options, abort: CancellationToken) -> Self {
        Self {
            world_size: wires.world_size(),
            wires: Some(wires),
            timeout: options.op_timeout,
            abort,
            chunk: options.chunk.max(SMALLEST_CHUNK),
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    /// Sets the idle timeout, and returns the previous one.
    pub(super) fn set_timeout(&mut self, timeout: Duration) -> Duration {
        std::mem::replace(&mut self.timeout, timeout)
    }

    /// Makes a call with twice the timeout, for peers that wait for ranks of other hosts themselves.
    pub(super) fn more_patiently<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        let usual = self.set_timeout(2 * self.timeout);
        let outcome = call(self);
        self.set_timeout(usual);
        outcome
    }

    /// Returns true if a peer is on this host.
    pub(super) fn is_local(&self, peer: usize) -> bool {
        let wires = self.wires.as_ref();
        wires.is_some_and(|wires| wires.is_local(peer))
    }

    /// Returns true if any peer is on this host.
    pub(super) fn has_local_peers(&self) -> bool {
        (0..self.world_size).any(|peer| self.is_local(peer))
    }

    /// Sends as much of `parts` as the wire takes; they must not all be empty. Returns `None` if the wire is
    /// full.
    pub(super) fn write(
        &mut self,
        call: &Call,
        peer: usize,
        parts: &[IoSlice<'_>],
    ) -> Result<Option<usize>> {
        let written = self.wires(call)?.write(peer, parts);
        let written = moved(call, peer, written)?;
        self.bytes_sent += written.unwrap_or(0) as u64;
        Ok(written)
    }

    /// Fills `parts` with the bytes that the wire has; they must not all be empty. Returns `None` if it has
    /// none.
    pub(super) fn read(
        &mut self,
        call: &Call,
        peer: usize,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>> {
        let read = self.wires(call)?.read(peer, parts);
        let read = moved(call, peer, read)?;
        self.bytes_received += read.unwrap_or(0) as u64;
        Ok(read)
    }

    /// Waits until one of the `interests` can be served.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`] when nothing has moved for the timeout since `idle_since`, and
    /// [`Error::Aborted`].
    pub(super) fn wait(
        &self,
        call: &Call,
        interests: &[Interest],
        idle_since: Instant,
    ) -> Result<()> {
        let deadline = idle_since + self.timeout;
        let wires = self.wires.as_ref().ok_or(Error::Broken { call: *call })?;
        match wires.wait(interests, deadline, &self.abort) {
            Ok(Wake::Ready) => Ok(()),
            Ok(Wake::Aborted) => Err(Error::Aborted { call: *call }),
            Ok(Wake::Deadline) => Err(Error::DeadlineExceeded {
                call: *call,
                peers: awaited(interests),
                waited: self.timeout,
            }),
            Err(source) => Err(Error::Wait {
                call: *call,
                source,
            }),
        }
    }

    /// Fails if the abort token is cancelled; called by loops that may never wait.
    pub(super) fn check_abort(&self, call: &Call) -> Result<()> {
        if self.abort.is_cancelled() {
            Err(Error::Aborted { call: *call })
        } else {
            Ok(())
        }
    }

    /// Fails if a peer is lost, or the timeout has passed since `since`: for a wait in which nothing is received.
    pub(super) fn check_peers(&self, call: &Call, since: Instant) -> Result<()> {
        self.check_abort(call)?;
        let wires = self.wires.as_ref().ok_or(Error::Broken { call: *call })?;
        let peers = || (0..self.world_size).filter(|peer| *peer != call.rank);
        if let Some(peer) = peers().find(|peer| wires.is_closed(*peer)) {
            return Err(Error::PeerClosed {
                call: *call,
                peer,
                source: None,
            });
        }
        match since.elapsed() < self.timeout {
            true => Ok(()),
            false => Err(Error::DeadlineExceeded {
                call: *call,
                peers: peers().collect(),
                waited: self.timeout,
            }),
        }
    }

    /// Accounts for a pass over `bytes` bytes of memory.
    pub(super) fn pass_over(&mut self, bytes: usize) {
        if let Some(wires) = &mut self.wires {
            wires.pass_over(bytes);
        }
    }

    /// Closes every wire, so that peers learn of a failure here at once.
    pub(super) fn close(&mut self) {
        self.wires = None;
    }

    /// Decorates every link.
    #[cfg(test)]
    pub(super) fn wrap(&mut self, decorate: &mut dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link>) {
        if let Some(wires) = &mut self.wires {
            wires.wrap(decorate);
        }
    }

    fn wires(&mut self, call: &Call) -> Result<&mut Box<dyn Wires>> {
        self.wires.as_mut().ok_or(Error::Broken { call: *call })
    }
}

/// Returns the peers that a rank reads from; if there are none, those that it writes to.
fn awaited(interests: &[Interest]) -> Vec<usize> {
    let silent = |read: bool| {
        let mut peers: Vec<usize> = interests
            .iter()
            .filter(|interest| interest.read || !read)
            .map(|interest| interest.peer)
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    };
    let unheard = silent(true);
    if unheard.is_empty() {
        silent(false)
    } else {
        unheard
    }
}

fn moved(call: &Call, peer: usize, outcome: io::Result<usize>) -> Result<Option<usize>> {
    match outcome {
        Ok(0) => Err(Error::PeerClosed {
            call: *call,
            peer,
            source: None,
        }),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(Error::PeerClosed {
            call: *call,
            peer,
            source: Some(error),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interest(peer: usize, read: bool, write: bool) -> Interest {
        Interest { peer, read, write }
    }

    #[test]
    fn silent_peers_are_named_before_slow_readers() {
        assert_eq!(
            awaited(&[interest(3, false, true), interest(1, true, false)]),
            [1]
        );
        assert_eq!(
            awaited(&[interest(3, false, true), interest(2, false, true)]),
            [2, 3]
        );
        assert_eq!(
            awaited(&[interest(1, true, false), interest(1, false, true)]),
            [1]
        );
    }
}
