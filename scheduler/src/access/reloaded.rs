//! A file that is read again when it changes, such as the tokens and a key set. If the new content is invalid, the
//! old value stays and the log says why. This module does not interpret a file's content.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time before the file is checked again.
const FRESH: Duration = Duration::from_secs(1);

/// Parser of a file's text; an error says what is wrong with it.
type Parse<T> = fn(&str) -> Result<T, String>;

/// File that is checked for changes when it is used.
#[derive(Debug)]
pub(super) struct ReloadedFile<T> {
    path: PathBuf,
    /// Name of the content, for the log.
    what: &'static str,
    parse: Parse<T>,
    read: Mutex<Read<T>>,
}

/// File version: modification time (seconds, nanoseconds), size and inode number.
type Version = (i64, i64, u64, u64);

#[derive(Debug)]
struct Read<T> {
    value: Arc<T>,
    version: Option<Version>,
    looked: Instant,
}

impl<T> ReloadedFile<T> {
    /// # Errors
    /// When the file cannot be read, or is invalid.
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

    /// Returns the newest valid value.
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
            // An invalid file is logged once.
            known.version = version;
            let (file, what) = (self.path.display(), self.what);
            match read(&self.path, self.parse) {
                Ok((value, version)) => {
                    tracing::info!(%file, "{what} are reloaded");
                    (known.value, known.version) = (Arc::new(value), Some(version));
                }
                Err(error) => {
                    tracing::error!(%file, %error, "{what} cannot be reloaded: the previous ones remain in use");
                }
            }
        }
        Arc::clone(&known.value)
    }
}

fn read<T>(path: &Path, parse: Parse<T>) -> io::Result<(T, Version)> {
    // The version is read first, so that a write in between is noticed the next time.
    let version = version(&fs::metadata(path)?);
    let text = fs::read_to_string(path)?;
    let value = parse(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((value, version))
}

fn version(file: &Metadata) -> Version {
    (file.mtime(), file.mtime_nsec(), file.size(), file.ino())
}
