//! Rows of a task of an earlier attempt of its job: in place of being computed, files that are here get a second name, and
//! copies in the job's shuffle store are fetched.
//!
//! ```text
//!   FIRST-ATTEMPT/stage/partition/data-TASK.arrow ──link──► NEXT-ATTEMPT/stage/partition/data-TASK.arrow
//!   STORE/volley-shuffle/JOB/FIRST-ATTEMPT/…      ──fetch─►
//! ```
//!
//! So each attempt's folder has all files of its tasks, and can be removed without the others. A file that is gone is lost
//! data: the job runs again, without it. Not here: which rows are taken, which the scheduler decides.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::QueryStageExecutor;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use volley_engine::object_stores::TransferError;
use volley_engine::{KeptPiece, KeptRows};
use volley_proto::failure::chain;

use super::shuffle_dir::ShuffleFile;
use super::stored::TaskStore;

/// Execution of a task whose rows are kept.
#[derive(Debug, Clone)]
pub(super) struct KeptFiles {
    pub(super) rows: KeptRows,
    /// Store to fetch them from, if they are not here.
    pub(super) store: Option<TaskStore>,
    /// Attempt that takes them.
    pub(super) attempt: JobId,
    pub(super) stage: usize,
    /// Executor's folder.
    pub(super) work_dir: PathBuf,
    /// Id of the executor.
    pub(super) executor: String,
}

/// File that is taken.
#[derive(Debug)]
struct TakenFile {
    partition: u64,
    /// Names of the file and of its index in the earlier attempt, below an executor's folder.
    from: [PathBuf; 2],
    /// Their paths in this one.
    to: [PathBuf; 2],
    /// True if it is nothing without its index.
    has_index: bool,
}

impl KeptFiles {
    /// Returns the files, each once, with their names for another attempt's task.
    ///
    /// # Errors
    /// When one cannot exist; with the partition.
    fn files(&self, task: u64) -> std::result::Result<Vec<TakenFile>, (u64, io::Error)> {
        let before = JobId::from(self.rows.attempt.clone());
        let (mut files, mut taken) = (Vec::new(), HashSet::new());
        for piece in &self.rows.pieces {
            let names = |attempt: &JobId, number| {
                let file = file_of(piece, number);
                let names = file.names(attempt, self.stage);
                names.map_err(|error| (piece.partition, error))
            };
            let from = names(&before, piece.file)?;
            // One file may have several partitions.
            if taken.insert(from[0].clone()) {
                files.push(TakenFile {
                    partition: piece.partition,
                    from,
                    to: names(&self.attempt, task)?.map(|name| self.work_dir.join(name)),
                    has_index: piece.is_sorted,
                });
            }
        }
        Ok(files)
    }

    /// Gives the files names of another attempt's task.
    ///
    /// # Errors
    /// When there is no such file, or none can be made; with the partition.
    fn link(&self, task: u64) -> std::result::Result<(), (u64, io::Error)> {
        for file in self.files(task)? {
            let [data, index] = file.from.each_ref().map(|name| self.work_dir.join(name));
            let [to_data, to_index] = &file.to;
            let link = || {
                make_folder(to_data)?;
                link_or_copy(&data, to_data)?;
                match link_or_copy(&index, to_index) {
                    Err(error) if error.kind() == ErrorKind::NotFound && !file.has_index => Ok(()),
                    linked => linked,
                }
            };
            link().map_err(|error| (file.partition, error))?;
        }
        Ok(())
    }

    /// Fetches the files from a store, under names of another attempt's task.
    ///
    /// # Errors
    /// When one is not there, or cannot be transferred; with the partition.
    async fn fetch(
        &self,
        store: &TaskStore,
        task: u64,
    ) -> std::result::Result<(), (u64, TransferError)> {
        let of_folder = |source| TransferError::File {
            file: self.work_dir.clone(),
            source,
        };
        let files = self.files(task);
        for file in files.map_err(|(partition, error)| (partition, of_folder(error)))? {
            let [data, index] = file.to.each_ref().map(PathBuf::as_path);
            make_folder(data).map_err(|error| (file.partition, of_folder(error)))?;
            let fetched = store.fetch(&file.from, [data, index], file.has_index);
            fetched.await.map_err(|error| (file.partition, error))?;
        }
        Ok(())
    }

    /// Returns the error of rows that are not where they were.
    fn lost(&self, partition: u64, reason: &str) -> DataFusionError {
        let lost = BallistaError::FetchFailed(
            self.executor.clone(),
            self.stage,
            usize::try_from(partition).unwrap_or(usize::MAX),
            format!("rows of attempt {}: {reason}", self.rows.attempt),
        );
        DataFusionError::External(Box::new(lost))
    }
}

fn file_of(piece: &KeptPiece, number: u64) -> ShuffleFile {
    ShuffleFile {
        partition: piece.partition,
        number: Some(number),
        is_sorted: piece.is_sorted,
    }
}

/// Makes the folder of a file.
fn make_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Gives a file a second name, or copies it where the file system has no such names.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => fs::copy(from, to).map(drop),
        linked => linked,
    }
}

impl fmt::Display for KeptFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of attempt {}", self.rows.attempt)
    }
}

