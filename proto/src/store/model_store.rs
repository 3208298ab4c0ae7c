//! Operations of the model store over an `object_store`.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use futures::future::try_join_all;
use object_store::path::Path;
use serde::Deserialize;
use url::Url;

use super::objects::Objects;
use super::open::Kind;
use super::publish::{ATTEMPTS, UNPUBLISHED};
use super::{Manifest, WrittenFile};
use crate::limits::DOCUMENT_LIMIT;
use crate::{Error, ModelName, ModelRef, Result, TrainId, did_you_mean};

pub(super) const MANIFEST: &str = "manifest.json";
/// Timeline of a model's ranks, if the spec asked for it.
pub const TRACE_FILE: &str = "trace.json";
/// Report of a version, for people to read.
pub(super) const REPORT: &str = "report.html";
/// Number of versions that are looked up concurrently.
const AT_ONCE: usize = 16;

/// Model store, by its URL.
#[derive(Clone)]
pub struct ModelStore {
    pub(super) url: Url,
    pub(super) objects: Objects,
    pub(super) root: Path,
    pub(super) kind: Kind,
}

/// Entry of a store's listing.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSummary {
    /// Name of the model.
    pub name: ModelName,
    /// Published versions, ascending.
    pub versions: Vec<u32>,
    /// Time at which the current version was published.
    pub published: SystemTime,
}

impl fmt::Debug for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelStore")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

/// Format of a manifest, whatever else it contains.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Run of a manifest of any format.
#[derive(Deserialize)]
struct AnyManifest {
    #[serde(default, with = "humantime_serde::option")]
    begun: Option<SystemTime>,
    spec: AnySpec,
}

#[derive(Deserialize)]
struct AnySpec {
    train_id: TrainId,
    newest_version: Option<u32>,
}

/// Run that has published the newest version.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestRun {
    pub(super) version: u32,
    pub(super) train: TrainId,
    pub(super) start: RunStart,
}

/// Start of a run, as far as its manifest tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunStart {
    /// Newest version at that time, 0 if there was none.
    pub(super) newest_version: Option<u32>,
    /// Time at which the run was submitted, by its scheduler's clock.
    pub(super) begun: Option<SystemTime>,
}

impl ModelStore {
    /// Returns the store's URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the URL of a file that was published with a version.
    pub fn file_url(&self, model: &ModelName, manifest: &Manifest, file: &str) -> Url {
        let written = manifest.files.iter().find(|written| written.name == file);
        let elsewhere = written.and_then(|written| written.path.as_deref());
        match elsewhere {
            Some(path) => self.url_of(model, path.split('/')),
            None => self.url_of(model, [manifest.version.to_string().as_str(), file]),
        }
    }

