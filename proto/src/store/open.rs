//! Opening of a store by its URL.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use super::ModelStore;
use super::objects::Objects;
use crate::object_stores::{self, RetryPolicy, StoreOptions};
use crate::{Error, Result};

/// Schemes of object stores that can hold models; web servers are read-only.
const OBJECTS: &[&str] = &["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"];

/// Kind of store, by its means to make something visible atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Folder: rename(2) and fsync(2).
    Folder,
    /// Object store: conditional puts.
    Objects,
}

impl ModelStore {
    /// Opens the store at a URL: `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`. A local directory is made at
    /// the first write; credentials come from the environment. No request is sent to a store over a network yet.
    ///
    /// # Errors
    /// When the URL's scheme is not supported, it contains a secret, or the environment does not say how to reach it.
    pub fn open(url: &Url) -> Result<Self> {
        Self::open_with(url, &StoreOptions::of_environment())
    }

    /// Opens the store at a URL by these options, and by the environment for options that are not given.
    ///
    /// # Errors
    /// The errors of [`ModelStore::open`], and when an option is not the store's.
    pub fn open_with(url: &Url, options: &StoreOptions) -> Result<Self> {
        let refuse = |reason: String| Error::StoreUrl {
            url: without_secrets(url).to_string(),
            reason,
        };
        if url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            let reason = "a store's URL is shown, and takes no password, `?` or `#`: credentials come from the environment";
            return Err(refuse(reason.to_owned()));
        }
        let root = Path::from_url_path(url.path()).map_err(|error| refuse(error.to_string()))?;
        match url.scheme() {
            "file" => {
                let folder = Arc::new(LocalFileSystem::new());
                Ok(Self::over(url.clone(), folder, root, Kind::Folder))
            }
            scheme if OBJECTS.contains(&scheme) => {
                let opened = object_stores::open(url, options)?;
                Ok(Self::over(url.clone(), opened.store, root, Kind::Objects))
            }
            scheme => Err(refuse(format!(
                "scheme {scheme:?} is not supported: use file:///…, or {}://…",
                OBJECTS.join("://…, ")
            ))),
        }
    }

    /// Returns the store of these objects.
    pub(super) fn over(url: Url, store: Arc<dyn ObjectStore>, root: Path, kind: Kind) -> Self {
        let retry = match kind {
            Kind::Folder => RetryPolicy::LOCAL,
            Kind::Objects => RetryPolicy::REMOTE,
        };
        Self {
            url,
            objects: Objects { store, retry },
            root,
            kind,
        }
    }

    /// Returns the store URL of a directory, which need not exist yet.
    ///
    /// # Errors
    /// When the path cannot be made absolute.
    pub fn directory_url(path: &std::path::Path) -> Result<Url> {
        let refuse = |reason: &str| Error::StoreUrl {
            url: path.display().to_string(),
            reason: reason.to_owned(),
        };
        let absolute = std::path::absolute(path).map_err(|e| refuse(&e.to_string()))?;
        Url::from_directory_path(&absolute).map_err(|()| refuse("not an absolute path"))
    }
}

/// Returns the URL without secrets, for messages.
fn without_secrets(url: &Url) -> Url {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // Setting fails only for a URL that cannot have a password.
    shown.set_password(None).ok();
    shown
}