#[async_trait]
impl QueryStageExecutor for KeptFiles {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        _: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let file = task_id as u64;
        if let Some(store) = &self.store {
            let fetched = store.transfer(self.fetch(store, file)).await?;
            fetched.map_err(|(partition, error)| match error {
                // This executor's disk is no place where they were.
                error @ TransferError::File { .. } => DataFusionError::External(Box::new(error)),
                error => self.lost(partition, &chain(&error)),
            })?;
        } else {
            let files = self.clone();
            let linked = tokio::task::spawn_blocking(move || files.link(file)).await;
            let linked = linked.map_err(|error| DataFusionError::External(Box::new(error)))?;
            linked.map_err(|(partition, error)| self.lost(partition, &error.to_string()))?;
        }
        let written = self.rows.pieces.iter().map(|piece| ShuffleWritePartition {
            partition_id: piece.partition,
            num_batches: piece.batches,
            num_rows: piece.rows,
            num_bytes: piece.bytes,
            file_id: Some(file),
            is_sort_shuffle: piece.is_sorted,
        });
        Ok(written.collect())
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored;
    use super::*;

    fn piece(partition: u64, file: u64, is_sorted: bool) -> KeptPiece {
        KeptPiece {
            partition,
            file,
            is_sorted,
            batches: 1,
            rows: 2 + partition,
            bytes: 3,
        }
    }

    fn kept(work_dir: &Path, pieces: Vec<KeptPiece>) -> KeptFiles {
        KeptFiles {
            rows: KeptRows {
                attempt: "a".to_owned(),
                pieces,
                store: None,
            },
            store: None,
            attempt: JobId::from("b".to_owned()),
            stage: 1,
            work_dir: work_dir.to_owned(),
            executor: "e-1".to_owned(),
        }
    }

    async fn take(kept: &KeptFiles) -> Result<Vec<ShuffleWritePartition>> {
        kept.execute_query_stage(9, Arc::new(TaskContext::default()))
            .await
    }

    #[tokio::test]
    async fn files_outlive_the_attempt_that_wrote_them() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["1/7/data.arrow", "1/7/data.arrow.index", "1/2/data-8.arrow"] {
            let file = dir.path().join("a").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, file.display().to_string()).unwrap();
        }
        let pieces = vec![piece(0, 7, true), piece(1, 7, true), piece(2, 8, false)];
        let written = take(&kept(dir.path(), pieces)).await.unwrap();
        let rows: Vec<_> = written
            .iter()
            .map(|piece| (piece.partition_id, piece.num_rows, piece.file_id))
            .collect();
        assert_eq!(rows, [(0, 2, Some(9)), (1, 3, Some(9)), (2, 4, Some(9))]);
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        for (file, was) in [
            ("1/9/data.arrow", "1/7/data.arrow"),
            ("1/9/data.arrow.index", "1/7/data.arrow.index"),
            ("1/2/data-9.arrow", "1/2/data-8.arrow"),
        ] {
            let content = fs::read_to_string(dir.path().join("b").join(file)).unwrap();
            assert!(content.ends_with(was), "{content}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_gone_is_lost_data() {
        let dir = tempfile::tempdir().unwrap();
        let error = take(&kept(dir.path(), vec![piece(4, 7, true)])).await;
        let lost = super::super::data_lost(&error.unwrap_err()).unwrap();
        assert_eq!(lost.executor, "e-1");
        assert!(
            lost.reason.contains("partition 4 of stage 1"),
            "{}",
            lost.reason
        );
        assert!(lost.reason.contains("rows of attempt a"), "{}", lost.reason);
    }

    #[tokio::test]
    async fn another_executor_fetches_the_copies() {
        let [writer, shared, taker] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        for file in ["1/7/data.arrow", "1/7/data.arrow.index", "1/2/data-8.arrow"] {
            let path = writer.path().join("a").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, file).unwrap();
        }
        let written = [
            stored::tests::piece(0, 7, true),
            stored::tests::piece(1, 7, true),
            stored::tests::piece(2, 8, false),
        ];
        let copies = stored::tests::copies(writer.path(), shared.path());
        assert!(copies.make(&written).await.unwrap());
        drop(writer);
        let pieces = vec![piece(0, 7, true), piece(1, 7, true), piece(2, 8, false)];
        let fetched = KeptFiles {
            store: Some(stored::tests::store_in(shared.path())),
            ..kept(taker.path(), pieces)
        };
        assert_eq!(take(&fetched).await.unwrap().len(), 3);
        for (file, was) in [
            ("1/9/data.arrow", "1/7/data.arrow"),
            ("1/9/data.arrow.index", "1/7/data.arrow.index"),
            ("1/2/data-9.arrow", "1/2/data-8.arrow"),
        ] {
            let content = fs::read_to_string(taker.path().join("b").join(file)).unwrap();
            assert_eq!(content, was);
        }
        // The job has ended.
        copies.to.store.remove().await.unwrap();
        let error = take(&fetched).await.unwrap_err();
        let lost = super::super::data_lost(&error).unwrap();
        let object = "volley-shuffle/j/a/1/7/data.arrow";
        assert!(lost.reason.contains(object), "{}", lost.reason);
        assert!(lost.reason.contains("rows of attempt a"), "{}", lost.reason);
    }
}
