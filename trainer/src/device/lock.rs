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

/// GPU that a rank has taken alone.
#[derive(Debug)]
pub struct Alone {
    _held: File,
    _wanted: File,
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

    /// Takes the GPU for a rank alone, once predictions have left it; `None` if they have not within the limit.
    ///
    /// # Errors
    /// When the lock's files cannot be opened.
    pub fn take_alone(&self, limit: Duration) -> io::Result<Option<Alone>> {
        let deadline = Instant::now() + limit;
        let (held, wanted) = (open(&self.held)?, open(&self.wanted)?);
        for file in [&wanted, &held] {
            while !is_taken(file.try_lock())? {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                sleep(INTERVAL);
            }
        }
        Ok(Some(Alone {
            _held: held,
            _wanted: wanted,
        }))
    }
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
    match File::open(path) {
        Err(error) if is(io::ErrorKind::NotFound)(&error) => {
            let created = OpenOptions::new().write(true).create_new(true).open(path);
            match created {
                // Another process was faster.
                Err(error) if is(io::ErrorKind::AlreadyExists)(&error) => File::open(path),
                created => created,
            }
        }
        opened => opened,
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
        assert!(lock.take_alone(NOW).unwrap().is_none());
        drop(predictions);
        let rank = lock.take_alone(NOW).unwrap().unwrap();
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
            assert!(rank.join().unwrap().is_some());
        });
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(&folder.path().join("missing"));
        assert!(lock.share().is_err() && lock.take_alone(NOW).is_err());
    }
}
