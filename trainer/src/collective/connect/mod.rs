//! Building the mesh: a rank dials every lower rank and is dialled by every higher one.
//!
//! ```text
//!   rank 2 (dials)                      rank 0 (listens)
//!     connect ─────────────────────────▶ accept: a guest, nobody yet
//!     Hello {group, generation, 2 → 0} ▶ admit? by its own membership
//!     link ◀──────────────────── Reply   yes: link    no: refused, dropped, waiting goes on
//! ```
//!
//! All of it goes on at once in one loop over `poll(2)`: a peer that is slow, or a stranger that
//! connects and says nothing, holds up nobody. One deadline is for the whole mesh, during which peers may
//! have other things to do; another is for a lower rank's host to be reached at all.

mod admit;
mod dial;
mod guest;

use std::io;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use tokio_util::sync::CancellationToken;

use self::admit::admit;
use self::dial::{Dial, Progress};
use self::guest::{Guest, Heard};
use super::endpoint::Listener;
use super::error::{Error, Result};
use super::link::{self, Link};
use super::membership::{Membership, Options};
use super::readiness::{self, Wake};
use super::wire::Hello;

/// Callers whose hello is outstanding; more than these wait in the kernel's queue.
const MOST_GUESTS: usize = 256;

/// Connects with every peer; the links by rank, none at the own one.
pub(super) fn mesh(
    listener: Listener,
    membership: &Membership,
    options: &Options,
    abort: &CancellationToken,
) -> Result<Vec<Option<Box<dyn Link>>>> {
    let timeout = options.connect_timeout;
    let Membership {
        rank, generation, ..
    } = *membership;
    let start = Instant::now();
    let mut assembly = Assembly::new(listener, membership);
    loop {
        let now = Instant::now();
        assembly.advance(now)?;
        if assembly.missing().next().is_none() {
            return Ok(assembly.links);
        }
        if let Some(dial) = assembly.unreached(now, options.op_timeout) {
            return Err(Error::ConnectDeadline {
                rank,
                generation,
                missing: vec![dial.peer()],
                waited: options.op_timeout,
                source: dial.take_failure(),
            });
        }
        match assembly.wait(start + timeout, abort) {
            Ok(None | Some(Wake::Ready)) => {}
            Ok(Some(Wake::Aborted)) => return Err(Error::ConnectAborted { rank, generation }),
            Ok(Some(Wake::Deadline)) => {
                return Err(Error::ConnectDeadline {
                    rank,
                    generation,
                    missing: assembly.missing().collect(),
                    waited: timeout,
                    source: assembly.dials.iter_mut().find_map(Dial::take_failure),
                });
            }
            Err(source) => {
                return Err(Error::Connect {
                    rank,
                    generation,
                    source,
                });
            }
        }
    }
}

/// A mesh under construction.
struct Assembly<'a> {
    listener: Listener,
    membership: &'a Membership,
    dials: Vec<Dial>,
    guests: Vec<Guest>,
    links: Vec<Option<Box<dyn Link>>>,
}

impl<'a> Assembly<'a> {
    fn new(listener: Listener, membership: &'a Membership) -> Self {
        let Membership {
            group,
            generation,
            rank,
            peers,
        } = membership;
        let dials = (0..*rank).map(|peer| {
            let hello = Hello::new(group, *generation, *rank, peer, peers.len());
            Dial::new(peer, &peers[peer], listener.endpoint(), &hello)
        });
        let dials = dials.collect();
        let links = peers.iter().map(|_| None).collect();
        Self {
            listener,
            membership,
            dials,
            guests: Vec::new(),
            links,
        }
    }

    /// The ranks without a link, ascending.
    fn missing(&self) -> impl Iterator<Item = usize> {
        let own = self.membership.rank;
        self.links
            .iter()
            .enumerate()
            .filter(move |(peer, link)| *peer != own && link.is_none())
            .map(|(peer, _)| peer)
    }

    /// A dial that has reached nobody for so long.
    fn unreached(&mut self, now: Instant, patience: Duration) -> Option<&mut Dial> {
        let mut dials = self.dials.iter_mut();
        dials.find(|dial| dial.unreached(now) >= patience)
    }

    /// Does what can be done without waiting.
    fn advance(&mut self, now: Instant) -> Result<()> {
        let Membership {
            rank, generation, ..
        } = *self.membership;
        for mut dial in std::mem::take(&mut self.dials) {
            match dial.advance(now) {
                Progress::Pending => self.dials.push(dial),
                Progress::Linked(link) => self.link(dial.peer(), link),
                Progress::Refused(refusal) => {
                    return Err(Error::ConnectRefused {
                        rank,
                        generation,
                        peer: dial.peer(),
                        refusal,
                    });
                }
            }
        }
        self.accept(now).map_err(|source| Error::Connect {
            rank,
            generation,
            source,
        })?;
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.advance(now) {
                Heard::Nothing => self.guests.push(guest),
                Heard::Nonsense => {
                    tracing::debug!(
                        rank,
                        generation,
                        ?guest,
                        "dropped a connection that is no peer's"
                    );
                }
                Heard::Hello(hello) => self.answer(guest, &hello),
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        while self.guests.len() < MOST_GUESTS {
            let Some(link) = self.listener.accept()? else {
                break;
            };
            self.guests.push(Guest::new(link, now));
        }
        Ok(())
    }

    fn answer(&mut self, guest: Guest, hello: &Hello) {
        let Membership {
            rank, generation, ..
        } = *self.membership;
        let verdict = admit(self.membership, hello, |peer| self.links[peer].is_some());
        let refusal = verdict.err();
        if let Some(refusal) = refusal {
            tracing::warn!(
                rank,
                generation,
                from = hello.from,
                their_generation = hello.generation,
                %refusal,
                "refused a connection",
            );
        }
        match (guest.answer(generation, refusal), verdict) {
            (Ok(link), Ok(peer)) => self.link(peer, link),
            (Ok(_), Err(_)) => {}
            (Err(error), _) => {
                tracing::debug!(rank, generation, from = hello.from, %error, "a caller hung up")
            }
        }
    }

    fn link(&mut self, peer: usize, link: Box<dyn Link>) {
        let Membership { rank, peers, .. } = self.membership;
        if peers[peer].is_on_host_of(&peers[*rank])
            && let Err(error) = link::keep_near(&link)
        {
            tracing::debug!(rank, peer, %error, "the send buffer stays as it is");
        }
        self.links[peer] = Some(link);
    }

    /// Waits until something can be done; a tick at most, since redialling is due by the clock.
    fn wait(&self, deadline: Instant, abort: &CancellationToken) -> io::Result<Option<Wake>> {
        let mut fds = Vec::new();
        if self.guests.len() < MOST_GUESTS {
            fds.extend(
                self.listener
                    .fds()
                    .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
            );
        }
        fds.extend(
            self.guests
                .iter()
                .map(|guest| PollFd::new(guest.fd(), PollFlags::POLLIN)),
        );
        fds.extend(self.dials.iter().filter_map(Dial::interest));
        readiness::wait_a_tick(&mut fds, deadline, abort)
    }
}
