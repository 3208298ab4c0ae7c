//! The cache of encoded shards: files that the next rank here reads instead of streaming their rows again.
//!
//! When the membership changes, most shards stay on their executor. Memory holds them settled, which depends on all ranks,
//! so they are cached on disk as they were encoded, beside the attempt's shuffle data, and removed with it.
//!
//! ```text
//!   length of the header ─ header: JSON, with the dictionaries ─ columns, as they lie in memory, one after the other
//! ```
//!
//! It is no format for others: the same host reads it, for the same plan. A file that cannot be read is a cache miss.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytemuck::{AnyBitPattern, NoUninit, checked};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::defect::Defect;
use super::dictionary::Dictionary;
use super::shard::{LocalShard, Part};

/// The cache of an attempt's encoded shards on one executor: a file each in a folder.
#[derive(Debug, Clone)]
pub struct ShardCache {
    path: PathBuf,
}

/// What a file says before the columns.
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
    /// In a folder that is made with the first file. Its owner removes it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path }
    }

    /// A shard, if it is cached.
    pub(super) async fn get(&self, id: usize) -> Option<LocalShard> {
        let file = self.file(id);
        let read = move || match read(id, &file) {
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

    /// Caches a shard, as far as there is room.
    pub(super) async fn put(&self, shard: LocalShard) -> LocalShard {
        let (folder, file) = (self.path.clone(), self.file(shard.id));
        let put = move || {
            if let Err(error) = fs::create_dir_all(&folder).and_then(|()| write(&shard, &file)) {
                let file = file.display();
                tracing::warn!(%file, %error, "a shard is not cached, its rows are streamed again if the membership changes");
            }
            shard
        };
        blocking(put).await
    }

    fn file(&self, id: usize) -> PathBuf {
        self.path.join(id.to_string())
    }
}

/// Runs blocking I/O on a thread for it.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn write(shard: &LocalShard, file: &Path) -> io::Result<()> {
    // A reader finds all of it or none, and an unfinished one is removed.
    let folder = file.parent().unwrap_or(file);
    let mut out = BufWriter::new(NamedTempFile::new_in(folder)?);
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
    out.write_all(&(header.len() as u64).to_ne_bytes())?;
    out.write_all(&header)?;
    for codes in &shard.codes {
        out.write_all(bytes(codes))?;
    }
    for numbers in shard.continuous.iter().chain(&shard.labels) {
        out.write_all(bytes(numbers))?;
    }
    out.write_all(bytes(&shard.weights))?;
    out.write_all(bytes(&shard.sequence))?;
    out.write_all(&shard.folds)?;
    out.write_all(bytes(&shard.parts))?;
    out.into_inner()?.persist(file)?;
    Ok(())
}

fn bytes<T: NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn read(id: usize, file: &Path) -> io::Result<LocalShard> {
    let mut from = BufReader::new(File::open(file)?);
    let mut length = [0; size_of::<u64>()];
    from.read_exact(&mut length)?;
    let mut header = Vec::new();
    let length = u64::from_ne_bytes(length);
    from.by_ref().take(length).read_to_end(&mut header)?;
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
    } = serde_json::from_slice(&header)?;
    let of = |there: bool| if there { rows } else { 0 };
    let codes = columns(&mut from, dictionaries.len(), rows)?;
    let continuous = columns(&mut from, continuous, rows)?;
    let labels = columns(&mut from, labels, rows)?;
    let weights = column(&mut from, of(has_weights))?;
    let sequence = column(&mut from, of(has_sequence))?;
    let folds = column(&mut from, of(has_folds))?;
    let parts: Vec<u8> = column(&mut from, rows)?;
    let parts: &[Part] = checked::try_cast_slice(&parts).map_err(|_| malformed())?;
    if from.read(&mut [0])? > 0 {
        return Err(malformed());
    }
    Ok(LocalShard {
        id,
        dictionaries: dictionaries.into_owned(),
        codes,
        continuous,
        classes: classes.map(Cow::into_owned),
        labels,
        weights,
        weightless,
        parts: parts.to_vec(),
        sequence,
        folds,
        defects: defects.into_owned(),
    })
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not as it was written")
}

fn columns<T: NoUninit + AnyBitPattern>(
    from: &mut impl Read,
    count: usize,
    rows: usize,
) -> io::Result<Vec<Vec<T>>> {
    (0..count).map(|_| column(from, rows)).collect()
}

fn column<T: NoUninit + AnyBitPattern>(from: &mut impl Read, rows: usize) -> io::Result<Vec<T>> {
    let mut values = vec![T::zeroed(); rows];
    from.read_exact(bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}