    fn url_of<'a>(&self, model: &ModelName, path: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            let model = ["models", model.as_str()];
            segments.pop_if_empty().extend(model).extend(path);
        }
        url
    }

    /// Returns the path of such a file among the objects.
    pub(super) fn path_of(&self, name: &ModelName, version: u32, written: &WrittenFile) -> Path {
        match &written.path {
            Some(path) => {
                let model = self.directory(name);
                path.split('/').fold(model, |path, part| path.join(part))
            }
            None => self.file(name, version, &written.name),
        }
    }

    /// Checks that the store can be written to, and has the guarantees that publishing relies on.
    ///
    /// # Errors
    /// The store's answer, or the missing guarantee.
    pub async fn check_writable(&self) -> Result<()> {
        let probe = self
            .root
            .clone()
            .join(format!(".probe-{}", TrainId::generate()));
        match self.kind {
            Kind::Folder => {
                let put = self.objects.replace(&probe, &Bytes::new()).await;
                put.map_err(|source| self.unwritten(&probe, source))?;
            }
            Kind::Objects => {
                let [first, second] = ["first", "second"].map(Bytes::from);
                let created = self.objects.create(&probe, &first).await;
                created.map_err(|source| self.unwritten(&probe, source))?;
                let again = self.objects.create(&probe, &second).await;
                if again.map_err(|source| self.unwritten(&probe, source))? {
                    self.objects.delete(&probe).await.ok();
                    let reason = "it overwrites an existing object despite If-None-Match: *, so two runs \
                        could publish the same version; use a store with conditional puts";
                    return Err(Error::StoreUrl {
                        url: self.url.to_string(),
                        reason: reason.to_owned(),
                    });
                }
            }
        }
        let deleted = self.objects.delete(&probe).await;
        deleted.map_err(|source| self.error(format!("delete {probe}"), source))
    }

    /// Returns the models with at least one published version, by name.
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

    /// Returns the model's published versions, ascending; empty if there is no such model.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn versions(&self, name: &ModelName) -> Result<Vec<u32>> {
        let mut numbers = self.numbers(name).await?;
        numbers.sort_unstable();
        let mut versions = Vec::new();
        for some in numbers.chunks(AT_ONCE) {
            let mut looks = Vec::with_capacity(some.len());
            for version in some {
                looks.push(self.is_published(name, *version));
            }
            let there = try_join_all(looks).await?;
            let there = some.iter().zip(there).filter(|(_, there)| *there);
            versions.extend(there.map(|(version, _)| *version));
        }
        Ok(versions)
    }

    async fn is_published(&self, name: &ModelName, version: u32) -> Result<bool> {
        self.exists(&self.file(name, version, MANIFEST)).await
    }

    /// Returns the newest published version, if there is one.
    pub(super) async fn current(&self, name: &ModelName) -> Result<Option<u32>> {
        let mut numbers = self.numbers(name).await?;
        numbers.sort_unstable();
        for version in numbers.into_iter().rev() {
            if self.is_published(name, version).await? {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Returns the manifest of a version, or of the current one.
    ///
    /// # Errors
    /// When there is no such model (the nearest name is suggested) or version, or the manifest is malformed.
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
        // Another format has other fields: the error should name the format instead.
        let Format { format } =
            serde_json::from_slice(&bytes).map_err(|source| self.broken(name, version, source))?;
        let known = Manifest::FORMAT;
        if format != known {
            let reason = format!("its format is {format}, this build reads {known}");
            return Err(Error::malformed("model manifest", reason));
        }
        serde_json::from_slice(&bytes).map_err(|source| self.broken(name, version, source))
    }

    /// Returns the error of a manifest that cannot be read, with its URL.
    fn broken(&self, name: &ModelName, version: u32, source: serde_json::Error) -> Error {
        Error::Unreadable {
            file: self
                .url_of(name, [version.to_string().as_str(), MANIFEST])
                .to_string(),
            source: Box::new(Error::malformed("model manifest", source)),
        }
    }

    /// Returns the error of a missing version.
    pub(super) async fn no_version(&self, name: &ModelName, version: u32) -> Result<Error> {
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

    /// Reads a file published with a version, and checks it against the manifest.
    ///
    /// # Errors
    /// When there is no such file, it cannot be read, or it differs from the published one.
    pub async fn read(&self, model: &ModelRef, manifest: &Manifest, file: &str) -> Result<Bytes> {
        let Some(written) = manifest.files.iter().find(|written| written.name == file) else {
            let path = self.file(&model.name, model.version, file);
            return self.read_path(&path).await;
        };
        let path = self.path_of(&model.name, model.version, written);
        let read = self.read_at_most(&path, written.bytes).await?;
        let differs = match &read {
            Some(Ok(bytes)) => written.differs(bytes),
            Some(Err(size)) => Some([*size, written.bytes].map(|bytes| format!("{bytes} bytes"))),
            None => Some(["no content".to_owned(), format!("{} bytes", written.bytes)]),
        };
        match (read, differs) {
            (Some(Ok(bytes)), None) => Ok(bytes),
            (_, differs) => {
                let [found, expected] = differs.unwrap_or_default();
                let file = self.file_url(&model.name, manifest, file).to_string();
                Err(Error::ModelFile {
                    file,
                    found,
                    expected,
                })
            }
        }
    }

    /// Stores a version's report, an HTML page, replacing the previous one.
    ///
    /// # Errors
    /// When there is no such model or version, or the store cannot be written.
    pub async fn keep_report(&self, name: &ModelName, version: u32, html: String) -> Result<()> {
        self.manifest(name, Some(version)).await?;
        self.write(&self.report_path(name, version), html.into())
            .await
    }

    /// Returns a version's report, if there is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn report(&self, name: &ModelName, version: u32) -> Result<Option<Bytes>> {
        self.read_if_there(&self.report_path(name, version)).await
    }

    /// Checks whether a version has a report.
    pub(crate) async fn has_report(&self, name: &ModelName, version: u32) -> Result<bool> {
        self.exists(&self.report_path(name, version)).await
    }

    /// Removes every version of a model, and its checkpoints. Returns the number of published versions. Files that are
    /// being published stay.
    ///
    /// # Errors
    /// When there is no such model, or it cannot be deleted.
    pub async fn drop_model(&self, name: &ModelName) -> Result<usize> {
        let versions = self.versions(name).await?;
        if versions.is_empty() {
            return Err(self.unknown(name).await);
        }
        let files = self.files_under(&self.directory(name)).await?;
        // Manifests first, also those published meanwhile: a version is gone with its manifest.
        let (manifests, others): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| file.filename() == Some(MANIFEST) && !self.is_staged(name, file));
        let mut published = Vec::new();
        for manifest in &manifests {
            published.extend(self.files_elsewhere(name, manifest).await?);
        }
        let others = others
            .iter()
            .filter(|file| !self.is_staged(name, file) || published.contains(file));
        for file in manifests.iter().chain(others) {
            self.delete(file).await?;
        }
        Ok(versions.len())
    }

    /// Checks whether a file belongs to a version being published or, on an object store, to a published one.
    fn is_staged(&self, name: &ModelName, file: &Path) -> bool {
        let staged = match self.kind {
            Kind::Folder => UNPUBLISHED,
            Kind::Objects => ATTEMPTS,
        };
        file.prefix_matches(&self.directory(name).join(staged))
    }

    /// Returns the files of a version that are not beside its manifest.
    pub(super) async fn files_elsewhere(
        &self,
        name: &ModelName,
        manifest: &Path,
    ) -> Result<Vec<Path>> {
        /// Files in a manifest of any format.
        #[derive(Deserialize)]
        struct Files {
            #[serde(default)]
            files: Vec<WrittenFile>,
        }
        // A folder may be the copy of a store of objects.
        let bytes = self.read_if_there(manifest).await?.unwrap_or_default();
        let Ok(Files { files }) = serde_json::from_slice(&bytes) else {
            return Ok(Vec::new());
        };
        let elsewhere = files.iter().filter(|file| file.path.is_some());
        Ok(elsewhere.map(|file| self.path_of(name, 0, file)).collect())
    }

    /// Returns the version that a run has published.
    pub(super) async fn published_by(&self, name: &ModelName, run: TrainId) -> Result<Option<u32>> {
        let published = self.published(name).await?;
        let of_run = published.into_iter().find(|(_, by)| *by == run);
        Ok(of_run.map(|(version, _)| version))
    }

    /// Returns the run of the newest version and its start; `None` without a version, or if its manifest cannot be read.
    pub(super) async fn newest_run(&self, name: &ModelName) -> Result<Option<NewestRun>> {
        let Some(version) = self.numbers(name).await?.into_iter().max() else {
            return Ok(None);
        };
        let path = self.file(name, version, MANIFEST);
        // A version that cannot be read is reported where it is used, and does not fail a finished training.
        let read = self.read_at_most(&path, DOCUMENT_LIMIT).await;
        let bytes = read.ok().flatten().and_then(Result::ok);
        let manifest = bytes.and_then(|bytes| serde_json::from_slice::<AnyManifest>(&bytes).ok());
        Ok(manifest.map(|AnyManifest { begun, spec }| NewestRun {
            version,
            train: spec.train_id,
            start: RunStart {
                newest_version: spec.newest_version,
                begun,
            },
        }))
    }

    /// Returns the published versions and their runs.
    pub(super) async fn published(&self, name: &ModelName) -> Result<Vec<(u32, TrainId)>> {
        let mut published = Vec::new();
        for version in self.numbers(name).await? {
            let path = self.file(name, version, MANIFEST);
            let read = self.read_at_most(&path, DOCUMENT_LIMIT).await?;
            let bytes = read.and_then(Result::ok);
            let manifest = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            // A version that cannot be read is reported where it is used.
            if let Some(AnyManifest { spec, .. }) = manifest {
                published.push((version, spec.train_id));
            }
        }
        Ok(published)
    }

    /// Returns the names under `models/`, sorted, with or without published versions.
    pub(super) async fn names(&self) -> Result<Vec<ModelName>> {
        let mut names: Vec<_> = self
            .directories(&self.root.clone().join("models"))
            .await?
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Returns the highest number of a version that is published or being published, 0 if there is none. In a folder,
    /// numbers of dropped versions count too, since new ones continue from them.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub async fn newest_number(&self, name: &ModelName) -> Result<u32> {
        Ok(self.numbers(name).await?.into_iter().max().unwrap_or(0))
    }

    /// Returns the versions that exist or existed, in no order.
    pub(super) async fn numbers(&self, name: &ModelName) -> Result<Vec<u32>> {
        let directories = self.directories(&self.directory(name)).await?;
        Ok(directories
            .into_iter()
            .filter_map(|version| version.parse().ok())
            .collect())
    }

    pub(super) async fn unknown(&self, name: &ModelName) -> Error {
        let mut known = self.names().await.unwrap_or_default();
        for at in (0..known.len()).rev() {
            // An unfinished run leaves a name, but not a model.
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

    pub(super) fn report_path(&self, name: &ModelName, version: u32) -> Path {
        self.file(name, version, REPORT)
    }

    pub(super) fn file(&self, name: &ModelName, version: u32, file: &str) -> Path {
        self.directory(name).join(version.to_string()).join(file)
    }
}
