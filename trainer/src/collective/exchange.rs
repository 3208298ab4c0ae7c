//! Direct exchange: every rank sends one message to every peer and receives one from each, all at once. It
//! takes one step and sends `(N − 1)·B` bytes. All-gather uses it, and with few ranks so do the barrier and
//! the small all-reduce. Messages between one rank and a single peer are exchanged the same way.

use std::time::Instant;

use super::call::Call;
use super::error::Result;
use super::frame::{Growing, Inbound, Outbound};
use super::mesh::{Interest, Mesh};

/// Destination of one peer's payload.
#[derive(Debug)]
pub(super) enum Inbox<'a> {
    /// Payload of the same length on all ranks; complete when full.
    Exact(&'a mut [u8]),
    /// Payload whose length the peer's header gives.
    Growing(&'a mut Growing),
}

/// Both directions of one peer's link.
struct Lane<'a> {
    peer: usize,
    /// `None` if nothing is sent.
    out: Option<Outbound>,
    sent: usize,
    inbound: Inbound,
    /// `None` if nothing is received.
    inbox: Option<Inbox<'a>>,
    received: usize,
}

impl<'a> Lane<'a> {
    fn new(call: &Call, peer: usize, inbox: Option<Inbox<'a>>, sends: bool) -> Self {
        Self {
            peer,
            out: sends.then(|| Outbound::new(call, peer)),
            sent: 0,
            inbound: Inbound::new(peer),
            inbox,
            received: 0,
        }
    }

    fn is_sent(&self, own: &[u8]) -> bool {
        let is_sent = |out: &Outbound| out.header_is_sent() && self.sent == own.len();
        self.out.as_ref().is_none_or(is_sent)
    }

    fn is_received(&self) -> bool {
        let Some(inbox) = &self.inbox else {
            return true;
        };
        self.inbound.theirs().is_some_and(|theirs| match inbox {
            Inbox::Exact(payload) => self.received == payload.len(),
            Inbox::Growing(_) => self.received as u64 == theirs.bytes,
        })
    }

