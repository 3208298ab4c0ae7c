//! A bounded map of what comes to an end, such as jobs and training runs: when there are too many, the oldest that have
//! ended are evicted. It knows nothing of what they are.

use std::hash::Hash;

use indexmap::{Equivalent, IndexMap};

/// Those that are over are kept until there are this many newer ones.
const KEPT: usize = 256;

/// Something that comes to an end.
pub(crate) trait Ends {
    /// Whether nothing will happen to it any more.
    fn is_over(&self) -> bool;

    /// Whether it can be evicted when there are too many.
    fn is_evictable(&self) -> bool {
        self.is_over()
    }
}

/// Values by key, in the order they were made.
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
    /// Adds a value; one of the same key is replaced.
    pub(crate) fn add(&mut self, key: K, value: V) {
        self.entries.insert(key, value);
        self.evict();
    }

    /// Evicts what is too many and has become evictable since it was added.
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

    /// All of them, in the order they were made.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter()
    }
}

impl<K: Hash + Eq + Clone, V: Ends + Default> Retained<K, V> {
    /// The value of a key, made if need be.
    pub(crate) fn entry(&mut self, key: &K) -> &mut V {
        if !self.entries.contains_key(key) {
            self.add(key.clone(), V::default());
        }
        // It was just added: one that is not over is not evicted.
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
