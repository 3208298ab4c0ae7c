//! A [`Guest`]: an accepted connection whose peer has not yet proven who it is.
//!
//! ```text
//!   accepted ──► Hello read ──► admitted: Reply sent ──► Answer read: it proves, or is dropped
//!                           └─► refused: told why, dropped
//! ```
//!
//! Only these two messages are read from it, and their lengths are known.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::proof::{self, NONCE_BYTES, PROOF_BYTES};
use crate::collective::error::Refusal;
use crate::collective::link::Link;
use crate::collective::wire::{
    ANSWER_BYTES, HELLO_BYTES, Hello, REPLY_HEAD_BYTES, Reply, decode_answer,
};
use volley_proto::Secret;

/// Time limit for a peer to prove who it is; a slower one is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Guest {
    link: Box<dyn Link>,
    since: Instant,
    hello: [u8; HELLO_BYTES],
    received: usize,
    admitted: Option<Admitted>,
}

/// A guest that has said who it is, and has yet to prove it.
#[derive(Debug)]
struct Admitted {
    peer: usize,
    expected: [u8; PROOF_BYTES],
    answer: [u8; ANSWER_BYTES],
    received: usize,
}

/// Message received from a guest, if any.
pub(super) enum Heard {
    Nothing,
    /// Reason why it is not a peer.
    Nonsense(&'static str),
    Hello(Hello),
    /// The rank that it has proven to be.
    Proven(usize),
}

impl Guest {
    pub(super) fn new(link: Box<dyn Link>, now: Instant) -> Self {
        Self {
            link,
            since: now,
            hello: [0; HELLO_BYTES],
            received: 0,
            admitted: None,
        }
    }

    /// Reads the message that is due, and nothing beyond it: the bytes that follow belong to the first call.
    pub(super) fn advance(&mut self, now: Instant) -> Heard {
        let read = match &mut self.admitted {
            None => fill(&mut *self.link, &mut self.hello, &mut self.received),
            Some(admitted) => fill(
                &mut *self.link,
                &mut admitted.answer,
                &mut admitted.received,
            ),
        };
        match read {
            Ok(true) => self.heard(),
            Ok(false) if now.saturating_duration_since(self.since) > PATIENCE => {
                Heard::Nonsense("it does not identify itself in time")
            }
            Ok(false) => Heard::Nothing,
            Err(error) => {
                tracing::debug!(%error, "a guest's connection failed");
                Heard::Nonsense("its connection failed before it was authenticated")
            }
        }
    }

    fn heard(&self) -> Heard {
        let Some(admitted) = &self.admitted else {
            let hello = Hello::decode(&self.hello);
            return hello.map_or(Heard::Nonsense("its message is not a hello"), Heard::Hello);
        };
        match decode_answer(&admitted.answer) {
            Some(said) if proof::is_same(&said, &admitted.expected) => Heard::Proven(admitted.peer),
            _ => Heard::Nonsense("it does not prove that it belongs to this generation"),
        }
    }

    /// Tells the guest why it is refused. An empty socket has room for that, so this does not block.
    pub(super) fn refuse(mut self, generation: u64, refusal: Refusal) -> io::Result<()> {
        let reply = Reply {
            generation,
            refusal: Some(refusal),
            nonce: [0; NONCE_BYTES],
            proof: [0; PROOF_BYTES],
        };
        self.link.write_all(&reply.encode())
    }

    /// Welcomes the guest with a proof, and expects its proof. An empty socket has room for that, so this
    /// does not block.
    pub(super) fn admit(
        &mut self,
        peer: usize,
        generation: u64,
        secret: &Secret,
    ) -> io::Result<()> {
        let mut reply = Reply {
            generation,
            refusal: None,
            nonce: rand::random(),
            proof: [0; PROOF_BYTES],
        };
        let mut head = [0; REPLY_HEAD_BYTES];
        head.copy_from_slice(&reply.encode()[..REPLY_HEAD_BYTES]);
        reply.proof = proof::of_acceptor(secret, &self.hello, &head);
        let reply = reply.encode();
        self.link.write_all(&reply)?;
        self.admitted = Some(Admitted {
            peer,
            expected: proof::of_dialler(secret, &self.hello, &reply),
            answer: [0; ANSWER_BYTES],
            received: 0,
        });
        Ok(())
    }

    /// Returns true if the guest has said who it is, and has yet to prove it.
    pub(super) fn is_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    pub(super) fn link(&self) -> &dyn Link {
        &*self.link
    }

    pub(super) fn into_link(self) -> Box<dyn Link> {
        self.link
    }

    /// Returns the event to wait for.
    pub(super) fn interest(&self) -> PollFd<'_> {
        let events = self.link.greeting().unwrap_or(PollFlags::POLLIN);
        PollFd::new(self.link.as_fd(), events)
    }
}

/// Reads into the rest of `bytes`; returns true once it is full.
fn fill(link: &mut dyn Link, bytes: &mut [u8], received: &mut usize) -> io::Result<bool> {
    while *received < bytes.len() {
        match link.read(&mut bytes[*received..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => *received += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
