//! All-reduce: every rank ends with the same sum, by direct exchange, recursive doubling, the ring, halving, or
//! shared memory.

use std::time::Instant;

use super::buffer::Views;
use super::call::{Algorithm, Call};
use super::element::{Element, add};
use super::error::Result;
use super::exchange::{Inbox, exchange, receive, send, shift, swap};
use super::frame::{Inbound, Outbound};
use super::halving::{Halving, Round};
use super::mesh::{Interest, Mesh};
use super::ring::{Ring, Schedule};

/// Sends every rank's buffer to every rank, which adds them in rank order.
///
/// `scratch` holds at least `(N − 1)` buffers.
pub(super) fn direct<T: Element>(
    mesh: &mut Mesh,
    call: &Call,
    ranks: &[usize],
    buffer: &mut [T],
    scratch: &mut [T],
) -> Result<()> {
    let peers = ranks.len() - 1;
    let others = &mut scratch[..peers * buffer.len()];
    let mut rest = bytemuck::cast_slice_mut::<T, u8>(others);
    let own = bytemuck::cast_slice::<T, u8>(buffer);
    let inboxes = (0..peers).map(|_| {
        let (inbox, after) = std::mem::take(&mut rest).split_at_mut(own.len());
        rest = after;
        Inbox::Exact(inbox)
    });
    exchange(mesh, call, ranks.iter().copied(), own, inboxes)?;
    sum_in_order(buffer, place(call, ranks), others);
    Ok(())
}

/// Returns this rank's index in `ranks`.
fn place(call: &Call, ranks: &[usize]) -> usize {
    let place = ranks.iter().position(|rank| *rank == call.rank);
    place.expect("a rank is one of those that it adds up with")
}

/// Replaces `own` with the sum over ranks, added in rank order so that all ranks get the same bits. `others`
/// holds the peers' buffers in that order, and serves as scratch.
fn sum_in_order<T: Element>(own: &mut [T], rank: usize, others: &mut [T]) {
    if own.is_empty() {
        return;
    }
    if rank == 0 {
        for term in others.chunks_exact(own.len()) {
            add(own, term);
        }
        return;
    }
    let (sum, rest) = others.split_at_mut(own.len());
    let (before, after) = rest.split_at((rank - 1) * own.len());
    for term in before.chunks_exact(own.len()) {
        add(sum, term);
    }
    add(sum, own);
    for term in after.chunks_exact(own.len()) {
        add(sum, term);
    }
    own.copy_from_slice(sum);
}

/// World size from which small messages go [between pairs](doubling), not from every rank to every other, and large
/// ones in [rounds](halving), not around the [ring](ring).
pub(super) const MANY: usize = 8;

/// Sums by recursive doubling: pairs of ranks exchange and add their buffers, each time with a rank twice as
/// far away, so each round doubles the number of ranks in the sum. A rank sends at most ⌈log₂ N⌉ messages.
/// Both ranks of a pair add the same two numbers and get the same bits. Each rank above the largest power of
/// two sends its buffer to a rank below, and receives the sum from it.
///
/// `scratch` holds at least one buffer.
pub(super) fn doubling<T: Element>(
    mesh: &mut Mesh,
    call: &Call,
    ranks: &[usize],
    buffer: &mut [T],
    scratch: &mut [T],
) -> Result<()> {
    let own = place(call, ranks);
    let paired = 1 << ranks.len().ilog2();
    let others = &mut scratch[..buffer.len()];
    if own >= paired {
        let peer = ranks[own - paired];
        let (mine, sum) = (
            bytemuck::cast_slice(buffer),
            bytemuck::cast_slice_mut(others),
        );
        swap(mesh, call, peer, mine, sum)?;
        buffer.copy_from_slice(others);
        return Ok(());
    }
    let represented = ranks.get(own + paired).copied();
    if let Some(peer) = represented {
        receive(mesh, call, peer, bytemuck::cast_slice_mut(others))?;
        add(buffer, others);
    }
    let mut distance = 1;
    while distance < paired {
        let (mine, theirs) = (
            bytemuck::cast_slice(buffer),
            bytemuck::cast_slice_mut(others),
        );
        swap(mesh, call, ranks[own ^ distance], mine, theirs)?;
        add(buffer, others);
        distance *= 2;
    }
    match represented {
        Some(peer) => send(mesh, call, peer, bytemuck::cast_slice(buffer)),
        None => Ok(()),
    }
}

