//! The executors as placement sees them, kept in the order in which queries take their slots.
//!
//! What an executor has free is put in as it changes ([`Pool::put`]), at the cost of a look-up. What an offer takes and
//! reserves is of that offer only: [`Pool::end`] forgets it, for tasks that are bound are told of as such.
//!
//! Not here: who gets a slot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::Role;

/// What there is of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) slots: usize,
    /// Slots that tasks hold.
    pub(crate) held: usize,
    pub(crate) role: Role,
    /// Bytes of memory that it offers each of its ranks.
    pub(crate) rank_memory: u64,
}

/// An executor, and what an offer has taken of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executor {
    pub(crate) id: Arc<str>,
    pub(super) capacity: Capacity,
    /// Slots taken in this offer.
    taken: usize,
    /// Whether a slot is kept for a gang.
    reserved: bool,
    /// Whether it has not been heard of lately.
    silent: bool,
}

/// Executors with a free slot for queries: idle ones first, then the one with the most.
type Openness = (Reverse<bool>, Reverse<usize>, Arc<str>);

impl Executor {
    /// Slots (vcores) that no task holds, and no gang.
    pub(super) fn free(&self) -> usize {
        let held = self.capacity.held + self.taken + usize::from(self.reserved);
        self.capacity.slots.saturating_sub(held)
    }

    /// Whether no task holds any.
    pub(super) fn is_idle(&self) -> bool {
        self.capacity.held + self.taken == 0
    }

    /// Its place among those that are open to queries, if it is.
    fn openness(&self) -> Option<Openness> {
        let open = !self.silent && self.free() > 0 && self.capacity.role.runs_queries();
        let id = || Arc::clone(&self.id);
        open.then(|| (Reverse(self.is_idle()), Reverse(self.free()), id()))
    }
}

/// The registered executors.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    executors: BTreeMap<Arc<str>, Executor>,
    /// Those open to queries.
    open: BTreeSet<Openness>,
    /// Slots of those that run queries.
    query_slots: usize,
    /// Those that were heard of lately, in this offer; all, where that is not known.
    alive: Option<HashSet<String>>,
    /// Those that this offer has changed.
    touched: Vec<Arc<str>>,
    /// Whether it has reserved slots.
    reserves: bool,
}

impl Pool {
    /// An executor is there, or has changed.
    pub(crate) fn put(&mut self, id: &str, capacity: Capacity) {
        if let Some(executor) = self.executors.get(id) {
            self.query_slots -= query_slots(&executor.capacity);
        } else {
            let id: Arc<str> = id.into();
            let executor = Executor {
                id: Arc::clone(&id),
                capacity,
                taken: 0,
                reserved: false,
                silent: false,
            };
            self.executors.insert(id, executor);
        }
        self.query_slots += query_slots(&capacity);
        self.change(id, |executor| executor.capacity = capacity);
    }

    /// An executor is gone.
    pub(crate) fn remove(&mut self, id: &str) {
        if let Some(executor) = self.executors.remove(id) {
            self.query_slots -= query_slots(&executor.capacity);
            if let Some(open) = executor.openness() {
                self.open.remove(&open);
            }
        }
    }

    /// Slots of all executors that run queries.
    pub(super) fn query_slots(&self) -> usize {
        self.query_slots
    }

    /// An offer begins, in which these are alive.
    pub(crate) fn begin(&mut self, alive: Option<HashSet<String>>) {
        self.alive = alive;
    }

    /// An offer ends: nothing is taken or reserved any more.
    pub(crate) fn end(&mut self) {
        self.unreserve();
        self.alive = None;
        for id in std::mem::take(&mut self.touched) {
            self.change(&id, |executor| {
                (executor.taken, executor.silent) = (0, false)
            });
        }
    }

    fn is_alive(&self, id: &str) -> bool {
        self.alive.as_ref().is_none_or(|alive| alive.contains(id))
    }

    /// Those that run ranks, by id.
    pub(crate) fn able(&self) -> impl Iterator<Item = &Executor> {
        let executors = self.executors.values();
        let able = executors.filter(|executor| executor.capacity.role.runs_ranks());
        able.filter(move |executor| self.is_alive(&executor.id))
    }

    /// The executor that a query's next slot is of.
    pub(super) fn first_open(&mut self) -> Option<Arc<str>> {
        loop {
            let (.., id) = self.open.first()?;
            let id = Arc::clone(id);
            if self.is_alive(&id) {
                return Some(id);
            }
            self.change(&id, |executor| executor.silent = true);
            self.touched.push(id);
        }
    }

    /// Takes a slot in this offer.
    pub(super) fn take(&mut self, id: &Arc<str>) {
        self.change(id, |executor| executor.taken += 1);
        self.touched.push(Arc::clone(id));
    }

    /// Gives a slot back that was taken in this offer.
    pub(super) fn give_back(&mut self, id: &str) {
        self.change(id, |executor| {
            executor.taken = executor.taken.saturating_sub(1);
        });
    }

    /// Keeps a slot on every executor that could run a rank of so much memory.
    pub(super) fn reserve(&mut self, memory: u64) {
        let suits = |executor: &&Executor| executor.capacity.rank_memory >= memory;
        let suited: Vec<_> = self
            .able()
            .filter(suits)
            .map(|e| Arc::clone(&e.id))
            .collect();
        for id in suited {
            self.change(&id, |executor| executor.reserved = true);
        }
        self.reserves = true;
    }

    /// Keeps no slots any more.
    pub(super) fn unreserve(&mut self) {
        if !std::mem::take(&mut self.reserves) {
            return;
        }
        let executors = self.executors.values();
        let reserved = executors.filter(|executor| executor.reserved);
        let reserved: Vec<_> = reserved.map(|executor| Arc::clone(&executor.id)).collect();
        for id in reserved {
            self.change(&id, |executor| executor.reserved = false);
        }
    }

    /// Changes an executor, and its place among those that are open.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Executor)) {
        let Some(executor) = self.executors.get_mut(id) else {
            return;
        };
        if let Some(open) = executor.openness() {
            self.open.remove(&open);
        }
        change(executor);
        if let Some(open) = executor.openness() {
            self.open.insert(open);
        }
    }
}

fn query_slots(capacity: &Capacity) -> usize {
    match capacity.role.runs_queries() {
        true => capacity.slots,
        false => 0,
    }
}
