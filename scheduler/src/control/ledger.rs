//! Ledger: the time for which each user's tasks have held slots and GPUs since the scheduler started.
//!
//! Holdings change with events only, so before each event the time since the last one is added to whoever held something
//! meanwhile. Not here: what users hold, and the numbers of their jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most users with an entry of their own; with tokens of an identity provider, anybody may come.
const MOST: usize = 10_000;
/// Name of the entry of all other users.
const OTHERS: &str = "(others)";

/// Time for which one user's tasks have held something.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Held {
    /// Slots of queries, times seconds.
    pub(crate) slot_seconds: f64,
    /// Slots of ranks, times seconds.
    pub(crate) rank_seconds: f64,
    /// GPUs, times seconds.
    pub(crate) gpu_seconds: f64,
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
    /// Time up to which holdings have been added.
    until: Option<Instant>,
}

impl Ledger {
    /// Adds the time since the last call to what users have held since then. Time before the first call counts for
    /// nothing.
    pub(crate) fn add<'a>(
        &mut self,
        now: Instant,
        held: impl IntoIterator<Item = (&'a Arc<str>, Holding)>,
    ) {
        let since = self.until.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(since);
        if seconds == Duration::ZERO {
            return;
        }
        let seconds = seconds.as_secs_f64();
        for (user, Holding { slots, ranks, gpus }) in held {
            let entry = self.entry(user);
            entry.slot_seconds += slots as f64 * seconds;
            entry.rank_seconds += ranks as f64 * seconds;
            entry.gpu_seconds += gpus as f64 * seconds;
        }
    }

    fn entry(&mut self, user: &Arc<str>) -> &mut Held {
        let is_known = self.users.contains_key(user);
        let user = match is_known || self.users.len() < MOST {
            true => Arc::clone(user),
            false => OTHERS.into(),
        };
        self.users.entry(user).or_default()
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
        let (mut ledger, start) = (Ledger::default(), Instant::now());
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
        };
        assert_eq!(ledger.users()["alice"], held(6.0, 0.0, 0.0));
        assert_eq!(ledger.users()["bob"], held(10.0, 4.0, 2.0));
    }

    #[test]
    fn too_many_users_share_an_entry() {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
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
    }
}
