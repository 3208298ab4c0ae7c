//! Temporary folder of a process, which the next process of its kind removes if this one is killed; and the ownership of a
//! lasting folder, which keeps a second process out.
//!
//! ```text
//!   .PREFIX-ID made ─► its lock file locked ─► renamed to PREFIX-ID ─► … ─► removed with its owner
//!                                                     │ killed: the system frees the lock
//!                                                     └─► the next create() of this prefix takes the lock, and removes it
//! ```
//!
//! A folder has its name only while somebody holds its lock, or once its owner is dead. Folders of other users, files and links
//! with such names, and folders with other names, are left alone. So are folders that were made on another host, or before the
//! host was started anew, since locks of some file systems hold on one host only; and all folders where there are no locks.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Name of the lock file in each folder. It contains the [host](host) that made it.
const LOCK: &str = ".volley-scratch-lock";

/// Name of the lock file in a folder that outlives its owner. It contains the owner's process id.
const OWNER: &str = ".volley-owner-lock";

/// Takes the lock of an open file. Returns false where the file system has no locks.
///
/// # Errors
/// `WouldBlock` when somebody else holds it.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::Error(_)) => Ok(false),
        Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
    }
}

/// Ownership of a folder that stays when its owner ends: one owner at a time, until this is dropped or the process ends.
#[derive(Debug)]
pub struct FolderOwner {
    _lock: File,
}

/// Refusal of a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderTaken {
    /// Another owner has it.
    #[error("it has another owner")]
    Owned {
        /// Id of the owner's process, as that process knows it.
        process: Option<u32>,
    },
    /// The lock file cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FolderOwner {
    /// Takes a folder. On a file system without locks, nothing keeps others out, and the log says so.
    ///
    /// # Errors
    /// When another owner has it, in this process or another, or its lock file cannot be written.
    pub fn take(folder: &Path) -> Result<Self, FolderTaken> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(OWNER))?;
        match lock(&file) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(folder = %folder.display(), "the file system has no locks: other processes are not kept out");
            }
            Err(_) => {
                let mut process = String::new();
                file.read_to_string(&mut process)?;
                let process = process.trim().parse().ok();
                return Err(FolderTaken::Owned { process });
            }
        }
        // The lock counts, not the id: a full disk keeps nobody from a folder.
        file.set_len(0)
            .and_then(|()| write!(file, "{}", std::process::id()))
            .ok();
        Ok(Self { _lock: file })
    }
}

/// Temporary folder, which is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    /// Lock that is held while the process lives; the system frees it when the process ends.
    lock: Option<File>,
}

impl Scratch {
    /// Removes the folders that dead processes of this user have left under the prefix in the system's folder of temporary
    /// files, and creates one there that only this user can use.
    ///
    /// # Errors
    /// When the folder cannot be created. Folders that cannot be removed are logged.
    pub fn create(prefix: &str) -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir(), prefix)
    }

    /// Does what [`create`](Self::create) does, in another folder.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn create_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        let name = format!("{prefix}{}", Uuid::new_v4().simple());
        let unnamed = parent.join(format!(".{name}"));
        DirBuilder::new().mode(0o700).create(&unnamed)?;
        let own = fs::symlink_metadata(&unnamed)?.uid();
        let folder = parent.join(&name);
        let host = host();
        let made = File::create_new(unnamed.join(LOCK)).and_then(|mut lock| {
            let is_locked = self::lock(&lock)?;
            lock.write_all(host.as_deref().unwrap_or_default().as_bytes())?;
            fs::rename(&unnamed, &folder)?;
            Ok((lock, is_locked))
        });
        let (lock, is_locked) = made.inspect_err(|_| {
            fs::remove_dir_all(&unnamed).ok(); // the first error counts
        })?;
        if let (Some(host), true) = (host, is_locked) {
            sweep(parent, prefix, own, &host);
        }
        Ok(Self {
            folder,
            lock: Some(lock),
        })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let removed = self.lock.take().map(|lock| remove(&self.folder, lock));
        if let Some(Err(error)) = removed {
            tracing::warn!(%error, folder = %self.folder.display(), "a temporary folder cannot be removed");
        }
    }
}

