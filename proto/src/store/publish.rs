//! Publishing: a version is a folder that is made elsewhere, and moved into place whole.
//!
//! ```text
//! models/<name>/unpublished/<train id>-<random>/   weights.safetensors, …, manifest.json: each synced
//!     │ rename(2), which puts no folder over one that has files
//!     ▼
//! models/<name>/<version>/
//! ```
//!
//! Several may publish for one run: a rank that was given up while it was at it, and the one of the next generation.
//! Each has a folder of its own, so nobody writes into another's files or into a version. Of those who move
//! theirs to the same place one does; who finds the place taken looks whose it is, and goes on to
//! the next place only if it is another run's. Places are taken in order, so that a run never has two.

use bytes::Bytes;
use object_store::path::Path;
use uuid::Uuid;

use super::model_store::MANIFEST;
use super::{Manifest, ModelStore, WrittenFile};
use crate::spec::IfExists;
use crate::{Error, Result, disk};

/// The folder of what is being published.
pub(super) const UNPUBLISHED: &str = "unpublished";

impl ModelStore {
    /// Publishes a new version, which is on the disk then. Returns the version.
    ///
    /// A run publishes once: when it has published already, that version is returned.
    ///
    /// # Errors
    /// When the store cannot be written, or when the spec asks to fail if the model exists and
    /// another run has published it meanwhile; nothing is visible then.
    pub async fn publish(
        &self,
        manifest: Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<u32> {
        let (name, run) = (manifest.spec.model.clone(), manifest.spec.train_id);
        let unpublished = self.directory(&name).join(UNPUBLISHED);
        let own = format!("{run}-{}", Uuid::new_v4().simple());
        let staged = unpublished.clone().join(own.as_str());
        let published = match self.publish_from(&staged, manifest, files).await {
            // Another generation of the run was sooner, and has cleared away.
            Err(error) => {
                let published = self.published_by(&name, run).await;
                published.ok().flatten().ok_or(error)
            }
            published => published,
        };
        let over = match published {
            // Of every generation: whoever is still at it is too late.
            Ok(_) => run.to_string(),
            Err(_) => own,
        };
        self.clear(&unpublished, over).await;
        published
    }

    async fn publish_from(
        &self,
        staged: &Path,
        mut manifest: Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<u32> {
        let (name, run) = (manifest.spec.model.clone(), manifest.spec.train_id);
        let last = self.numbers(&name).await?.into_iter().max().unwrap_or(0);
        // Looked for after the places: one that the run takes from here on is among those that are tried.
        if let Some(published) = self.published_by(&name, run).await? {
            return Ok(published);
        }
        self.check_if_exists(&manifest).await?;
        let mut version = last + 1;
        let written = files
            .iter()
            .map(|(file, bytes)| WrittenFile::of(file, bytes));
        manifest.files = written.collect();
        let folder = self.local(staged)?;
        let make = move || disk::make_folder(&folder);
        self.on_disk(format!("make {staged}"), make).await?;
        for (file, bytes) in files {
            self.write_in_place(&staged.clone().join(file), bytes)
                .await?;
        }
        loop {
            manifest.version = version;
            if self.move_into_place(staged, &manifest).await? {
                return Ok(version);
            }
            if let Some(published) = self.published_by(&name, run).await? {
                return Ok(published);
            }
            version += 1;
        }
    }

    /// Moves a version to its place, unless something is there. Says whether it has.
    async fn move_into_place(&self, staged: &Path, manifest: &Manifest) -> Result<bool> {
        let json = serde_json::to_vec_pretty(manifest)
            .map_err(|source| Error::malformed("model manifest", source))?;
        let path = staged.clone().join(MANIFEST);
        self.write_in_place(&path, json.into()).await?;
        self.check_if_exists(manifest).await?;
        let place = self.directory(&manifest.spec.model);
        let place = place.join(manifest.version.to_string());
        let (from, to) = (self.local(staged)?, self.local(&place)?);
        let action = format!("publish {place}");
        self.on_disk(action, move || disk::move_folder(&from, &to))
            .await
    }

    /// Writes a file into a folder that is there: one that was removed is not made again.
    async fn write_in_place(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let file = self.local(path)?;
        let write = move || disk::replace(&file, &bytes);
        self.on_disk(format!("write {path}"), write).await
    }

    /// Fails when the model exists and the spec says that it must not.
    async fn check_if_exists(&self, manifest: &Manifest) -> Result<()> {
        if manifest.spec.if_exists == IfExists::Replace {
            return Ok(());
        }
        let name = &manifest.spec.model;
        match self.current(name).await? {
            None => Ok(()),
            Some(version) => Err(Error::PublishedMeanwhile {
                name: name.to_string(),
                version,
            }),
        }
    }

    /// Removes folders of what is not to be published any more, by what their names begin with.
    async fn clear(&self, unpublished: &Path, prefix: String) {
        let Ok(folder) = self.local(unpublished) else {
            return;
        };
        let clear = move || {
            let mut cleared = Ok(());
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let is_over = entry.file_name().to_string_lossy().starts_with(&prefix);
                if is_over {
                    cleared = cleared.and(std::fs::remove_dir_all(entry.path()));
                }
            }
            cleared
        };
        let cleared = self.on_disk(format!("clear {unpublished}"), clear).await;
        if let Err(error) = cleared {
            tracing::debug!(%error, "something that is not to be published stays in the store");
        }
    }
}
