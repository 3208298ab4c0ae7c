//! Errors of disks, with the executor, the folders that its task writes, and the space that is free there.
//!
//! Spilled rows, shuffle files, results and tables are written by libraries whose errors say only that there is no space.
//!
//! Not here: other errors about files.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ballista_core::error::BallistaError;
use bytesize::ByteSize;
use rustix::fs::statvfs;
use volley_proto::failure::chain;

/// Errors of a disk, rather than of a path.
const OF_DISKS: [ErrorKind; 4] = [
    ErrorKind::StorageFull,
    ErrorKind::QuotaExceeded,
    ErrorKind::FileTooLarge,
    ErrorKind::ReadOnlyFilesystem,
];

/// Free space below which a disk has little, unless it is a small one.
const LITTLE: u64 = 1 << 30;

/// Folders that a task of an executor writes.
#[derive(Debug)]
pub(super) struct Disks {
    pub(super) executor: String,
    /// The executor's work folder.
    pub(super) work_dir: PathBuf,
    /// Files and folders on this host that the task's plan writes.
    pub(super) targets: Vec<PathBuf>,
}

impl Disks {
    /// Returns an error of a disk with what is known of the disks; `None` for other errors.
    pub(super) fn describe(&self, error: &(dyn Error + 'static)) -> Option<DiskError> {
        let folders = [&self.work_dir].into_iter().chain(&self.targets);
        is_of_disk(error).then(|| DiskError {
            executor: self.executor.clone(),
            reason: chain(error),
            free: folders.map(|folder| free(folder)).collect(),
        })
    }
}

/// Failure of an executor's disk.
#[derive(Debug)]
pub(super) struct DiskError {
    executor: String,
    reason: String,
    /// Free space of each folder, in words.
    free: Vec<String>,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            executor,
            reason,
            free,
        } = self;
        write!(
            f,
            "executor {executor} cannot write: {reason}; {}",
            free.join(", ")
        )
    }
}

impl Error for DiskError {}

/// Checks whether an error has a disk's error among its causes, or in its text where Ballista keeps no cause.
fn is_of_disk(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        let inner = error.get_ref();
        return OF_DISKS.contains(&error.kind()) || inner.is_some_and(|inner| is_of_disk(inner));
    }
    if let Some(BallistaError::IoError(error)) = error.downcast_ref() {
        return is_of_disk(error);
    }
    match error.source() {
        Some(cause) => is_of_disk(cause),
        None => {
            let said = error.to_string();
            let mut kinds = OF_DISKS.iter();
            kinds.any(|kind| said.contains(&format!("kind: {kind:?}")))
        }
    }
}

/// Describes the free space of a folder, which may not exist yet.
fn free(folder: &Path) -> String {
    let known = folder.ancestors().find_map(Space::of);
    let space = known.map_or("an unknown space is".to_owned(), |known| {
        format!("{} are", ByteSize(known.free).display().iec())
    });
    format!("{space} free in {}", folder.display())
}

/// Space of the disk of a folder, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    /// Space that this process may use.
    pub(crate) free: u64,
    /// Size of the disk.
    pub(crate) size: u64,
}

impl Space {
    /// Returns the space of an existing folder's disk, where the system tells it.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let disk = statvfs(folder).ok()?;
        Some(Self {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            size: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    }

    /// Checks whether so little is free that queries are likely to fill the disk.
    fn is_little(self) -> bool {
        self.free < LITTLE.min(self.size / 2) || self.free < self.size / 100
    }
}

/// Warns if the disk of the work folder has little space: an executor with a full disk fails the queries that reach it.
pub(crate) fn warn_of_little_space(work_dir: &Path) {
    if Space::of(work_dir).is_some_and(Space::is_little) {
        tracing::warn!(
            "only {}: tasks that shuffle, spill or keep rows there fail once the disk is full",
            free(work_dir)
        );
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::error::ArrowError;
    use datafusion::error::DataFusionError;

    use super::*;

    #[test]
    fn little_space_is_under_a_gibibyte_or_a_hundredth() {
        let is_little = |free, size| Space { free, size }.is_little();
        let gib = 1 << 30;
        assert!(is_little(0, 100 * gib) && is_little(gib - 1, 50 * gib));
        assert!(is_little(9 * gib, 1000 * gib) && !is_little(11 * gib, 1000 * gib));
        assert!(!is_little(gib, 50 * gib));
        let (small, mib) = (64 << 20, 1 << 20);
        assert!(!is_little(small, small), "an empty small disk");
        assert!(is_little(10 * mib, small) && is_little(0, small));
    }

    #[test]
    fn an_error_of_a_disk_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks {
            executor: "e-1".into(),
            work_dir: folder.path().to_owned(),
            targets: vec![folder.path().join("out/of/it")],
        };
        let full = || io::Error::from_raw_os_error(nix::libc::ENOSPC);
        let spilled = DataFusionError::from(ArrowError::IoError("spill".into(), full()));
        let store = datafusion::object_store::Error::Generic {
            store: "LocalFileSystem",
            source: Box::new(io::Error::other(full())),
        };
        for error in [
            spilled.context("while writing"),
            DataFusionError::from(full()),
            DataFusionError::from(store),
            BallistaError::IoError(full()).into_datafusion(),
            DataFusionError::Execution(format!("{:?}", BallistaError::IoError(full()))),
        ] {
            let said = disks.describe(&error).map(|error| error.to_string());
            let said = said.unwrap_or_else(|| panic!("{error:?}"));
            let named = ["e-1", "No space left", "free in", "out/of/it"];
            assert!(named.iter().all(|name| said.contains(name)), "{said}");
        }
        let other = DataFusionError::from(io::Error::from(ErrorKind::NotFound));
        assert!(disks.describe(&other).is_none());
    }
}
