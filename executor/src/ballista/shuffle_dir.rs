//! The folder of an executor's shuffle files: created at registration, removed with it. Tasks and ranks of a registration
//! that is over end a little later, and may write while their folder is removed: so it is removed until it stays away.
//!
//! Ballista owns its content, one folder per job. Every task creates files, and the end of a job removes them, many
//! per second where queries are small. ext4 does not reuse an inode for minutes after it was freed, and searches the
//! inodes of the parent's block group one by one for another: a task's five files and folders took 1.5 ms each. So
//! each job's folder goes to a block group with room, like the folders of the root folder.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballista_core::JobId;
use ballista_core::execution_plans::create_shuffle_path;
use ballista_core::execution_plans::range_shuffle::index_path;
use ballista_core::execution_plans::sort_shuffle::get_index_path;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Pause between two attempts to remove the folder of a registration that is over.
pub(crate) const AGAIN: Duration = Duration::from_secs(2);

/// Number of consecutive attempts that must find no folder.
const STAYS_AWAY: usize = 5;

/// Name prefix of shuffle folders in the work folder.
const PREFIX: &str = "shuffle-";

/// Creates a shuffle folder in the work folder.
pub(super) fn create(work_dir: &Path) -> io::Result<TempDir> {
    let made = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir_in(work_dir)?;
    if let Err(error) = spread(made.path()) {
        // File systems other than ext4 have no block groups, and most report an error.
        tracing::debug!(%error, path = %made.path().display(), "jobs' folders are not spread over block groups");
    }
    Ok(made)
}

/// Removes shuffle folders that crashed executors have left in the work folder.
///
/// # Errors
/// The first one, after all folders were tried.
pub(crate) fn clear(work_dir: &Path) -> io::Result<()> {
    let mut cleared = Ok(());
    for entry in std::fs::read_dir(work_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let removed = std::fs::remove_dir_all(entry.path());
            // It may be removed by others meanwhile.
            let removed = removed.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            });
            cleared = cleared.and(removed);
        }
    }
    cleared
}

/// Removes the folder of a registration that is over, again and again until it stays away: a task may make it anew.
pub(crate) async fn remove_left(folder: PathBuf, pause: Duration) {
    let mut away = 0;
    while away < STAYS_AWAY {
        sleep(pause).await;
        let path = folder.clone();
        match spawn_blocking(move || std::fs::remove_dir_all(path)).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => away += 1,
            Ok(Ok(())) => {
                away = 0;
                tracing::debug!(folder = %folder.display(), "removed what tasks have left");
            }
            Ok(Err(error)) => {
                away = 0;
                tracing::debug!(folder = %folder.display(), %error, "tasks of an earlier registration still write");
            }
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "shuffle files may be left");
                return;
            }
        }
    }
}

/// File with rows of a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShuffleFile {
    /// Partition of the exchange.
    pub(super) partition: u64,
    /// Number of the file.
    pub(super) number: Option<u64>,
    /// True if the file has all partitions of its task. It then has an index; others may have one.
    pub(super) is_sorted: bool,
}

impl ShuffleFile {
    /// Returns the names of the file and of its index, below the folder.
    ///
    /// # Errors
    /// When there can be no such file.
    pub(super) fn names(&self, attempt: &JobId, stage: usize) -> io::Result<[PathBuf; 2]> {
        let partition = usize::try_from(self.partition).map_err(io::Error::other)?;
        let (folder, number, is_sorted) = (Path::new(""), self.number, self.is_sorted);
        let data = create_shuffle_path(folder, attempt, stage, partition, number, is_sorted);
        let data = data.map_err(io::Error::other)?;
        let index = match is_sorted {
            true => get_index_path(&data),
            false => index_path(&data),
        };
        Ok([data, index])
    }
}

impl From<&ShuffleWritePartition> for ShuffleFile {
    fn from(written: &ShuffleWritePartition) -> Self {
        Self {
            partition: written.partition_id,
            number: written.file_id,
            is_sorted: written.is_sort_shuffle,
        }
    }
}