/// Sums among these ranks, with as few bytes as the ring and fewer steps: the [schedule](Halving) has the rounds.
///
/// `scratch` holds at least half of the buffer, and an element for each rank: what is added at a time.
pub(super) fn halving<T: Element>(
    mesh: &mut Mesh,
    call: &Call,
    ranks: &[usize],
    buffer: &mut [T],
    scratch: &mut [T],
) -> Result<()> {
    let schedule = Halving {
        rank: place(call, ranks),
        world_size: ranks.len(),
        elements: buffer.len(),
    };
    for Round {
        to,
        from,
        sent,
        received,
        reduces,
    } in schedule.rounds()
    {
        let (to, from) = (ranks[to], ranks[from]);
        if reduces {
            let own = sent.map(|part| bytemuck::cast_slice(&buffer[part]));
            let (first, rest) = scratch.split_at_mut(received[0].len());
            let second = &mut rest[..received[1].len()];
            let into = [&mut *first, &mut *second].map(bytemuck::cast_slice_mut);
            shift(mesh, call, (to, own), (from, into))?;
            for (part, terms) in received.into_iter().zip([first, second]) {
                add(&mut buffer[part], terms);
            }
        } else {
            let ([s, t], [r, u]) = (sent, received);
            let parts = buffer.get_disjoint_mut([s, t, r, u]);
            let [s, t, r, u] = parts.expect("a round sends nothing that it receives");
            let own = [s, t].map(|part| bytemuck::cast_slice(part));
            let into = [r, u].map(bytemuck::cast_slice_mut);
            shift(mesh, call, (to, own), (from, into))?;
        }
    }
    Ok(())
}

/// An all-reduce over sockets: its ranks, buffer and scratch memory.
type Reduce<T> = fn(&mut Mesh, &Call, &[usize], &mut [T], &mut [T]) -> Result<()>;

/// Returns the algorithm for a large buffer on so many ranks.
fn large<T: Element>(ranks: usize) -> Reduce<T> {
    if ranks < MANY { ring } else { halving }
}

/// Returns the bytes of scratch memory that an algorithm needs.
pub(super) fn scratch(algorithm: Algorithm, ranks: usize, bytes: usize, chunk: usize) -> usize {
    match algorithm {
        Algorithm::Direct => (ranks - 1) * bytes,
        Algorithm::Doubling => bytes,
        Algorithm::Ring => chunk,
        // Half of the segments, each rounded up to an element.
        Algorithm::Halving | Algorithm::SharedMemory => {
            chunk.max(bytes / 2 + ranks * size_of::<f64>())
        }
    }
}

/// Numbers added at a time: few enough to stay in the first-level cache.
const BLOCK: usize = 2048;

/// Sums through shared memory. A rank with a [column](super::hosts) sums it over the ranks of its host, and
/// then around a ring with the ranks of other hosts that have the same column. Then every rank copies the
/// other columns from its host's memory. The ranks of a host meet before, between and after these two phases,
/// so that no rank reads numbers while they are written: first a rank writes its own column, then the others,
/// and no peer reads either during that phase.
pub(super) fn shared(
    mesh: &mut Mesh,
    call: &Call,
    views: Views<'_>,
    scratch: &mut [f32],
) -> Result<()> {
    let Views {
        own,
        start: first,
        peers,
        hosts,
    } = views;
    let seat = hosts.seat(call.rank);
    let numbers = own.len();
    meet(mesh, call, seat.host)?;
    if let Some(column) = seat.column {
        let column = hosts.column(numbers, column);
        let mut terms = [0.0; BLOCK];
        for start in column.clone().step_by(BLOCK) {
            let block = start..column.end.min(start + BLOCK);
            let terms = &mut terms[..block.len()];
            for peer in peers.iter().flatten() {
                peer.read(first + start, terms);
                add(&mut own[block.clone()], terms);
            }
        }
        mesh.pass_over((seat.host.len() - 1) * size_of::<f32>() * column.len());
        if seat.ring.len() > 1 {
            large(seat.ring.len())(mesh, call, &seat.ring, &mut own[column], scratch)?;
        }
    }
    // The other ranks of this host may be waiting for other hosts, with no byte moving here.
    mesh.more_patiently(|mesh| meet(mesh, call, seat.host))?;
    for (column, rank) in seat.host.iter().take(hosts.columns()).enumerate() {
        if let Some(Some(peer)) = peers.get(*rank) {
            let column = hosts.column(numbers, column);
            mesh.pass_over(size_of::<f32>() * column.len());
            peer.read(first + column.start, &mut own[column]);
        }
    }
    meet(mesh, call, seat.host)
}

