//! Prepared rows: folders of encoded shards that outlive their training, for the next one on the same rows.
//!
//! ```text
//!   enter ──► Lease (ranks read and write the folder) ──► dropped: kept, while there is space
//!                                                            │ the least recently used folder goes first
//!                                                            └ or dropped by the scheduler
//! ```
//!
//! The scheduler knows which executor keeps which shards, and is not told when one is removed for space: a training that
//! misses a shard is run again from its query. Folders are within the executor's work folder and go with it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use volley_proto::PreparedId;

/// Prepared rows of the executor; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    folders: Arc<Mutex<Folders>>,
    /// Limit on the bytes of folders that no rank uses.
    space: u64,
}

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
    /// Number of its last use.
    used: u64,
    bytes: u64,
    /// True if it is to be removed once no rank uses it.
    dropped: bool,
}

/// Use of a folder by a rank.
#[derive(Debug)]
pub(super) struct Lease {
    prepared: Prepared,
    id: PreparedId,
    folder: PathBuf,
}

impl Prepared {
    /// Keeps up to `space` bytes of folders that no rank uses.
    pub(crate) fn new(space: u64) -> Self {
        Self {
            folders: Arc::default(),
            space,
        }
    }

    /// Begins the use of a folder, which need not be there yet.
    pub(super) fn enter(&self, id: PreparedId, folder: &Path) -> Lease {
        let kept = &mut self.folders.lock().kept;
        // The work folder is another one after the executor has started over.
        kept.retain(|_, kept| kept.ranks > 0 || kept.folder.exists());
        let entry = kept.entry(id).or_insert_with(|| Kept {
            folder: folder.to_owned(),
            ranks: 0,
            used: 0,
            bytes: 0,
            dropped: false,
        });
        entry.ranks += 1;
        Lease {
            prepared: self.clone(),
            id,
            folder: folder.to_owned(),
        }
    }

    /// Removes a folder, or marks it to be removed once no rank uses it.
    pub(crate) fn forget(&self, id: PreparedId) {
        let kept = &mut self.folders.lock().kept;
        match kept.get_mut(&id) {
            Some(used) if used.ranks > 0 => used.dropped = true,
            Some(_) => remove(kept, id),
            None => {}
        }
    }

    /// Ends a rank's use of a folder, and removes folders until the others fit into the space.
    fn leave(&self, id: PreparedId) {
        let Folders { kept, uses } = &mut *self.folders.lock();
        let Some(left) = kept.get_mut(&id) else {
            return;
        };
        left.ranks -= 1;
        if left.ranks > 0 {
            return;
        }
        *uses += 1;
        left.used = *uses;
        left.bytes = bytes_in(&left.folder).unwrap_or(0);
        if left.dropped {
            return remove(kept, id);
        }
        loop {
            let idle = kept.iter().filter(|(_, kept)| kept.ranks == 0);
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
        self.prepared.leave(self.id);
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
        let id = PreparedId::generate();
        let folder = dir.join(id.to_string());
        let lease = prepared.enter(id, &folder);
        fs::create_dir_all(folder.join("shards")).unwrap();
        fs::write(folder.join("shards/0"), vec![0; bytes]).unwrap();
        let fits = bytes as u64 <= prepared.space;
        assert_eq!(lease.kept_bytes(), fits.then_some(bytes as u64));
        assert!(folder.exists(), "as long as a rank uses it");
        drop(lease);
        (id, folder)
    }

    #[test]
    fn the_least_recently_used_rows_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(100);
        let (first, one) = used(&prepared, dir.path(), 40);
        let (_, two) = used(&prepared, dir.path(), 40);
        drop(prepared.enter(first, &one));
        let (_, three) = used(&prepared, dir.path(), 40);
        assert!(one.exists() && !two.exists() && three.exists());
        let (_, large) = used(&prepared, dir.path(), 101);
        assert!(!large.exists(), "more than there is space for");
        let left = prepared.folders.lock().kept.len();
        assert_eq!(left, 0, "all that was older went before");
    }

    #[test]
    fn dropped_rows_go_once_no_rank_uses_them() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared::new(100);
        let (id, folder) = used(&prepared, dir.path(), 10);
        let (reads, too) = (prepared.enter(id, &folder), prepared.enter(id, &folder));
        prepared.forget(id);
        drop(reads);
        assert!(folder.exists());
        drop(too);
        assert!(!folder.exists());
        let (id, folder) = used(&prepared, dir.path(), 10);
        prepared.forget(id);
        assert!(!folder.exists());
        prepared.forget(id);
        assert!(prepared.folders.lock().kept.is_empty());
    }
}
