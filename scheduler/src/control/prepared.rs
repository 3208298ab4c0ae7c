//! Prepared rows: the encoded shards of trainings' queries, which executors keep for the next training on the same rows.
//!
//! ```text
//!   planned ──► shards of it loaded ──► all loaded: the next training on the same rows reads them
//!      │                                   │ superseded, dropped by a user, a shard missed, an executor lost,
//!      └── the run is over before ─────────┴──► removed here, and from the executors that are still there
//! ```
//!
//! Rows are the same if the fingerprint of their query, files and encoding is. All shards are of one attempt: two
//! attempts of a query may spread their rows differently. Executors remove shards for space without a word; a training
//! that misses one is run again from its query. Nothing here outlives the scheduler.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use volley_proto::tables::{PreparedRows, millis};
use volley_proto::{ModelName, PreparedId, TrainId};

/// Most prepared rows that are known; those used least recently are removed.
const MOST: usize = 256;

/// Most readers of prepared rows that are remembered.
const READERS: usize = 64;

/// SHA-256 of the identity of encoded rows.
pub(crate) type Fingerprint = [u8; 32];

/// Prepared rows of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    all: BTreeMap<PreparedId, Rows>,
    /// Ids whose files executors have not been told to remove yet.
    removals: BTreeMap<String, BTreeSet<PreparedId>>,
}

/// Training that prepares rows.
#[derive(Debug, Clone)]
pub(crate) struct Preparation {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) train: TrainId,
    pub(crate) model: ModelName,
    pub(crate) owner: String,
    /// Number of shards.
    pub(crate) shards: usize,
}

/// The rows of one query.
#[derive(Debug)]
struct Rows {
    of: Preparation,
    /// Shards that have been loaded.
    shards: BTreeMap<usize, Shard>,
    /// Bytes of each executor's files.
    bytes: BTreeMap<String, u64>,
    prepared: SystemTime,
    used: SystemTime,
    uses: u64,
    /// Last trainings that have read them.
    readers: VecDeque<TrainId>,
    /// Executors that may have files of them.
    bound: BTreeSet<String>,
}

#[derive(Debug)]
struct Shard {
    executor: String,
    rows: u64,
}

/// Rows that a training may read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) id: PreparedId,
    /// Rows of each shard.
    pub(super) rows: Vec<u64>,
    /// Executors that keep them.
    pub(super) executors: BTreeSet<&'a str>,
}

/// Shards that an executor keeps.
#[derive(Debug)]
pub(crate) struct Keeps<'a> {
    pub(crate) executor: &'a str,
    /// Numbers of the shards, with the rows of each.
    pub(crate) shards: Vec<(usize, u64)>,
    pub(crate) bytes: u64,
}

impl Rows {
    fn are_whole(&self) -> bool {
        self.shards.len() == self.of.shards
    }

    /// Returns the bytes of the files of executors that keep shards.
    fn bytes(&self) -> u64 {
        let executors = self.executors().into_iter();
        executors
            .filter_map(|executor| self.bytes.get(executor))
            .sum()
    }

    fn executors(&self) -> BTreeSet<&str> {
        let shards = self.shards.values();
        shards.map(|shard| shard.executor.as_str()).collect()
    }
}

