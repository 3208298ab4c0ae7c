//! Copies of shuffle files in a job's shuffle store: a task makes them before it is reported as successful, and a task of a
//! later attempt fetches them in place of computing.
//!
//! The tasks that transfer files at once are limited, and with them the memory that this takes. A copy that cannot be made
//! fails nothing: the rows are on the executor alone, and the log says so. The next tasks then do not wait for the same
//! store in vain. Not here: how a file is transferred, which is [`ShuffleStore`]'s, and who removes the copies, which is
//! the scheduler.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::JobId;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use datafusion::error::Result;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use volley_engine::object_stores::{ShuffleStore, TransferError};
use volley_proto::failure::chain;

use super::shuffle_dir::ShuffleFile;
use super::tasks::Running;

/// Number of tasks of an executor that transfer files at once; each has two parts of 8 MiB in memory at most.
const TRANSFERS: usize = 4;
/// Time for which nothing is copied to a store that has failed.
const PAUSE: Duration = Duration::from_secs(60);

/// Transfers of an executor's tasks.
#[derive(Debug)]
pub(super) struct Transfers {
    permits: Semaphore,
    /// Stores that have failed within the pause, by URL.
    failed: Mutex<HashMap<String, Instant>>,
}

/// Shuffle store, as a task uses it.
#[derive(Debug, Clone)]
pub(super) struct TaskStore {
    pub(super) store: ShuffleStore,
    pub(super) transfers: Arc<Transfers>,
    pub(super) running: Running,
}

/// Copies of a task's files.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) to: TaskStore,
    pub(super) attempt: JobId,
    pub(super) stage: usize,
    /// Executor's folder.
    pub(super) work_dir: PathBuf,
    /// Id of the executor.
    pub(super) executor: String,
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(TRANSFERS),
            failed: Mutex::default(),
        }
    }
}

impl Transfers {
    fn fails(&self, store: &ShuffleStore) {
        let mut failed = self.failed.lock();
        failed.retain(|_, since| since.elapsed() < PAUSE);
        failed.insert(store.url().to_string(), Instant::now());
    }

    /// Checks whether a store has failed within the pause.
    fn has_failed(&self, store: &ShuffleStore) -> bool {
        let failed = self.failed.lock();
        let since = failed.get(store.url().as_str());
        since.is_some_and(|since| since.elapsed() < PAUSE)
    }
}

impl TaskStore {
    /// Transfers files in turn with other tasks.
    ///
    /// # Errors
    /// When the task is to stop.
    pub(super) async fn transfer<T>(&self, files: impl Future<Output = T>) -> Result<T> {
        let transfer = async {
            // Nobody closes it.
            let _permit = self.transfers.permits.acquire().await;
            files.await
        };
        tokio::select! {
            biased;
            () = self.running.cancel().cancelled() => Err(self.running.stopped()),
            done = transfer => Ok(done),
        }
    }

    /// Fetches a file of another attempt, and its index, under other names.
    ///
    /// # Errors
    /// When the file or its index is not in the store, or cannot be transferred.
    pub(super) async fn fetch(
        &self,
        [data, index]: &[PathBuf; 2],
        [to_data, to_index]: [&Path; 2],
        has_index: bool,
    ) -> Result<(), TransferError> {
        self.store.download(data, to_data).await?;
        match self.store.download(index, to_index).await {
            Err(error) if error.is_missing() && !has_index => Ok(()),
            fetched => fetched,
        }
    }
}

impl Copies {
    /// Copies the files that the task has written. Returns whether all are in the store.
    ///
    /// # Errors
    /// When the task is to stop.
    pub(super) async fn make(&self, written: &[ShuffleWritePartition]) -> Result<bool> {
        let TaskStore {
            store, transfers, ..
        } = &self.to;
        let copied = async {
            match transfers.has_failed(store) {
                true => Ok(false),
                false => self.upload(written).await.map(|()| true),
            }
        };
        let error = match self.to.transfer(copied).await? {
            Ok(copied) => return Ok(copied),
            Err(error) => error,
        };
        if let TransferError::Object { .. } = error {
            transfers.fails(store);
        }
        tracing::warn!(
            executor = self.executor,
            stage = self.stage,
            error = chain(&error),
            "a task's rows are on its executor alone"
        );
        Ok(false)
    }

