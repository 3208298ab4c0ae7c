//! From a URL to the store that is there.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use super::ModelStore;
use super::objects::Objects;
use crate::object_stores::{self, RetryPolicy, StoreOptions};
use crate::{Error, Result};

/// Schemes of object stores that can hold models: those of web servers can only be read.
const OBJECTS: &[&str] = &["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"];

/// What a store can do beyond putting and getting: how something becomes visible whole depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A folder: rename(2) and fsync(2).
    Folder,
    /// An object store: puts that depend on what is there.
    Objects,
}

impl ModelStore {
    /// Opens the store at a URL: `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`. A local directory is made when
    /// something is written; credentials come from the environment. Nothing is asked of a store over a network yet.
    ///
    /// # Errors
    /// When the URL's scheme is not supported, it holds a secret, or the environment does not say how to reach it.
    pub fn open(url: &Url) -> Result<Self> {
        Self::open_with(url, &StoreOptions::of_environment())
    }

    /// Opens the store at a URL as these options say, and the environment where they say nothing.
    ///
    /// # Errors
    /// As [`ModelStore::open`], and when an option is not the store's.
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

    /// The store of these objects.
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

    /// The store's URL for a directory, which need not exist yet.
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

/// The URL as it may be shown.
fn without_secrets(url: &Url) -> Url {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // A URL that can have none has none.
    shown.set_password(None).ok();
    shown
}
