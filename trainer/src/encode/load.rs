//! The first phase: streams become shards, several at a time, batch by batch.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;
use volley_proto::store::FeatureSummary;

use super::cache::ShardCache;
use super::categories::Class;
use super::columns::Columns;
use super::defect::{self, Defect};
use super::shard::LocalShard;
use super::spill::Storage;
use super::tally::Tally;
use crate::{Error, Result};

/// Shards that stream at once, at most; each is one connection to whoever holds its rows.
const CONCURRENT_SHARDS: usize = 16;
/// Shards that stream before it is known how large one is.
const FIRST_SHARDS: usize = 4;

/// One rank's encoded shards.
pub struct LoadedShards {
    /// Ascending by their number.
    pub(crate) shards: Vec<LocalShard>,
    /// Of each feature, in the spec's order; without vocabularies.
    pub(crate) features: Vec<FeatureSummary>,
    /// Of each categorical feature.
    categories: Vec<Class>,
    /// Of a label that is a class.
    label: Option<Class>,
    rows: u64,
    seconds: f64,
    /// Number of shards that may be settled at once.
    pub(crate) at_once: usize,
}

impl LoadedShards {
    /// Rows that weigh something, whatever they are for.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of weight 0, which were left out.
    pub(crate) fn weightless(&self) -> u64 {
        self.shards.iter().map(|shard| shard.weightless).sum()
    }

    /// How long loading took.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// What kind of values each categorical feature has, and a label that is a class.
    pub(crate) fn classes(&self) -> Vec<Class> {
        let all = self.categories.iter().chain(&self.label);
        all.copied().collect()
    }

    /// Their values in these shards, with the rows of each.
    pub(crate) fn tallies(&self) -> Vec<Tally> {
        let classes = self.classes();
        let mut parts: Vec<Vec<Tally>> = vec![vec![]; classes.len()];
        for shard in &self.shards {
            let of_shard = parts.iter_mut().zip(shard.tallies());
            of_shard.for_each(|(parts, tally)| parts.push(tally));
        }
        let merged = classes.into_iter().zip(parts);
        merged
            .map(|(class, parts)| Tally::merge(class, parts))
            .collect()
    }

    /// The vocabularies of a rank that is alone.
    #[cfg(test)]
    pub(crate) fn vocabularies(&self) -> Vec<super::Vocabulary> {
        let all = self.tallies().into_iter();
        all.map(|tally| tally.vocabulary(&Default::default()))
            .collect()
    }

    /// Whether labels are classes.
    pub(crate) fn has_classes(&self) -> bool {
        self.label.is_some()
    }

    /// What is wrong with these shards' rows.
    pub(crate) fn defects(&self) -> Vec<Defect> {
        defect::merge(
            self.shards
                .iter()
                .flat_map(|shard| shard.defects.iter().cloned()),
        )
    }
}

