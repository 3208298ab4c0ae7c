//! [`Sockets`]: one rank's links to all its peers, and the wait for them.
//!
//! It knows no calls: the [mesh](super::mesh) turns outcomes into errors that name a call and a peer.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio_util::sync::CancellationToken;

use super::link::Link;
use super::mesh::{Interest, Wires};
use super::readiness::{self, Wake};

/// Links by rank; `None` at the own rank.
#[derive(Debug)]
pub(super) struct Sockets(pub(super) Vec<Option<Box<dyn Link>>>);

impl Sockets {
    fn link(&mut self, peer: usize) -> io::Result<&mut Box<dyn Link>> {
        self.0[peer].as_mut().ok_or_else(|| unconnected(peer))
    }
}

fn unconnected(peer: usize) -> io::Error {
    io::Error::other(format!("there is no link to rank {peer}"))
}

impl Wires for Sockets {
    fn world_size(&self) -> usize {
        self.0.len()
    }

    fn is_local(&self, peer: usize) -> bool {
        self.0[peer].as_ref().is_some_and(|link| link.is_local())
    }

    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.link(peer)?.write_vectored(parts)
    }

    fn read(&mut self, peer: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.link(peer)?.read_vectored(parts)
    }

    fn wait(
        &self,
        interests: &[Interest],
        deadline: Instant,
        abort: &CancellationToken,
    ) -> io::Result<Wake> {
        let mut fds = Vec::with_capacity(interests.len());
        for interest in interests {
            let link = self.0[interest.peer]
                .as_ref()
                .ok_or_else(|| unconnected(interest.peer))?;
            if interest.read && link.may_have_more() {
                return Ok(match abort.is_cancelled() {
                    true => Wake::Aborted,
                    false => Wake::Ready,
                });
            }
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, interest.read);
            events.set(PollFlags::POLLOUT, interest.write);
            fds.push(PollFd::new(link.as_fd(), events));
        }
        readiness::wait(&mut fds, deadline, abort)
    }

    fn is_closed(&self, peer: usize) -> bool {
        // Requested only for this: errors and hang-ups are always reported.
        #[cfg(target_os = "linux")]
        let events = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
        #[cfg(not(target_os = "linux"))]
        let events = PollFlags::empty();
        self.0[peer].as_ref().is_some_and(|link| {
            let mut fds = [PollFd::new(link.as_fd(), events)];
            matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
        })
    }

    fn pass_over(&mut self, _: usize) {}

    #[cfg(test)]
    fn wrap(&mut self, decorate: &mut dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link>) {
        for (peer, slot) in self.0.iter_mut().enumerate() {
            *slot = slot.take().map(|link| decorate(peer, link));
        }
    }
}
