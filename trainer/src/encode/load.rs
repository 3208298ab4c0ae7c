//! Loading, the first phase: streams become shards, several at a time, batch by batch.

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
use volley_proto::spec::{FIRST_STREAMS, STREAMS, TrainSpec};
use volley_proto::store::FeatureSummary;

use super::cache::ShardCache;
use super::categories::Class;
use super::columns::Columns;
use super::defect::{self, Defect};
use super::shard::LocalShard;
use super::spill::Storage;
use super::tally::{Merged, Tally};
use super::vocabulary::Vocabulary;
use crate::{Error, Result};

/// One rank's encoded shards.
pub struct LoadedShards {
    /// Shards in ascending order of their number.
    pub(crate) shards: Vec<LocalShard>,
    /// Summary of each feature, in the spec's order; without vocabularies.
    pub(crate) features: Vec<FeatureSummary>,
    /// Class of each categorical feature.
    categories: Vec<Class>,
    /// Class of a label that is a class.
    label: Option<Class>,
    rows: u64,
    seconds: f64,
    /// Number of shards that may be settled at once.
    pub(crate) at_once: usize,
    /// Vocabularies of these columns, if they do not follow from the rows.
    pub(crate) known: Option<Vec<Vocabulary>>,
}

impl LoadedShards {
    /// Collects a rank's shards, of which `found` were in the cache.
    pub(super) fn of(
        mut shards: Vec<LocalShard>,
        found: usize,
        columns: &Columns,
        cache: Option<&ShardCache>,
        seconds: f64,
    ) -> Self {
        shards.sort_by_key(|shard| shard.id);
        let rows = shards.iter().map(|shard| shard.rows() as u64).sum();
        let spilled = shards
            .iter()
            .filter(|shard| shard.storage != Storage::Memory)
            .count();
        let streamed = shards.len() - found;
        tracing::info!(
            rows,
            seconds,
            "{streamed} shards streamed, {found} read from the cache; {spilled} stay in files"
        );
        Self {
            shards,
            features: columns.features.clone(),
            categories: columns.classes_of_features(),
            label: columns.classes,
            rows,
            seconds,
            at_once: cache.map_or(usize::MAX, ShardCache::at_once),
            known: None,
        }
    }

    /// Returns the number of rows, without those of weight 0, in all parts of the split.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of rows of weight 0, which were left out.
    pub(crate) fn weightless(&self) -> u64 {
        self.shards.iter().map(|shard| shard.weightless).sum()
    }

    /// Returns the duration of loading in seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns the class of each categorical feature, and of a label that is a class.
    pub(crate) fn classes(&self) -> Vec<Class> {
        let all = self.categories.iter().chain(&self.label);
        all.copied().collect()
    }

    /// Returns the tallies of these columns over the shards.
    pub(crate) fn tallies(&self) -> Vec<Tally> {
        let classes = self.classes().into_iter();
        let mut all: Vec<Merged> = classes.map(Merged::of).collect();
        for shard in &self.shards {
            let of_shard = all.iter_mut().zip(shard.tallies());
            of_shard.for_each(|(merged, tally)| merged.add(tally));
        }
        all.into_iter().map(Merged::finish).collect()
    }

    /// Returns the vocabularies of a rank that is alone.
    #[cfg(test)]
    pub(crate) fn vocabularies(&self) -> Vec<Vocabulary> {
        let all = self.tallies().into_iter();
        all.map(|tally| tally.vocabulary(&Default::default()))
            .collect()
    }

    /// Checks whether labels are classes.
    pub(crate) fn has_classes(&self) -> bool {
        self.label.is_some()
    }

