//! One message on one link: a header, then payload. [`Outbound`] sends it; [`Inbound`] receives it and
//! compares the peer's header with this rank's call. Neither waits, and neither decides where the payload
//! comes from or goes.

use std::io::{IoSlice, IoSliceMut};

use super::call::Call;
use super::error::{Error, Result};
use super::mesh::Mesh;
use super::wire::{HEADER_BYTES, decode_header, encode_header};

/// A message to a peer.
#[derive(Debug)]
pub(super) struct Outbound {
    peer: usize,
    header: [u8; HEADER_BYTES],
    header_sent: usize,
}

impl Outbound {
    pub(super) fn new(call: &Call, peer: usize) -> Self {
        Self {
            peer,
            header: encode_header(call),
            header_sent: 0,
        }
    }

    pub(super) fn header_is_sent(&self) -> bool {
        self.header_sent == HEADER_BYTES
    }

    /// Sends the rest of the header and then `payload`, as far as the link takes them. Returns the number of
    /// payload bytes sent, or `None` if nothing moved.
    pub(super) fn push(
        &mut self,
        mesh: &mut Mesh,
        call: &Call,
        payload: &[u8],
    ) -> Result<Option<usize>> {
        let header = &self.header[self.header_sent..];
        let sent = match (header.is_empty(), payload.is_empty()) {
            (true, true) => None,
            (true, false) => mesh.write(call, self.peer, &[IoSlice::new(payload)])?,
            (false, _) => mesh.write(
                call,
                self.peer,
                &[IoSlice::new(header), IoSlice::new(payload)],
            )?,
        };
        let Some(sent) = sent else { return Ok(None) };
        let of_header = sent.min(header.len());
        self.header_sent += of_header;
        Ok(Some(sent - of_header))
    }
}

/// A message from a peer.
#[derive(Debug)]
pub(super) struct Inbound {
    peer: usize,
    header: [u8; HEADER_BYTES],
    header_received: usize,
    theirs: Option<Call>,
}

impl Inbound {
    pub(super) fn new(peer: usize) -> Self {
        Self {
            peer,
            header: [0; HEADER_BYTES],
            header_received: 0,
            theirs: None,
        }
    }

    /// Returns the peer's call, which agrees with this rank's, once its header has arrived.
    pub(super) fn theirs(&self) -> Option<&Call> {
        self.theirs.as_ref()
    }

    /// Receives the rest of the header and then as much of `payload` as the link has. Returns the number of
    /// payload bytes received, or `None` if nothing moved.
    ///
    /// `payload` must not be longer than the rest of the message by this rank's own call: header and payload
    /// are read at once.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] and [`Error::Garbled`]; the contents of `payload` are then meaningless.
    pub(super) fn pull(
        &mut self,
        mesh: &mut Mesh,
        call: &Call,
        payload: &mut [u8],
    ) -> Result<Option<usize>> {
        let header = &mut self.header[self.header_received..];
        let header_missing = header.len();
        let received = match (header.is_empty(), payload.is_empty()) {
            (true, true) => None,
            (true, false) => mesh.read(call, self.peer, &mut [IoSliceMut::new(payload)])?,
            (false, _) => mesh.read(
                call,
                self.peer,
                &mut [IoSliceMut::new(header), IoSliceMut::new(payload)],
            )?,
        };
        let Some(received) = received else {
            return Ok(None);
        };
        let of_header = received.min(header_missing);
        self.header_received += of_header;
        if of_header > 0 && of_header == header_missing {
            let theirs = decode_header(&self.header).ok_or(Error::Garbled {
                call: *call,
                peer: self.peer,
            })?;
            if !call.agrees_with(&theirs, self.peer) {
                return Err(Error::Mismatch {
                    call: *call,
                    theirs,
                });
            }
            self.theirs = Some(theirs);
        }
        Ok(Some(received - of_header))
    }
}

/// A buffer for a payload whose length the peer announces.
///
/// It grows with the bytes that arrive, not with the announced length, so a garbage length costs no memory.
#[derive(Debug, Default)]
pub(super) struct Growing {
    bytes: Vec<u8>,
    filled: usize,
}

impl Growing {
    /// Reuses the allocation of `bytes`, but not their contents.
    pub(super) fn reusing(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, filled: 0 }
    }

    /// Returns room for the next part of a payload of `length` bytes; empty when the payload is complete.
    pub(super) fn room(&mut self, length: u64, chunk: usize) -> &mut [u8] {
        let missing = length - self.filled as u64;
        let wanted = usize::try_from(missing).map_or(chunk, |missing| missing.min(chunk));
        let end = self.filled + wanted;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(super) fn into_filled(mut self) -> Vec<u8> {
        self.bytes.truncate(self.filled);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_buffer_asks_for_a_chunk_at_a_time() {
        let mut growing = Growing::reusing(vec![9; 3]);
        assert_eq!(growing.room(u64::MAX, 4).len(), 4);
        growing.room(6, 4).copy_from_slice(&[1, 2, 3, 4]);
        growing.advance(4);
        growing.room(6, 4).copy_from_slice(&[5, 6]);
        growing.advance(2);
        assert!(growing.room(6, 4).is_empty());
        assert_eq!(growing.into_filled(), [1, 2, 3, 4, 5, 6]);
    }
}
