//! Creation of a small file by exactly one process: of several that try, the first has written all of it.
//!
//! The file is written beside its place and linked there by link(2), which replaces nothing; when the call returns, it
//! is on disk, as the files of [`disk`] are. The call blocks. It is for a decision between tasks of a job; [`disk`]
//! writes files that may be replaced.
//! replaced are written by [`disk`].

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use volley_proto::disk;

/// Writes a file into an existing folder, if there is none of its name. Returns whether it did.
pub(super) fn create(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let staged = disk::stage(path, bytes)?;
    let linked = match fs::hard_link(&staged, path) {
        Err(error) if has_no_links(&error) && !path.exists() => fs::rename(&staged, path),
        linked => linked,
    };
    fs::remove_file(&staged).ok();
    match linked {
        Ok(()) => disk::sync_folder(disk::folder_of(path)?).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks whether link(2) failed because the file system has no links. There, two processes that create a file at the
/// same moment may both succeed.
fn has_no_links(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::Unsupported
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_created_once_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert!(create(&dir.path().join("none/file"), b"no folder").is_err());
        assert!(create(&file, b"first").unwrap());
        assert!(!create(&file, b"second").unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"first");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
