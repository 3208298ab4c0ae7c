//! Aging of queries behind a waiting gang: queries that its reservation has starved for the limit are promoted ahead
//! of it.
//!
//! ```text
//!   a free slot is reserved, and a query needs it ──► the limit passes ──► starved jobs are promoted, one for each slot
//!                    ▲                                                                   │
//!                    └─────────────────────── promoted jobs have ended ◄─────────────────┘
//! ```
//!
//! A promoted job is ahead of the gang with all of its stages. No others are promoted until the limit has passed
//! again, so the gang waits for the jobs before it and for the promoted ones, and then starts.
//!
//! Not here: the choice of reserved slots, which is in [`super::placement`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Starved and promoted jobs.
#[derive(Debug, Default)]
pub(super) struct Aging {
    /// Time since which a reserved slot has been free while a query needed it.
    since: Option<Instant>,
    /// Jobs behind the reservation that had no running task at the last offer, in the order of arrival.
    starved: Vec<String>,
    promoted: BTreeSet<String>,
}

/// Effect of a gang's reservation on queries in an offer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Starved {
    /// True if a reserved slot is free.
    pub(crate) slot: bool,
    /// Jobs behind the reservation that have no running task, in the order of arrival.
    pub(crate) jobs: Vec<String>,
}

impl Aging {
    /// Checks whether starved jobs are due for promotion.
    pub(super) fn is_due(&self, limit: Duration, now: Instant) -> bool {
        let due = |since| now.saturating_duration_since(since) >= limit;
        self.promoted.is_empty() && self.since.is_some_and(due)
    }

    /// Begins an offer: if promotion is due, promotes up to `most` starved jobs; drops promoted jobs that are over.
    pub(super) fn begin(
        &mut self,
        limit: Duration,
        most: usize,
        now: Instant,
        is_over: impl Fn(&str) -> bool,
    ) {
        if self.is_due(limit, now) {
            let starved = std::mem::take(&mut self.starved).into_iter();
            self.promoted.extend(starved.take(most));
        }
        self.promoted.retain(|job| !is_over(job));
    }

    /// Checks whether a job is ahead of the gang.
    pub(super) fn is_promoted(&self, job: &str) -> bool {
        self.promoted.contains(job)
    }

    /// Ends an offer; `starved` is `None` if no gang reserves slots.
    pub(super) fn end(&mut self, starved: Option<Starved>, now: Instant) {
        let Some(Starved { slot, jobs }) = starved else {
            *self = Self::default();
            return;
        };
        self.starved = jobs;
        let holds = slot && !self.starved.is_empty() && self.promoted.is_empty();
        self.since = holds.then(|| self.since.unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Builds the starved jobs of an offer, in which a reserved slot is free or none is.
    fn starved(slot: bool, jobs: &[&str]) -> Option<Starved> {
        let jobs = jobs.iter().map(|job| (*job).to_owned()).collect();
        Some(Starved { slot, jobs })
    }

    #[test]
    fn as_many_as_there_are_slots_are_promoted_and_others_when_those_have_ended() {
        let (mut aging, start) = (Aging::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        aging.end(starved(true, &["a", "b", "c"]), at(0));
        assert!(!aging.is_due(LIMIT, at(59)) && aging.is_due(LIMIT, at(60)));
        aging.begin(LIMIT, 2, at(60), |_| false);
        let promoted = |aging: &Aging| ["a", "b", "c"].map(|job| aging.is_promoted(job));
        assert_eq!(promoted(&aging), [true, true, false]);
        aging.end(starved(true, &["c"]), at(60));
        // However long the promoted jobs take, and also when one of them has ended.
        assert!(!aging.is_due(LIMIT, at(1000)));
        aging.begin(LIMIT, 2, at(1000), |job| job == "a");
        aging.end(starved(true, &["c"]), at(1000));
        assert_eq!(promoted(&aging), [false, true, false]);
        aging.begin(LIMIT, 2, at(1100), |_| true);
        aging.end(starved(true, &["c"]), at(1100));
        assert!(!aging.is_due(LIMIT, at(1159)) && aging.is_due(LIMIT, at(1160)));
        aging.begin(LIMIT, 2, at(1160), |_| false);
        assert_eq!(promoted(&aging), [false, false, true]);
    }

    #[test]
    fn time_counts_from_when_a_reserved_slot_is_free() {
        let (mut aging, start) = (Aging::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        aging.end(starved(false, &["a"]), at(0));
        assert!(!aging.is_due(LIMIT, at(100)), "all slots were busy");
        aging.end(starved(true, &["a"]), at(100));
        assert!(aging.is_due(LIMIT, at(160)));
        aging.end(starved(true, &[]), at(160));
        assert!(!aging.is_due(LIMIT, at(300)), "nothing waits");
        aging.end(starved(true, &["a"]), at(300));
        aging.begin(LIMIT, 1, at(360), |_| false);
        assert!(aging.is_promoted("a"));
        aging.end(None, at(361));
        assert!(!aging.is_promoted("a"), "the gang has started");
    }
}