/// Returns once every one of these ranks has called it.
pub(super) fn meet(mesh: &mut Mesh, call: &Call, ranks: &[usize]) -> Result<()> {
    if ranks.len() >= MANY {
        return doubling::<f32>(mesh, call, ranks, &mut [], &mut []);
    }
    let inboxes = (1..ranks.len()).map(|_| Inbox::Exact(&mut []));
    exchange(mesh, call, ranks.iter().copied(), &[], inboxes)
}

/// Maximum bytes of a segment, as measured with two and four ranks: small enough for the caches to hold the
/// `4 (N − 1)` segments that a wave of the [`Schedule`] touches with `N` ranks, and large enough that a turn
/// costs more than its system calls.
const SEGMENT: usize = 128 * 1024;

/// Progress of one direction of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    turn: usize,
    /// Bytes of this turn's segment that have been sent, or received and applied.
    offset: usize,
}

/// The ring: reduce-scatter and all-gather as one stream in each direction, without a wait between turns.
///
/// A turn sends the rank's own segment, or only those bytes of its segment that an earlier turn has received
/// and applied. Arriving bytes never overwrite unsent ones: a segment comes around only after each rank's own
/// contribution has left it.
struct RingStream<'a, T> {
    /// The rank from which this one receives.
    left: usize,
    /// The rank to which this one sends.
    right: usize,
    schedule: Schedule,
    buffer: &'a mut [T],
    /// Received terms that are to be added, one chunk at a time.
    scratch: &'a mut [T],
    /// Bytes at the front of `scratch` that do not yet form a whole element.
    partial: usize,
    out: Outbound,
    sending: Position,
    inbound: Inbound,
    receiving: Position,
}

/// Sums around the ring of these ranks. `scratch` holds at least one element.
pub(super) fn ring<T: Element>(
    mesh: &mut Mesh,
    call: &Call,
    ranks: &[usize],
    buffer: &mut [T],
    scratch: &mut [T],
) -> Result<()> {
    let ring = Ring {
        rank: place(call, ranks),
        world_size: ranks.len(),
        elements: buffer.len(),
    };
    let (left, right) = (ranks[ring.left()], ranks[ring.right()]);
    let mut stream = RingStream {
        left,
        right,
        schedule: Schedule::new(ring, SEGMENT / size_of::<T>()),
        buffer,
        scratch,
        partial: 0,
        out: Outbound::new(call, right),
        sending: Position::default(),
        inbound: Inbound::new(left),
        receiving: Position::default(),
    };
    let mut idle_since = Instant::now();
    loop {
        mesh.check_abort(call)?;
        let sent = stream.send(mesh, call)?;
        let received = stream.receive(mesh, call)?;
        if stream.is_sent() && stream.is_received() {
            return Ok(());
        }
        if sent || received {
            idle_since = Instant::now();
        } else {
            mesh.wait(call, &stream.interests(), idle_since)?;
        }
    }
}

