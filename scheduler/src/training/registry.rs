//! The runs of this scheduler, and waiting on them with deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use volley_proto::TrainId;

use super::run::Run;

/// Runs are kept for those who watch until this many newer ones exist.
const KEPT: usize = 256;

/// The runs of this scheduler; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    runs: Arc<Mutex<BTreeMap<TrainId, Arc<Entry>>>>,
}

#[derive(Debug, Default)]
struct Entry {
    run: Mutex<Run>,
    changed: Notify,
}

impl Registry {
    /// Changes a run, made if need be, and wakes those who wait on it.
    pub(crate) fn update<T>(&self, train: TrainId, change: impl FnOnce(&mut Run) -> T) -> T {
        let entry = {
            let mut runs = self.runs.lock();
            let entry = Arc::clone(runs.entry(train).or_default());
            while runs.len() > KEPT {
                runs.pop_first();
            }
            entry
        };
        let changed = change(&mut entry.run.lock());
        entry.changed.notify_waiters();
        changed
    }

    /// Waits until `look` finds something in the run. At the deadline `late` looks instead; `None`
    /// when there is no such run.
    pub(crate) async fn wait<T>(
        &self,
        train: TrainId,
        patience: Duration,
        look: impl Fn(&Run) -> Option<T>,
        late: impl FnOnce(&Run) -> T,
    ) -> Option<T> {
        let entry = self.runs.lock().get(&train).map(Arc::clone)?;
        let deadline = Instant::now() + patience;
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = look(&entry.run.lock()) {
                return Some(found);
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Some(late(&entry.run.lock()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn waits_for_a_change_or_the_deadline() {
        let (registry, train) = (Registry::default(), TrainId::generate());
        let look = |run: &Run| (!run.events().is_empty()).then_some("found");
        assert_eq!(registry.wait(train, LONG, look, |_| "late").await, None);
        registry.update(train, |_| ());
        assert_eq!(
            registry.wait(train, Duration::ZERO, look, |_| "late").await,
            Some("late")
        );
        let waiting = tokio::spawn({
            let registry = registry.clone();
            async move { registry.wait(train, LONG, look, |_| "late").await }
        });
        tokio::task::yield_now().await;
        registry.update(train, |run| run.waits("x".into()));
        assert_eq!(waiting.await.unwrap(), Some("found"));
    }
}
