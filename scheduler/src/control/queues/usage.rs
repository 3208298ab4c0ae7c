//! Which queues and users hold how many slots.
//!
//! A sum of what tasks hold, changed by the one who knows these ([`crate::control::slots`]) as a task comes or goes.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Whom slots are counted to: a user of a queue.
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

/// Slots that tasks hold, by queue and user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage {
    queues: BTreeMap<Arc<str>, QueueUsage>,
    /// How often slots have been taken.
    pub(super) turn: u64,
}

#[derive(Debug, Clone, Default)]
struct QueueUsage {
    slots: usize,
    /// Users that hold any.
    users: BTreeMap<Arc<str>, usize>,
    /// When it last took some.
    turn: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, account: &Account, slots: usize) {
        self.turn += 1;
        let queue = self.queues.entry(Arc::clone(&account.queue)).or_default();
        queue.turn = self.turn;
        queue.slots += slots;
        *queue.users.entry(Arc::clone(&account.user)).or_default() += slots;
    }

    pub(crate) fn remove(&mut self, account: &Account, slots: usize) {
        let Some(queue) = self.queues.get_mut(&account.queue) else {
            return;
        };
        queue.slots = queue.slots.saturating_sub(slots);
        if let Some(held) = queue.users.get_mut(&account.user) {
            *held = held.saturating_sub(slots);
            if *held == 0 {
                queue.users.remove(&account.user);
            }
        }
    }

    /// Slots of a queue.
    pub(crate) fn of_queue(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.slots)
    }

    /// The turn in which a queue last took slots.
    pub(super) fn turn_of(&self, queue: &str) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.turn)
    }

    /// Slots of a user of a queue.
    pub(crate) fn of_user(&self, account: &Account) -> usize {
        let queue = self.queues.get(&account.queue);
        let held = queue.and_then(|queue| queue.users.get(&account.user));
        held.copied().unwrap_or(0)
    }

    /// Queues that have slots.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Arc<str>> {
        let queues = self.queues.iter().filter(|(_, queue)| queue.slots > 0);
        queues.map(|(name, _)| name)
    }
}
