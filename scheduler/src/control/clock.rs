//! The two clocks that decisions use. Decisions get the readings as arguments, and never read the clocks.

use std::time::{Instant, SystemTime};

/// A moment on the monotonic clock, for durations, and on the wall clock, for display.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) time: SystemTime,
}

impl Now {
    /// Reads both clocks, for callers of the controller.
    pub(crate) fn read() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

#[cfg(test)]
impl std::ops::Add<std::time::Duration> for Now {
    type Output = Self;

    fn add(self, later: std::time::Duration) -> Self {
        Self {
            instant: self.instant + later,
            time: self.time + later,
        }
    }
}
