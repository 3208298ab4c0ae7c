//! The executors as placement sees them, kept in the order in which queries take their slots.
//!
//! An executor's capacity is put in as it changes ([`Pool::put`]), at the cost of a look-up. Slots that an offer
//! takes and reserves belong to that offer only: [`Pool::end`] forgets them, because bound tasks are reported
//! separately. Only an offer in which some executors are silent, or in which a gang asks for ranks, goes through all
//! executors.
//!
//! Not here: the decision who gets a slot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use volley_proto::spec::Device;

use super::ExecutorRole;
use crate::control::devices::{Choice, DeviceRequest, HostGpu};

/// Capacity of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) slots: usize,
    /// Slots that tasks hold.
    pub(crate) held: usize,
    pub(crate) role: ExecutorRole,
    /// Memory that queries may hold for each slot, in bytes.
    pub(crate) slot_memory: u64,
    /// Memory that it offers each of its ranks, in bytes.
    pub(crate) rank_memory: u64,
    /// Default device of its ranks.
    pub(crate) device: Device,
    /// GPUs, by ordinal.
    pub(crate) gpus: Arc<[HostGpu]>,
}

/// Memory that executors offer a rank: the number of executors by bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Offers {
    by_bytes: BTreeMap<u64, usize>,
    executors: usize,
}

impl Offers {
    /// Returns the number of executors.
    pub(crate) fn executors(&self) -> usize {
        self.executors
    }

    /// Counts the executors that offer at least this many bytes.
    pub(super) fn at_least(&self, bytes: u64) -> usize {
        self.by_bytes
            .range(bytes..)
            .map(|(_, executors)| executors)
            .sum()
    }

    /// Returns the largest offer.
    pub(super) fn largest(&self) -> u64 {
        let largest = self.by_bytes.last_key_value();
        largest.map_or(0, |(bytes, _)| *bytes)
    }

    fn add(&mut self, bytes: u64) {
        self.executors += 1;
        *self.by_bytes.entry(bytes).or_default() += 1;
    }

    fn remove(&mut self, bytes: u64) {
        if let Some(executors) = self.by_bytes.get_mut(&bytes) {
            self.executors -= 1;
            *executors -= 1;
            if *executors == 0 {
                self.by_bytes.remove(&bytes);
            }
        }
    }
}

impl FromIterator<u64> for Offers {
    fn from_iter<I: IntoIterator<Item = u64>>(offers: I) -> Self {
        let mut all = Self::default();
        offers.into_iter().for_each(|bytes| all.add(bytes));
        all
    }
}

/// Executor, with what the current offer has taken of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executor {
    pub(crate) id: Arc<str>,
    pub(super) capacity: Capacity,
    /// Slots taken in this offer.
    taken: usize,
    /// True if a slot is reserved for a gang.
    reserved: bool,
    /// True if it has not been heard of lately.
    silent: bool,
}

/// Sort key of an executor with a free slot for queries: idle ones first, then the one with the most free slots.
type Openness = (Reverse<bool>, Reverse<usize>, Arc<str>);

impl Executor {
    /// Returns the slots (vcores) that neither a task nor a reservation holds.
    pub(super) fn free(&self) -> usize {
        let held = self.capacity.held + self.taken + usize::from(self.reserved);
        self.capacity.slots.saturating_sub(held)
    }

    /// Checks that no task holds a slot.
    pub(super) fn is_idle(&self) -> bool {
        self.capacity.held + self.taken == 0
    }

    /// Returns the devices that a rank may compute on.
    pub(super) fn choice(&self, request: DeviceRequest) -> Choice<'_> {
        request.choice(self.capacity.device, &self.capacity.gpus)
    }

    /// Checks whether it may run ranks.
    fn is_able(&self) -> bool {
        !self.silent && self.capacity.role.runs_ranks()
    }

    /// Checks whether it has GPUs, or its ranks compute on one.
    fn has_gpus(&self) -> bool {
        !self.capacity.gpus.is_empty()
            || matches!(self.capacity.device, Device::AnyCuda | Device::Cuda(_))
    }

    /// Returns its sort key among the executors open to queries, if it is open.
    fn openness(&self) -> Option<Openness> {
        let open = !self.silent && self.free() > 0 && self.capacity.role.runs_queries();
        let id = || Arc::clone(&self.id);
        open.then(|| (Reverse(self.is_idle()), Reverse(self.free()), id()))
    }
}

/// Registered executors.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    executors: BTreeMap<Arc<str>, Executor>,
    index: Index,
    /// Slots of the executors that run queries.
    query_slots: usize,
    /// Executors that this offer has changed.
    touched: Vec<Arc<str>>,
    /// Executors on which this offer reserves a slot.
    reserved: Vec<Arc<str>>,
}

/// Index of the executors by what they are open to.
#[derive(Debug, Default)]
struct Index {
    /// Executors with a free slot for queries.
    queries: BTreeSet<Openness>,
    /// Executors with a free slot for a rank.
    ranks: BTreeSet<Arc<str>>,
    /// Memory that executors which run ranks offer.
    able: Offers,
    /// Number of executors that have GPUs, or compute on one.
    with_gpus: usize,
}

impl Index {
    fn enter(&mut self, executor: &Executor) {
        if let Some(open) = executor.openness() {
            self.queries.insert(open);
        }
        if executor.is_able() {
            self.able.add(executor.capacity.rank_memory);
            self.with_gpus += usize::from(executor.has_gpus());
            if executor.free() > 0 {
                self.ranks.insert(Arc::clone(&executor.id));
            }
        }
    }

