//! A log in a store: numbered segments, each written once by whoever comes first.
//!
//! ```text
//! <URL>/segments/<number, 20 digits>     created by a conditional put: a second writer of a number is told so
//!      /snapshots/<number, 20 digits>    what all segments before that number amount to
//!      /pulse                            replaced every few seconds by the writer, so that others see that it lives
//! ```
//!
//! So a log has one writer at a time without a lock: the one that has written the newest segment, until another writes
//! the next. A snapshot is written before the segments that it replaces are deleted, so that a reader finds either. This
//! module attaches no meaning to the content of segments.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;
use url::Url;

use super::ModelStore;
use super::open::Kind;
use crate::{Error, Result, disk};

const SEGMENTS: &str = "segments";
const SNAPSHOTS: &str = "snapshots";
const PULSE: &str = "pulse";
/// Number of deletions that run concurrently.
const AT_ONCE: usize = 16;

/// Log, by its URL.
#[derive(Clone)]
pub struct Log {
    store: ModelStore,
}

/// Content of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replay {
    /// Newest snapshot.
    pub snapshot: Option<Bytes>,
    /// Segments since the snapshot, in their order.
    pub segments: Vec<Bytes>,
    /// Number of the segment to write next.
    pub next: u64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("url", &self.url().as_str())
            .finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log at a URL, as [`ModelStore::open`] opens a store. Nothing is read or written yet.
    ///
    /// # Errors
    /// When the URL cannot be used.
    pub fn open(url: &Url) -> Result<Self> {
        let store = ModelStore::open(url).map_err(named)?;
        Ok(Self { store })
    }

    /// Returns the URL.
    pub fn url(&self) -> &Url {
        self.store.url()
    }

    /// Returns the folder on this host that holds the log, if one does.
    pub fn folder(&self) -> Option<PathBuf> {
        let is_local = self.store.kind == Kind::Folder;
        is_local.then(|| self.url().to_file_path().ok())?
    }

    /// Reads the newest snapshot and the segments since then.
    ///
    /// # Errors
    /// When the store does not answer, or a segment is missing.
    pub async fn read(&self) -> Result<Replay> {
        // The writer may delete segments after the first list: the snapshot that replaces them is there by then.
        let segments = self.numbers(SEGMENTS).await?;
        let from = self.numbers(SNAPSHOTS).await?.last().copied();
        let snapshot = match from {
            Some(from) => Some(self.get(SNAPSHOTS, from).await?),
            None => None,
        };
        let mut replay = Replay {
            snapshot,
            segments: Vec::new(),
            next: from.unwrap_or(0),
        };
        for number in segments.into_iter().filter(|number| Some(*number) >= from) {
            if number != replay.next {
                let missing = self.path(SEGMENTS, replay.next);
                let reason = format!("{missing} is missing, and later segments are there");
                return Err(Error::malformed("log", reason));
            }
            replay.segments.push(self.get(SEGMENTS, number).await?);
            replay.next += 1;
        }
        Ok(replay)
    }

    /// Writes the segment of a number; it is stored when the call returns. Returns false if another writer has written it,
    /// or has gone on from there.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn append(&self, number: u64, content: &Bytes) -> Result<bool> {
        let path = self.path(SEGMENTS, number);
        let store = &self.store;
        let created = match store.kind {
            Kind::Objects => {
                let created = store.objects.create(&path, content).await;
                created.map_err(|source| named(store.unwritten(&path, source)))?
            }
            Kind::Folder => {
                let (file, bytes) = (store.local(&path).map_err(named)?, content.clone());
                let create = move || {
                    disk::make_folder(disk::folder_of(&file)?)?;
                    disk::create(&file, &bytes)
                };
                let created = store.on_disk(format!("write {path}"), create).await;
                created.map_err(named)?
            }
        };
        // The segment that another writer had there may be gone, but then its snapshot is there.
        Ok(created && !self.is_past(number).await?)
    }

    /// Checks whether a segment of this number would not be read any more.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn is_past(&self, number: u64) -> Result<bool> {
        let snapshots = self.numbers(SNAPSHOTS).await?;
        Ok(snapshots.last().is_some_and(|newest| *newest > number))
    }

    /// Returns the segment of a number, if it is there.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn segment(&self, number: u64) -> Result<Option<Bytes>> {
        let path = self.path(SEGMENTS, number);
        self.store.read_if_there(&path).await.map_err(named)
    }

    /// Writes what the segments before a number amount to, and deletes them and earlier snapshots.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn compact(&self, number: u64, snapshot: Bytes) -> Result<()> {
        let path = self.path(SNAPSHOTS, number);
        self.store.write(&path, snapshot).await.map_err(named)?;
        let mut old = Vec::new();
        for folder in [SEGMENTS, SNAPSHOTS] {
            let numbers = self.numbers(folder).await?.into_iter();
            old.extend(
                numbers
                    .filter(|old| *old < number)
                    .map(|old| self.path(folder, old)),
            );
        }
        let store = &self.store;
        let deletions = old
            .into_iter()
            .map(|path| async move { store.delete(&path).await });
        let deleted = stream::iter(deletions.collect::<Vec<_>>())
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>();
        deleted.await.map_err(named)
    }

    /// Shows others that the writer lives.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn beat(&self, content: &Bytes) -> Result<()> {
        let path = self.store.root.clone().join(PULSE);
        // It need not outlive the host.
        let written = self.store.objects.replace(&path, content).await;
        written.map_err(|source| named(self.store.unwritten(&path, source)))
    }

    /// Returns what the writer showed last.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn pulse(&self) -> Result<Option<Bytes>> {
        let path = self.store.root.clone().join(PULSE);
        self.store.read_if_there(&path).await.map_err(named)
    }

    /// Returns the numbers of a folder's objects, ascending.
    async fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        let path = self.store.root.clone().join(folder);
        let listed = self.store.objects_in(&path).await.map_err(named)?;
        let number = |object: &ObjectMeta| object.location.filename()?.parse().ok();
        let mut numbers: Vec<u64> = listed.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    async fn get(&self, folder: &str, number: u64) -> Result<Bytes> {
        let path = self.path(folder, number);
        self.store.read_path(&path).await.map_err(named)
    }

    fn path(&self, folder: &str, number: u64) -> Path {
        let root = self.store.root.clone().join(folder);
        root.join(format!("{number:020}"))
    }
}

