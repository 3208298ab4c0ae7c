//! Publishing: a version becomes visible whole, and under one number.
//!
//! In a folder it is written elsewhere, and moved into place:
//!
//! ```text
//! models/<name>/unpublished/<train id>-<random>/   weights.safetensors, …, manifest.json: each synced
//!     │ rename(2), which does not replace a folder that has files
//!     ▼
//! models/<name>/<version>/
//! ```
//!
//! An object store cannot rename: there the files stay where they were put, and the manifest names them.
//!
//! ```text
//! models/<name>/files/<train id>-<generation>-<random>/   weights.safetensors, …
//!     ▲ named by
//! models/<name>/<version>/manifest.json    put last, and only if there is none: If-None-Match: *
//! ```
//!
//! Several ranks may publish for one run: a rank that was given up while it published, and the rank of the next
//! generation. Each has files of its own, so nobody writes into another's files or into a version. One of those that
//! compete for a number gets it; a rank that finds the number taken checks whose it is, and tries the next number only
//! if it belongs to another run. Numbers are taken in order, so that a run never has two.
//!
//! A rank that has published removes the remains of others of its run: in a folder all of them, on an object store
//! those of no later generation. There another rank may have been about to put its manifest; it then checks whether its
//! files still exist, as it may have got the number only because the run's version was dropped meanwhile.

use std::time::SystemTime;

use bytes::Bytes;
use humantime_serde::re::humantime::format_rfc3339_millis;
use object_store::path::Path;
use uuid::Uuid;

use super::model_store::{MANIFEST, NewestRun, RunStart};
use super::open::Kind;
use super::{Manifest, ModelStore, WrittenFile};
use crate::spec::IfExists;
use crate::{Error, ModelName, Result, TrainId, disk};

/// Folder of versions that are being published.
pub(super) const UNPUBLISHED: &str = "unpublished";
/// Folder of the files of versions on object stores, published or being published.
pub(super) const ATTEMPTS: &str = "files";

/// Attempt that has published the run's version.
#[derive(Debug)]
enum Winner {
    /// This attempt.
    Own(u32),
    /// Another attempt of the run, which was first.
    Other(u32),
}

/// Attempt to publish.
struct Attempt {
    run: TrainId,
    generation: u64,
    /// Name of the folder that it writes to.
    own: String,
    staged: Path,
    /// True if a manifest may be on its way: the files that it names must not be removed.
    is_claiming: bool,
}

