//! Construction of the mesh: a rank dials every lower rank and is dialled by every higher one.
//!
//! ```text
//!   rank 2 (dials)                      rank 0 (listens)
//!     connect ─────────────────────────▶ accept: a guest, nobody yet
//!     Hello {group, generation, 2 → 0} ▶ admit? by its own membership
//!     proven? ◀───────────────── Reply   yes: proof   no: refused, dropped, waiting goes on
//!     link  Answer ────────────────────▶ proven? link
//! ```
//!
//! All of it runs in one loop over `poll(2)`: a slow peer, or a stranger that connects and stays silent,
//! delays nobody. One deadline covers the whole mesh, since peers may be busy with other work; another limits
//! the time to reach a lower rank's host. Strangers are dropped, counted, and logged each time that their
//! number has doubled; if there are too many callers, the oldest makes room.

mod admit;
mod dial;
mod guest;
mod proof;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use tokio_util::sync::CancellationToken;
use volley_proto::tls::is_for_host;

pub(super) use self::proof::{NONCE_BYTES, PROOF_BYTES};

use self::admit::admit;
use self::dial::{Dial, DialState};
use self::guest::{Guest, Heard};
use super::endpoint::Listener;
use super::error::{Error, Result};
use super::link::{self, Link};
use super::membership::{Membership, Options};
use super::readiness::{self, Wake};
use super::wire::Hello;

/// Maximum number of callers that have not proven who they are, besides one per rank.
const MOST_GUESTS: usize = 256;

/// Connects with every peer; returns the links by rank, `None` at the own one.
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
            let links = assembly.links.iter().flatten();
            let local = links.clone().filter(|link| link.is_local()).count();
            let tls = links.filter(|link| link.certificates().is_some()).count();
            let all = membership.world_size() - 1;
            tracing::info!(
                rank,
                generation,
                "connected with {all} ranks, {local} of them on this host, {tls} over TLS"
            );
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
    /// Unproven callers, oldest first.
    guests: VecDeque<Guest>,
    /// Number of dropped connections.
    strangers: u64,
    links: Vec<Option<Box<dyn Link>>>,
}

impl<'a> Assembly<'a> {
    fn new(listener: Listener, membership: &'a Membership) -> Self {
        let Membership {
            group,
            generation,
            rank,
            peers,
            secret,
        } = membership;
        let dials = (0..*rank).map(|peer| {
            let hello = Hello::new(group, *generation, *rank, peer, peers.len());
            let (to, own) = ((peer, &peers[peer]), &peers[*rank]);
            Dial::new(to, own, hello, secret, listener.tls())
        });
        let dials = dials.collect();
        let links = peers.iter().map(|_| None).collect();
        Self {
            listener,
            membership,
            dials,
            guests: VecDeque::new(),
            strangers: 0,
            links,
        }
    }

    /// Returns the ranks without a link, ascending.
    fn missing(&self) -> impl Iterator<Item = usize> {
        let own = self.membership.rank;
        self.links
            .iter()
            .enumerate()
            .filter(move |(peer, link)| *peer != own && link.is_none())
            .map(|(peer, _)| peer)
    }

    /// Returns a dial that has reached no host for at least `patience`.
    fn unreached(&mut self, now: Instant, patience: Duration) -> Option<&mut Dial> {
        let mut dials = self.dials.iter_mut();
        dials.find(|dial| dial.unreached(now) >= patience)
    }

    /// Advances all dials and guests as far as possible without waiting.
    fn advance(&mut self, now: Instant) -> Result<()> {
        let Membership {
            rank, generation, ..
        } = *self.membership;
        for mut dial in std::mem::take(&mut self.dials) {
            match dial.advance(now) {
                DialState::Pending => self.dials.push(dial),
                DialState::Linked(link) => self.link(dial.peer(), link),
                DialState::Refused(refusal) => {
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
                Heard::Nothing => self.guests.push_back(guest),
                Heard::Nonsense(reason) => self.drop_stranger(reason),
                Heard::Hello(hello) => self.answer(guest, &hello),
                Heard::Proven(peer) => self.welcome(guest, peer),
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        // Accepts at most the maximum number of guests at a time: others wait for the next turn.
        for _ in 0..self.most_guests() {
            let Some(link) = self.listener.accept()? else {
                break;
            };
            if self.guests.len() >= self.most_guests() {
                self.make_room();
            }
            self.guests.push_back(Guest::new(link, now));
        }
        Ok(())
    }

    /// Drops the oldest guest, preferably one that is not admitted: an admitted peer may already consider
    /// itself linked.
    fn make_room(&mut self) {
        let unknown = self.guests.iter().position(|guest| !guest.is_admitted());
        self.guests.remove(unknown.unwrap_or(0));
        self.drop_stranger("there are too many, and it came first");
    }

    fn most_guests(&self) -> usize {
        MOST_GUESTS + self.links.len()
    }

    fn answer(&mut self, mut guest: Guest, hello: &Hello) {
        let Membership {
            rank, generation, ..
        } = *self.membership;
        let verdict = admit(self.membership, hello, |peer| self.links[peer].is_some());
        let answered = match verdict {
            Ok(peer) => guest
                .admit(peer, generation, &self.membership.secret)
                .map(|()| self.guests.push_back(guest)),
            Err(refusal) => {
                tracing::debug!(
                    rank,
                    generation,
                    from = hello.from,
                    their_generation = hello.generation,
                    %refusal,
                    "refused a connection",
                );
                self.drop_stranger("it belongs elsewhere");
                guest.refuse(generation, refusal)
            }
        };
        if let Err(error) = answered {
            tracing::debug!(rank, generation, from = hello.from, %error, "a caller hung up");
        }
    }

    /// Links a guest that has proven that it belongs to the generation, unless its rank is linked already or
    /// its certificate, if it has shown one, is not for that rank's host.
    fn welcome(&mut self, guest: Guest, peer: usize) {
        if self.links[peer].is_some() {
            return self.drop_stranger("its rank is connected already");
        }
        if let Some(certificates) = guest.link().certificates() {
            let host = self.membership.peers[peer].host();
            let own = certificates.first().zip(host);
            let is_member = || {
                let tls = self.listener.tls();
                tls.is_some_and(|tls| tls.is_member(certificates))
            };
            if !own.is_some_and(|(own, host)| is_for_host(own, host) && is_member()) {
                return self.drop_stranger("its certificate is not for the host of its rank");
            }
        }
        self.link(peer, guest.into_link());
    }

    fn drop_stranger(&mut self, reason: &'static str) {
        let Membership {
            rank, generation, ..
        } = *self.membership;
        self.strangers += 1;
        let count = self.strangers;
        if count.is_power_of_two() {
            tracing::warn!(
                rank,
                generation,
                count,
                reason,
                "dropped connections of strangers; the reason is the last one's"
            );
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

    /// Waits until a socket is ready; at most one tick, since redials are due by the clock.
    fn wait(&self, deadline: Instant, abort: &CancellationToken) -> io::Result<Option<Wake>> {
        let listening = self.listener.fds();
        let mut fds: Vec<_> = listening
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        fds.extend(self.guests.iter().map(Guest::interest));
        fds.extend(self.dials.iter().filter_map(Dial::interest));
        readiness::wait_a_tick(&mut fds, deadline, abort)
    }
}
