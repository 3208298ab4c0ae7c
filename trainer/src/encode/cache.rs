//! Cache of encoded shards: files that the next rank on this executor reads instead of streaming their rows again.
//!
//! When the membership changes, most shards stay on their executor. In memory they are settled, which depends on all
//! ranks, so they are cached on disk as they were encoded, beside the attempt's shuffle data, and removed with it.
//! This rank too reads them from there, once, when it settles them: until then its memory holds only those that are
//! being encoded. Settled rows that do not fit in its memory are [spilled](super::spill).
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
    shape: Shape,
    weightless: u64,
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

    /// Decides where a shard's settled rows are kept: in memory, if that leaves enough to settle one shard after the other.
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
        let read = move || match read(id, &file) {
            Ok(mut shard) => {
                shard.storage = cache.admit(&shard);
                Some(shard)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let file = file.display();
                tracing::warn!(%file, %error, "a cached shard cannot be read, its rows are streamed again");
                None
            }
        };
        blocking(read).await
    }

    /// Caches a shard and returns it with its columns in its file; on the heap if it cannot be cached.
    ///
    /// # Errors
    /// When a shard that must be spilled cannot be cached.
    pub(super) async fn put(&self, mut shard: LocalShard) -> Result<LocalShard> {
        let (file, cache) = (self.file(shard.id), self.clone());
        let put = move || {
            let folder = &*cache.folder;
            shard.storage = cache.admit(&shard);
            let written = fs::create_dir_all(folder)
                .and_then(|()| write(&shard, &file))
                .and_then(|()| open(&file))
                .and_then(|(header, mut file)| {
                    file.bytes(header)?;
                    Mapped::read(&mut file, &Shape::of(&shard))
                });
            match written {
                Ok(columns) => Ok(LocalShard {
                    codes: columns.codes,
                    continuous: columns.continuous,
                    labels: columns.labels,
                    weights: columns.weights,
                    sequence: columns.sequence,
                    folds: columns.folds,
                    ..shard
                }),
                Err(error) if shard.storage == Storage::Memory => {
                    let file = file.display();
                    tracing::warn!(%file, %error, "a shard is not cached, its rows are streamed again if the membership changes");
                    Ok(shard)
                }
                Err(error) => Err(spill::failed(folder, error)),
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

/// Numbers and lengths of a shard's columns.
#[derive(Debug, Serialize, Deserialize)]
struct Shape {
    rows: usize,
    codes: usize,
    continuous: usize,
    labels: usize,
    has_weights: bool,
    has_sequence: bool,
    has_folds: bool,
}

impl Shape {
    fn of(shard: &LocalShard) -> Self {
        Self {
            rows: shard.rows(),
            codes: shard.codes.len(),
            continuous: shard.continuous.len(),
            labels: shard.labels.len(),
            has_weights: !shard.weights.is_empty(),
            has_sequence: !shard.sequence.is_empty(),
            has_folds: !shard.folds.is_empty(),
        }
    }
}

/// Columns in a shard's file, in their order there.
#[derive(Debug)]
struct Mapped {
    codes: Vec<Stored<u32>>,
    continuous: Vec<Stored<f64>>,
    labels: Vec<Stored<f64>>,
    weights: Stored<f32>,
    sequence: Stored<u64>,
    folds: Stored<u8>,
    parts: Stored<u8>,
}

impl Mapped {
    /// Maps the columns of a file after its header.
    fn read(file: &mut ColumnReader, shape: &Shape) -> io::Result<Self> {
        let rows = shape.rows;
        let of = |there: bool| if there { rows } else { 0 };
        let columns = Self {
            codes: columns(file, shape.codes, rows)?,
            continuous: columns(file, shape.continuous, rows)?,
            labels: columns(file, shape.labels, rows)?,
            weights: file.column(of(shape.has_weights))?,
            sequence: file.column(of(shape.has_sequence))?,
            folds: file.column(of(shape.has_folds))?,
            parts: file.column(rows)?,
        };
        match file.is_at_end() {
            true => Ok(columns),
            false => Err(malformed()),
        }
    }
}

fn columns<T: Pod>(
    file: &mut ColumnReader,
    count: usize,
    rows: usize,
) -> io::Result<Vec<Stored<T>>> {
    (0..count).map(|_| file.column(rows)).collect()
}

fn write(shard: &LocalShard, path: &Path) -> io::Result<()> {
    // A reader finds the whole file or none; an unfinished file is removed.
    let folder = path.parent().unwrap_or(path);
    let mut file = ColumnWriter::new(NamedTempFile::new_in(folder)?);
    let header = serde_json::to_vec(&Header {
        shape: Shape::of(shard),
        weightless: shard.weightless,
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

/// Opens a shard's file, and returns the length of its header, which is read next.
fn open(path: &Path) -> io::Result<(usize, ColumnReader)> {
    let mut file = ColumnReader::new(&File::open(path)?)?;
    let length = file.bytes(size_of::<u64>())?;
    let length = u64::from_ne_bytes(length.try_into().map_err(|_| malformed())?);
    let length = usize::try_from(length).map_err(|_| malformed())?;
    Ok((length, file))
}

/// Reads a shard, with its columns in its file.
fn read(id: usize, path: &Path) -> io::Result<LocalShard> {
    let (header, mut file) = open(path)?;
    let Header {
        shape,
        weightless,
        dictionaries,
        classes,
        defects,
    } = serde_json::from_slice(file.bytes(header)?)?;
    if shape.codes != dictionaries.len() {
        return Err(malformed());
    }
    let Mapped {
        codes,
        continuous,
        labels,
        weights,
        sequence,
        folds,
        parts,
    } = Mapped::read(&mut file, &shape)?;
    let parts: &[Part] = checked::try_cast_slice(&parts).map_err(|_| malformed())?;
    Ok(LocalShard {
        id,
        storage: Storage::Memory,
        parts: parts.to_vec(),
        dictionaries: dictionaries.into_owned(),
        codes,
        continuous,
        classes: classes.map(Cow::into_owned),
        labels,
        weights,
        weightless,
        sequence,
        folds,
        defects: defects.into_owned(),
    })
}