    /// Returns the defects of these shards' rows.
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

/// Encodes the rows of each shard as they arrive. A shard is given by its global number and a function that opens it,
/// and has a task of its own, so that all threads of the runtime encode. Cached shards are read from the cache instead;
/// others are added to it.
///
/// All streams have the same `schema`. Rows that cannot be trained on are not an error here: they are counted, and
/// [`train`](crate::train()) refuses them on all ranks.
///
/// # Errors
/// When a stream fails, a column does not suit its role, rows that do not fit in memory cannot be written, or `cancel`
/// is cancelled.
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
    let all = Arc::clone(&columns);
    let encoded = encode_all(shards, all, cache.cloned(), STREAMS);
    let encoded = cancel
        .run_until_cancelled(encoded.try_collect::<Vec<_>>())
        .await
        .ok_or(Error::Cancelled)??;
    let found = encoded.iter().filter(|shard| shard.found).count();
    let shards = encoded.into_iter().map(|encoded| encoded.shard);
    let seconds = start.elapsed().as_secs_f64();
    Ok(LoadedShards::of(
        shards.collect(),
        found,
        &columns,
        cache,
        seconds,
    ))
}

/// A shard that is encoded.
#[derive(Debug)]
pub(super) struct Encoded {
    /// Index among the rank's shards, as given.
    pub(super) at: usize,
    pub(super) shard: LocalShard,
    /// True if it was in the cache.
    pub(super) found: bool,
}

/// Encodes shards, at most `at_once` at a time, beginning with the first.
pub(super) fn encode_all<O, S, E>(
    shards: Vec<(usize, O)>,
    columns: Arc<Columns>,
    cache: Option<ShardCache>,
    at_once: usize,
) -> impl Stream<Item = Result<Encoded>>
where
    O: FnOnce() -> Result<S, E> + Send + 'static,
    S: Stream<Item = Result<RecordBatch, E>> + Send + Unpin + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let permits = Arc::new(Permits::new(cache.as_ref()));
    stream::iter(shards.into_iter().enumerate())
        .map(move |(at, (id, open))| {
            let (cache, columns) = (cache.clone(), Arc::clone(&columns));
            let permits = Arc::clone(&permits);
            // A set of one, which aborts the task when its future is dropped.
            let mut task = JoinSet::new();
            task.spawn(async move {
                let permit = permits.left.acquire().await;
                let shard = find_or_encode(id, open, cache.as_ref(), columns).await;
                if let (Ok(permit), Some(cache)) = (permit, cache) {
                    permits.give_back(permit, cache.at_once());
                }
                shard
            });
            async move {
                let encoded = ended(task.join_next().await);
                encoded.map(|(shard, found)| Encoded { at, shard, found })
            }
        })
        .buffer_unordered(at_once)
}

/// Limit on shards that stream at once: a few at first, more once the first shard's size shows that memory suffices.
#[derive(Debug)]
struct Permits {
    left: Semaphore,
    /// Number of permits, with those in use.
    all: Mutex<usize>,
}

impl Permits {
    fn new(cache: Option<&ShardCache>) -> Self {
        let first = match cache {
            Some(_) => FIRST_STREAMS,
            None => STREAMS,
        };
        Self {
            left: Semaphore::new(first),
            all: Mutex::new(first),
        }
    }

    /// Gives a permit back and adjusts the limit to `at_once`: drops the permit if there are too many, adds more if there
    /// are too few.
    fn give_back(&self, permit: SemaphorePermit<'_>, at_once: usize) {
        let most = at_once.min(STREAMS);
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

/// Returns a task's result, and resumes its panic here.
fn ended<T>(task: Option<Result<Result<T>, JoinError>>) -> Result<T> {
    match task.map(|task| task.map_err(JoinError::try_into_panic)) {
        Some(Ok(result)) => result,
        Some(Err(Ok(panic))) => resume_unwind(panic),
        // The runtime is shutting down.
        Some(Err(Err(_))) | None => Err(Error::Cancelled),
    }
}

/// Returns a shard, and whether it was in the cache.
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
        // A stream that is always ready would hold its thread and never notice a cancellation.
        tokio::task::yield_now().await;
    }
    Ok(shard)
}
