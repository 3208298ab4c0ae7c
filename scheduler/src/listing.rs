//! Listing of the models in the stores of all runs, for pages that ask each second.
//!
//! A store is listed again when the listed runs have changed, and otherwise only once a listing has some age: models
//! that other clusters publish, reports and dropped versions appear that late. Reading a store is not done here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use url::Url;
use volley_proto::TrainId;
use volley_proto::tables::Model;

/// Age from which a listing is made again.
const AGE: Duration = Duration::from_secs(5);

/// Runs that a listing depends on: their stores, and which of them are over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) stores: Vec<Url>,
    pub(crate) over: Vec<TrainId>,
}

/// Newest listing; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    // Held while stores are read: pages that ask meanwhile get the same listing.
    newest: Arc<Mutex<Option<Newest>>>,
}

#[derive(Debug)]
struct Newest {
    at: Instant,
    of: Listed,
    models: Arc<[Model]>,
}

impl Listing {
    /// Returns the models of these runs' stores; `read` lists them, if the newest listing does not do.
    pub(crate) async fn models(
        &self,
        of: Listed,
        now: Instant,
        read: impl Future<Output = Vec<Model>>,
    ) -> Arc<[Model]> {
        let mut newest = self.newest.lock().await;
        if let Some(newest) = &*newest
            && newest.of == of
            && now.saturating_duration_since(newest.at) < AGE
        {
            return Arc::clone(&newest.models);
        }
        let begun = Instant::now();
        let models: Arc<[Model]> = read.await.into();
        *newest = Some(Newest {
            // Those who have waited meanwhile get it too.
            at: now + begun.elapsed(),
            of,
            models: Arc::clone(&models),
        });
        models
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn stores_are_listed_at_most_once_in_some_seconds() {
        let (listing, reads) = (Listing::default(), AtomicUsize::new(0));
        let read = async |of: &Listed, now: Instant| {
            let read = async {
                // Of a slow store.
                tokio::task::yield_now().await;
                reads.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            };
            listing.models(of.clone(), now, read).await;
            reads.load(Ordering::Relaxed)
        };
        let mut of = Listed::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        // Two pages at once, each second.
        for second in 0..5 {
            let (one, other) = (read(&of, at(second)), read(&of, at(second)));
            assert_eq!(tokio::join!(one, other), (1, 1));
        }
        assert_eq!(read(&of, at(6)).await, 2);
        // A run that has ended may have published.
        of.over.push(TrainId::generate());
        assert_eq!(read(&of, at(5)).await, 3);
        of.stores.push("file:///models".parse().unwrap());
        assert_eq!(read(&of, at(5)).await, 4);
        assert_eq!(read(&of, at(9)).await, 4);
        assert_eq!(read(&of, at(11)).await, 5);
    }
}
