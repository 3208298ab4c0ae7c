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
    let known = folder.ancestors().find_map(|folder| statvfs(folder).ok());
    let space = known.map_or("an unknown space is".to_owned(), |known| {
        let free = ByteSize(known.f_bavail.saturating_mul(known.f_frsize));
        format!("{} are", free.display().iec())
    });
    format!("{space} free in {}", folder.display())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::error::ArrowError;
    use datafusion::error::DataFusionError;

    use super::*;

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
