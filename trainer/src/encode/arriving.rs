//! Shards that arrive while a rank trains on those that it has.
//!
//! ```text
//!  a rank's shards, by number     0  1  2  3  4  5  6  7  8  9     ten shards in waves of one or two
//!  wave                           0  0  1  2  3  4  4  5  6  7
//! ```
//!
//! A wave is handed out once all of its shards are encoded. Which shards it has depends on their numbers and not on the
//! order of their arrival, so a training takes the same steps each time. Shards are encoded about in the order of waves,
//! two waves at a time: one that is waited for, and the next.
//!
//! This module does not train, and does not know what other ranks have.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{STREAMS, TrainSpec};
use volley_proto::store::FeatureSummary;

use super::cache::ShardCache;
use super::categories::Class;
use super::columns::Columns;
use super::load::{Encoded, LoadedShards, encode_all};
use super::shard::LocalShard;
use crate::{Error, Result};

/// Number of waves. Training can begin after the first, and ends one wave after the last shard at the least; more waves
/// have smaller ones, in which rows are shuffled less.
pub(crate) const WAVES: usize = 8;

/// Interval of checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// One rank's shards, some of which are still being encoded.
pub struct ArrivingShards {
    arrived: Receiver<Result<Encoded>>,
    columns: Arc<Columns>,
    cache: Option<ShardCache>,
    /// Number of the rank's shards.
    count: usize,
    /// Encoded shards of waves that were not handed out yet.
    waiting: BTreeMap<usize, Vec<LocalShard>>,
    /// Shards so far that were in the cache.
    found: usize,
    /// Rows of all encoded shards so far, without those of weight 0.
    pub(crate) rows: u64,
    start: Instant,
    /// Seconds from the start to the last shard so far.
    pub(crate) seconds: f64,
}

impl fmt::Debug for ArrivingShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrivingShards")
            .field("count", &self.count)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// Returns the wave of the shard at this index among `count`.
fn wave_of(at: usize, count: usize) -> usize {
    at * WAVES / count
}

/// Encodes the rows of each shard as they arrive, as [`load`](crate::load()) does, for a training that does not wait for
/// all of them. Returns the shards, and the future that encodes them: it returns the number of their rows once all have
/// arrived, and `None` if one has failed or nobody waits for them any more. Dropping it ends the shards.
///
/// The result for the rank is an error if a column does not suit its role.
pub fn load_early<O, S, E>(
    spec: &TrainSpec,
    schema: &Schema,
    mut shards: Vec<(usize, O)>,
    cache: Option<&ShardCache>,
    cancel: &CancellationToken,
) -> (
    Result<ArrivingShards>,
    impl Future<Output = Option<u64>> + use<O, S, E>,
)
where
    O: FnOnce() -> Result<S, E> + Send + 'static,
    S: Stream<Item = Result<RecordBatch, E>> + Send + Unpin + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    shards.sort_by_key(|(id, _)| *id);
    let (count, cancel) = (shards.len(), cancel.clone());
    let (sender, arrived) = mpsc::channel();
    let columns = Columns::try_new(spec, schema).map(Arc::new);
    let encoded = columns.as_ref().ok().map(|columns| {
        let at_once = (2 * count.div_ceil(WAVES)).clamp(1, STREAMS);
        encode_all(shards, Arc::clone(columns), cache.cloned(), at_once)
    });
    let arriving = columns.map(|columns| ArrivingShards {
        arrived,
        columns,
        cache: cache.cloned(),
        count,
        waiting: BTreeMap::new(),
        found: 0,
        rows: 0,
        start: Instant::now(),
        seconds: 0.0,
    });
    let loading = async move {
        let mut encoded = pin!(encoded?);
        let all = async {
            let mut rows = 0;
            while let Some(shard) = encoded.next().await {
                let of_shard = shard.as_ref().ok().map(|of| of.shard.rows() as u64);
                sender.send(shard).ok()?;
                rows += of_shard?;
            }
            Some(rows)
        };
        let rows = cancel.run_until_cancelled(all).await;
        if rows.is_none() {
            sender.send(Err(Error::Cancelled)).ok();
        }
        rows.flatten()
    };
    (arriving, loading)
}

impl ArrivingShards {
    /// Returns the summary of each feature, in the spec's order; without vocabularies.
    pub(crate) fn features(&self) -> Vec<FeatureSummary> {
        self.columns.features.clone()
    }

    /// Returns the number of continuous features.
    pub(crate) fn numbers(&self) -> usize {
        self.columns.continuous.len()
    }

    /// Returns the class of each categorical feature.
    pub(crate) fn classes(&self) -> Vec<Class> {
        self.columns.classes_of_features()
    }

    /// Returns the class of a label that is a class.
    pub(crate) fn label(&self) -> Option<Class> {
        self.columns.classes
    }

    /// Returns how many shards may be settled at once.
    pub(crate) fn at_once(&self) -> usize {
        self.cache.as_ref().map_or(usize::MAX, ShardCache::at_once)
    }

    /// Waits for the shards of a wave, perhaps none, and returns them in ascending order of their number.
    ///
    /// # Errors
    /// When a shard cannot be encoded, or training is cancelled.
    pub(crate) fn wave(
        &mut self,
        wave: usize,
        cancel: &CancellationToken,
    ) -> Result<Vec<LocalShard>> {
        let of_wave = |at: &usize| wave_of(*at, self.count) == wave;
        let due = (0..self.count).filter(of_wave).count();
        while self.waiting.get(&wave).map_or(0, Vec::len) < due {
            let Encoded { at, shard, found } = self.receive(cancel)?;
            self.rows += shard.rows() as u64;
            self.found += usize::from(found);
            self.seconds = self.start.elapsed().as_secs_f64();
            let of = self.waiting.entry(wave_of(at, self.count)).or_default();
            of.push(shard);
        }
        let mut shards = self.waiting.remove(&wave).unwrap_or_default();
        shards.sort_by_key(|shard| shard.id);
        Ok(shards)
    }

    fn receive(&self, cancel: &CancellationToken) -> Result<Encoded> {
        loop {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            match self.arrived.recv_timeout(LOOK) {
                Ok(shard) => return shard,
                Err(RecvTimeoutError::Timeout) => {}
                // Whoever loads them has given up, and knows why.
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Cancelled),
            }
        }
    }

    /// Waits for all shards.
    ///
    /// # Errors
    /// When a shard cannot be encoded, or training is cancelled.
    pub(crate) fn all(mut self, cancel: &CancellationToken) -> Result<LoadedShards> {
        let mut shards = Vec::with_capacity(self.count);
        for wave in 0..WAVES {
            shards.extend(self.wave(wave, cancel)?);
        }
        let cache = self.cache.as_ref();
        Ok(LoadedShards::of(
            shards,
            self.found,
            &self.columns,
            cache,
            self.seconds,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_are_even_and_in_the_order_of_shards() {
        for count in [1, 3, 8, 10, 60] {
            let waves: Vec<_> = (0..count).map(|at| wave_of(at, count)).collect();
            assert!(waves.is_sorted() && waves[0] == 0 && waves[count - 1] < WAVES);
            let size = |wave| waves.iter().filter(|of| **of == wave).count();
            let sizes: Vec<_> = (0..WAVES).map(size).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{count}: {sizes:?}");
        }
    }
}
