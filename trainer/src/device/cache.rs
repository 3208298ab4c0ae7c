//! The user's cache folder, where compiled kernels and the outcomes of trials are kept.
//!
//! Several processes may use it at once: a file is replaced as a whole. It decides nothing about the content.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Returns `$XDG_CACHE_HOME/volley/kernels`, or the same in `~/.cache`.
pub(super) fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(cache.or_else(home)?.join("volley/kernels"))
}

/// Writes a file atomically: another process may be writing the same one, and a reader never sees half of it.
///
/// # Errors
/// When the folder cannot be created or written to.
pub(crate) fn keep(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Describes this program by its version, size and time of installation, which differ between builds. `None` if its file
/// cannot be found.
pub(super) fn program() -> Option<String> {
    let file = std::env::current_exe().ok()?.metadata().ok()?;
    let installed = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!(
        "volley {}, {} bytes of {}",
        env!("CARGO_PKG_VERSION"),
        file.len(),
        installed.as_secs()
    ))
}
