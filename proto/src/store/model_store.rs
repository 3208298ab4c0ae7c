//! The store's operations over an `object_store`.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::Deserialize;
use url::Url;

use super::Manifest;
use super::publish::UNPUBLISHED;
use crate::{Error, ModelName, ModelRef, Result, TrainId, did_you_mean, disk};

pub(super) const MANIFEST: &str = "manifest.json";
/// What a model's ranks did when, if they were asked to note it.
pub const TRACE_FILE: &str = "trace.json";
/// What was made of a version for people to read.
const REPORT: &str = "report.html";

/// A model store, by its URL.
#[derive(Clone)]
pub struct ModelStore {
    url: Url,
    pub(super) objects: Arc<dyn ObjectStore>,
    root: Path,
}

/// One line of a store's listing.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSummary {
    /// The model.
    pub name: ModelName,
    /// Its published versions, ascending.
    pub versions: Vec<u32>,
    /// When the current version was published.
    pub published: SystemTime,
}

impl fmt::Debug for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelStore")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

/// A manifest's format, whatever else is in it.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl ModelStore {
    /// Opens the store at a URL: `file:///…`; a local directory is made when something is written.
    ///
    /// # Errors
    /// When the URL's scheme is not supported.
    pub fn open(url: &Url) -> Result<Self> {
        let refuse = |reason: String| Error::StoreUrl {
            url: url.to_string(),
            reason,
        };
        if url.scheme() != "file" {
            let reason = format!("scheme {:?} is not supported: use file:///…", url.scheme());
            return Err(refuse(reason));
        }
        let (objects, root) = object_store::parse_url(url).map_err(|e| refuse(e.to_string()))?;
        Ok(Self {
            url: url.clone(),
            objects: Arc::from(objects),
            root,
        })
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

    /// The store's URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Where a file of a version is.
    pub fn file_url(&self, name: &ModelName, version: u32, file: &str) -> Url {
        let mut url = self.url.clone();
        let version = version.to_string();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty()
                .extend(["models", name.as_str(), &version, file]);
        }
        url
    }

    /// Fails unless the store can be written to.
    ///
    /// # Errors
    /// Says what the store answered.
    pub async fn check_writable(&self) -> Result<()> {
        let probe = self
            .root
            .clone()
            .join(format!(".probe-{}", TrainId::generate()));
        let put = self.objects.put(&probe, Bytes::new().into()).await;
        put.map_err(|source| self.error("write to it", source))?;
        let deleted = self.objects.delete(&probe).await;
        deleted.map_err(|source| self.error("delete from it", source))
    }

    /// The models with at least one published version, by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(&self) -> Result<Vec<ModelSummary>> {
        let mut summaries = Vec::new();
        for name in self.names().await? {
            let versions = self.versions(&name).await?;
            if let Some(current) = versions.last() {
                let published = self.manifest(&name, Some(*current)).await?.published;
                summaries.push(ModelSummary {
                    name,
                    versions,
                    published,
                });
            }
        }
        Ok(summaries)
    }

    /// The model's published versions, ascending; empty when there is no such model.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn versions(&self, name: &ModelName) -> Result<Vec<u32>> {
        let mut versions = Vec::new();
        for version in self.numbers(name).await? {
            if self.exists(&self.file(name, version, MANIFEST)).await? {
                versions.push(version);
            }
        }
        versions.sort_unstable();
        Ok(versions)
    }

    /// The newest published version, if there is one.
    pub(super) async fn current(&self, name: &ModelName) -> Result<Option<u32>> {
        let mut numbers = self.numbers(name).await?;
        numbers.sort_unstable();
        for version in numbers.into_iter().rev() {
            if self.exists(&self.file(name, version, MANIFEST)).await? {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// The manifest of a version, or of the current one.
    ///
    /// # Errors
    /// When there is no such model (the nearest name is suggested) or version, or it is malformed.
    pub async fn manifest(&self, name: &ModelName, version: Option<u32>) -> Result<Manifest> {
        let asked = match version {
            Some(version) => Some(version),
            None => self.current(name).await?,
        };
        let Some(version) = asked else {
            return Err(self.unknown(name).await);
        };
        let Some(bytes) = self
            .read_if_there(&self.file(name, version, MANIFEST))
            .await?
        else {
            return Err(self.no_version(name, version).await?);
        };
        // A later format has fields that this build does not know: that is not what is to be said of it.
        let Format { format } =
            serde_json::from_slice(&bytes).map_err(|source| self.broken(name, version, source))?;
        let known = Manifest::FORMAT;
        if !(1..=known).contains(&format) {
            let reason = format!("its format is {format}, this build reads up to {known}");
            return Err(Error::malformed("model manifest", reason));
        }
        serde_json::from_slice(&bytes).map_err(|source| self.broken(name, version, source))
    }

    /// A manifest that cannot be read, by its URL.
    fn broken(&self, name: &ModelName, version: u32, source: serde_json::Error) -> Error {
        Error::Unreadable {
            file: self.file_url(name, version, MANIFEST).to_string(),
            source: Box::new(Error::malformed("model manifest", source)),
        }
    }

    /// What is to be said of a version that is not there.
    async fn no_version(&self, name: &ModelName, version: u32) -> Result<Error> {
        let versions = self.versions(name).await?;
        if versions.is_empty() {
            return Ok(self.unknown(name).await);
        }
        let available: Vec<_> = versions.iter().map(u32::to_string).collect();
        let (name, available) = (name.to_string(), available.join(", "));
        Ok(Error::UnknownVersion {
            name,
            version,
            available,
        })
    }

    /// One of the files published with a version, whose manifest knows what is in it.
    ///
    /// # Errors
    /// When there is no such file, it cannot be read, or it is not what was published.
    pub async fn read(&self, model: &ModelRef, manifest: &Manifest, file: &str) -> Result<Bytes> {
        let path = self.file(&model.name, model.version, file);
        let Some(written) = manifest.files.iter().find(|written| written.name == file) else {
            return self.read_path(&path).await;
        };
        let bytes = self.read_if_there(&path).await?;
        let differs = match &bytes {
            Some(bytes) => written.differs(bytes),
            None => Some(["no content".to_owned(), format!("{} bytes", written.bytes)]),
        };
        match (bytes, differs) {
            (Some(bytes), None) => Ok(bytes),
            (_, differs) => {
                let [found, expected] = differs.unwrap_or_default();
                let file = self.file_url(&model.name, model.version, file);
                let file = file.to_string();
                Err(Error::ModelFile {
                    file,
                    found,
                    expected,
                })
            }
        }
    }

    /// Keeps a version's report, an HTML page, instead of the one before.
    ///
    /// # Errors
    /// When there is no such model or version, or the store cannot be written.
    pub async fn keep_report(&self, name: &ModelName, version: u32, html: String) -> Result<()> {
        self.manifest(name, Some(version)).await?;
        self.write(&self.file(name, version, REPORT), html.into())
            .await
    }

    /// A version's report, if one is kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn report(&self, name: &ModelName, version: u32) -> Result<Option<Bytes>> {
        self.read_if_there(&self.file(name, version, REPORT)).await
    }

    /// Whether a version's report is kept.
    pub(super) async fn has_report(&self, name: &ModelName, version: u32) -> Result<bool> {
        self.exists(&self.file(name, version, REPORT)).await
    }

    /// Removes every version of a model, and what checkpoints it has. Returns how many versions
    /// were published. What is being published stays.
    ///
    /// # Errors
    /// When there is no such model, or it cannot be deleted.
    pub async fn drop_model(&self, name: &ModelName) -> Result<usize> {
        let versions = self.versions(name).await?;
        if versions.is_empty() {
            return Err(self.unknown(name).await);
        }
        let files: Vec<_> = self
            .objects
            .list(Some(&self.directory(name)))
            .map_ok(|object| object.location)
            .try_collect()
            .await
            .map_err(|source| self.error("list it", source))?;
        let unpublished = self.directory(name).join(UNPUBLISHED);
        let published = files
            .into_iter()
            .filter(|file| !file.prefix_matches(&unpublished));
        // First the manifests, of versions published meanwhile too: a version is gone with its own.
        let (manifests, others): (Vec<_>, Vec<_>) =
            published.partition(|file| file.filename() == Some(MANIFEST));
        for file in manifests.iter().chain(&others) {
            self.delete(file).await?;
        }
        Ok(versions.len())
    }

    /// The version that a run has published.
    pub(super) async fn published_by(&self, name: &ModelName, run: TrainId) -> Result<Option<u32>> {
        let published = self.published(name).await?;
        let of_run = published.into_iter().find(|(_, by)| *by == run);
        Ok(of_run.map(|(version, _)| version))
    }

    /// The published versions and their runs.
    pub(super) async fn published(&self, name: &ModelName) -> Result<Vec<(u32, TrainId)>> {
        /// Of a manifest of any format.
        #[derive(Deserialize)]
        struct Published {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            train_id: TrainId,
        }
        let mut published = Vec::new();
        for version in self.numbers(name).await? {
            let bytes = self
                .read_if_there(&self.file(name, version, MANIFEST))
                .await?;
            let manifest = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            // A version that cannot be read is the concern of who uses it.
            if let Some(Published { spec }) = manifest {
                published.push((version, spec.train_id));
            }
        }
        Ok(published)
    }

    /// The names under `models/`, sorted, whether anything is published under them or not.
    async fn names(&self) -> Result<Vec<ModelName>> {
        let mut names: Vec<_> = self
            .directories(&self.root.clone().join("models"))
            .await?
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// The versions that are or were there, or were begun by a build that began them in place; in no order.
    pub(super) async fn numbers(&self, name: &ModelName) -> Result<Vec<u32>> {
        let directories = self.directories(&self.directory(name)).await?;
        Ok(directories
            .into_iter()
            .filter_map(|version| version.parse().ok())
            .collect())
    }

    pub(super) async fn directories(&self, path: &Path) -> Result<Vec<String>> {
        let found = self.objects.list_with_delimiter(Some(path)).await;
        let prefixes = found
            .map_err(|source| self.error("list it", source))?
            .common_prefixes;
        Ok(prefixes
            .iter()
            .filter_map(|prefix| prefix.filename().map(str::to_owned))
            .collect())
    }

    /// The objects right under a path.
    pub(super) async fn objects_in(&self, path: &Path) -> Result<Vec<ObjectMeta>> {
        let found = self.objects.list_with_delimiter(Some(path)).await;
        found
            .map(|found| found.objects)
            .map_err(|source| self.error("list it", source))
    }

    pub(super) async fn exists(&self, path: &Path) -> Result<bool> {
        match self.objects.head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(self.error("read from it", source)),
        }
    }

    pub(super) async fn read_path(&self, path: &Path) -> Result<Bytes> {
        let read = async { self.objects.get(path).await?.bytes().await };
        read.await
            .map_err(|source| self.error(format!("read {path}"), source))
    }

    /// What a file has, unless it is gone.
    pub(super) async fn read_if_there(&self, path: &Path) -> Result<Option<Bytes>> {
        let read = async { self.objects.get(path).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.error(format!("read {path}"), source)),
        }
    }

    /// Writes a file instead of the one that may be there; it is on the disk then.
    pub(super) async fn write(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let file = self.local(path)?;
        let write = move || {
            disk::make_folder(disk::folder_of(&file)?)?;
            disk::replace(&file, &bytes)
        };
        self.on_disk(format!("write {path}"), write).await
    }

    /// Where a path is on this host.
    pub(super) fn local(&self, path: &Path) -> Result<PathBuf> {
        LocalFileSystem::new()
            .path_to_filesystem(path)
            .map_err(|source| self.error(format!("find {path}"), source))
    }

    /// Does what blocks where that keeps nobody.
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
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(self.error(format!("delete {path}"), source)),
        }
    }

    async fn unknown(&self, name: &ModelName) -> Error {
        let mut known = self.names().await.unwrap_or_default();
        for at in (0..known.len()).rev() {
            // An unfinished run leaves a name, but no model.
            if self.versions(&known[at]).await.is_ok_and(|v| v.is_empty()) {
                known.remove(at);
            }
        }
        let hint = did_you_mean(name.as_str(), known.iter().map(ModelName::as_str));
        Error::UnknownModel {
            name: name.to_string(),
            store: self.url.to_string(),
            hint,
        }
    }

    pub(super) fn directory(&self, name: &ModelName) -> Path {
        self.root.clone().join("models").join(name.as_str())
    }

    pub(super) fn file(&self, name: &ModelName, version: u32, file: &str) -> Path {
        self.directory(name).join(version.to_string()).join(file)
    }

    fn error(&self, action: impl Into<String>, source: object_store::Error) -> Error {
        Error::Store {
            store: self.url.to_string(),
            action: action.into(),
            source,
        }
    }
}
