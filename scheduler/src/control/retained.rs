//! Things of this scheduler that change and are waited on: training runs and jobs.
//!
//! It owns them, wakes those who wait, and forgets the oldest that are over. It knows nothing of
//! what they are.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Those that are over are kept for who asks until there are this many newer ones.
const KEPT: usize = 256;

/// Something that comes to an end.
pub(crate) trait Ends {
    /// Whether nothing will happen to it any more.
    fn is_over(&self) -> bool;

    /// Whether it can be forgotten when there are too many.
    fn is_forgettable(&self) -> bool {
        self.is_over()
    }
}

/// Values by key, ascending in the order they were made; cheap to clone.
#[derive(Debug)]
pub(crate) struct Watched<K, V> {
    entries: Arc<Mutex<BTreeMap<K, Arc<Entry<V>>>>>,
}

#[derive(Debug)]
struct Entry<V> {
    value: Mutex<V>,
    changed: Notify,
}

impl<K, V> Clone for Watched<K, V> {
    fn clone(&self) -> Self {
        Self {
            entries: Arc::clone(&self.entries),
        }
    }
}

impl<K, V> Default for Watched<K, V> {
    fn default() -> Self {
        Self {
            entries: Arc::default(),
        }
    }
}

impl<K: Ord + Clone, V: Ends> Watched<K, V> {
    /// Adds a value; one of the same key is replaced.
    pub(crate) fn add(&self, key: K, value: V) {
        let entry = Entry {
            value: Mutex::new(value),
            changed: Notify::new(),
        };
        let mut entries = self.entries.lock();
        entries.insert(key, Arc::new(entry));
        let mut surplus = entries.len().saturating_sub(KEPT);
        entries.retain(|_, entry| {
            let forget = surplus > 0 && entry.value.lock().is_forgettable();
            surplus -= usize::from(forget);
            !forget
        });
    }

    /// Changes a value, if it is there, and wakes those who wait on it.
    pub(crate) fn change<T>(&self, key: &K, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        let entry = self.entry(key)?;
        let changed = change(&mut entry.value.lock());
        entry.changed.notify_waiters();
        Some(changed)
    }

    /// Looks at a value without waking anybody.
    pub(crate) fn look<T>(&self, key: &K, look: impl FnOnce(&V) -> T) -> Option<T> {
        self.entry(key).map(|entry| look(&entry.value.lock()))
    }

    /// Looks at all values, in the order of their keys.
    pub(crate) fn scan<T>(&self, mut look: impl FnMut(&K, &V) -> Option<T>) -> Vec<T> {
        let entries = self.entries.lock();
        entries
            .iter()
            .filter_map(|(key, entry)| look(key, &entry.value.lock()))
            .collect()
    }

    /// Waits until `look` finds something in the value. At the deadline `late` looks instead;
    /// `None` when there is no such value.
    pub(crate) async fn wait<T>(
        &self,
        key: &K,
        patience: Duration,
        look: impl Fn(&V) -> Option<T>,
        late: impl FnOnce(&V) -> T,
    ) -> Option<T> {
        let entry = self.entry(key)?;
        let deadline = Instant::now() + patience;
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = look(&entry.value.lock()) {
                return Some(found);
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Some(late(&entry.value.lock()));
            }
        }
    }

    fn entry(&self, key: &K) -> Option<Arc<Entry<V>>> {
        self.entries.lock().get(key).map(Arc::clone)
    }
}

impl<K: Ord + Clone, V: Ends + Default> Watched<K, V> {
    /// Changes a value, made if need be, and wakes those who wait on it.
    pub(crate) fn update<T>(&self, key: K, change: impl FnOnce(&mut V) -> T) -> T {
        loop {
            let known = self.entry(&key);
            let Some(entry) = known else {
                self.add(key.clone(), V::default());
                continue;
            };
            let changed = change(&mut entry.value.lock());
            entry.changed.notify_waiters();
            return changed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[derive(Debug, Default)]
    struct Count(usize);

    impl Ends for Count {
        fn is_over(&self) -> bool {
            self.0 > 0
        }
    }

    #[tokio::test]
    async fn waits_for_a_change_or_the_deadline() {
        let watched = Watched::<u32, Count>::default();
        let look = |count: &Count| (count.0 > 0).then_some("found");
        assert_eq!(watched.wait(&1, LONG, look, |_| "late").await, None);
        watched.update(1, |_| ());
        assert_eq!(
            watched.wait(&1, Duration::ZERO, look, |_| "late").await,
            Some("late")
        );
        let waiting = tokio::spawn({
            let watched = watched.clone();
            async move { watched.wait(&1, LONG, look, |_| "late").await }
        });
        tokio::task::yield_now().await;
        watched.update(1, |count| count.0 = 1);
        assert_eq!(waiting.await.unwrap(), Some("found"));
    }

    #[test]
    fn the_oldest_that_are_over_are_forgotten() {
        let watched = Watched::<usize, Count>::default();
        for key in 0..KEPT + 10 {
            watched.add(key, Count(key % 2));
        }
        assert_eq!(watched.scan(|key, _| Some(*key)).len(), KEPT);
        assert!(watched.look(&0, |_| ()).is_some(), "it is not over");
        assert!(watched.look(&1, |_| ()).is_none());
    }
}
