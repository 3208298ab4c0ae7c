//! Rows of a task that an earlier attempt of its job has written here: they get a second name in place of being computed.
//!
//! ```text
//!   FIRST-ATTEMPT/stage/partition/data-TASK.arrow ──link──► NEXT-ATTEMPT/stage/partition/data-TASK.arrow
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
use ballista_core::execution_plans::create_shuffle_path;
use ballista_core::execution_plans::range_shuffle::index_path;
use ballista_core::execution_plans::sort_shuffle::get_index_path;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::QueryStageExecutor;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use volley_engine::{KeptPiece, KeptRows};

/// Execution of a task whose rows are kept.
#[derive(Debug, Clone)]
pub(super) struct KeptFiles {
    pub(super) rows: KeptRows,
    /// Attempt that takes them.
    pub(super) attempt: JobId,
    pub(super) stage: usize,
    /// Executor's folder.
    pub(super) work_dir: PathBuf,
    /// Id of the executor.
    pub(super) executor: String,
}

impl KeptFiles {
    /// Gives the files names of another attempt's task.
    ///
    /// # Errors
    /// When there is no such file, or none can be made; with the partition.
    fn link(&self, task: u64) -> std::result::Result<(), (u64, io::Error)> {
        let mut linked = HashSet::new();
        for piece in &self.rows.pieces {
            let mut link = || {
                let from = self.path(&JobId::from(self.rows.attempt.clone()), piece, piece.file)?;
                let to = self.path(&self.attempt, piece, task)?;
                // One file may have several partitions.
                if !linked.insert(to.clone()) {
                    return Ok(());
                }
                if let Some(folder) = to.parent() {
                    fs::create_dir_all(folder)?;
                }
                link_or_copy(&from, &to)?;
                let index: fn(&Path) -> PathBuf = match piece.is_sorted {
                    true => get_index_path,
                    false => index_path,
                };
                match link_or_copy(&index(&from), &index(&to)) {
                    Err(error) if error.kind() == ErrorKind::NotFound && !piece.is_sorted => Ok(()),
                    linked => linked,
                }
            };
            link().map_err(|error| (piece.partition, error))?;
        }
        Ok(())
    }

    fn path(&self, attempt: &JobId, piece: &KeptPiece, file: u64) -> io::Result<PathBuf> {
        let partition = usize::try_from(piece.partition).map_err(io::Error::other)?;
        let (stage, file) = (self.stage, Some(file));
        let path = create_shuffle_path(
            &self.work_dir,
            attempt,
            stage,
            partition,
            file,
            piece.is_sorted,
        );
        path.map_err(io::Error::other)
    }
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
        let files = self.clone();
        let linked = tokio::task::spawn_blocking(move || files.link(file)).await;
        let linked = linked.map_err(|error| DataFusionError::External(Box::new(error)))?;
        linked.map_err(|(partition, error)| {
            let partition = usize::try_from(partition).unwrap_or(usize::MAX);
            let lost = BallistaError::FetchFailed(
                self.executor.clone(),
                self.stage,
                partition,
                format!("rows of attempt {}: {error}", self.rows.attempt),
            );
            DataFusionError::External(Box::new(lost))
        })?;
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
            },
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
}
