//! Clock of a query's progress: when its share last changed, and whether an estimate of the time left can be shown.
//!
//! An estimate is hidden where it misleads: once there was no progress for a while, and as long as it grows.

use std::time::{Duration, Instant};

/// Time without progress after which there is no estimate: as long as between two lines.
const STALLED: Duration = Duration::from_secs(5);

/// Clock of the work.
#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    share: f64,
    /// Estimated seconds left, and the time elapsed, when the share last changed.
    left: f64,
    changed: Duration,
    falls: bool,
}

/// Time in the work.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moment {
    pub(super) elapsed: Duration,
    /// Time elapsed when the share last changed.
    pub(super) changed: Duration,
    /// True if the time left can be estimated.
    pub(super) tells: bool,
}

impl From<Duration> for Moment {
    /// Returns a moment of progress.
    fn from(elapsed: Duration) -> Self {
        Self {
            elapsed,
            changed: elapsed,
            tells: true,
        }
    }
}

/// Estimates the seconds left, from the share of the work that is done and the seconds that it took.
pub(super) fn seconds_left(share: f64, elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * (1.0 / share - 1.0)).max(0.0)
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            began: Instant::now(),
            share: 0.0,
            left: f64::INFINITY,
            changed: Duration::ZERO,
            falls: false,
        }
    }

    /// Takes note of the share that is done now.
    pub(super) fn note(&mut self, share: f64) {
        self.note_at(share, self.began.elapsed());
    }

    /// Returns the time elapsed.
    pub(super) fn elapsed(&self) -> Moment {
        self.at(self.began.elapsed())
    }

    fn note_at(&mut self, share: f64, elapsed: Duration) {
        if share == self.share {
            return;
        }
        let left = seconds_left(share, elapsed);
        self.falls = left <= self.left;
        (self.share, self.left, self.changed) = (share, left, elapsed);
    }

    fn at(&self, elapsed: Duration) -> Moment {
        let since = elapsed.saturating_sub(self.changed);
        Moment {
            elapsed,
            changed: self.changed,
            tells: self.falls && since < STALLED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_of_progress_and_does_not_grow() {
        let mut clock = Clock::start();
        let tells = |clock: &Clock, seconds| clock.at(Duration::from_secs(seconds)).tells;
        assert!(!tells(&clock, 1), "nothing is done");
        clock.note_at(0.5, Duration::from_secs(4));
        assert!(tells(&clock, 5));
        clock.note_at(0.5, Duration::from_secs(8));
        assert!(!tells(&clock, 10), "no progress since 4 s");
        // 0.52 in 10 s leaves 9 s, where it was 4 s before.
        clock.note_at(0.52, Duration::from_secs(10));
        assert!(!tells(&clock, 10), "it grows");
        clock.note_at(0.6, Duration::from_secs(11));
        assert!(tells(&clock, 11));
        // A lost task reads again.
        clock.note_at(0.3, Duration::from_secs(12));
        assert!(!tells(&clock, 12));
        clock.note_at(0.4, Duration::from_secs(13));
        assert!(tells(&clock, 13));
    }
}