impl<T: Element> RingStream<'_, T> {
    fn is_sent(&self) -> bool {
        self.out.header_is_sent() && self.sending.turn == self.schedule.turns()
    }

    fn is_received(&self) -> bool {
        self.inbound.theirs().is_some() && self.receiving.turn == self.schedule.turns()
    }

    /// Returns the end of the bytes of the current segment that may be sent now.
    fn sendable(&self) -> usize {
        let Position { turn, .. } = self.sending;
        if turn == self.schedule.turns() {
            return 0;
        }
        match self.schedule.passes_on(turn) {
            Some(before) if self.receiving.turn == before => self.receiving.offset,
            Some(before) if self.receiving.turn < before => 0,
            _ => size_of::<T>() * self.schedule.sent_at(turn).len(),
        }
    }

    fn interests(&self) -> [Interest; 2] {
        let write = !self.out.header_is_sent() || self.sending.offset < self.sendable();
        [
            Interest::reading(self.left, !self.is_received()),
            Interest::writing(self.right, write),
        ]
    }

    /// Sends the bytes that may be sent and the link takes; returns true if anything moved.
    fn send(&mut self, mesh: &mut Mesh, call: &Call) -> Result<bool> {
        self.sending = self.skip_finished(self.sending, Schedule::sent_at);
        let Position { turn, offset } = self.sending;
        let end = self.sendable().min(offset + mesh.chunk);
        let segment = bytemuck::cast_slice::<T, u8>(&self.buffer[self.schedule.sent_at(turn)]);
        let Some(sent) = self.out.push(mesh, call, &segment[offset..end])? else {
            return Ok(false);
        };
        self.sending.offset += sent;
        self.sending = self.skip_finished(self.sending, Schedule::sent_at);
        Ok(true)
    }

    /// Receives and applies the bytes that the link has; returns true if anything moved.
    fn receive(&mut self, mesh: &mut Mesh, call: &Call) -> Result<bool> {
        self.receiving = self.skip_finished(self.receiving, Schedule::received_at);
        let Position { turn, offset } = self.receiving;
        if turn == self.schedule.turns() {
            return Ok(self.inbound.pull(mesh, call, &mut [])?.is_some());
        }
        let segment = &mut self.buffer[self.schedule.received_at(turn)];
        if self.schedule.reduces_at(turn) {
            let terms = bytemuck::cast_slice_mut::<T, u8>(self.scratch);
            let end = terms.len().min(size_of_val(segment) - offset);
            let Some(received) = self
                .inbound
                .pull(mesh, call, &mut terms[self.partial..end])?
            else {
                return Ok(false);
            };
            let arrived = self.partial + received;
            self.partial = arrived % size_of::<T>();
            let whole = arrived - self.partial;
            add(
                &mut segment[offset / size_of::<T>()..],
                &self.scratch[..whole / size_of::<T>()],
            );
            bytemuck::cast_slice_mut::<T, u8>(self.scratch).copy_within(whole..arrived, 0);
            self.receiving.offset += whole;
        } else {
            let bytes = bytemuck::cast_slice_mut::<T, u8>(segment);
            let end = bytes.len().min(offset + mesh.chunk);
            let Some(received) = self.inbound.pull(mesh, call, &mut bytes[offset..end])? else {
                return Ok(false);
            };
            self.receiving.offset += received;
        }
        self.receiving = self.skip_finished(self.receiving, Schedule::received_at);
        Ok(true)
    }

    /// Advances to the next turn whose segment has bytes left; with fewer elements than ranks, some segments
    /// are empty.
    fn skip_finished(
        &self,
        mut position: Position,
        segment: impl Fn(&Schedule, usize) -> std::ops::Range<usize>,
    ) -> Position {
        while position.turn < self.schedule.turns()
            && position.offset == size_of::<T>() * segment(&self.schedule, position.turn).len()
        {
            position = Position {
                turn: position.turn + 1,
                offset: 0,
            };
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_the_same_bits_on_every_rank() {
        // Any other order of additions gives other bits.
        let terms = [1e8f32, 1.0, -1e8, 0.25, 3e-5];
        let expected = terms
            .iter()
            .copied()
            .reduce(|sum, term| sum + term)
            .unwrap();
        assert_ne!(
            expected,
            terms
                .iter()
                .rev()
                .copied()
                .reduce(|sum, term| sum + term)
                .unwrap()
        );
        for world_size in 1..=terms.len() {
            let expected = terms[..world_size]
                .iter()
                .copied()
                .reduce(|sum, term| sum + term)
                .unwrap();
            for rank in 0..world_size {
                let mut own = [terms[rank], 7.0];
                let mut others: Vec<f32> = (0..world_size)
                    .filter(|peer| *peer != rank)
                    .flat_map(|peer| [terms[peer], 7.0])
                    .collect();
                sum_in_order(&mut own, rank, &mut others);
                assert_eq!(
                    own.map(f32::to_bits),
                    [expected, 7.0 * world_size as f32].map(f32::to_bits)
                );
            }
        }
    }
}
