//! Waiting for sockets: `poll(2)` that also ends at a deadline or by the abort token.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use tokio_util::sync::CancellationToken;

/// Longest time an abort goes unnoticed. `poll(2)` cannot watch the token, so the token is checked at this
/// interval.
pub const ABORT_LATENCY: Duration = Duration::from_millis(25);

/// Time a wait polls repeatedly before it sleeps. A peer that is working delivers the next chunk sooner than
/// a sleeping thread wakes up; between polls the thread yields the processor.
const EAGER: Duration = Duration::from_micros(100);

/// Reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Ready,
    Deadline,
    Aborted,
}

/// Waits until one of `fds` is ready, for at most [`ABORT_LATENCY`]; returns `None` if nothing happened.
pub(super) fn wait_a_tick(
    fds: &mut [PollFd<'_>],
    deadline: Instant,
    abort: &CancellationToken,
) -> io::Result<Option<Wake>> {
    if abort.is_cancelled() {
        return Ok(Some(Wake::Aborted));
    }
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(Some(Wake::Deadline));
    }
    match poll(fds, ceil_to_millis(left.min(ABORT_LATENCY))) {
        Ok(0) | Err(Errno::EINTR) => Ok(None),
        Ok(_) => Ok(Some(Wake::Ready)),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until one of `fds` is ready, the deadline passes or the token is cancelled.
pub(super) fn wait(
    fds: &mut [PollFd<'_>],
    deadline: Instant,
    abort: &CancellationToken,
) -> io::Result<Wake> {
    let start = Instant::now();
    while start.elapsed() < EAGER && !abort.is_cancelled() {
        match poll(fds, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => thread::yield_now(),
            Ok(_) => return Ok(Wake::Ready),
            Err(errno) => return Err(errno.into()),
        }
    }
    loop {
        if let Some(wake) = wait_a_tick(fds, deadline, abort)? {
            return Ok(wake);
        }
    }
}

/// Rounds up to milliseconds; otherwise the last millisecond before a deadline would be spent spinning.
fn ceil_to_millis(duration: Duration) -> PollTimeout {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use nix::poll::PollFlags;

    use super::*;

    #[test]
    fn a_wait_ends_with_bytes_at_the_deadline_or_by_abort() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let abort = CancellationToken::new();
        let wait = |deadline| {
            let mut fds = [PollFd::new(far.as_fd(), PollFlags::POLLIN)];
            wait(&mut fds, deadline, &abort).unwrap()
        };
        let now = Instant::now();
        assert_eq!(wait(now), Wake::Deadline);
        assert_eq!(wait(now + Duration::from_millis(1)), Wake::Deadline);
        near.write_all(&[1]).unwrap();
        assert_eq!(wait(now + Duration::from_secs(3600)), Wake::Ready);
        abort.cancel();
        assert_eq!(wait(now + Duration::from_secs(3600)), Wake::Aborted);
    }

    #[test]
    fn part_of_a_millisecond_is_not_zero() {
        assert_eq!(ceil_to_millis(Duration::from_nanos(1)).as_millis(), Some(1));
        assert_eq!(
            ceil_to_millis(Duration::from_millis(25)).as_millis(),
            Some(25)
        );
    }
}
