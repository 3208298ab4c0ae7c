//! A bounded map of values that come to an end, such as jobs and training runs: when there are too many, the oldest
//! that have ended are evicted. It knows nothing about the values.

use std::hash::Hash;

use indexmap::{Equivalent, IndexMap};

/// Number of entries above which the oldest evictable ones are evicted.
const KEPT: usize = 256;

/// Value that comes to an end.
pub(crate) trait Ends {
    /// Checks whether nothing will happen to it any more.
    fn is_over(&self) -> bool;

    /// Checks whether it can be evicted when there are too many.
    fn is_evictable(&self) -> bool {
        self.is_over()
    }
}

/// Values by key, in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Retained<K, V> {
    entries: IndexMap<K, V>,
}

impl<K, V> Default for Retained<K, V> {
    fn default() -> Self {
        Self {
            entries: IndexMap::new(),
        }
    }
}

impl<K: Hash + Eq, V: Ends> Retained<K, V> {
    /// Adds a value, and replaces one with the same key.
    pub(crate) fn add(&mut self, key: K, value: V) {
        self.entries.insert(key, value);
        self.evict();
    }

    /// Evicts surplus values that have become evictable since they were added.
    pub(crate) fn evict(&mut self) {
        let mut surplus = self.entries.len().saturating_sub(KEPT);
        if surplus > 0 {
            self.entries.retain(|_, value| {
                let evict = surplus > 0 && value.is_evictable();
                surplus -= usize::from(evict);
                !evict
            });
        }
    }

    pub(crate) fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        self.entries.get(key)
    }

    pub(crate) fn get_mut<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut()
    }

    /// Returns all values, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter()
    }
}

impl<K: Hash + Eq + Clone, V: Ends + Default> Retained<K, V> {
    /// Returns the value of a key, created if need be.
    pub(crate) fn entry(&mut self, key: &K) -> &mut V {
        if !self.entries.contains_key(key) {
            self.add(key.clone(), V::default());
        }
        // The value was just added: one that is not over is not evicted.
        self.entries.entry(key.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Over(bool);

    impl Ends for Over {
        fn is_over(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn the_oldest_that_are_over_are_evicted() {
        let mut retained = Retained::<usize, Over>::default();
        for key in 0..KEPT + 10 {
            retained.add(key, Over(key % 2 == 1));
        }
        assert_eq!(retained.iter().count(), KEPT);
        assert!(retained.get(&0).is_some(), "it is not over");
        assert!(retained.get(&1).is_none());
    }
}
