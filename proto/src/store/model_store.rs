//! The store's operations over an `object_store`.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use url::Url;

use super::Manifest;
use crate::spec::IfExists;
use crate::{Error, ModelName, ModelRef, Result, TrainId, did_you_mean};

const MANIFEST: &str = "manifest.json";
/// What a model's ranks did when, if they were asked to note it.
pub const TRACE_FILE: &str = "trace.json";
/// What was made of a version for people to read.
const REPORT: &str = "report.html";
const CLAIM: &str = "claim.json";

/// A model store, by its URL.
#[derive(Clone)]
pub struct ModelStore {
    url: Url,
    objects: Arc<dyn ObjectStore>,
    root: Path,
}

/// Who a version belongs to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    train_id: TrainId,
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
        for version in self.claimed(name).await? {
            if self.exists(&self.file(name, version, MANIFEST)).await? {
                versions.push(version);
            }
        }
        versions.sort_unstable();
        Ok(versions)
    }

    /// The manifest of a version, or of the current one.
    ///
    /// # Errors
    /// When there is no such model (the nearest name is suggested) or version, or it is malformed.
    pub async fn manifest(&self, name: &ModelName, version: Option<u32>) -> Result<Manifest> {
        let versions = self.versions(name).await?;
        let Some(current) = versions.last().copied() else {
            return Err(self.unknown(name).await);
        };
        let version = version.unwrap_or(current);
        if !versions.contains(&version) {
            let available: Vec<_> = versions.iter().map(u32::to_string).collect();
            let (name, available) = (name.to_string(), available.join(", "));
            return Err(Error::UnknownVersion {
                name,
                version,
                available,
            });
        }
        let bytes = self.read_file(name, version, MANIFEST).await?;
        // A later format has fields that this build does not know: that is not what is to be said of it.
        let Format { format } = serde_json::from_slice(&bytes)
            .map_err(|source| Error::malformed("model manifest", source))?;
        let known = Manifest::FORMAT;
        if !(1..=known).contains(&format) {
            let reason = format!("its format is {format}, this build reads up to {known}");
            return Err(Error::malformed("model manifest", reason));
        }
        serde_json::from_slice(&bytes).map_err(|source| Error::malformed("model manifest", source))
    }

    /// One of the files published with a version.
    ///
    /// # Errors
    /// When there is no such file or it cannot be read.
    pub async fn read(&self, model: &ModelRef, file: &str) -> Result<Bytes> {
        self.read_file(&model.name, model.version, file).await
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
        match self.has_report(name, version).await? {
            true => self.read_file(name, version, REPORT).await.map(Some),
            false => Ok(None),
        }
    }

    /// Whether a version's report is kept.
    pub(super) async fn has_report(&self, name: &ModelName, version: u32) -> Result<bool> {
        self.exists(&self.file(name, version, REPORT)).await
    }

    /// Publishes a new version: the files first, the manifest last. Returns the version.
    ///
    /// A run publishes once: when it has published already, that version is returned.
    ///
    /// # Errors
    /// When the store cannot be written, or when the spec asks to fail if the model exists and
    /// another run has published it meanwhile; nothing is visible then.
    pub async fn publish(
        &self,
        mut manifest: Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<u32> {
        let name = manifest.spec.model.clone();
        let version = match self.claimed_by(&name, manifest.spec.train_id).await? {
            Some(version) if self.exists(&self.file(&name, version, MANIFEST)).await? => {
                return Ok(version);
            }
            Some(version) => version,
            None => {
                self.check_if_exists(&manifest).await?;
                self.claim(&name, manifest.spec.train_id).await?
            }
        };
        for (file, bytes) in files {
            self.write(&self.file(&name, version, file), bytes).await?;
        }
        manifest.version = version;
        let json = serde_json::to_vec_pretty(&manifest)
            .map_err(|source| Error::malformed("model manifest", source))?;
        self.check_if_exists(&manifest).await?;
        self.write(&self.file(&name, version, MANIFEST), json.into())
            .await?;
        Ok(version)
    }

    /// Fails when the model exists and the spec says that it must not.
    async fn check_if_exists(&self, manifest: &Manifest) -> Result<()> {
        if manifest.spec.if_exists == IfExists::Replace {
            return Ok(());
        }
        let name = &manifest.spec.model;
        match self.versions(name).await?.last() {
            None => Ok(()),
            Some(version) => Err(Error::PublishedMeanwhile {
                name: name.to_string(),
                version: *version,
            }),
        }
    }

    /// Removes every version of a model, and what checkpoints it has. Returns how many versions
    /// were published.
    ///
    /// # Errors
    /// When there is no such model, or it cannot be deleted.
    pub async fn drop_model(&self, name: &ModelName) -> Result<usize> {
        let versions = self.versions(name).await?;
        if versions.is_empty() {
            return Err(self.unknown(name).await);
        }
        for version in &versions {
            self.delete(&self.file(name, *version, MANIFEST)).await?;
        }
        let files: Vec<_> = self
            .objects
            .list(Some(&self.directory(name)))
            .map_ok(|object| object.location)
            .try_collect()
            .await
            .map_err(|source| self.error("list it", source))?;
        for file in files {
            self.delete(&file).await?;
        }
        Ok(versions.len())
    }

    /// The version that a run has claimed.
    async fn claimed_by(&self, name: &ModelName, run: TrainId) -> Result<Option<u32>> {
        for version in self.claimed(name).await? {
            let path = self.file(name, version, CLAIM);
            // A directory without a claim, or with half of one, is nobody's.
            let claim = match self.exists(&path).await? {
                true => serde_json::from_slice(&self.read_path(&path).await?).ok(),
                false => None,
            };
            if claim == Some(Claim { train_id: run }) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Reserves the next version for a run, so that two runs never write the same files.
    async fn claim(&self, name: &ModelName, run: TrainId) -> Result<u32> {
        let mut version = self.claimed(name).await?.into_iter().max().unwrap_or(0) + 1;
        loop {
            let path = self.file(name, version, CLAIM);
            let claim = serde_json::to_vec(&Claim { train_id: run })
                .map_err(|source| Error::malformed("claim", source))?;
            let body = Bytes::from(claim);
            let create = PutOptions {
                mode: PutMode::Create,
                ..Default::default()
            };
            match self.objects.put_opts(&path, body.into(), create).await {
                Ok(_) => return Ok(version),
                Err(object_store::Error::AlreadyExists { .. }) => version += 1,
                Err(source) => return Err(self.error("write to it", source)),
            }
        }
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

    /// The versions that some run has claimed, in no order.
    async fn claimed(&self, name: &ModelName) -> Result<Vec<u32>> {
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

    async fn read_file(&self, name: &ModelName, version: u32, file: &str) -> Result<Bytes> {
        self.read_path(&self.file(name, version, file)).await
    }

    pub(super) async fn read_path(&self, path: &Path) -> Result<Bytes> {
        let read = async { self.objects.get(path).await?.bytes().await };
        read.await
            .map_err(|source| self.error(format!("read {path}"), source))
    }

    pub(super) async fn write(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let written = self.objects.put(path, bytes.into()).await;
        written
            .map(drop)
            .map_err(|source| self.error(format!("write {path}"), source))
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

    fn file(&self, name: &ModelName, version: u32, file: &str) -> Path {
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
