//! A [`Faulty`] link: a link with the faults of a network.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::Sender;

use socket2::SockRef;

use crate::collective::link::Link;

/// The fault of a link. Byte counts are of the bytes that this end writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Every other read and every other write moves nothing, and the rest at most this many bytes.
    Trickle(usize),
    /// The connection ends, in both directions, after this many bytes.
    Cut(usize),
    /// The connection stays open, but bytes written after this many are lost.
    Mute(usize),
}

#[derive(Debug)]
pub(super) struct Faulty {
    link: Box<dyn Link>,
    fault: Fault,
    written: usize,
    reads: usize,
    writes: usize,
}

impl Faulty {
    pub(super) fn over(link: Box<dyn Link>, fault: Fault) -> Box<dyn Link> {
        Box::new(Self {
            link,
            fault,
            written: 0,
            reads: 0,
            writes: 0,
        })
    }
}

/// Returns the number of `bytes` that may move at this attempt, the `attempts`th of its direction.
fn trickle(fault: Fault, attempts: &mut usize, bytes: usize) -> io::Result<usize> {
    let Fault::Trickle(most) = fault else {
        return Ok(bytes);
    };
    *attempts += 1;
    if attempts.is_multiple_of(2) {
        Ok(bytes.min(most))
    } else {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Link for Faulty {
    fn is_local(&self) -> bool {
        self.link.is_local()
    }

    fn may_have_more(&self) -> bool {
        self.link.may_have_more()
    }
}

impl Read for Faulty {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = trickle(self.fault, &mut self.reads, buffer.len())?;
        self.link.read(&mut buffer[..end])
    }
}

impl Write for Faulty {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = trickle(self.fault, &mut self.writes, bytes.len())?;
        let bytes = &bytes[..end];
        let written = match self.fault {
            Fault::Trickle(_) => self.link.write(bytes)?,
            Fault::Cut(after) => {
                let left = after - self.written;
                if left == 0 {
                    SockRef::from(&self.link).shutdown(Shutdown::Both)?;
                }
                self.link.write(
                    &bytes[..if left == 0 {
                        bytes.len()
                    } else {
                        bytes.len().min(left)
                    }],
                )?
            }
            Fault::Mute(after) => {
                let left = after - self.written.min(after);
                if left == 0 {
                    bytes.len()
                } else {
                    self.link.write(&bytes[..bytes.len().min(left)])?
                }
            }
        };
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }
}

impl AsFd for Faulty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// A sound link that reports when a read finds nothing: its owner then waits for the peer.
#[derive(Debug)]
pub(super) struct Noticed {
    link: Box<dyn Link>,
    waits: Sender<()>,
}

impl Noticed {
    pub(super) fn over(link: Box<dyn Link>, waits: Sender<()>) -> Box<dyn Link> {
        Box::new(Self { link, waits })
    }
}

impl Link for Noticed {
    fn is_local(&self) -> bool {
        self.link.is_local()
    }

    fn may_have_more(&self) -> bool {
        self.link.may_have_more()
    }
}

impl Read for Noticed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = self.link.read(buffer);
        if outcome
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {
            // The receiver is gone once it has heard the first report.
            self.waits.send(()).ok();
        }
        outcome
    }
}

impl Write for Noticed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.link.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }
}

impl AsFd for Noticed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
