//! Operations on single files of the store: list, read, write, delete, with errors that name the store and the file.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::ModelStore;
use super::open::Kind;
use crate::limits::DOCUMENT_LIMIT;
use crate::{Error, ModelName, Result, disk};

impl ModelStore {
    pub(super) async fn directories(&self, path: &Path) -> Result<Vec<String>> {
        let found = self.objects.list_here(path).await;
        let prefixes = found
            .map_err(|source| self.error(format!("list {path}"), source))?
            .common_prefixes;
        Ok(prefixes
            .iter()
            .filter_map(|prefix| prefix.filename().map(str::to_owned))
            .collect())
    }

    /// Lists the objects directly under a path.
    pub(super) async fn objects_in(&self, path: &Path) -> Result<Vec<ObjectMeta>> {
        let found = self.objects.list_here(path).await;
        found
            .map(|found| found.objects)
            .map_err(|source| self.error(format!("list {path}"), source))
    }

    /// Lists all files under a path.
    pub(super) async fn files_under(&self, path: &Path) -> Result<Vec<Path>> {
        let found = self.objects.list_all(path).await;
        let found = found.map_err(|source| self.error(format!("list {path}"), source))?;
        Ok(found.into_iter().map(|object| object.location).collect())
    }

    /// Checks that the store exists, as a folder or with at least one object, and has the model if one is given, with or
    /// without published versions.
    ///
    /// # Errors
    /// When it does not, or cannot be read.
    pub async fn check_exists(&self, model: Option<&ModelName>) -> Result<()> {
        let exists = match self.kind {
            Kind::Folder => {
                let folder = self.local(&self.root)?;
                let look = move || match std::fs::metadata(&folder) {
                    Ok(found) if found.is_dir() => Ok(true),
                    Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(error),
                };
                self.on_disk("look for its folder".to_owned(), look).await?
            }
            Kind::Objects => {
                let any = self.objects.has_any(&self.root).await;
                any.map_err(|source| self.error(format!("list {}", self.root), source))?
            }
        };
        if !exists {
            let url = self.url.to_string();
            return Err(Error::NoStore { url });
        }
        match model {
            Some(model) if !self.names().await?.contains(model) => Err(self.unknown(model).await),
            _ => Ok(()),
        }
    }

    pub(super) async fn exists(&self, path: &Path) -> Result<bool> {
        match self.objects.head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(self.error(format!("look for {path}"), source)),
        }
    }

    pub(super) async fn read_path(&self, path: &Path) -> Result<Bytes> {
        let read = self.objects.read(path).await;
        read.map_err(|source| self.error(format!("read {path}"), source))
    }

    /// Reads a document, unless it is gone.
    ///
    /// # Errors
    /// When it cannot be read, or exceeds the size limit of documents.
    pub(super) async fn read_if_there(&self, path: &Path) -> Result<Option<Bytes>> {
        match self.read_at_most(path, DOCUMENT_LIMIT).await? {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(found)) => Err(Error::Unreadable {
                file: format!("{}: {path}", self.url),
                source: format!("it has {found} bytes, expected at most {DOCUMENT_LIMIT}").into(),
            }),
        }
    }

    /// Reads a file, unless it is gone; returns its size instead if that exceeds `most` bytes.
    pub(super) async fn read_at_most(
        &self,
        path: &Path,
        most: u64,
    ) -> Result<Option<Result<Bytes, u64>>> {
        match self.objects.read_at_most(path, most).await {
            Ok(read) => Ok(Some(read)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.error(format!("read {path}"), source)),
        }
    }

    /// Writes a file, replacing the one that may exist; it is on disk, or stored, when the call returns.
    pub(super) async fn write(&self, path: &Path, bytes: Bytes) -> Result<()> {
        if self.kind == Kind::Objects {
            let written = self.objects.replace(path, &bytes).await;
            return written.map_err(|source| self.unwritten(path, source));
        }
        let file = self.local(path)?;
        let write = move || {
            disk::make_folder(disk::folder_of(&file)?)?;
            disk::replace(&file, &bytes)
        };
        self.on_disk(format!("write {path}"), write).await
    }

    /// Returns the local path of an object.
    pub(super) fn local(&self, path: &Path) -> Result<PathBuf> {
        LocalFileSystem::new()
            .path_to_filesystem(path)
            .map_err(|source| self.error(format!("find {path}"), source))
    }

    /// Runs blocking work on a blocking thread, if there is a runtime.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        action: String,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime
                .spawn_blocking(work)
                .await
                .unwrap_or_else(|panic| Err(io::Error::other(panic))),
            Err(_) => work(),
        };
        done.map_err(|source| {
            let source = object_store::Error::Generic {
                store: "LocalFileSystem",
                source: Box::new(source),
            };
            self.error(action, source)
        })
    }

    /// Deletes a file, which may be gone already.
    pub(super) async fn delete(&self, path: &Path) -> Result<()> {
        let deleted = self.objects.delete(path).await;
        deleted.map_err(|source| self.error(format!("delete {path}"), source))
    }

    /// Returns the error of a file that cannot be written.
    pub(super) fn unwritten(&self, path: &Path, source: object_store::Error) -> Error {
        self.error(format!("write {path}"), source)
    }

    pub(super) fn error(&self, action: impl Into<String>, source: object_store::Error) -> Error {
        Error::Store {
            store: self.url.to_string(),
            action: action.into(),
            source,
        }
    }
}
