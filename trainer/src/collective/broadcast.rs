//! Broadcast: the root's bytes pass along a chain of all ranks, chunk by chunk.
//!
//! ```text
//!   root ──▶ root + 1 ──▶ root + 2 ──▶ …      (modulo the world size)
//! ```
//!
//! No rank sends the payload more than once, so a large model reaches `N` ranks in the time of one copy and
//! `N − 2` chunks. The neighbours do not depend on the length, which at first only the root knows.

use std::time::Instant;

use super::call::Call;
use super::error::Result;
use super::frame::{Growing, Inbound, Outbound};
use super::mesh::{Interest, Mesh};
use super::ring::Ring;

/// Sends the root's `payload` down the chain.
pub(super) fn send(mesh: &mut Mesh, call: &Call, payload: &[u8]) -> Result<()> {
    let next = neighbours(mesh, call).right();
    let mut out = Outbound::new(call, next);
    let mut sent = 0;
    let mut idle_since = Instant::now();
    while !out.header_is_sent() || sent < payload.len() {
        mesh.check_abort(call)?;
        let end = payload.len().min(sent + mesh.chunk);
        if let Some(bytes) = out.push(mesh, call, &payload[sent..end])? {
            sent += bytes;
            idle_since = Instant::now();
        } else {
            mesh.wait(call, &[Interest::writing(next, true)], idle_since)?;
        }
    }
    Ok(())
}

/// Receives the root's payload and passes it on, unless this rank is the last of the chain.
pub(super) fn receive(
    mesh: &mut Mesh,
    mut call: Call,
    root: usize,
    reuse: Vec<u8>,
) -> Result<Vec<u8>> {
    let neighbours = neighbours(mesh, &call);
    let next = Some(neighbours.right()).filter(|next| *next != root);
    let mut inbound = Inbound::new(neighbours.left());
    let (mut payload, chunk) = (Growing::reusing(reuse), mesh.chunk);
    // Set once the length is known, unless this rank is the last of the chain.
    let mut out: Option<Outbound> = None;
    let mut sent = 0;
    let mut idle_since = Instant::now();
    loop {
        mesh.check_abort(&call)?;
        let mut moved = false;
        let room = inbound
            .theirs()
            .map_or(&mut [][..], |theirs| payload.room(theirs.bytes, chunk));
        if let Some(received) = inbound.pull(mesh, &call, room)? {
            payload.advance(received);
            moved = true;
        }
        if let (Some(theirs), Some(next), None) = (inbound.theirs(), next, &out) {
            call.bytes = theirs.bytes;
            out = Some(Outbound::new(&call, next));
        }
        if let Some(out) = &mut out {
            let end = payload.filled().len().min(sent + chunk);
            if let Some(bytes) = out.push(mesh, &call, &payload.filled()[sent..end])? {
                sent += bytes;
                moved = true;
            }
        }
        let arrived = payload.filled().len();
        let read = inbound
            .theirs()
            .is_none_or(|theirs| (arrived as u64) < theirs.bytes);
        let write = out
            .as_ref()
            .is_some_and(|out| !out.header_is_sent() || sent < arrived);
        if !read && !write {
            return Ok(payload.into_filled());
        }
        if moved {
            idle_since = Instant::now();
            continue;
        }
        let from = Interest::reading(neighbours.left(), read);
        match next.map(|next| Interest::writing(next, write)) {
            Some(to) => mesh.wait(&call, &[from, to], idle_since)?,
            None => mesh.wait(&call, &[from], idle_since)?,
        }
    }
}

/// Returns this rank's position in the chain, which is the ring cut before the root.
fn neighbours(mesh: &Mesh, call: &Call) -> Ring {
    Ring {
        rank: call.rank,
        world_size: mesh.world_size(),
        elements: 0,
    }
}
