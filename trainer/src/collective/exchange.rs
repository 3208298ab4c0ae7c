//! Direct exchange: every rank sends one message to every peer and receives one from each, all at
//! once. One step, `(N − 1)·B` bytes sent; barrier, all-gather and the small all-reduce are this.

use std::time::Instant;

use super::call::Call;
use super::error::Result;
use super::frame::{Growing, Inbound, Outbound};
use super::mesh::{Interest, Mesh};

/// Where the payload of one peer goes.
#[derive(Debug)]
pub(super) enum Inbox<'a> {
    /// Full when the peer's payload is here: all ranks' are of this length.
    Exact(&'a mut [u8]),
    /// As long as the peer says.
    Growing(&'a mut Growing),
}

/// Both directions of one peer's link.
struct Lane<'a> {
    peer: usize,
    out: Outbound,
    sent: usize,
    inbound: Inbound,
    inbox: Inbox<'a>,
    received: usize,
}

impl Lane<'_> {
    fn is_sent(&self, own: &[u8]) -> bool {
        self.out.header_is_sent() && self.sent == own.len()
    }

    fn is_received(&self) -> bool {
        self.inbound
            .theirs()
            .is_some_and(|theirs| match &self.inbox {
                Inbox::Exact(payload) => self.received == payload.len(),
                Inbox::Growing(_) => self.received as u64 == theirs.bytes,
            })
    }

    /// Moves what can be moved now; whether something did.
    fn advance(&mut self, mesh: &mut Mesh, call: &Call, own: &[u8], chunk: usize) -> Result<bool> {
        let mut moved = false;
        if !self.is_sent(own) {
            let end = own.len().min(self.sent + chunk);
            if let Some(sent) = self.out.push(mesh, call, &own[self.sent..end])? {
                self.sent += sent;
                moved = true;
            }
        }
        if !self.is_received() {
            let room = match (&mut self.inbox, self.inbound.theirs()) {
                (Inbox::Exact(payload), _) => {
                    let end = payload.len().min(self.received + chunk);
                    &mut payload[self.received..end]
                }
                (Inbox::Growing(growing), Some(theirs)) => growing.room(theirs.bytes, chunk),
                (Inbox::Growing(_), None) => &mut [],
            };
            if let Some(received) = self.inbound.pull(mesh, call, room)? {
                self.received += received;
                if let Inbox::Growing(growing) = &mut self.inbox {
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

/// Sends `own` to every peer and fills `inboxes`, by ascending rank without the own one.
pub(super) fn exchange<'a>(
    mesh: &mut Mesh,
    call: &Call,
    own: &[u8],
    inboxes: impl IntoIterator<Item = Inbox<'a>>,
    chunk: usize,
) -> Result<()> {
    let peers = (0..mesh.world_size()).filter(|peer| *peer != call.rank);
    let mut lanes: Vec<Lane<'_>> = peers
        .zip(inboxes)
        .map(|(peer, inbox)| Lane {
            peer,
            out: Outbound::new(call, peer),
            sent: 0,
            inbound: Inbound::new(peer),
            inbox,
            received: 0,
        })
        .collect();
    let mut idle_since = Instant::now();
    loop {
        mesh.check_abort(call)?;
        let mut moved = false;
        for lane in &mut lanes {
            moved |= lane.advance(mesh, call, own, chunk)?;
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