    fn leave(&mut self, executor: &Executor) {
        if let Some(open) = executor.openness() {
            self.queries.remove(&open);
        }
        if executor.is_able() {
            self.able.remove(executor.capacity.rank_memory);
            self.with_gpus -= usize::from(executor.has_gpus());
            self.ranks.remove(&executor.id);
        }
    }
}

impl Pool {
    /// Adds or changes an executor.
    pub(crate) fn put(&mut self, id: &str, capacity: Capacity) {
        self.query_slots += query_slots(&capacity);
        if let Some(executor) = self.executors.get(id) {
            self.query_slots -= query_slots(&executor.capacity);
            self.change(id, |executor| executor.capacity = capacity);
            return;
        }
        let id: Arc<str> = id.into();
        let executor = Executor {
            id: Arc::clone(&id),
            capacity,
            taken: 0,
            reserved: false,
            silent: false,
        };
        self.index.enter(&executor);
        self.executors.insert(id, executor);
    }

    /// Removes an executor.
    pub(crate) fn remove(&mut self, id: &str) {
        if let Some(executor) = self.executors.remove(id) {
            self.query_slots -= query_slots(&executor.capacity);
            self.index.leave(&executor);
        }
    }

    /// Returns the slots of all executors that run queries.
    pub(crate) fn query_slots(&self) -> usize {
        self.query_slots
    }

    /// Begins an offer in which these executors were heard of lately; `None` means all.
    pub(crate) fn begin(&mut self, alive: Option<&HashSet<String>>) {
        let Some(alive) = alive.filter(|alive| alive.len() < self.executors.len()) else {
            return;
        };
        let ids = self.executors.keys().filter(|id| !alive.contains(&***id));
        let silent: Vec<_> = ids.cloned().collect();
        for id in silent {
            self.change(&id, |executor| executor.silent = true);
            self.touched.push(id);
        }
    }

    /// Ends an offer: nothing is taken or reserved any more.
    pub(crate) fn end(&mut self) {
        self.unreserve();
        for id in std::mem::take(&mut self.touched) {
            self.change(&id, |executor| {
                (executor.taken, executor.silent) = (0, false);
            });
        }
    }

    /// Returns the memory that executors which run ranks offer.
    pub(crate) fn able(&self) -> &Offers {
        &self.index.able
    }

    /// Returns the executors that run ranks, by id.
    pub(super) fn able_executors(&self) -> impl Iterator<Item = &Executor> {
        self.executors
            .values()
            .filter(|executor| executor.is_able())
    }

    /// Checks whether GPUs may limit where ranks with this request run.
    pub(crate) fn deals_gpus(&self, request: DeviceRequest) -> bool {
        request.needs_gpu() || !request.takes_no_gpu() && self.index.with_gpus > 0
    }

    /// Returns the executors with a free slot for a rank, by id.
    pub(super) fn open_to_ranks(&self) -> impl Iterator<Item = &Executor> {
        let ids = self.index.ranks.iter();
        ids.filter_map(move |id| self.executors.get(id))
    }

    /// Returns the executor of a query's next slot.
    pub(super) fn first_open(&self) -> Option<Arc<str>> {
        let (.., id) = self.index.queries.first()?;
        Some(Arc::clone(id))
    }

    /// Returns the bytes that queries may hold for each slot of an executor.
    pub(super) fn slot_memory(&self, id: &str) -> u64 {
        let executor = self.executors.get(id);
        executor.map_or(0, |executor| executor.capacity.slot_memory)
    }

    /// Takes a slot in this offer.
    pub(super) fn take(&mut self, id: &Arc<str>) {
        self.change(id, |executor| executor.taken += 1);
        self.touched.push(Arc::clone(id));
    }

    /// Gives back a slot that was taken in this offer.
    pub(super) fn give_back(&mut self, id: &str) {
        self.change(id, |executor| {
            executor.taken = executor.taken.saturating_sub(1);
        });
    }

    /// Reserves a slot on every executor that could run a rank with this memory and device; executors without a free
    /// slot have none to reserve.
    pub(super) fn reserve(&mut self, memory: u64, request: DeviceRequest) {
        let open = self.open_to_ranks();
        let suited = open.filter(|executor| {
            let choice = executor.choice(request);
            let has_device = !choice.needs_gpu() || !choice.gpus().is_empty();
            executor.capacity.rank_memory >= memory && has_device
        });
        let suited: Vec<_> = suited.map(|executor| Arc::clone(&executor.id)).collect();
        for id in &suited {
            self.change(id, |executor| executor.reserved = true);
        }
        self.reserved.extend(suited);
    }

    /// Drops all reservations.
    pub(super) fn unreserve(&mut self) {
        for id in std::mem::take(&mut self.reserved) {
            self.change(&id, |executor| executor.reserved = false);
        }
    }

    /// Changes an executor, and its places in the index.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Executor)) {
        let Some(executor) = self.executors.get_mut(id) else {
            return;
        };
        self.index.leave(executor);
        change(executor);
        self.index.enter(executor);
    }
}

fn query_slots(capacity: &Capacity) -> usize {
    match capacity.role.runs_queries() {
        true => capacity.slots,
        false => 0,
    }
}
