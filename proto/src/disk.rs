//! Durable writes of small files: a file is on disk when the call returns.
//!
//! A file is written beside its path, synced, and moved there by rename(2), so that a reader sees it whole or not at
//! all; then its folder is synced, and so is the parent of each new folder. This relies on a file system whose rename
//! is atomic and whose fsync(2) returns once the data is on disk. Calls block, and are not for files that do not fit in
//! memory.
//!
//! A file that is missing is told with a similar one of its folder.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::{Error, did_you_mean};

/// Writes a file into an existing folder, replacing the file of that name.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let staged = stage(path, bytes)?;
    if let Err(error) = fs::rename(&staged, path) {
        fs::remove_file(&staged).ok(); // harmless: listings skip its name
        return Err(error);
    }
    sync_folder(folder_of(path)?)
}

/// Writes a file into an existing folder, unless one of that name is there. Returns whether it did.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let staged = stage(path, bytes)?;
    let linked = fs::hard_link(&staged, path);
    fs::remove_file(&staged).ok(); // harmless: listings skip its name
    match linked {
        Ok(()) => sync_folder(folder_of(path)?).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a folder, unless the target is a folder that is not empty. Returns whether it did.
pub fn move_folder(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => {
            sync_folder(folder_of(to)?)?;
            sync_folder(folder_of(from)?).map(|()| true)
        }
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Number of files in a folder that are compared with one that is not there.
const NEARBY: usize = 10_000;

/// Says where a file is missing: its folder, and a file of a similar name there.
pub fn missing(file: &Path) -> String {
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    // The outermost part that is not there.
    let gone = path.ancestors().take_while(|part| !part.exists()).last();
    let gone = gone.unwrap_or(&path);
    let (Some(folder), Some(name)) = (gone.parent(), gone.file_name()) else {
        return "no such file".to_owned();
    };
    match similar_in(folder, name) {
        Ok(similar) if gone == path => format!("no such file in {}{similar}", folder.display()),
        Ok(similar) => format!("there is no folder {}{similar}", gone.display()),
        Err(error) => format!("no such file: {}: {error}", folder.display()),
    }
}

/// Returns `; did you mean "…"?` for the file in a folder with the most similar name, or nothing when none is similar.
///
/// # Errors
/// When the folder cannot be listed.
pub fn similar_in(folder: &Path, name: &OsStr) -> io::Result<String> {
    let entries = fs::read_dir(folder)?.take(NEARBY).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<_> = names.collect();
    let similar = did_you_mean(&name.to_string_lossy(), names.iter().map(String::as_str));
    Ok(similar)
}

/// Makes a folder and its parents.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<_> = missing.collect();
    fs::create_dir_all(folder)?;
    missing
        .into_iter()
        .try_for_each(|made| sync_folder(folder_of(made)?))
}

/// Makes a folder that only this user can use, and its parents; one that is there is shut to others.
///
/// # Errors
/// When it cannot be made, or belongs to another user.
pub fn make_private(folder: &Path) -> crate::Result<()> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)));
    made.map_err(|source| Error::Unreadable {
        file: folder.display().to_string(),
        source: source.into(),
    })
}

/// Syncs a folder, so that the names in it are on disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // The file system does not support it.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Returns the folder that contains a file or a folder.
pub fn folder_of(path: &Path) -> io::Result<&Path> {
    let named = || format!("{} is in no folder", path.display());
    path.parent()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, named()))
}

/// Writes and syncs a file beside `path`, under a staging name of `object_store`'s form, which its listings skip.
pub fn stage(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(format!("#{}", Uuid::new_v4().as_u128()));
    let staged = PathBuf::from(staged);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&staged)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    match write() {
        Ok(()) => Ok(staged),
        Err(error) => {
            fs::remove_file(&staged).ok();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let file = folder.join("file");
        assert!(replace(&file, b"no folder").is_err());
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        for bytes in [b"first", b"other"] {
            replace(&file, bytes).unwrap();
            assert_eq!(fs::read(&file).unwrap(), bytes);
        }
        assert_eq!(names(&folder), ["file"]);
    }

    #[test]
    fn a_file_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert!(create(&file, b"first").unwrap());
        assert!(!create(&file, b"other").unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"first");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_folder_is_moved_where_none_is() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other, empty, to] =
            ["one", "other", "empty", "to"].map(|name| dir.path().join(name));
        for (folder, text) in [(&one, "1"), (&other, "2")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), text).unwrap();
        }
        fs::create_dir(&empty).unwrap();
        assert!(move_folder(&one, &to).unwrap());
        assert!(!move_folder(&other, &to).unwrap());
        assert_eq!(fs::read(to.join("file")).unwrap(), b"1");
        assert!(move_folder(&other, &empty).unwrap());
        assert!(move_folder(&other, &to).is_err(), "it is gone");
        assert_eq!(names(dir.path()), ["empty", "to"]);
    }
}
