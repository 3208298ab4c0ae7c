//! Prepared rows: folders of encoded shards that outlive their training, for the next one on the same rows.
//!
//! ```text
//!   enter ──► Lease (a rank reads and writes the folder) ──► dropped: the next rank of its training enters, or
//!                                                            │ the training is over
//!                                                            ▼
//!                                   kept while there is space: the least recently used folder goes first
//! ```
//!
//! As long as its training goes on, a folder stays whatever its size: the ranks of the next generation need its files. The
//! message that a training has ended may be lost, so a folder without ranks is held for [15 minutes](LEASE) only.
//!
//! The scheduler knows which executor keeps which shards, and is not told when one is removed for space: a training that
//! misses a shard is run again from its query. Folders are within the executor's work folder and go with it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_proto::{PreparedId, TrainId};

/// Time for which a folder without ranks waits for the next ones of its training.
const LEASE: Duration = Duration::from_secs(15 * 60);

/// Prepared rows of the executor; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    folders: Arc<Mutex<Folders>>,
    /// Limit on the bytes of folders that no training uses.
    space: u64,
}

/// All folders.
#[derive(Debug, Default)]
struct Folders {
    kept: BTreeMap<PreparedId, Kept>,
    /// Number of uses that have ended, by which they are ordered.
    uses: u64,
}

/// One folder.
#[derive(Debug)]
struct Kept {
    folder: PathBuf,
    /// Number of ranks that use it.
    ranks: usize,
    /// Trainings whose next ranks may use it, and until when.
    trains: BTreeMap<TrainId, Instant>,
    /// Number of its last use.
    used: u64,
    bytes: u64,
    /// True if it is to be removed once no training uses it.
    dropped: bool,
}

impl Kept {
    fn is_used(&self) -> bool {
        let now = Instant::now();
        self.ranks > 0 || self.trains.values().any(|until| *until > now)
    }
}

/// Use of a folder by a rank.
#[derive(Debug)]
pub(super) struct Lease {
    prepared: Prepared,
    id: PreparedId,
    train: TrainId,
    folder: PathBuf,
}

impl Prepared {
    /// Keeps up to `space` bytes of folders that no training uses.
    pub(crate) fn new(space: u64) -> Self {
        Self {
            folders: Arc::default(),
            space,
        }
    }

    /// Begins the use of a folder, which need not be there yet, by a rank of a training.
    pub(super) fn enter(&self, id: PreparedId, train: TrainId, folder: &Path) -> Lease {
        let kept = &mut self.folders.lock().kept;
        // The work folder is another one after the executor has started over.
        kept.retain(|_, kept| kept.ranks > 0 || kept.folder.exists() || kept.folder == folder);
        let entry = kept.entry(id).or_insert_with(|| Kept {
            folder: folder.to_owned(),
            ranks: 0,
            trains: BTreeMap::new(),
            used: 0,
            bytes: 0,
            dropped: false,
        });
        entry.ranks += 1;
        entry.trains.insert(train, Instant::now() + LEASE);
        Lease {
            prepared: self.clone(),
            id,
            train,
            folder: folder.to_owned(),
        }
    }

    /// Ends the use of folders by a training that is over.
    pub(crate) fn finishes(&self, train: TrainId) {
        let mut folders = self.folders.lock();
        let of_train = folders.kept.iter_mut();
        let ids = of_train.filter_map(|(id, kept)| kept.trains.remove(&train).map(|_| *id));
        for id in ids.collect::<Vec<_>>() {
            self.settle(&mut folders, id);
        }
    }

    /// Removes a folder, or marks it to be removed once no training uses it.
    pub(crate) fn forget(&self, id: PreparedId) {
        let kept = &mut self.folders.lock().kept;
        match kept.get_mut(&id) {
            Some(kept) if kept.is_used() => kept.dropped = true,
            Some(_) => remove(kept, id),
            None => {}
        }
    }

    /// Ends a rank's use of a folder.
    fn leave(&self, id: PreparedId, train: TrainId) {
        let mut folders = self.folders.lock();
        if let Some(left) = folders.kept.get_mut(&id) {
            left.ranks -= 1;
            if let Some(until) = left.trains.get_mut(&train) {
                *until = Instant::now() + LEASE;
            }
        }
        self.settle(&mut folders, id);
    }

