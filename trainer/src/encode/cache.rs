//! Cache of encoded shards: files that the next rank on this executor reads instead of streaming their rows again.
//!
//! When the membership changes, most shards stay on their executor. In memory they are settled, which depends on all
//! ranks, so they are cached on disk as they were encoded, beside the attempt's shuffle data, and removed with it.
//! Shards that do not fit in the rank's memory are read from the cache in this rank too: they are
//! [spilled](super::spill).
//!
//! ```text
//!   length of the header ─ header: JSON, with the dictionaries ─ columns, one after the other
//! ```
//!
//! The format is private: only the same host reads it, for the same plan. A file that cannot be read is a cache miss.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{Pod, checked};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use volley_proto::spec::SETTLING;

use super::defect::Defect;
use super::dictionary::Dictionary;
use super::shard::{LocalShard, Part};
use super::spill::{self, Storage};
use super::stored::{ColumnReader, ColumnWriter, Stored, malformed};
use crate::Result;

/// Cache of an attempt's encoded shards on one executor: one file per shard in a folder, and a memory budget.
#[derive(Debug, Clone)]
pub struct ShardCache {
    folder: Arc<Path>,
    room: Arc<Mutex<Room>>,
}

/// Memory for a rank's rows, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMemory {
    /// Limit until rows are scaled, before there is a network.
    pub loading: u64,
    /// Limit from then on.
    pub training: u64,
}

impl RowMemory {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        loading: u64::MAX,
        training: u64::MAX,
    };
}

/// Memory that is still free.
#[derive(Debug)]
struct Room {
    left: RowMemory,
    /// Bytes of the largest shard so far.
    largest: u64,
}

/// Header of a file, before the columns.
#[derive(Serialize, Deserialize)]
struct Header<'a> {
    rows: usize,
    continuous: usize,
    labels: usize,
    has_weights: bool,
    weightless: u64,
    has_sequence: bool,
    has_folds: bool,
    dictionaries: Cow<'a, [Dictionary]>,
    classes: Option<Cow<'a, Dictionary>>,
    defects: Cow<'a, [Defect]>,
}

impl ShardCache {
    /// Creates a cache in a folder that is made with the first file; its owner removes it. Shards that do not fit in
    /// `memory` stay in its files.
    pub fn new(folder: impl Into<PathBuf>, memory: RowMemory) -> Self {
        let room = Room {
            left: memory,
            largest: 0,
        };
        Self {
            folder: folder.into().into(),
            room: Arc::new(Mutex::new(room)),
        }
    }

    /// Returns how many shards of the largest size so far may be encoded or settled at once.
    pub(super) fn at_once(&self) -> usize {
        let room = self.room.lock();
        let shards = room.left.loading / (SETTLING * room.largest).max(1);
        usize::try_from(shards).unwrap_or(usize::MAX).max(1)
    }

    /// Decides where a shard's rows are kept: in memory, if that leaves enough to settle one shard after the other.
    fn admit(&self, shard: &LocalShard) -> Storage {
        let mut room = self.room.lock();
        let (loading, training) = (shard.bytes(), shard.settled_bytes());
        room.largest = room.largest.max(loading);
        let working = SETTLING * room.largest;
        let RowMemory {
            loading: left,
            training: later,
        } = room.left;
        if left < loading.saturating_add(working) || later < training {
            return Storage::Files(Arc::clone(&self.folder));
        }
        room.left = RowMemory {
            loading: left - loading,
            training: later - training,
        };
        Storage::Memory
    }

    /// Returns a shard if it is cached.
    pub(super) async fn get(&self, id: usize) -> Option<LocalShard> {
        let (file, cache) = (self.file(id), self.clone());
        let read = move || match read(id, &file, |shard| cache.admit(shard)) {
            Ok(shard) => Some(shard),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let file = file.display();
                tracing::warn!(%file, %error, "a cached shard cannot be read, its rows are streamed again");
                None
            }
        };
        blocking(read).await
    }

    /// Caches a shard, and spills it if it does not fit in memory.
    ///
    /// # Errors
    /// When a shard that must be spilled cannot be written.
    pub(super) async fn put(&self, shard: LocalShard) -> Result<LocalShard> {
        let (file, cache) = (self.file(shard.id), self.clone());
        let put = move || {
            let folder = &*cache.folder;
            let written = fs::create_dir_all(folder).and_then(|()| write(&shard, &file));
            let storage = cache.admit(&shard);
            match (written, storage) {
                (Ok(()), Storage::Memory) => Ok(shard),
                (Ok(()), storage) => {
                    let spilled = read(shard.id, &file, |_| storage);
                    spilled.map_err(|error| spill::failed(folder, error))
                }
                (Err(error), Storage::Memory) => {
                    let file = file.display();
                    tracing::warn!(%file, %error, "a shard is not cached, its rows are streamed again if the membership changes");
                    Ok(shard)
                }
                (Err(error), Storage::Files(_)) => Err(spill::failed(folder, error)),
            }
        };
        blocking(put).await
    }

    fn file(&self, id: usize) -> PathBuf {
        self.folder.join(id.to_string())
    }
}

