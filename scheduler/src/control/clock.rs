//! The two clocks that decisions are made by: they are passed in, never read here.

use std::time::{Instant, SystemTime};

/// A moment, by the clock that measures and by the one that is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) time: SystemTime,
}

impl Now {
    /// The moment at which this is called: for whoever feeds the controller.
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
