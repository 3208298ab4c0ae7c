//! Queries that the reservation of a waiting gang holds up, and which of them go ahead of it after a while.
//!
//! ```text
//!   a free slot is withheld from queries ──► the limit passes ──► those that wait go ahead, as many as there are slots
//!                    ▲                                                              │
//!                    └───────────────────────── they have ended ◄───────────────────┘
//! ```
//!
//! A query that goes ahead is before the gang with all of its stages. No others follow until the limit has passed again:
//! so the gang waits for the jobs before it and for those, and then all slots become its own one after the other.
//!
//! Not here: which slots are reserved, which is for [`super::placement`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Queries behind a gang that waits.
#[derive(Debug, Default)]
pub(super) struct HeldUp {
    /// Since when a free slot has been withheld from one of them.
    since: Option<Instant>,
    /// Jobs none of whose tasks ran at the last offer, in the order of arrival.
    waiting: Vec<String>,
    /// Jobs that go ahead of the gang.
    ahead: BTreeSet<String>,
}

/// What an offer says of queries behind a gang.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Withheld {
    /// Whether a gang's reservation keeps a free slot from any of them.
    pub(crate) slot: bool,
    /// Jobs behind the reservation none of whose tasks runs, in the order of arrival.
    pub(crate) from: Vec<String>,
}

impl HeldUp {
    /// Whether some are to go ahead now.
    pub(super) fn is_due(&self, limit: Duration, now: Instant) -> bool {
        let due = |since| now.saturating_duration_since(since) >= limit;
        self.ahead.is_empty() && self.since.is_some_and(due)
    }

    /// An offer begins: those that are over are not ahead any more, and where it is due so many others are.
    pub(super) fn begin(
        &mut self,
        limit: Duration,
        most: usize,
        now: Instant,
        is_over: impl Fn(&str) -> bool,
    ) {
        if self.is_due(limit, now) {
            let waiting = std::mem::take(&mut self.waiting).into_iter();
            self.ahead.extend(waiting.take(most));
        }
        self.ahead.retain(|job| !is_over(job));
    }

    /// Whether a job goes ahead of the gang.
    pub(super) fn goes_ahead(&self, job: &str) -> bool {
        self.ahead.contains(job)
    }

    /// What came of an offer; `None` where no gang reserves slots.
    pub(super) fn end(&mut self, withheld: Option<Withheld>, now: Instant) {
        let Some(Withheld { slot, from }) = withheld else {
            *self = Self::default();
            return;
        };
        self.waiting = from;
        let holds = slot && !self.waiting.is_empty() && self.ahead.is_empty();
        self.since = holds.then(|| self.since.unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What an offer says of queries behind a gang.
    fn withheld(slot: bool, from: &[&str]) -> Option<Withheld> {
        let from = from.iter().map(|job| (*job).to_owned()).collect();
        Some(Withheld { slot, from })
    }

    #[test]
    fn as_many_as_there_are_slots_go_ahead_once_and_others_when_those_have_ended() {
        let (mut held_up, start) = (HeldUp::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        held_up.end(withheld(true, &["a", "b", "c"]), at(0));
        assert!(!held_up.is_due(LIMIT, at(59)) && held_up.is_due(LIMIT, at(60)));
        held_up.begin(LIMIT, 2, at(60), |_| false);
        let ahead = |held_up: &HeldUp| ["a", "b", "c"].map(|job| held_up.goes_ahead(job));
        assert_eq!(ahead(&held_up), [true, true, false]);
        held_up.end(withheld(true, &["c"]), at(60));
        // However long they take, and also when one of them has ended.
        assert!(!held_up.is_due(LIMIT, at(1000)));
        held_up.begin(LIMIT, 2, at(1000), |job| job == "a");
        held_up.end(withheld(true, &["c"]), at(1000));
        assert_eq!(ahead(&held_up), [false, true, false]);
        held_up.begin(LIMIT, 2, at(1100), |_| true);
        held_up.end(withheld(true, &["c"]), at(1100));
        assert!(!held_up.is_due(LIMIT, at(1159)) && held_up.is_due(LIMIT, at(1160)));
        held_up.begin(LIMIT, 2, at(1160), |_| false);
        assert_eq!(ahead(&held_up), [false, false, true]);
    }

    #[test]
    fn time_counts_from_when_a_free_slot_is_withheld() {
        let (mut held_up, start) = (HeldUp::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        held_up.end(withheld(false, &["a"]), at(0));
        assert!(!held_up.is_due(LIMIT, at(100)), "all slots were busy");
        held_up.end(withheld(true, &["a"]), at(100));
        assert!(held_up.is_due(LIMIT, at(160)));
        held_up.end(withheld(true, &[]), at(160));
        assert!(!held_up.is_due(LIMIT, at(300)), "nothing waits");
        held_up.end(withheld(true, &["a"]), at(300));
        held_up.begin(LIMIT, 1, at(360), |_| false);
        assert!(held_up.goes_ahead("a"));
        held_up.end(None, at(361));
        assert!(!held_up.goes_ahead("a"), "the gang has started");
    }
}