    /// Removes folders that no training uses until they fit into the space; this one, if it is dropped or too large.
    fn settle(&self, folders: &mut Folders, id: PreparedId) {
        let Folders { kept, uses } = folders;
        let Some(left) = kept.get_mut(&id).filter(|left| !left.is_used()) else {
            return;
        };
        *uses += 1;
        left.used = *uses;
        left.bytes = bytes_in(&left.folder).unwrap_or(0);
        if left.dropped || left.bytes > self.space {
            return remove(kept, id);
        }
        // Where the end of a training was not told, its folders are idle once their lease is over, and of unknown size.
        let unknown = kept.values_mut();
        for idle in unknown.filter(|idle| idle.bytes == 0 && !idle.is_used()) {
            idle.bytes = bytes_in(&idle.folder).unwrap_or(0);
        }
        loop {
            let idle = kept.iter().filter(|(_, kept)| !kept.is_used());
            let bytes: u64 = idle.clone().map(|(_, kept)| kept.bytes).sum();
            let oldest = idle.min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id);
            match oldest {
                Some(oldest) if bytes > self.space => remove(kept, oldest),
                _ => return,
            }
        }
    }
}

impl Lease {
    /// Returns the bytes of the folder's files; `None` if they are not kept when the rank ends.
    pub(super) fn kept_bytes(&self) -> Option<u64> {
        let bytes = bytes_in(&self.folder).ok()?;
        (bytes > 0 && bytes <= self.prepared.space).then_some(bytes)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.prepared.leave(self.id, self.train);
    }
}

/// Removes a folder with its files.
fn remove(kept: &mut BTreeMap<PreparedId, Kept>, id: PreparedId) {
    let Some(Kept { folder, bytes, .. }) = kept.remove(&id) else {
        return;
    };
    match fs::remove_dir_all(&folder) {
        Ok(()) => tracing::info!(%id, bytes, "prepared rows removed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "prepared rows cannot be removed");
        }
    }
}

/// Returns the bytes of the files in a folder and its subfolders.
fn bytes_in(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_in(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses a folder as a rank that writes a file of this many bytes.
    fn used(prepared: &Prepared, dir: &Path, bytes: usize) -> (PreparedId, PathBuf) {
        let (id, train) = (PreparedId::generate(), TrainId::generate());
        let folder = dir.join(id.to_string());
        let lease = prepared.enter(id, train, &folder);
        fs::create_dir_all(folder.join("shards")).unwrap();
        fs::write(folder.join("shards/0"), vec![0; bytes]).unwrap();
        let fits = bytes as u64 <= prepared.space;
        assert_eq!(lease.kept_bytes(), fits.then_some(bytes as u64));
        drop(lease);
        assert!(folder.exists(), "as long as its training goes on");
        prepared.finishes(train);
        (id, folder)
    }

    #[test]
    fn the_least_recently_used_rows_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(100);
        let (first, one) = used(&prepared, dir.path(), 40);
        let (_, two) = used(&prepared, dir.path(), 40);
        let train = TrainId::generate();
        drop(prepared.enter(first, train, &one));
        prepared.finishes(train);
        let (_, three) = used(&prepared, dir.path(), 40);
        assert!(one.exists() && !two.exists() && three.exists());
        let (_, large) = used(&prepared, dir.path(), 101);
        assert!(!large.exists(), "more than there is space for");
        assert!(one.exists() && three.exists());
        assert_eq!(prepared.folders.lock().kept.len(), 2);
    }

    #[test]
    fn rows_of_a_training_whose_end_was_not_told_make_room_first() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(100);
        let (id, train) = (PreparedId::generate(), TrainId::generate());
        let untold = dir.path().join(id.to_string());
        drop(prepared.enter(id, train, &untold));
        fs::create_dir_all(untold.join("shards")).unwrap();
        fs::write(untold.join("shards/0"), [0; 60]).unwrap();
        let leased = used(&prepared, dir.path(), 60).1;
        assert!(untold.exists() && leased.exists());
        let over = Instant::now();
        let mut folders = prepared.folders.lock();
        folders
            .kept
            .get_mut(&id)
            .unwrap()
            .trains
            .insert(train, over);
        drop(folders);
        let next = used(&prepared, dir.path(), 30).1;
        assert!(!untold.exists() && leased.exists() && next.exists());
    }

    #[test]
    fn dropped_rows_go_once_no_rank_uses_them() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(100);
        let (id, folder) = used(&prepared, dir.path(), 10);
        let [train, other] = [(); 2].map(|()| TrainId::generate());
        let reads = prepared.enter(id, train, &folder);
        let too = prepared.enter(id, other, &folder);
        prepared.forget(id);
        drop(reads);
        prepared.finishes(train);
        assert!(folder.exists());
        prepared.finishes(other);
        assert!(folder.exists(), "its rank has not ended");
        drop(too);
        assert!(!folder.exists());
        let (id, folder) = used(&prepared, dir.path(), 10);
        prepared.forget(id);
        assert!(!folder.exists());
        prepared.forget(id);
        assert!(prepared.folders.lock().kept.is_empty());
    }
}