impl fmt::Debug for LoadedShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedShards")
            .field("shards", &self.shards.len())
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// Encodes the rows of each shard, given by its global number and what opens it, as they come: each in a task of its own, so
/// that all threads of the runtime encode. Shards in the cache are read from it instead, and others are put there.
///
/// All streams have the same `schema`. Rows that cannot be trained on are no error here: they are
/// counted, and [`train`](crate::train()) refuses them on all ranks.
///
/// # Errors
/// When a stream fails, a column does not suit its role, rows that memory has no room for cannot be written, or `cancel` is cancelled.
pub async fn load<O, S, E>(
    spec: &TrainSpec,
    schema: &Schema,
    shards: Vec<(usize, O)>,
    cache: Option<&ShardCache>,
    cancel: &CancellationToken,
) -> Result<LoadedShards>
where
    O: FnOnce() -> Result<S, E> + Send + 'static,
    S: Stream<Item = Result<RecordBatch, E>> + Send + Unpin + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let start = Instant::now();
    let columns = Arc::new(Columns::try_new(spec, schema)?);
    let permits = Arc::new(Permits::new(cache));
    let encoded = stream::iter(shards)
        .map(|(id, open)| {
            let (cache, columns) = (cache.cloned(), Arc::clone(&columns));
            let permits = Arc::clone(&permits);
            // A set of one, which ends it when nobody waits any more.
            let mut task = JoinSet::new();
            task.spawn(async move {
                let permit = permits.left.acquire().await;
                let shard = find_or_encode(id, open, cache.as_ref(), columns).await;
                if let (Ok(permit), Some(cache)) = (permit, cache) {
                    permits.give_back(permit, cache.at_once());
                }
                shard
            });
            async move { ended(task.join_next().await) }
        })
        .buffer_unordered(CONCURRENT_SHARDS)
        .try_collect::<Vec<_>>();
    let mut shards = cancel
        .run_until_cancelled(encoded)
        .await
        .ok_or(Error::Cancelled)??;
    shards.sort_by_key(|(shard, _)| shard.id);
    let (shards, found): (Vec<_>, Vec<_>) = shards.into_iter().unzip();
    let rows = shards.iter().map(|shard| shard.rows() as u64).sum();
    let spilled = shards
        .iter()
        .filter(|shard| shard.storage != Storage::Memory)
        .count();
    let seconds = start.elapsed().as_secs_f64();
    let found = found.into_iter().filter(|found| *found).count();
    let streamed = shards.len() - found;
    tracing::info!(
        rows,
        seconds,
        "{streamed} shards streamed, {found} read from the cache; {spilled} stay in files"
    );
    let categories = columns
        .categorical
        .iter()
        .map(|(_, class)| *class)
        .collect();
    Ok(LoadedShards {
        shards,
        features: columns.features.clone(),
        categories,
        label: columns.classes,
        rows,
        seconds,
        at_once: cache.map_or(usize::MAX, ShardCache::at_once),
    })
}

/// Number of shards that stream at once: some, and more once one has said that memory has room for them.
#[derive(Debug)]
struct Permits {
    left: Semaphore,
    /// Permits that there are, with those in use.
    all: Mutex<usize>,
}

impl Permits {
    fn new(cache: Option<&ShardCache>) -> Self {
        let first = match cache {
            Some(_) => FIRST_SHARDS,
            None => CONCURRENT_SHARDS,
        };
        Self {
            left: Semaphore::new(first),
            all: Mutex::new(first),
        }
    }

    /// Gives a permit back where so many shards may stream at once: it ends where there are more, and others begin where
    /// there are fewer.
    fn give_back(&self, permit: SemaphorePermit<'_>, at_once: usize) {
        let most = at_once.min(CONCURRENT_SHARDS);
        let mut all = self.all.lock();
        if *all > most {
            permit.forget();
            *all -= 1;
        } else {
            self.left.add_permits(most - *all);
            *all = most;
        }
    }
}

/// The result of a task; its panic goes on here.
fn ended<T>(task: Option<Result<Result<T>, JoinError>>) -> Result<T> {
    match task.map(|task| task.map_err(JoinError::try_into_panic)) {
        Some(Ok(result)) => result,
        Some(Err(Ok(panic))) => resume_unwind(panic),
        // Its runtime ends.
        Some(Err(Err(_))) | None => Err(Error::Cancelled),
    }
}

/// A shard, and whether it was in the cache.
async fn find_or_encode<O, S, E>(
    id: usize,
    open: O,
    cache: Option<&ShardCache>,
    columns: Arc<Columns>,
) -> Result<(LocalShard, bool)>
where
    O: FnOnce() -> Result<S, E>,
    S: Stream<Item = Result<RecordBatch, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    let Some(cache) = cache else {
        return Ok((encode(id, open, &columns).await?, false));
    };
    if let Some(shard) = cache.get(id).await {
        return Ok((shard, true));
    }
    let shard = encode(id, open, &columns).await?;
    Ok((cache.put(shard).await?, false))
}

async fn encode<O, S, E>(id: usize, open: O, columns: &Columns) -> Result<LocalShard>
where
    O: FnOnce() -> Result<S, E>,
    S: Stream<Item = Result<RecordBatch, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    let failed = |error: E| Error::Input {
        shard: id,
        source: Box::new(error),
    };
    let mut rows = open().map_err(failed)?;
    let mut shard = LocalShard::new(id, columns);
    while let Some(batch) = rows.next().await {
        shard.push(&batch.map_err(failed)?, columns)?;
        // A stream that is always ready would keep its thread, and never hear of a cancellation.
        tokio::task::yield_now().await;
    }
    Ok(shard)
}