impl Prepared {
    /// Forgets rows that a training began to prepare and never will, by `is_over`.
    pub(super) fn sweep(&mut self, is_over: impl Fn(TrainId) -> bool) {
        let unfinished = self.all.iter().filter(|(_, rows)| !rows.are_whole());
        let unfinished = unfinished.filter(|(_, rows)| is_over(rows.of.train));
        for id in unfinished.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Begins to prepare rows.
    pub(super) fn begin(&mut self, of: Preparation, now: SystemTime) -> PreparedId {
        while self.all.len() >= MOST {
            let oldest = self.all.iter().min_by_key(|(_, rows)| rows.used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.remove(oldest);
        }
        let id = PreparedId::generate();
        let rows = Rows {
            of,
            shards: BTreeMap::new(),
            bytes: BTreeMap::new(),
            prepared: now,
            used: now,
            uses: 0,
            readers: VecDeque::new(),
            bound: BTreeSet::new(),
        };
        self.all.insert(id, rows);
        id
    }

    /// Finds an owner's whole rows of a fingerprint. Returns their id, the rows of each shard, and the executors that
    /// keep them.
    pub(super) fn find(&self, fingerprint: &Fingerprint, owner: &str) -> Option<Found<'_>> {
        let mut found = self.all.iter().rev();
        let (id, rows) = found.find(|(_, rows)| {
            let is_same = rows.of.fingerprint == *fingerprint && rows.of.owner == owner;
            is_same && rows.are_whole()
        })?;
        Some(Found {
            id: *id,
            rows: rows.shards.values().map(|shard| shard.rows).collect(),
            executors: rows.executors(),
        })
    }

    /// Records that executors are about to load shards.
    pub(super) fn binds(&mut self, id: PreparedId, executors: &[&str]) {
        if let Some(rows) = self.all.get_mut(&id) {
            let executors = executors.iter().map(|executor| (*executor).to_owned());
            rows.bound.extend(executors);
        }
    }

    /// Records that a training reads rows. Returns when they were prepared.
    pub(super) fn reads(
        &mut self,
        id: PreparedId,
        train: TrainId,
        now: SystemTime,
    ) -> Option<SystemTime> {
        let rows = self.all.get_mut(&id)?;
        rows.used = now;
        rows.uses += 1;
        rows.readers.push_back(train);
        if rows.readers.len() > READERS {
            rows.readers.pop_front();
        }
        Some(rows.prepared)
    }

    /// Records that an executor keeps shards. Whole rows supersede earlier ones of the same fingerprint.
    pub(super) fn keeps(&mut self, id: PreparedId, keeps: Keeps<'_>, now: SystemTime) {
        let Some(rows) = self.all.get_mut(&id) else {
            return;
        };
        let Keeps {
            executor,
            shards,
            bytes,
        } = keeps;
        let was_whole = rows.are_whole();
        for (shard, count) in shards
            .into_iter()
            .filter(|(shard, _)| *shard < rows.of.shards)
        {
            let executor = executor.to_owned();
            let shard = rows.shards.entry(shard).or_insert(Shard {
                executor: executor.clone(),
                rows: count,
            });
            shard.executor = executor;
        }
        rows.bytes.insert(executor.to_owned(), bytes);
        if was_whole || !rows.are_whole() {
            return;
        }
        rows.prepared = now;
        let of = rows.of.clone();
        let same = |(other, rows): &(&PreparedId, &Rows)| {
            let is_same = rows.of.fingerprint == of.fingerprint && rows.of.owner == of.owner;
            **other != id && is_same && rows.are_whole()
        };
        let superseded = self.all.iter().filter(same).map(|(id, _)| *id);
        for id in superseded.collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Returns the shards that each executor keeps.
    pub(super) fn holders(&self, id: PreparedId) -> Vec<(String, Vec<usize>)> {
        let mut holders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, shard) in self.all.get(&id).into_iter().flat_map(|rows| &rows.shards) {
            holders.entry(&shard.executor).or_default().push(*number);
        }
        let owned = |(executor, shards): (&str, _)| (executor.to_owned(), shards);
        holders.into_iter().map(owned).collect()
    }

    /// Forgets what an executor kept, which is gone with it.
    pub(super) fn leaves(&mut self, executor: &str) {
        self.removals.remove(executor);
        let kept = self.all.iter();
        let lost = kept.filter(|(_, rows)| rows.executors().contains(executor));
        for id in lost.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
        for rows in self.all.values_mut() {
            rows.bound.remove(executor);
        }
        self.removals.remove(executor);
    }

    /// Forgets the rows that a training has read: it is run again, because it missed some of them.
    pub(super) fn missed(&mut self, train: TrainId) {
        let read = self.all.iter();
        let read = read.filter(|(_, rows)| rows.readers.contains(&train));
        for id in read.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Drops the rows with an id, or all, of an owner or of anybody, and those that are being prepared. Returns how many
    /// were whole.
    pub(super) fn drop(&mut self, id: Option<PreparedId>, owner: Option<&str>) -> usize {
        let wanted = self.all.iter().filter(|(of, rows)| {
            id.is_none_or(|id| id == **of) && owner.is_none_or(|owner| owner == rows.of.owner)
        });
        let wanted: Vec<_> = wanted.map(|(id, rows)| (*id, rows.are_whole())).collect();
        for (id, _) in &wanted {
            self.remove(*id);
        }
        wanted.iter().filter(|(_, whole)| *whole).count()
    }

    fn remove(&mut self, id: PreparedId) {
        let Some(rows) = self.all.remove(&id) else {
            return;
        };
        for executor in rows.bound {
            self.removals.entry(executor).or_default().insert(id);
        }
    }

    /// Takes the ids whose files an executor is to remove.
    pub(super) fn take_removals(&mut self, executor: &str) -> BTreeSet<PreparedId> {
        self.removals.remove(executor).unwrap_or_default()
    }

    /// Returns the rows of the table, the last used first.
    pub(super) fn rows(&self, owner: Option<&str>) -> Vec<PreparedRows> {
        let all = self.all.iter().filter(|(_, rows)| rows.are_whole());
        let own = all.filter(|(_, rows)| owner.is_none_or(|owner| owner == rows.of.owner));
        let row = |(id, rows): (&PreparedId, &Rows)| PreparedRows {
            prepared_id: id.to_string(),
            model: rows.of.model.to_string(),
            owner: rows.of.owner.clone(),
            rows: rows.shards.values().map(|shard| shard.rows).sum(),
            shards: rows.shards.len() as u64,
            executors: rows.executors().into_iter().map(str::to_owned).collect(),
            bytes: rows.bytes(),
            prepared: millis(rows.prepared),
            used: millis(rows.used),
            uses: rows.uses,
        };
        let mut rows: Vec<_> = own.map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.used));
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn of(fingerprint: u8, owner: &str) -> Preparation {
        Preparation {
            fingerprint: [fingerprint; 32],
            train: TrainId::generate(),
            model: "m".parse().unwrap(),
            owner: owner.to_owned(),
            shards: 3,
        }
    }

    /// Begins rows that executors `a` and `b` keep whole.
    fn whole(prepared: &mut Prepared, of: Preparation, now: u64) -> PreparedId {
        let id = prepared.begin(of, at(now));
        prepared.binds(id, &["a", "b"]);
        keep(prepared, id, "a", &[(0, 10), (2, 30)]);
        assert_eq!(prepared.holders(id), [("a".to_owned(), vec![0, 2])]);
        keep(prepared, id, "b", &[(1, 20)]);
        id
    }

    fn keep(prepared: &mut Prepared, id: PreparedId, executor: &str, shards: &[(usize, u64)]) {
        let keeps = Keeps {
            executor,
            shards: shards.to_vec(),
            bytes: 100,
        };
        prepared.keeps(id, keeps, at(1));
    }

    #[test]
    fn rows_are_found_once_all_shards_are_kept() {
        let mut prepared = Prepared::default();
        let id = prepared.begin(of(1, "o"), at(0));
        keep(&mut prepared, id, "a", &[(0, 1), (1, 1), (7, 1)]);
        assert_eq!(prepared.find(&[1; 32], "o"), None);
        assert!(prepared.rows(None).is_empty());
        let id = whole(&mut prepared, of(1, "o"), 1);
        let found = Found {
            id,
            rows: vec![10, 20, 30],
            executors: BTreeSet::from(["a", "b"]),
        };
        assert_eq!(prepared.find(&[1; 32], "o"), Some(found));
        assert_eq!(prepared.find(&[1; 32], "p"), None, "of another user");
        assert_eq!(prepared.find(&[2; 32], "o"), None);
        let rows = prepared.rows(Some("o"));
        assert_eq!((rows[0].rows, rows[0].bytes, rows[0].uses), (60, 200, 0));
        assert!(prepared.rows(Some("p")).is_empty());
    }

    #[test]
    fn later_rows_supersede_earlier_ones() {
        let mut prepared = Prepared::default();
        let first = whole(&mut prepared, of(1, "o"), 1);
        let other = whole(&mut prepared, of(2, "o"), 2);
        let second = whole(&mut prepared, of(1, "o"), 3);
        assert_eq!(prepared.find(&[1; 32], "o").unwrap().id, second);
        assert_eq!(prepared.find(&[2; 32], "o").unwrap().id, other);
        assert_eq!(prepared.take_removals("a"), BTreeSet::from([first]));
        assert!(prepared.take_removals("a").is_empty(), "told once");
        assert_eq!(prepared.take_removals("b"), BTreeSet::from([first]));
    }

    #[test]
    fn what_is_not_whole_any_more_is_removed_everywhere() {
        let mut prepared = Prepared::default();
        let id = whole(&mut prepared, of(1, "o"), 1);
        prepared.leaves("b");
        assert_eq!(prepared.find(&[1; 32], "o"), None);
        assert_eq!(prepared.take_removals("a"), BTreeSet::from([id]));
        assert!(prepared.take_removals("b").is_empty(), "it is gone");
        let id = whole(&mut prepared, of(1, "o"), 2);
        let (reader, later) = (TrainId::generate(), TrainId::generate());
        assert_eq!(prepared.reads(id, reader, at(9)), Some(at(1)));
        assert_eq!(prepared.reads(id, later, at(9)), Some(at(1)));
        prepared.missed(TrainId::generate());
        assert!(prepared.find(&[1; 32], "o").is_some());
        prepared.missed(reader);
        assert_eq!(prepared.find(&[1; 32], "o"), None);
    }

    #[test]
    fn a_preparation_that_is_over_is_forgotten() {
        let mut prepared = Prepared::default();
        let failed = of(1, "o");
        let train = failed.train;
        let id = prepared.begin(failed, at(0));
        // Whether b has loaded anything is not known.
        prepared.binds(id, &["a", "b"]);
        keep(&mut prepared, id, "a", &[(0, 1)]);
        prepared.sweep(|_| false);
        assert!(prepared.take_removals("a").is_empty());
        prepared.sweep(|over| over == train);
        assert_eq!(prepared.take_removals("a"), BTreeSet::from([id]));
        assert_eq!(prepared.take_removals("b"), BTreeSet::from([id]));
    }

    #[test]
    fn users_drop_their_own() {
        let mut prepared = Prepared::default();
        let own = whole(&mut prepared, of(1, "o"), 1);
        let other = whole(&mut prepared, of(2, "p"), 1);
        assert_eq!(prepared.drop(Some(other), Some("o")), 0);
        assert_eq!(prepared.drop(None, Some("o")), 1);
        assert_eq!(prepared.take_removals("b"), BTreeSet::from([own]));
        assert_eq!(prepared.drop(Some(own), None), 0);
        assert_eq!(prepared.drop(None, None), 1);
    }

    #[test]
    fn the_least_recently_used_are_removed() {
        let mut prepared = Prepared::default();
        let ids: Vec<_> = (0..MOST as u64)
            .map(|number| whole(&mut prepared, of(number as u8, "o"), number))
            .collect();
        prepared.reads(ids[0], TrainId::generate(), at(1000));
        whole(&mut prepared, of(0, "p"), 1001);
        assert!(prepared.all.len() <= MOST);
        assert!(!prepared.all.contains_key(&ids[1]));
    }
}
