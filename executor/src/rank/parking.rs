//! Storage where a rank leaves its training state for the next rank of the same run.
//!
//! ```text
//!   enter ──► (waits for the rank before to have left) ──► Place, with the state left there
//!     ▲                                                      │ take, put
//!     └── kept for the next rank, or until the run ◄─────────┘ dropped
//!         is over or the lease has ended
//! ```
//!
//! A training run has one place here: an executor has at most one rank of it. A rank's thread may outlive its task
//! by a moment; the next rank waits for it. State is in memory only; checkpoints serve for state that must outlive
//! the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use volley_proto::TrainId;
use volley_trainer::TrainingState;

/// Time after which a state that no rank has taken is dropped.
const LEASE: Duration = Duration::from_secs(15 * 60);
/// Time limit for a rank to leave once it has been told to.
const LEAVING: Duration = Duration::from_secs(30);

/// Places of the executor; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parking {
    places: Arc<Mutex<HashMap<TrainId, Entry>>>,
}

#[derive(Debug)]
enum Entry {
    /// A rank is in the place; the channel closes when it leaves.
    Taken {
        leaves: watch::Receiver<()>,
        /// True when the run is over, so that no rank will follow.
        forgotten: bool,
        /// Least memory of the rank, 0 until it says; `None` if it is not known.
        bytes: Option<u64>,
    },
    Left {
        state: Box<TrainingState>,
        until: Instant,
    },
}

/// Place of one rank. Dropping it frees it, and leaves its state for the next rank.
#[derive(Debug)]
pub(super) struct Place {
    parking: Parking,
    train: TrainId,
    state: Option<Box<TrainingState>>,
    _here: watch::Sender<()>,
}

impl Parking {
    /// Returns the number of ranks that have a place.
    pub(crate) fn ranks(&self) -> usize {
        let places = self.places.lock();
        let taken = places.values();
        taken
            .filter(|entry| matches!(entry, Entry::Taken { .. }))
            .count()
    }

    /// Returns the least memory of these ranks; `None` if that of one is not known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let places = self.places.lock();
        let ranks = places.values().filter_map(|entry| match entry {
            Entry::Taken { bytes, .. } => Some(*bytes),
            Entry::Left { .. } => None,
        });
        ranks.sum()
    }

    /// Takes a run's place, with the state that the previous rank left there. Returns `None` when that rank does not
    /// leave in time.
    pub(super) async fn enter(&self, train: TrainId) -> Option<Place> {
        self.enter_within(train, LEAVING).await
    }

    async fn enter_within(&self, train: TrainId, patience: Duration) -> Option<Place> {
        let deadline = Instant::now() + patience;
        loop {
            let mut before = {
                let mut places = self.places.lock();
                let now = Instant::now();
                places
                    .retain(|_, entry| !matches!(entry, Entry::Left { until, .. } if *until < now));
                match places.remove(&train) {
                    Some(Entry::Taken {
                        leaves,
                        forgotten,
                        bytes,
                    }) => {
                        let before = leaves.clone();
                        let taken = Entry::Taken {
                            leaves,
                            forgotten,
                            bytes,
                        };
                        places.insert(train, taken);
                        before
                    }
                    left => {
                        let (here, leaves) = watch::channel(());
                        let taken = Entry::Taken {
                            leaves,
                            forgotten: false,
                            bytes: Some(0),
                        };
                        places.insert(train, taken);
                        let state = match left {
                            Some(Entry::Left { state, .. }) => Some(state),
                            _ => None,
                        };
                        return Some(Place {
                            parking: self.clone(),
                            train,
                            state,
                            _here: here,
                        });
                    }
                }
            };
            let left = async { while before.changed().await.is_ok() {} };
            let patience = deadline.saturating_duration_since(Instant::now());
            timeout(patience, left).await.ok()?;
        }
    }

    /// Notes the least memory of the rank in a run's place; `None` if it is not known.
    pub(super) fn holds(&self, train: TrainId, least: Option<u64>) {
        let mut places = self.places.lock();
        if let Some(Entry::Taken { bytes, .. }) = places.get_mut(&train) {
            *bytes = least;
        }
    }

    /// Drops the kept state of a run that is over, or marks the state of its running rank to be dropped. Also drops
    /// expired states.
    pub(crate) fn forget(&self, train: TrainId) {
        let mut places = self.places.lock();
        let now = Instant::now();
        places.retain(|_, entry| entry.holds(now));
        match places.get_mut(&train) {
            Some(Entry::Taken { forgotten, .. }) => *forgotten = true,
            Some(Entry::Left { .. }) => {
                places.remove(&train);
            }
            None => {}
        }
    }
}

impl Entry {
    /// Returns false for a state whose lease has ended.
    fn holds(&self, now: Instant) -> bool {
        !matches!(self, Self::Left { until, .. } if *until < now)
    }
}

impl Place {
    /// Checks for a left state.
    pub(super) fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// Notes the least memory of the rank; `None` if it is not known.
    pub(super) fn holds(&self, least: Option<u64>) {
        self.parking.holds(self.train, least);
    }

    /// Returns the places of the executor.
    pub(super) fn parking(&self) -> &Parking {
        &self.parking
    }

    /// Takes the state to continue from.
    pub(super) fn take(&mut self) -> Option<Box<TrainingState>> {
        self.state.take()
    }

    /// Puts a state in place for the next rank.
    pub(super) fn put(&mut self, state: Option<Box<TrainingState>>) {
        self.state = state;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.parking.places.lock();
        let before = places.remove(&self.train);
        let forgotten = matches!(before, Some(Entry::Taken { forgotten, .. }) if forgotten);
        if let Some(state) = self.state.take().filter(|_| !forgotten) {
            let until = Instant::now() + LEASE;
            places.insert(self.train, Entry::Left { state, until });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_rank_waits_for_the_one_before() {
        let (parking, train) = (Parking::default(), TrainId::generate());
        let place = parking.enter(train).await.expect("nobody is there");
        assert!(!place.has_state());
        let next = tokio::spawn({
            let parking = parking.clone();
            async move { parking.enter(train).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        assert_eq!(parking.ranks(), 1, "the next one has no place yet");
        assert_eq!(parking.bytes(), Some(0));
        place.holds(Some(7));
        let other = parking.enter(TrainId::generate()).await;
        let other = other.expect("nobody is there");
        other.holds(Some(5));
        assert_eq!(parking.bytes(), Some(12));
        other.holds(None);
        assert_eq!(parking.bytes(), None);
        drop(other);
        assert_eq!(parking.bytes(), Some(7));
        drop(place);
        assert!(next.await.expect("it does not panic"));
        assert_eq!(parking.ranks(), 0);
    }

    #[tokio::test]
    async fn a_rank_that_does_not_leave_is_not_waited_for_for_ever() {
        let (parking, train) = (Parking::default(), TrainId::generate());
        let _stays = parking.enter(train).await;
        let patience = Duration::from_millis(10);
        assert!(parking.enter_within(train, patience).await.is_none());
        assert!(parking.enter(TrainId::generate()).await.is_some());
    }
}
