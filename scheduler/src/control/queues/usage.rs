//! The number of slots that the queries of queues and users hold, and the turn in which each was last served.
//!
//! The sums are over the tasks of queries, and [`crate::control::slots`], which knows these, changes them when a task
//! comes or goes. Ranks of gangs are not included.

use std::collections::BTreeMap;
use std::sync::Arc;

/// User of a queue, to whom slots are counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Account {
    pub(crate) queue: Arc<str>,
    pub(crate) user: Arc<str>,
}

impl Account {
    pub(crate) fn new(queue: &str, user: &str) -> Self {
        let (queue, user) = (queue.into(), user.into());
        Self { queue, user }
    }
}

/// Approximate number of users of a queue without slots whose last turn is kept; others count as never served.
const IDLE_USERS: usize = 1024;

/// Slots that tasks of queries hold, by queue and user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage {
    queues: BTreeMap<Arc<str>, QueueUsage>,
    /// Number of times that slots have been taken.
    pub(super) turn: u64,
}

#[derive(Debug, Clone, Default)]
struct QueueUsage {
    slots: usize,
    users: BTreeMap<Arc<str>, UserUsage>,
    /// Turn in which the queue last took slots.
    turn: u64,
}

#[derive(Debug, Clone, Default)]
struct UserUsage {
    slots: usize,
    /// Turn in which the user last took slots.
    turn: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, account: &Account, slots: usize) {
        self.turn += 1;
        let queue = self.queues.entry(Arc::clone(&account.queue)).or_default();
        queue.turn = self.turn;
        queue.slots += slots;
        let user = queue.users.entry(Arc::clone(&account.user)).or_default();
        user.slots += slots;
        user.turn = self.turn;
    }

    pub(crate) fn remove(&mut self, account: &Account, slots: usize) {
        let Some(queue) = self.queues.get_mut(&account.queue) else {
            return;
        };
        queue.slots = queue.slots.saturating_sub(slots);
        let Some(user) = queue.users.get_mut(&account.user) else {
            return;
        };
        user.slots = user.slots.saturating_sub(slots);
        // Slots are held by no more users than there are slots.
        if queue.users.len() > queue.slots + IDLE_USERS {
            queue.users.retain(|_, user| user.slots > 0);
        }
    }

    /// Returns the slots of a queue.
    pub(crate) fn of_queue(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.slots)
    }

    /// Returns the turn in which a queue last took slots.
    pub(super) fn turn_of(&self, queue: &str) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.turn)
    }

    /// Returns the slots of a user of a queue.
    pub(crate) fn of_user(&self, account: &Account) -> usize {
        self.user(account).map_or(0, |user| user.slots)
    }

    /// Returns the turn in which a user of a queue last took slots.
    pub(super) fn turn_of_user(&self, account: &Account) -> u64 {
        self.user(account).map_or(0, |user| user.turn)
    }

    fn user(&self, account: &Account) -> Option<&UserUsage> {
        let queue = self.queues.get(&account.queue)?;
        queue.users.get(&account.user)
    }

    /// Returns the users of each queue that have slots, and how many.
    pub(crate) fn users(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        let users = self.queues.values().flat_map(|queue| &queue.users);
        let users = users.map(|(user, usage)| (user, usage.slots));
        users.filter(|(_, slots)| *slots > 0)
    }

    /// Returns the queues that have slots.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Arc<str>> {
        let queues = self.queues.iter().filter(|(_, queue)| queue.slots > 0);
        queues.map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_slots_are_forgotten_when_they_are_many() {
        let mut usage = Usage::default();
        let account = |user: usize| Account::new("etl", &format!("user-{user}"));
        usage.add(&account(0), 2);
        for user in 1..=10 * IDLE_USERS {
            usage.add(&account(user), 1);
            usage.remove(&account(user), 1);
        }
        let queue = &usage.queues["etl"];
        assert!(queue.users.len() <= IDLE_USERS + 2, "{}", queue.users.len());
        assert_eq!((usage.of_user(&account(0)), usage.of_queue("etl")), (2, 2));
        assert!(usage.turn_of_user(&account(0)) > 0);
    }
}
