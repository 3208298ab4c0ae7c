//! Locks of a host's GPUs between predictions and a rank that has a GPU alone, in any process of the host.
//!
//! ```text
//!  volley-GPU-….held     shared: predictions with memory on the GPU     exclusive: the rank
//!  volley-GPU-….wanted   checked by predictions before each batch       exclusive: the rank, while it waits as well
//! ```
//!
//! Predictions never wait: they compute elsewhere while a rank has the GPU or waits for it. A rank waits for as long as
//! a batch takes. The locks are advisory and end with their process; the files are in the host's temporary folder.
//! Which rank gets which GPU is the scheduler's decision.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use volley_proto::GpuId;

/// Interval between a rank's attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// Lock of a GPU of this host.
#[derive(Debug, Clone)]
pub struct GpuLock {
    held: PathBuf,
    wanted: PathBuf,
}

/// GPU that predictions have taken.
#[derive(Debug)]
pub(crate) struct Shared {
    _held: File,
}

/// GPU that a rank has taken: predictions leave it after a batch.
#[derive(Debug)]
pub struct Alone {
    held: Option<File>,
    _wanted: File,
}

impl Alone {
    /// Returns whether predictions have left the GPU.
    pub fn is_alone(&self) -> bool {
        self.held.is_some()
    }
}

impl GpuLock {
    /// Returns the lock of this GPU.
    pub fn of(gpu: GpuId) -> Self {
        Self::within(&std::env::temp_dir(), gpu)
    }

    /// Returns the lock with its files in this folder.
    pub(crate) fn within(folder: &Path, gpu: GpuId) -> Self {
        let file = |what: &str| folder.join(format!("volley-{gpu}.{what}"));
        Self {
            held: file("held"),
            wanted: file("wanted"),
        }
    }

    /// Takes the GPU for predictions; `None` while a rank has it or waits for it.
    ///
    /// # Errors
    /// When the lock's files cannot be opened.
    pub(crate) fn share(&self) -> io::Result<Option<Shared>> {
        if self.is_wanted()? {
            return Ok(None);
        }
        let held = open(&self.held)?;
        let taken = is_taken(held.try_lock_shared())?;
        Ok(taken.then_some(Shared { _held: held }))
    }

    /// Returns whether a rank has the GPU alone or waits for it.
    ///
    /// # Errors
    /// When the lock's file cannot be opened.
    pub(crate) fn is_wanted(&self) -> io::Result<bool> {
        let wanted = open(&self.wanted)?;
        Ok(!is_taken(wanted.try_lock_shared())?)
    }

    /// Takes the GPU for a rank, and waits until predictions have left it, up to the limit; `None` if another rank still
    /// has it by then.
    ///
    /// # Errors
    /// When the lock's files cannot be opened.
    pub fn take_alone(&self, limit: Duration) -> io::Result<Option<Alone>> {
        let deadline = Instant::now() + limit;
        let (held, wanted) = (open(&self.held)?, open(&self.wanted)?);
        if !lock_until(&wanted, deadline)? {
            return Ok(None);
        }
        let has_left = lock_until(&held, deadline)?;
        Ok(Some(Alone {
            held: has_left.then_some(held),
            _wanted: wanted,
        }))
    }
}

/// Locks a file exclusively. Returns false if others still have it at the deadline.
fn lock_until(file: &File, deadline: Instant) -> io::Result<bool> {
    while !is_taken(file.try_lock())? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(INTERVAL);
    }
    Ok(true)
}

fn is_taken(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens a file, which another user may have created, to lock it.
fn open(path: &Path) -> io::Result<File> {
    let is = |kind| move |error: &io::Error| error.kind() == kind;
    // Opening a pipe would wait for its other end.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let existing = || OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match existing() {
        Err(error) if is(io::ErrorKind::NotFound)(&error) => {
            let created = OpenOptions::new().write(true).create_new(true).open(path);
            match created {
                // Another process was faster.
                Err(error) if is(io::ErrorKind::AlreadyExists)(&error) => existing(),
                created => created,
            }
        }
        opened => opened,
    }?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is no file", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    fn lock(folder: &Path) -> GpuLock {
        GpuLock::within(folder, GpuId::from_bytes([7; 16]))
    }

    #[test]
    fn predictions_share_a_gpu_and_a_rank_has_it_alone() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path());
        let predictions = [0, 1].map(|_| lock.share().unwrap().unwrap());
        let early = lock.take_alone(NOW).unwrap().unwrap();
        assert!(!early.is_alone());
        // The rank computes beside them until they leave, and none comes back.
        assert!(lock.is_wanted().unwrap() && lock.share().unwrap().is_none());
        drop((predictions, early));
        let rank = lock.take_alone(NOW).unwrap().unwrap();
        assert!(rank.is_alone());
        assert!(lock.is_wanted().unwrap());
        assert!(lock.share().unwrap().is_none());
        assert!(lock.take_alone(NOW).unwrap().is_none());
        drop(rank);
        assert!(!lock.is_wanted().unwrap());
        assert!(lock.share().unwrap().is_some());
        let other = GpuLock::within(folder.path(), GpuId::from_bytes([8; 16]));
        let _rank = lock.take_alone(NOW).unwrap().unwrap();
        assert!(other.share().unwrap().is_some());
    }

    #[test]
    fn predictions_leave_a_gpu_that_a_rank_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path());
        let first = lock.share().unwrap().unwrap();
        std::thread::scope(|scope| {
            let rank = scope.spawn(|| lock.take_alone(LONG).unwrap());
            let deadline = Instant::now() + LONG;
            while !lock.is_wanted().unwrap() {
                assert!(Instant::now() < deadline, "a rank says that it waits");
                std::thread::yield_now();
            }
            // Others that come later do not keep it waiting.
            assert!(lock.share().unwrap().is_none());
            drop(first);
            assert!(rank.join().unwrap().unwrap().is_alone());
        });
    }

    #[test]
    fn a_pipe_in_the_place_of_a_lock_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path());
        nix::unistd::mkfifo(&lock.wanted, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = lock.share().unwrap_err().to_string();
        assert!(error.ends_with("wanted is no file"), "{error}");
        assert!(lock.take_alone(NOW).is_err());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(&folder.path().join("missing"));
        assert!(lock.share().is_err() && lock.take_alone(NOW).is_err());
    }
}
