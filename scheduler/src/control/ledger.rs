//! Ledger: the time for which each user's tasks have held slots and GPUs, since the first scheduler on the record.
//!
//! Holdings change with events only, so before each event the time since the last one is added to whoever held something
//! meanwhile. Not here: what users hold, and the numbers of their jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::clock::Now;
use super::quotas::{GpuDays, day_of};

/// Most users with an entry of their own; with tokens of an identity provider, anybody may come.
const MOST: usize = 10_000;
/// Name of the entry of all other users.
const OTHERS: &str = "(others)";

/// Time for which one user's tasks have held something.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Slots of queries, times seconds.
    pub(crate) slot_seconds: f64,
    /// Slots of ranks, times seconds.
    pub(crate) rank_seconds: f64,
    /// GPUs, times seconds.
    pub(crate) gpu_seconds: f64,
    /// The same by day.
    pub(crate) gpu_days: GpuDays,
}

/// Resources that the running tasks of one user hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) slots: usize,
    pub(crate) ranks: usize,
    pub(crate) gpus: usize,
}

/// Ledger of all users.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    users: BTreeMap<Arc<str>, Held>,
    /// Users whose time has changed since it was last recorded.
    changed: BTreeSet<Arc<str>>,
    /// Time since which holdings are added, by an earlier scheduler too.
    since: Option<SystemTime>,
    /// Time up to which holdings have been added.
    until: Option<Instant>,
}

impl Ledger {
    /// Adds the time since the last call to what users have held since then. Time before the first call counts for
    /// nothing.
    pub(crate) fn add<'a>(
        &mut self,
        now: Now,
        held: impl IntoIterator<Item = (&'a Arc<str>, Holding)>,
    ) {
        self.since.get_or_insert(now.time);
        let since = self.until.replace(now.instant).unwrap_or(now.instant);
        let seconds = now.instant.saturating_duration_since(since);
        if seconds == Duration::ZERO {
            return;
        }
        let (seconds, today) = (seconds.as_secs_f64(), day_of(now.time));
        for (user, Holding { slots, ranks, gpus }) in held {
            let entry = self.entry(user);
            entry.slot_seconds += slots as f64 * seconds;
            entry.rank_seconds += ranks as f64 * seconds;
            entry.gpu_seconds += gpus as f64 * seconds;
            entry.gpu_days.add(today, gpus as f64 * seconds);
        }
    }

    fn entry(&mut self, user: &Arc<str>) -> &mut Held {
        let is_known = self.users.contains_key(user);
        let user = match is_known || self.users.len() < MOST {
            true => Arc::clone(user),
            false => OTHERS.into(),
        };
        if !self.changed.contains(&user) {
            self.changed.insert(Arc::clone(&user));
        }
        self.users.entry(user).or_default()
    }

    /// Restores what an earlier scheduler has added since a time.
    pub(crate) fn restore(
        &mut self,
        since: SystemTime,
        users: impl IntoIterator<Item = (Arc<str>, Held)>,
    ) {
        self.since = Some(since);
        self.users.extend(users);
    }

    /// Returns the time since which holdings are added.
    pub(crate) fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// Returns the time of a user, or of the entry that the user shares.
    pub(crate) fn of(&self, user: &str) -> Option<&Held> {
        let shared = || (self.users.len() >= MOST).then_some(OTHERS);
        let own = self.users.get(user);
        own.or_else(|| self.users.get(shared()?))
    }

    /// Takes the users whose time has changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the time of each user.
    pub(crate) fn users(&self) -> &BTreeMap<Arc<str>, Held> {
        &self.users
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_to_whoever_held_something_meanwhile() {
        let (mut ledger, start) = (Ledger::default(), Now::read());
        let (alice, bob): (Arc<str>, Arc<str>) = ("alice".into(), "bob".into());
        let at = |seconds| start + Duration::from_secs(seconds);
        let holding = |slots, ranks, gpus| Holding { slots, ranks, gpus };
        ledger.add(at(0), [(&alice, holding(9, 9, 9))]);
        ledger.add(
            at(2),
            [(&alice, holding(3, 0, 0)), (&bob, holding(0, 2, 1))],
        );
        ledger.add(at(2), [(&bob, holding(5, 5, 5))]);
        ledger.add(at(12), [(&bob, holding(1, 0, 0))]);
        let held = |slot_seconds, rank_seconds, gpu_seconds| Held {
            slot_seconds,
            rank_seconds,
            gpu_seconds,
            gpu_days: GpuDays::restored([(day_of(at(2).time), gpu_seconds)]),
        };
        assert_eq!(ledger.users()["alice"], held(6.0, 0.0, 0.0));
        assert_eq!(ledger.users()["bob"], held(10.0, 4.0, 2.0));
        let changed = BTreeSet::from([alice, bob]);
        assert_eq!(ledger.take_changed(), changed);
        assert!(ledger.take_changed().is_empty());
        assert_eq!(ledger.since(), Some(start.time));
    }

    #[test]
    fn time_of_an_earlier_scheduler_counts() {
        let (mut ledger, start) = (Ledger::default(), Now::read());
        let before = start.time - Duration::from_secs(1000);
        let held = Held {
            gpu_seconds: 7.0,
            ..Held::default()
        };
        ledger.restore(before, [("alice".into(), held)]);
        let one = Holding {
            gpus: 1,
            ..Holding::default()
        };
        let alice: Arc<str> = "alice".into();
        ledger.add(start, [(&alice, one)]);
        ledger.add(start + Duration::from_secs(3), [(&alice, one)]);
        assert_eq!(ledger.of("alice").unwrap().gpu_seconds, 10.0);
        assert_eq!(ledger.of("bob"), None);
        assert_eq!(ledger.since(), Some(before));
    }

    #[test]
    fn too_many_users_share_an_entry() {
        let (mut ledger, start) = (Ledger::default(), Now::read());
        let one = Holding {
            slots: 1,
            ..Holding::default()
        };
        ledger.add(start, []);
        for user in 0..MOST + 5 {
            let user: Arc<str> = user.to_string().into();
            let later = start + Duration::from_secs(user.parse::<u64>().unwrap() + 1);
            ledger.add(later, [(&user, one)]);
        }
        assert_eq!(ledger.users().len(), MOST + 1);
        assert_eq!(ledger.users()[OTHERS].slot_seconds, 5.0);
        assert_eq!(ledger.of("somebody").unwrap().slot_seconds, 5.0);
    }
}