/// Names a log in an error about its files.
fn named(error: Error) -> Error {
    match error {
        Error::Store {
            store,
            action,
            source,
        } => Error::Log {
            url: store,
            action,
            source: Box::new(source),
        },
        Error::StoreUrl { url, reason } => Error::LogUrl { url, reason },
        error => error,
    }
}

/// Returns the URL of a log by a folder or a URL.
///
/// # Errors
/// When it is neither.
pub fn log_url(text: &str) -> Result<Url> {
    match Url::parse(text) {
        Ok(url) => Ok(url),
        Err(_) => ModelStore::directory_url(FilePath::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::failure::chain;

    fn logs() -> [(Log, Scene); 2] {
        Scene::all().map(|scene| {
            let store = scene.store.clone();
            (Log { store }, scene)
        })
    }

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[tokio::test]
    async fn a_number_has_one_writer() {
        for (log, _scene) in logs() {
            assert_eq!(log.read().await.unwrap(), Replay::default());
            assert!(log.append(0, &bytes("a")).await.unwrap());
            assert!(!log.append(0, &bytes("b")).await.unwrap());
            assert!(log.append(1, &bytes("b")).await.unwrap());
            assert_eq!(log.segment(1).await.unwrap(), Some(bytes("b")));
            assert_eq!(log.segment(2).await.unwrap(), None);
            let replay = log.read().await.unwrap();
            assert_eq!(replay.segments, ["a", "b"].map(bytes));
            assert_eq!(replay.next, 2);
        }
    }

    #[tokio::test]
    async fn a_snapshot_takes_the_place_of_segments() {
        for (log, _scene) in logs() {
            for number in 0..5 {
                log.append(number, &bytes("old")).await.unwrap();
            }
            log.compact(3, bytes("three")).await.unwrap();
            log.compact(5, bytes("five")).await.unwrap();
            log.append(5, &bytes("new")).await.unwrap();
            let replay = log.read().await.unwrap();
            assert_eq!(replay.snapshot, Some(bytes("five")));
            assert_eq!((replay.segments, replay.next), (vec![bytes("new")], 6));
            assert_eq!(log.numbers(SEGMENTS).await.unwrap(), [5]);
            assert_eq!(log.numbers(SNAPSHOTS).await.unwrap(), [5]);
        }
    }

    #[tokio::test]
    async fn a_number_that_is_past_is_taken() {
        for (log, _scene) in logs() {
            log.append(0, &bytes("a")).await.unwrap();
            log.append(1, &bytes("of another")).await.unwrap();
            log.compact(2, bytes("two")).await.unwrap();
            assert_eq!(log.segment(1).await.unwrap(), None);
            assert!(log.is_past(1).await.unwrap() && !log.is_past(2).await.unwrap());
            assert!(!log.append(1, &bytes("late")).await.unwrap());
            assert!(log.append(2, &bytes("next")).await.unwrap());
            let replay = log.read().await.unwrap();
            assert_eq!((replay.segments, replay.next), (vec![bytes("next")], 3));
        }
    }

    #[tokio::test]
    async fn a_missing_segment_is_named() {
        for (log, _scene) in logs() {
            for number in 0..3 {
                log.append(number, &bytes("a")).await.unwrap();
            }
            log.store.delete(&log.path(SEGMENTS, 1)).await.unwrap();
            let said = chain(&log.read().await.unwrap_err());
            assert!(said.contains("00000000000000000001"), "{said}");
        }
    }

    #[tokio::test]
    async fn a_pulse_is_the_last_one() {
        for (log, _scene) in logs() {
            assert_eq!(log.pulse().await.unwrap(), None);
            log.beat(&bytes("1")).await.unwrap();
            log.beat(&bytes("2")).await.unwrap();
            assert_eq!(log.pulse().await.unwrap(), Some(bytes("2")));
        }
    }

    #[test]
    fn a_log_is_in_a_folder_or_at_a_url() {
        let at = |text: &str| log_url(text).unwrap().to_string();
        assert_eq!(at("/var/lib/volley"), "file:///var/lib/volley/");
        assert_eq!(at("s3://bucket/record"), "s3://bucket/record");
        let log = Log::open(&log_url("/var/lib/volley").unwrap()).unwrap();
        assert_eq!(log.folder(), Some("/var/lib/volley/".into()));
    }
}