/// Returns the id of this start of this host, where the system tells it.
fn host() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Removes a folder and frees its lock, whose file goes last: what is left of a removal that does not end is removed by the
/// next process.
fn remove(folder: &Path, lock: File) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == LOCK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    // Some file systems keep the name of an open file.
    drop(lock);
    match fs::remove_dir_all(folder) {
        // Another process has removed the rest.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes this user's folders with the prefix and an id, which this host has made and whose lock nobody holds.
fn sweep(parent: &Path, prefix: &str, user: u32, host: &str) {
    let is_named = |name: &str| {
        let id = name.strip_prefix(prefix);
        id.is_some_and(|id| id.len() == 32 && Uuid::try_parse(id).is_ok())
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_named));
    for entry in named {
        let folder = entry.path();
        // This is about a link itself, not about its target.
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user);
        if !is_ours {
            continue;
        }
        let Some(lock) = abandoned(&folder, host) else {
            continue;
        };
        match remove(&folder, lock) {
            Ok(()) => {
                tracing::info!(folder = %folder.display(), "removed the folder of a process that was killed")
            }
            Err(error) => tracing::warn!(
                %error,
                folder = %folder.display(),
                "the folder of a process that was killed cannot be removed"
            ),
        }
    }
}

/// Takes the lock of a folder, if this host has made it and it is free.
fn abandoned(folder: &Path, host: &str) -> Option<File> {
    let path = folder.join(LOCK);
    let mut lock = OpenOptions::new().read(true).write(true).open(&path).ok()?;
    lock.try_lock().ok()?;
    let mut made_on = String::new();
    lock.read_to_string(&mut made_on).ok()?;
    if made_on != host {
        return None;
    }
    // Another process may have removed the folder since the file was opened.
    let (held, named) = (lock.metadata().ok()?, fs::symlink_metadata(&path).ok()?);
    ((held.dev(), held.ino()) == (named.dev(), named.ino())).then_some(lock)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const PREFIX: &str = "volley-kind-";

    fn names(parent: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(parent).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Leaves a folder with a file, as a process that is killed does: its lock is freed, and nothing is removed.
    fn killed(parent: &Path) -> PathBuf {
        let mut scratch = Scratch::create_in(parent, PREFIX).unwrap();
        fs::create_dir(scratch.path().join("below")).unwrap();
        fs::write(scratch.path().join("below/data"), "rows").unwrap();
        let folder = scratch.path().to_owned();
        drop(scratch.lock.take());
        std::mem::forget(scratch);
        folder
    }

    #[test]
    fn folders_of_the_dead_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let living = Scratch::create_in(dir.path(), PREFIX).unwrap();
        let other_kind = Scratch::create_in(dir.path(), "volley-other-").unwrap();
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(LOCK), "").unwrap();
        let named = |id: u128| {
            dir.path()
                .join(format!("{PREFIX}{}", Uuid::from_u128(id).simple()))
        };
        symlink(&target, named(1)).unwrap();
        // No process of this kind has made these.
        fs::create_dir(named(2)).unwrap();
        let of_others = [
            (named(3), "another host"),
            (dir.path().join("volley-kind-test"), &*host().unwrap()),
        ];
        for (folder, host) in of_others {
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(LOCK), host).unwrap();
        }
        let before = names(dir.path());
        let dead = killed(dir.path());
        assert!(dead.exists());
        let next = Scratch::create_in(dir.path(), PREFIX).unwrap();
        assert!(!dead.exists());
        let mode = fs::metadata(next.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(living.path().join(LOCK).exists() && other_kind.path().exists());
        drop(next);
        assert_eq!(names(dir.path()), before);
    }

    #[test]
    fn a_lasting_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let owner = FolderOwner::take(dir.path()).unwrap();
        match FolderOwner::take(dir.path()) {
            Err(FolderTaken::Owned { process }) => assert_eq!(process, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(owner);
        FolderOwner::take(dir.path()).unwrap();
        assert!(
            dir.path().join(OWNER).exists(),
            "the file stays: a new one would have another lock"
        );
        let none = FolderOwner::take(&dir.path().join("none"));
        assert!(matches!(none, Err(FolderTaken::Io(_))), "{none:?}");
    }

    #[test]
    fn processes_that_sweep_at_once_leave_the_living_alone() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            killed(dir.path());
        }
        let living = std::thread::scope(|scope| {
            let start = || {
                scope.spawn(|| {
                    let made = (0..20).map(|_| Scratch::create_in(dir.path(), PREFIX).unwrap());
                    made.collect::<Vec<_>>()
                })
            };
            let threads: Vec<_> = (0..8).map(|_| start()).collect();
            let made = threads.into_iter().map(|thread| thread.join().unwrap());
            made.collect::<Vec<_>>()
        });
        let all = living.iter().flatten();
        assert!(
            all.clone()
                .all(|scratch| scratch.path().join(LOCK).exists())
        );
        assert_eq!(names(dir.path()).len(), all.count());
        drop(living);
        assert_eq!(names(dir.path()), BTreeSet::new());
    }
}