/// Runs blocking I/O on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down, and drops this future.
            Err(_) => std::future::pending().await,
        },
    }
}

fn write(shard: &LocalShard, path: &Path) -> io::Result<()> {
    // A reader finds the whole file or none; an unfinished file is removed.
    let folder = path.parent().unwrap_or(path);
    let mut file = ColumnWriter::new(NamedTempFile::new_in(folder)?);
    let header = serde_json::to_vec(&Header {
        rows: shard.rows(),
        continuous: shard.continuous.len(),
        labels: shard.labels.len(),
        has_weights: !shard.weights.is_empty(),
        weightless: shard.weightless,
        has_sequence: !shard.sequence.is_empty(),
        has_folds: !shard.folds.is_empty(),
        dictionaries: Cow::Borrowed(&shard.dictionaries),
        classes: shard.classes.as_ref().map(Cow::Borrowed),
        defects: Cow::Borrowed(&shard.defects),
    })?;
    file.bytes(&(header.len() as u64).to_ne_bytes())?;
    file.bytes(&header)?;
    for codes in &shard.codes {
        file.column([&**codes])?;
    }
    for numbers in shard.continuous.iter().chain(&shard.labels) {
        file.column([&**numbers])?;
    }
    file.column([&*shard.weights])?;
    file.column([&*shard.sequence])?;
    file.column([&*shard.folds])?;
    file.column([&*shard.parts])?;
    file.finish()?.persist(path)?;
    Ok(())
}

/// Reads a shard, its columns stored where `admit` decides.
fn read(
    id: usize,
    path: &Path,
    admit: impl FnOnce(&LocalShard) -> Storage,
) -> io::Result<LocalShard> {
    let mut file = ColumnReader::new(&File::open(path)?)?;
    let length = file.bytes(size_of::<u64>())?;
    let length = u64::from_ne_bytes(length.try_into().map_err(|_| malformed())?);
    let length = usize::try_from(length).map_err(|_| malformed())?;
    let Header {
        rows,
        continuous,
        labels,
        has_weights,
        weightless,
        has_sequence,
        has_folds,
        dictionaries,
        classes,
        defects,
    } = serde_json::from_slice(file.bytes(length)?)?;
    let of = |there: bool| if there { rows } else { 0 };
    let mut shard = LocalShard {
        id,
        storage: Storage::Memory,
        codes: columns(&mut file, dictionaries.len(), rows)?,
        continuous: columns(&mut file, continuous, rows)?,
        labels: columns(&mut file, labels, rows)?,
        weights: file.column(of(has_weights))?,
        sequence: file.column(of(has_sequence))?,
        folds: file.column(of(has_folds))?,
        parts: {
            let parts: Stored<u8> = file.column(rows)?;
            let parts: &[Part] = checked::try_cast_slice(&parts).map_err(|_| malformed())?;
            parts.to_vec()
        },
        dictionaries: dictionaries.into_owned(),
        classes: classes.map(Cow::into_owned),
        weightless,
        defects: defects.into_owned(),
    };
    if !file.is_at_end() {
        return Err(malformed());
    }
    shard.storage = admit(&shard);
    if shard.storage == Storage::Memory {
        for numbers in shard.continuous.iter_mut().chain(&mut shard.labels) {
            numbers.to_mut();
        }
        for codes in &mut shard.codes {
            codes.to_mut();
        }
        shard.weights.to_mut();
        shard.sequence.to_mut();
        shard.folds.to_mut();
    }
    Ok(shard)
}

fn columns<T: Pod>(
    file: &mut ColumnReader,
    count: usize,
    rows: usize,
) -> io::Result<Vec<Stored<T>>> {
    (0..count).map(|_| file.column(rows)).collect()
}
