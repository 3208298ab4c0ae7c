//! Rows of small results, which came with the reports of their tasks.
//!
//! Rows are kept by attempt until they are released. If they take too much memory together, those of the oldest
//! attempts are dropped: first of attempts whose rows a client has. Not here: when rows are released.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ballista_core::serde::protobuf::PartitionLocation;
use parking_lot::Mutex;
use volley_proto::wire::{PartitionRows, TaskRows};

/// Bytes of all rows together.
pub(super) const LIMIT: usize = 64 << 20;
/// Assumed bytes of an attempt, besides its rows.
const ATTEMPT: usize = 1024;

/// Rows by attempt; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct SmallResults {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    attempts: HashMap<String, Rows>,
    /// Attempts by whether no client has their rows, and by number: the first are dropped first.
    order: BTreeMap<(bool, u64), String>,
    next: u64,
    bytes: usize,
}

/// Rows of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    at: (bool, u64),
    /// Rows by partition and task.
    partitions: BTreeMap<(u32, u64), Arc<Vec<u8>>>,
    has_files: bool,
}

impl Rows {
    fn bytes(&self) -> usize {
        let partitions = self.partitions.values();
        ATTEMPT + partitions.map(|rows| rows.len()).sum::<usize>()
    }

    /// Checks whether the attempt may have files in work folders, besides rows of other tasks.
    pub(super) fn have_files(&self) -> bool {
        self.has_files
    }

    /// Checks whether the rows at a place are among these.
    pub(super) fn hold(&self, place: &PartitionLocation) -> bool {
        key(place).is_some_and(|key| self.partitions.contains_key(&key))
    }

    /// Returns those of the rows at these places that are among these.
    pub(super) fn at(&self, places: &[PartitionLocation]) -> Vec<PartitionRows> {
        let held = places.iter().filter_map(|place| {
            let key = key(place)?;
            let rows = self.partitions.get(&key)?;
            Some(PartitionRows {
                partition: key.0,
                rows: rows.to_vec(),
            })
        });
        held.collect()
    }
}

/// Returns the partition and the task of the rows at a place.
fn key(place: &PartitionLocation) -> Option<(u32, u64)> {
    Some((place.partition_id.as_ref()?.partition_id, place.file_id?))
}

impl SmallResults {
    /// Keeps the rows of a task. Returns the attempts whose rows were dropped for them.
    pub(super) fn keep(&self, rows: TaskRows) -> Vec<String> {
        let TaskRows {
            job_id,
            task_id,
            partitions,
            has_files,
        } = rows;
        let mut shared = self.shared.lock();
        let kept = shared.entry(job_id);
        kept.has_files |= has_files;
        let before = kept.bytes();
        for PartitionRows { partition, rows } in partitions {
            kept.partitions.insert((partition, task_id), Arc::new(rows));
        }
        let after = kept.bytes();
        shared.bytes = shared.bytes - before + after;
        let mut dropped = Vec::new();
        while shared.bytes > LIMIT
            && let Some((_, first)) = shared.order.first_key_value()
        {
            let first = first.clone();
            shared.release(&first);
            dropped.push(first);
        }
        dropped
    }

    /// Records that an attempt may have files in work folders.
    pub(super) fn has_files(&self, attempt: &str) {
        self.shared.lock().entry(attempt.to_owned()).has_files = true;
    }

    /// Returns the rows of an attempt, if any are kept.
    pub(super) fn of(&self, attempt: &str) -> Option<Rows> {
        self.shared.lock().attempts.get(attempt).cloned()
    }

    /// Records that a client has the rows of an attempt.
    pub(super) fn handed_out(&self, attempt: &str) {
        let mut shared = self.shared.lock();
        let Shared {
            attempts, order, ..
        } = &mut *shared;
        if let Some(rows) = attempts.get_mut(attempt)
            && let Some(attempt) = order.remove(&rows.at)
        {
            rows.at.0 = false;
            order.insert(rows.at, attempt);
        }
    }

    /// Releases the rows of an attempt, and returns them.
    pub(super) fn release(&self, attempt: &str) -> Option<Rows> {
        self.shared.lock().release(attempt)
    }
}

impl Shared {
    /// Returns the entry of an attempt, which is made if need be.
    fn entry(&mut self, attempt: String) -> &mut Rows {
        self.attempts.entry(attempt).or_insert_with_key(|attempt| {
            let at = (true, self.next);
            self.next += 1;
            self.bytes += ATTEMPT;
            self.order.insert(at, attempt.clone());
            Rows {
                at,
                partitions: BTreeMap::new(),
                has_files: false,
            }
        })
    }

    fn release(&mut self, attempt: &str) -> Option<Rows> {
        let rows = self.attempts.remove(attempt)?;
        self.order.remove(&rows.at);
        self.bytes -= rows.bytes();
        Some(rows)
    }
}

#[cfg(test)]
mod tests {
    use ballista_core::serde::protobuf::PartitionId;

    use super::*;

    fn task(attempt: &str, task_id: u64, bytes: usize) -> TaskRows {
        TaskRows {
            job_id: attempt.to_owned(),
            task_id,
            partitions: vec![PartitionRows {
                partition: 1,
                rows: vec![7; bytes],
            }],
            has_files: false,
        }
    }

    fn place(partition_id: u32, task: u64) -> PartitionLocation {
        PartitionLocation {
            partition_id: Some(PartitionId {
                partition_id,
                ..PartitionId::default()
            }),
            file_id: Some(task),
            ..PartitionLocation::default()
        }
    }

    #[test]
    fn rows_that_a_client_has_are_dropped_first_and_then_the_oldest() {
        let kept = SmallResults::default();
        let quarter = LIMIT / 4 - ATTEMPT;
        for attempt in ["a", "b", "c", "d"] {
            assert!(kept.keep(task(attempt, 0, quarter)).is_empty());
        }
        // Rows that are reported again take no more memory, and may take less.
        assert!(kept.keep(task("a", 0, quarter - 1)).is_empty());
        assert!(kept.keep(task("a", 0, quarter)).is_empty());
        kept.handed_out("c");
        assert_eq!(kept.keep(task("e", 0, 1)), ["c"]);
        assert_eq!(kept.keep(task("f", 0, LIMIT / 2)), ["a", "b"]);
        assert!(kept.of("a").is_none() && kept.of("d").is_some());
        for attempt in ["d", "e", "f", "g"] {
            assert_eq!(kept.release(attempt).is_some(), attempt != "g");
        }
        let shared = kept.shared.lock();
        assert_eq!((shared.bytes, shared.order.len()), (0, 0));
    }

    #[test]
    fn attempts_without_rows_are_bounded() {
        let kept = SmallResults::default();
        for attempt in 0..2 * LIMIT / ATTEMPT {
            kept.keep(task(&attempt.to_string(), 0, 0));
        }
        assert!(kept.shared.lock().attempts.len() <= LIMIT / ATTEMPT);
    }

    #[test]
    fn rows_belong_to_the_task_that_the_engine_counts() {
        let kept = SmallResults::default();
        kept.keep(task("a", 3, 5));
        kept.keep(task("a", 4, 6));
        let rows = kept.of("a").unwrap();
        assert!(rows.hold(&place(1, 3)) && !rows.hold(&place(1, 5)) && !rows.hold(&place(2, 3)));
        let at = rows.at(&[place(0, 3), place(1, 4)]);
        let at: Vec<_> = at.iter().map(|at| (at.partition, at.rows.len())).collect();
        assert_eq!(at, [(1, 6)]);
        assert!(!rows.have_files());
        kept.has_files("a");
        assert!(kept.of("a").unwrap().have_files());
    }
}