    async fn upload(&self, written: &[ShuffleWritePartition]) -> Result<(), TransferError> {
        let mut copied = HashSet::new();
        for piece in written {
            let file = ShuffleFile::from(piece);
            let names = file.names(&self.attempt, self.stage);
            let [data, index] = names.map_err(|source| TransferError::File {
                file: self.work_dir.clone(),
                source,
            })?;
            // One file may have several partitions.
            if copied.contains(&data) {
                continue;
            }
            self.copy(&data).await?;
            match self.copy(&index).await {
                Err(error) if error.is_missing() && !file.is_sorted => {}
                done => done?,
            }
            copied.insert(data);
        }
        Ok(())
    }

    async fn copy(&self, name: &Path) -> Result<(), TransferError> {
        self.to.store.upload(&self.work_dir.join(name), name).await
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use volley_engine::object_stores::Stores;
    use volley_engine::settings::shuffle_store;

    use super::super::tasks::running;
    use super::*;

    /// Returns the store of job `j` in a folder.
    pub(in super::super) fn store_in(folder: &Path) -> TaskStore {
        let url = shuffle_store(&format!("file://{}", folder.display()));
        TaskStore {
            store: ShuffleStore::new(&Stores::default(), &url.unwrap().unwrap(), "j"),
            transfers: Arc::default(),
            running: running(),
        }
    }

    /// Returns the copies of a task of stage 1 of attempt `a`.
    pub(in super::super) fn copies(work_dir: &Path, folder: &Path) -> Copies {
        Copies {
            to: store_in(folder),
            attempt: JobId::from("a".to_owned()),
            stage: 1,
            work_dir: work_dir.to_owned(),
            executor: "e-1".to_owned(),
        }
    }

    /// Returns a piece as its task reports it.
    pub(in super::super) fn piece(
        partition_id: u64,
        file: u64,
        is_sorted: bool,
    ) -> ShuffleWritePartition {
        ShuffleWritePartition {
            partition_id,
            file_id: Some(file),
            is_sort_shuffle: is_sorted,
            ..ShuffleWritePartition::default()
        }
    }

    /// Returns the names of the files below a folder.
    fn files(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            match path.is_dir() {
                true => found.extend(
                    files(&path)
                        .into_iter()
                        .map(|file| format!("{name}/{file}")),
                ),
                false => found.push(name),
            }
        }
        found.sort();
        found
    }

    #[tokio::test]
    async fn a_task_copies_each_of_its_files_once() {
        let (work_dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let written = ["1/2/data-8.arrow", "1/7/data.arrow", "1/7/data.arrow.index"];
        for file in written {
            let file = work_dir.path().join("a").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, file.display().to_string()).unwrap();
        }
        let copies = copies(work_dir.path(), shared.path());
        let pieces = [piece(0, 7, true), piece(1, 7, true), piece(2, 8, false)];
        assert!(copies.make(&pieces).await.unwrap());
        let of_job = shared.path().join("volley-shuffle/j/a");
        assert_eq!(files(&of_job), written);
        assert!(
            copies.make(&[]).await.unwrap(),
            "a task without rows has all"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_copied_fails_nothing() {
        let (work_dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let copies = copies(work_dir.path(), shared.path());
        assert!(
            !copies.make(&[piece(0, 7, true)]).await.unwrap(),
            "it is not there"
        );
        // A sorted file is not whole without its index.
        fs::create_dir_all(work_dir.path().join("a/1/7")).unwrap();
        fs::write(work_dir.path().join("a/1/7/data.arrow"), "rows").unwrap();
        assert!(!copies.make(&[piece(0, 7, true)]).await.unwrap());
        fs::write(shared.path().join("none"), "").unwrap();
        let nowhere = self::copies(work_dir.path(), &shared.path().join("none"));
        fs::write(work_dir.path().join("a/1/7/data.arrow.index"), "index").unwrap();
        assert!(!nowhere.make(&[piece(0, 7, true)]).await.unwrap());
        // Other tasks do not wait for it, and another store is no worse for it.
        fs::remove_file(shared.path().join("none")).unwrap();
        assert!(!nowhere.make(&[piece(0, 7, true)]).await.unwrap());
        let elsewhere = Copies {
            to: TaskStore {
                transfers: Arc::clone(&nowhere.to.transfers),
                ..copies.to.clone()
            },
            ..copies
        };
        assert!(elsewhere.make(&[piece(0, 7, true)]).await.unwrap());
    }

    #[tokio::test]
    async fn a_task_that_is_to_stop_copies_nothing() {
        let (work_dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let copies = copies(work_dir.path(), shared.path());
        copies.to.running.cancel().cancel();
        assert!(copies.make(&[piece(0, 7, true)]).await.is_err());
    }
}
