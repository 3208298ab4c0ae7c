//! Small files that are on the disk when they are said to be there.
//!
//! A file is written beside its place, synced, and moved there by rename(2), which a reader sees wholly or
//! not at all; then its folder is synced, and a folder that was made on the way in the one that it is in. This
//! rests on a file system whose rename is atomic and whose fsync(2) comes back once the disk has what was
//! written. It blocks, and is not for files that do not fit into memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Writes a file into a folder that is there, instead of the file that may be there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let staged = stage(path, bytes)?;
    if let Err(error) = fs::rename(&staged, path) {
        fs::remove_file(&staged).ok(); // it counts for nothing, and has a name that listings pass over
        return Err(error);
    }
    sync_folder(folder_of(path)?)
}

/// Moves a folder to where none is that has anything in it. Says whether it has.
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

/// Makes a folder, and those that it is in.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<_> = missing.collect();
    fs::create_dir_all(folder)?;
    missing
        .into_iter()
        .try_for_each(|made| sync_folder(folder_of(made)?))
}

/// What names a folder has are on the disk from now on.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // A file system that knows no such thing.
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

/// The folder that a file or a folder is in.
pub fn folder_of(path: &Path) -> io::Result<&Path> {
    let named = || format!("{} is in no folder", path.display());
    path.parent()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, named()))
}

/// Writes a file of no place yet, beside the one it is to have, by a name as `object_store` has for these: its listings pass over them.
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
