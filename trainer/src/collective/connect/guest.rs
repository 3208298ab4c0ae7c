//! A [`Guest`]: an accepted connection that has not yet said who it is.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::collective::error::Refusal;
use crate::collective::link::Link;
use crate::collective::wire::{HELLO_BYTES, Hello, Reply};

/// A peer says hello as soon as it is connected; who takes longer than this is none.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Guest {
    link: Box<dyn Link>,
    since: Instant,
    hello: [u8; HELLO_BYTES],
    received: usize,
}

/// What a guest has said so far.
pub(super) enum Heard {
    Nothing,
    Nonsense,
    Hello(Hello),
}

impl Guest {
    pub(super) fn new(link: Box<dyn Link>, now: Instant) -> Self {
        Self {
            link,
            since: now,
            hello: [0; HELLO_BYTES],
            received: 0,
        }
    }

    /// Reads what has come. Nothing beyond the hello: what follows is the first message.
    pub(super) fn advance(&mut self, now: Instant) -> Heard {
        while self.received < HELLO_BYTES {
            match self.link.read(&mut self.hello[self.received..]) {
                Ok(0) => return Heard::Nonsense,
                Ok(bytes) => self.received += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_late = now.saturating_duration_since(self.since) > PATIENCE;
                    return if is_late {
                        Heard::Nonsense
                    } else {
                        Heard::Nothing
                    };
                }
                Err(_) => return Heard::Nonsense,
            }
        }
        Hello::decode(&self.hello).map_or(Heard::Nonsense, Heard::Hello)
    }

    /// Answers the hello. An empty socket has room for the reply, so this does not block.
    pub(super) fn answer(
        mut self,
        generation: u64,
        refusal: Option<Refusal>,
    ) -> io::Result<Box<dyn Link>> {
        self.link.write_all(
            &Reply {
                generation,
                refusal,
            }
            .encode(),
        )?;
        Ok(self.link)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