    /// Moves the bytes that can move now; returns true if any did.
    fn advance(&mut self, mesh: &mut Mesh, call: &Call, own: &[u8]) -> Result<bool> {
        let (mut moved, chunk) = (false, mesh.chunk);
        let is_sent = self.is_sent(own);
        if let Some(out) = self.out.as_mut().filter(|_| !is_sent) {
            let end = own.len().min(self.sent + chunk);
            if let Some(sent) = out.push(mesh, call, &own[self.sent..end])? {
                self.sent += sent;
                moved = true;
            }
        }
        if !self.is_received() {
            let room = match (&mut self.inbox, self.inbound.theirs()) {
                (None, _) => return Ok(moved),
                (Some(Inbox::Exact(payload)), _) => {
                    let end = payload.len().min(self.received + chunk);
                    &mut payload[self.received..end]
                }
                (Some(Inbox::Growing(growing)), Some(theirs)) => growing.room(theirs.bytes, chunk),
                (Some(Inbox::Growing(_)), None) => &mut [],
            };
            if let Some(received) = self.inbound.pull(mesh, call, room)? {
                self.received += received;
                if let Some(Inbox::Growing(growing)) = &mut self.inbox {
                    growing.advance(received);
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    fn interest(&self, own: &[u8]) -> Interest {
        Interest {
            peer: self.peer,
            read: !self.is_received(),
            write: !self.is_sent(own),
        }
    }
}

/// Sends `own` to the other ranks of `ranks` and fills `inboxes`, in their order.
pub(super) fn exchange<'a>(
    mesh: &mut Mesh,
    call: &Call,
    ranks: impl IntoIterator<Item = usize>,
    own: &[u8],
    inboxes: impl IntoIterator<Item = Inbox<'a>>,
) -> Result<()> {
    let peers = ranks.into_iter().filter(|peer| *peer != call.rank);
    let lanes = peers.zip(inboxes);
    let lanes = lanes.map(|(peer, inbox)| Lane::new(call, peer, Some(inbox), true));
    advance(mesh, call, own, lanes.collect())
}

/// Sends `own` to one peer.
pub(super) fn send(mesh: &mut Mesh, call: &Call, peer: usize, own: &[u8]) -> Result<()> {
    let lane = Lane::new(call, peer, None, true);
    advance(mesh, call, own, vec![lane])
}

/// Fills `payload` with one peer's message.
pub(super) fn receive(mesh: &mut Mesh, call: &Call, peer: usize, payload: &mut [u8]) -> Result<()> {
    let lane = Lane::new(call, peer, Some(Inbox::Exact(payload)), false);
    advance(mesh, call, &[], vec![lane])
}

/// Sends `own` to one peer, and fills `payload` with that peer's message.
pub(super) fn swap(
    mesh: &mut Mesh,
    call: &Call,
    peer: usize,
    own: &[u8],
    payload: &mut [u8],
) -> Result<()> {
    let lane = Lane::new(call, peer, Some(Inbox::Exact(payload)), true);
    advance(mesh, call, own, vec![lane])
}

/// Sends one message to a peer, and receives one from another at the same time. Each consists of two parts; the
/// lengths of those received are known.
pub(super) fn shift(
    mesh: &mut Mesh,
    call: &Call,
    (to, own): (usize, [&[u8]; 2]),
    (from, payload): (usize, [&mut [u8]; 2]),
) -> Result<()> {
    let (mut out, mut inbound) = (Outbound::new(call, to), Inbound::new(from));
    let [first, second] = payload;
    let (all, due) = (own[0].len() + own[1].len(), first.len() + second.len());
    let (mut sent, mut received, chunk) = (0, 0, mesh.chunk);
    let mut idle_since = Instant::now();
    loop {
        mesh.check_abort(call)?;
        let mut moved = false;
        if !out.header_is_sent() || sent < all {
            let rest = match sent.checked_sub(own[0].len()) {
                Some(of_second) => &own[1][of_second..],
                None => &own[0][sent..],
            };
            if let Some(bytes) = out.push(mesh, call, &rest[..rest.len().min(chunk)])? {
                sent += bytes;
                moved = true;
            }
        }
        if inbound.theirs().is_none() || received < due {
            let room = match received.checked_sub(first.len()) {
                Some(of_second) => &mut second[of_second..],
                None => &mut first[received..],
            };
            let end = room.len().min(chunk);
            if let Some(bytes) = inbound.pull(mesh, call, &mut room[..end])? {
                received += bytes;
                moved = true;
            }
        }
        let write = !out.header_is_sent() || sent < all;
        let read = inbound.theirs().is_none() || received < due;
        if !write && !read {
            return Ok(());
        }
        if moved {
            idle_since = Instant::now();
            continue;
        }
        let interests = [Interest::reading(from, read), Interest::writing(to, write)];
        let interests = interests.into_iter().filter(|of| of.read || of.write);
        mesh.wait(call, &interests.collect::<Vec<_>>(), idle_since)?;
    }
}

/// Moves bytes on all lanes until every lane is sent and received.
fn advance(mesh: &mut Mesh, call: &Call, own: &[u8], mut lanes: Vec<Lane<'_>>) -> Result<()> {
    let mut idle_since = Instant::now();
    loop {
        mesh.check_abort(call)?;
        let mut moved = false;
        for lane in &mut lanes {
            moved |= lane.advance(mesh, call, own)?;
        }
        if lanes
            .iter()
            .all(|lane| lane.is_sent(own) && lane.is_received())
        {
            return Ok(());
        }
        if moved {
            idle_since = Instant::now();
        } else {
            let waiting: Vec<Interest> = lanes
                .iter()
                .map(|lane| lane.interest(own))
                .filter(|lane| lane.read || lane.write)
                .collect();
            mesh.wait(call, &waiting, idle_since)?;
        }
    }
}
