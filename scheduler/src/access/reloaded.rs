//! A file that is read again when it changes, such as the tokens and a key set. One that is wrong changes nothing: what
//! was read before stays, and the log says why. It says nothing of what a file means.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long what was read is not looked at again.
const FRESH: Duration = Duration::from_secs(1);

/// Makes a value of a file's text, or says what is wrong with it.
type Parse<T> = fn(&str) -> Result<T, String>;

/// A file that is looked at while it is asked.
#[derive(Debug)]
pub(super) struct ReloadedFile<T> {
    path: PathBuf,
    /// What it holds, for the log.
    what: &'static str,
    parse: Parse<T>,
    read: Mutex<Read<T>>,
}

/// A file's version: its time of change, its size and its number.
type Version = (i64, i64, u64, u64);

#[derive(Debug)]
struct Read<T> {
    value: Arc<T>,
    version: Option<Version>,
    looked: Instant,
}

impl<T> ReloadedFile<T> {
    /// # Errors
    /// When it cannot be read, or is wrong.
    pub(super) fn open(path: &Path, what: &'static str, parse: Parse<T>) -> io::Result<Self> {
        let (value, version) = read(path, parse)?;
        Ok(Self {
            path: path.to_owned(),
            what,
            parse,
            read: Mutex::new(Read {
                value: Arc::new(value),
                version: Some(version),
                looked: Instant::now(),
            }),
        })
    }

    /// The newest that was right.
    pub(super) fn current(&self) -> Arc<T> {
        self.current_at(Instant::now())
    }

    pub(super) fn current_at(&self, now: Instant) -> Arc<T> {
        let mut known = self.read.lock();
        if now.saturating_duration_since(known.looked) < FRESH {
            return Arc::clone(&known.value);
        }
        known.looked = now;
        let version = fs::metadata(&self.path).ok().as_ref().map(version);
        if version != known.version {
            // A wrong one is told of once.
            known.version = version;
            let (file, what) = (self.path.display(), self.what);
            match read(&self.path, self.parse) {
                Ok((value, version)) => {
                    tracing::info!(%file, "{what} are read anew");
                    (known.value, known.version) = (Arc::new(value), Some(version));
                }
                Err(error) => {
                    tracing::error!(%file, %error, "{what} cannot be read anew: those read before stay");
                }
            }
        }
        Arc::clone(&known.value)
    }
}

fn read<T>(path: &Path, parse: Parse<T>) -> io::Result<(T, Version)> {
    // Before, so that what is written meanwhile is read the next time.
    let version = version(&fs::metadata(path)?);
    let text = fs::read_to_string(path)?;
    let value = parse(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((value, version))
}

fn version(file: &Metadata) -> Version {
    (file.mtime(), file.mtime_nsec(), file.size(), file.ino())
}