/// Returns the size of the files that a task has written for these partitions, in bytes; `folder` is its stage's.
///
/// A sorted shuffle has all partitions of a task in one file, and Ballista only estimates their sizes.
pub(super) fn written(folder: &Path, partitions: &[ShuffleWritePartition]) -> u64 {
    let sorted = partitions.iter().filter(|found| found.is_sort_shuffle);
    let files: BTreeSet<u64> = sorted.filter_map(|found| found.file_id).collect();
    let size = |file: u64| {
        let file = folder.join(file.to_string()).join("data.arrow");
        std::fs::metadata(file).map_or(0, |found| found.len())
    };
    let in_one = files.into_iter().map(size).sum::<u64>();
    let others = partitions.iter().filter(|found| !found.is_sort_shuffle);
    let own = others.map(|found| found.num_bytes);
    in_one + own.sum::<u64>()
}

/// Tells the file system to place the folders in this one in different block groups.
#[cfg(target_os = "linux")]
fn spread(folder: &Path) -> io::Result<()> {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

    let folder = std::fs::File::open(folder)?;
    let flags = ioctl_getflags(&folder)?;
    ioctl_setflags(&folder, flags | IFlags::TOPDIR)?;
    Ok(())
}

/// Does nothing: other systems have no such attribute.
#[cfg(not(target_os = "linux"))]
fn spread(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashed_executors_folders_are_removed_and_no_others() {
        let work_dir = tempfile::tempdir().unwrap();
        let left = create(work_dir.path()).unwrap().keep();
        std::fs::create_dir_all(left.join("job/1/0")).unwrap();
        std::fs::create_dir(work_dir.path().join("models")).unwrap();
        clear(work_dir.path()).unwrap();
        let names = std::fs::read_dir(work_dir.path()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["models"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_that_tasks_still_write_to_is_removed_once_they_have_ended() {
        let work_dir = tempfile::tempdir().unwrap();
        let made = create(work_dir.path()).unwrap();
        let folder = made.path().to_owned();
        let (ends, must_end) = std::sync::mpsc::channel();
        let (writes, written) = std::sync::mpsc::channel();
        let task = folder.join("job/1/0");
        let writer = std::thread::spawn(move || {
            while must_end.try_recv().is_err() {
                // The folder may be removed between these two.
                let made = std::fs::create_dir_all(&task);
                let file = made.and_then(|()| std::fs::write(task.join("data.arrow"), "rows"));
                writes.send(file.is_ok()).unwrap();
            }
        });
        drop(made);
        let removing = tokio::spawn(remove_left(folder.clone(), Duration::from_millis(40)));
        for _ in 0..100 {
            written.recv().unwrap();
        }
        ends.send(()).unwrap();
        writer.join().unwrap();
        removing.await.unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn what_is_written_is_the_size_of_the_files() {
        let stage = tempfile::tempdir().unwrap();
        std::fs::create_dir(stage.path().join("7")).unwrap();
        std::fs::write(stage.path().join("7/data.arrow"), [0_u8; 100]).unwrap();
        let partition = |is_sort_shuffle, num_bytes| ShuffleWritePartition {
            file_id: Some(7),
            is_sort_shuffle,
            num_bytes,
            ..ShuffleWritePartition::default()
        };
        let of_one_file = [partition(true, 1), partition(true, 2)];
        assert_eq!(written(stage.path(), &of_one_file), 100);
        let of_their_own = [partition(false, 30), partition(false, 40)];
        assert_eq!(written(stage.path(), &of_their_own), 70);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn folders_of_jobs_are_spread_where_the_file_system_can() {
        use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

        let work_dir = tempfile::tempdir().unwrap();
        let made = create(work_dir.path()).unwrap();
        let folder = std::fs::File::open(made.path()).unwrap();
        if let Ok(flags) = ioctl_getflags(&folder)
            && ioctl_setflags(&folder, flags).is_ok()
        {
            assert!(flags.contains(IFlags::TOPDIR), "{flags:?}");
        }
    }
}
