//! The on-disk cache of Burn's compiled kernels, in the user's cache folder: each is compiled once per host, not once
//! per process. Burn decides what is compiled, and when.

use std::path::{Path, PathBuf};
use std::sync::Once;

use burn::cubecl::config::cache::CacheConfig;
use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::{cache, driver};

/// Maximum size of the cache in bytes: a larger one is emptied.
const MOST: u64 = 256 << 20;

/// Makes Burn use the cache, unless the host has no place for one. It must be called before a device is used.
pub(super) fn enable_cache() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The user's `cubecl.toml` and environment variables take precedence.
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        if config.compilation.cache.is_none() {
            config.compilation.cache = folder().map(CacheConfig::File);
        }
        CubeClRuntimeConfig::set(config);
    });
}

/// Returns the cache's folder for this host's GPUs, if it is writable.
fn folder() -> Option<PathBuf> {
    let folder = cache::folder()?.join(driver::architecture()?);
    if bytes(&folder) > MOST {
        std::fs::remove_dir_all(&folder).ok()?;
    }
    std::fs::create_dir_all(&folder).ok()?;
    tempfile::tempfile_in(&folder).ok()?;
    Some(folder)
}

/// Returns the size of all files in a folder, in bytes.
fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