impl ModelStore {
    /// Publishes a new version for a generation of its run; it is on disk when the call returns. Returns the version.
    ///
    /// A run publishes once: if it has published already, that version is returned.
    ///
    /// # Errors
    /// When the store cannot be written, the newest version is of a run that began later, or the spec asks to fail if the
    /// model exists and another run has published it meanwhile; then nothing is visible.
    pub async fn publish(
        &self,
        generation: u64,
        manifest: Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<u32> {
        let (name, run) = (manifest.spec.model.clone(), manifest.spec.train_id);
        let random = Uuid::new_v4().simple();
        let (folder, own) = match self.kind {
            Kind::Folder => (UNPUBLISHED, format!("{run}-{random}")),
            Kind::Objects => (ATTEMPTS, format!("{run}-{generation:06}-{random}")),
        };
        let staged = self.directory(&name).join(folder).join(own.as_str());
        let mut attempt = Attempt {
            run,
            generation,
            own,
            staged,
            is_claiming: false,
        };
        let published = match self.publish_as(&mut attempt, manifest, files).await {
            // Another generation of the run was first, and has removed the files.
            Err(error) => match self.published_by(&name, run).await.ok().flatten() {
                Some(version) => Ok(Winner::Other(version)),
                None => Err(error),
            },
            published => published,
        };
        self.clear(&name, &attempt, published.as_ref().ok()).await;
        match published? {
            Winner::Own(version) | Winner::Other(version) => Ok(version),
        }
    }

    async fn publish_as(
        &self,
        attempt: &mut Attempt,
        mut manifest: Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<Winner> {
        let (name, run) = (manifest.spec.model.clone(), attempt.run);
        let last = self.numbers(&name).await?.into_iter().max().unwrap_or(0);
        // Checked after the numbers: a number that the run takes from here on is among those that are tried.
        if let Some(published) = self.published_by(&name, run).await? {
            return Ok(Winner::Other(published));
        }
        self.check_if_exists(&manifest).await?;
        let mut version = last + 1;
        let written = files
            .iter()
            .map(|(file, bytes)| WrittenFile::of(file, bytes));
        manifest.files = written.collect();
        self.stage(attempt, &mut manifest, files).await?;
        loop {
            manifest.version = version;
            let taken = match self.kind {
                Kind::Folder => self.move_into_place(&attempt.staged, &manifest).await?,
                Kind::Objects => self.claim_place(attempt, &manifest).await?,
            };
            if taken {
                return Ok(Winner::Own(version));
            }
            if let Some(published) = self.published_by(&name, run).await? {
                return Ok(Winner::Other(published));
            }
            version += 1;
        }
    }

    /// Writes the files where nobody else writes.
    async fn stage(
        &self,
        attempt: &Attempt,
        manifest: &mut Manifest,
        files: Vec<(&'static str, Bytes)>,
    ) -> Result<()> {
        let staged = &attempt.staged;
        match self.kind {
            Kind::Folder => {
                let folder = self.local(staged)?;
                let make = move || disk::make_folder(&folder);
                self.on_disk(format!("make {staged}"), make).await?;
                for (file, bytes) in files {
                    self.write_in_place(&staged.clone().join(file), bytes)
                        .await?;
                }
            }
            Kind::Objects => {
                for (file, bytes) in files {
                    let path = staged.clone().join(file);
                    let written = self.objects.write_own(&path, &bytes).await;
                    written.map_err(|source| self.unwritten(&path, source))?;
                }
                for file in &mut manifest.files {
                    file.path = Some(format!("{ATTEMPTS}/{}/{}", attempt.own, file.name));
                }
            }
        }
        Ok(())
    }

    /// Moves a version to its place, unless something is there. Returns whether it did.
    async fn move_into_place(&self, staged: &Path, manifest: &Manifest) -> Result<bool> {
        let path = staged.clone().join(MANIFEST);
        self.write_in_place(&path, json(manifest)?).await?;
        self.check_if_exists(manifest).await?;
        let place = self.directory(&manifest.spec.model);
        let place = place.join(manifest.version.to_string());
        let (from, to) = (self.local(staged)?, self.local(&place)?);
        let action = format!("publish {place}");
        self.on_disk(action, move || disk::move_folder(&from, &to))
            .await
    }

    /// Puts a version's manifest at its place, unless one is there. Returns whether it did.
    async fn claim_place(&self, attempt: &mut Attempt, manifest: &Manifest) -> Result<bool> {
        let path = self.file(&manifest.spec.model, manifest.version, MANIFEST);
        self.check_if_exists(manifest).await?;
        self.check_staged(attempt, manifest).await?;
        attempt.is_claiming = true;
        let claimed = self.objects.create(&path, &json(manifest)?).await;
        let claimed = claimed.map_err(|source| self.error(format!("publish {path}"), source))?;
        if !claimed {
            attempt.is_claiming = false;
            return Ok(false);
        }
        if let Err(gone) = self.check_staged(attempt, manifest).await {
            self.delete(&path).await?;
            return Err(gone);
        }
        Ok(true)
    }

    /// Fails unless all files exist: a later generation that has published removes them.
    async fn check_staged(&self, attempt: &Attempt, manifest: &Manifest) -> Result<()> {
        let there = self.files_under(&attempt.staged).await?;
        let is_there = |file: &&WrittenFile| {
            let file = file.name.as_str();
            there.iter().any(|path| path.filename() == Some(file))
        };
        match manifest.files.iter().find(|file| !is_there(file)) {
            None => Ok(()),
            Some(gone) => {
                let path = attempt.staged.clone().join(gone.name.as_str()).to_string();
                let source = "another generation of the run has published, and removed it".into();
                let source = object_store::Error::NotFound { path, source };
                Err(self.error(format!("publish {}", manifest.spec.model), source))
            }
        }
    }

    /// Writes a file into an existing folder; a removed folder is not made again.
    async fn write_in_place(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let file = self.local(path)?;
        let write = move || disk::replace(&file, &bytes);
        self.on_disk(format!("write {path}"), write).await
    }

    /// Fails if the model exists and the spec forbids that, or its newest version is of a run that began later.
    async fn check_if_exists(&self, manifest: &Manifest) -> Result<()> {
        let name = &manifest.spec.model;
        if manifest.spec.if_exists == IfExists::Replace {
            let start = RunStart {
                newest_version: manifest.spec.newest_version,
                begun: manifest.begun,
            };
            return self.check_newest(name, start).await;
        }
        match self.current(name).await? {
            None => Ok(()),
            Some(version) => Err(Error::PublishedMeanwhile {
                name: name.to_string(),
                version,
            }),
        }
    }

    /// Fails if the newest version is of a run that began after this one.
    async fn check_newest(&self, name: &ModelName, own: RunStart) -> Result<()> {
        let Some(newest) = self.newest_run(name).await? else {
            return Ok(());
        };
        match later_start(&newest, own, SystemTime::now()) {
            None => Ok(()),
            Some([later, begun]) => Err(Error::NewerRun {
                name: name.to_string(),
                version: newest.version,
                train: newest.train.to_string(),
                later,
                begun,
            }),
        }
    }

    /// Removes files that will not be published any more.
    async fn clear(&self, name: &ModelName, attempt: &Attempt, published: Option<&Winner>) {
        let cleared = match self.kind {
            Kind::Folder => {
                let over = match published {
                    // Those of every generation: an attempt still under way is too late.
                    Some(_) => attempt.run.to_string(),
                    None => attempt.own.clone(),
                };
                let unpublished = self.directory(name).join(UNPUBLISHED);
                self.clear_folders(&unpublished, over).await
            }
            Kind::Objects => self.clear_attempts(name, attempt, published).await,
        };
        if let Err(error) = cleared {
            tracing::debug!(%error, "something that is not to be published stays in the store");
        }
    }

    /// Removes folders by the prefix of their names.
    async fn clear_folders(&self, unpublished: &Path, prefix: String) -> Result<()> {
        let folder = self.local(unpublished)?;
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
        self.on_disk(format!("clear {unpublished}"), clear).await
    }

    /// Removes the files of an unpublished attempt, or those that a published one has superseded.
    async fn clear_attempts(
        &self,
        name: &ModelName,
        attempt: &Attempt,
        published: Option<&Winner>,
    ) -> Result<()> {
        let attempts = self.directory(name).join(ATTEMPTS);
        let over = match published {
            Some(Winner::Own(_)) => {
                let mut names = self.directories(&attempts).await?;
                names.retain(|name| {
                    *name != attempt.own
                        && attempt_of(name, attempt.run)
                            .is_some_and(|generation| generation <= attempt.generation)
                });
                names
            }
            // Its manifest may still arrive.
            None | Some(Winner::Other(_)) if attempt.is_claiming => Vec::new(),
            None | Some(Winner::Other(_)) => vec![attempt.own.clone()],
        };
        for name in over {
            for file in self.files_under(&attempts.clone().join(name)).await? {
                self.delete(&file).await?;
            }
        }
        Ok(())
    }
}

/// Returns the starts of the run of the newest version and of another one, in words, if that run began after the other.
///
/// The store orders runs by the newest version at their start, whatever the clocks of their clusters. Times count only for
/// runs that began between the same two versions.
fn later_start(newest: &NewestRun, own: RunStart, now: SystemTime) -> Option<[String; 2]> {
    if own.newest_version == Some(newest.version) {
        // It was there already.
        return None;
    }
    let seen = newest.start.newest_version.zip(own.newest_version);
    // A version that is not below the newest was there before the model was dropped, and its numbers began anew.
    let is_below = |seen: u32| seen < newest.version;
    let seen = seen.filter(|(other, own)| other != own && is_below(*other) && is_below(*own));
    if let Some((newest, own)) = seen {
        let at = |version: u32| match version {
            0 => "before the first version".to_owned(),
            version => format!("after version {version} was published"),
        };
        return (newest > own).then(|| [at(newest), at(own)]);
    }
    let (newest, own) = newest.start.begun.zip(own.begun)?;
    let at = |time: SystemTime| format!("at {}", format_rfc3339_millis(time));
    // A time in the future is of a scheduler whose clock is wrong: it says nothing.
    (newest > own && newest <= now).then(|| [at(newest), at(own)])
}

/// Returns the generation of an attempt of this run, from its name.
fn attempt_of(name: &str, run: TrainId) -> Option<u64> {
    let of_run = name.strip_prefix(&run.to_string())?.strip_prefix('-')?;
    of_run.split_once('-')?.0.parse().ok()
}

fn json(manifest: &Manifest) -> Result<Bytes> {
    serde_json::to_vec_pretty(manifest)
        .map(Bytes::from)
        .map_err(|source| Error::malformed("model manifest", source))
}
