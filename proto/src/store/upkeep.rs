//! Upkeep of a store: check what it holds, remove what nobody needs, and copy it.
//!
//! ```text
//!   examine ──► versions, checkpoints of unfinished runs, remains: sizes, ages, damage
//!   remove  ──► one of them; a current version stays, so that no number is given out twice
//!   copy    ──► another store: files first, then the manifest that makes a version of them
//! ```
//!
//! It runs beside trainings: what is young may belong to one. Not here: which of them are to be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use object_store::ObjectMeta;
use object_store::path::Path;
use serde::de::IgnoredAny;
use uuid::Uuid;

use super::checkpoint::{DIRECTORY as CHECKPOINTS, UNFINISHED};
use super::model_store::{MANIFEST, REPORT};
use super::open::Kind;
use super::publish::{ATTEMPTS, UNPUBLISHED};
use super::{Manifest, ModelStore, WrittenFile};
use crate::failure::chain;
use crate::{Error, ModelName, ModelRef, Result, TrainId, disk};

/// Something that a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Model that it belongs to.
    pub model: ModelName,
    /// Kind of the holding.
    pub kind: HoldingKind,
    /// Bytes of its files.
    pub bytes: u64,
    /// Time at which its newest file was written.
    pub written: SystemTime,
    /// Damage that was found.
    pub damage: Option<String>,
    /// True if a manifest of the model cannot be read, so that it may need this.
    pub maybe_needed: bool,
    files: Vec<Path>,
}

/// Kind of holding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldingKind {
    /// A published version; the highest one is current.
    Version {
        /// Its number.
        version: u32,
        /// True for the one that statements use without a number.
        current: bool,
    },
    /// The checkpoints of a run that has not published.
    Unfinished(TrainId),
    /// The checkpoints of a run that has published.
    Finished(TrainId),
    /// Files of a version that was not published.
    Unpublished,
    /// A folder of a version without a manifest.
    Incomplete(u32),
}

/// Comparison of the files that the target of a copy has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// By their lengths: no file of the target is read.
    Lengths,
    /// By their hashes: every file of the target is read.
    Contents,
}

/// Outcome of copying one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionCopy {
    /// The target lacked it.
    New,
    /// The target had it with missing, damaged or older files, which were replaced.
    Repaired,
    /// The target has it whole.
    Present,
}

/// Result of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Copied {
    /// Versions that were copied.
    pub versions: usize,
    /// Versions that were there, and of which files were replaced.
    pub repaired: usize,
    /// Versions that were there already.
    pub present: usize,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Versions that were not copied, with the reason.
    pub failures: Vec<String>,
}

impl ModelStore {
    /// Returns everything that the store holds of a model, or of all models. The files of versions and the newest
    /// checkpoints are read and compared with their hashes if `reads` says so.
    ///
    /// # Errors
    /// When the store cannot be read. Damage is not an error: it is in the holdings.
    pub async fn examine(&self, only: Option<&ModelName>, reads: bool) -> Result<Vec<Holding>> {
        let names = match only {
            Some(name) => vec![name.clone()],
            None => self.names().await?,
        };
        let mut holdings = Vec::new();
        for name in names {
            holdings.extend(self.holdings(&name, reads).await?);
        }
        Ok(holdings)
    }

    async fn holdings(&self, name: &ModelName, reads: bool) -> Result<Vec<Holding>> {
        let root = self.directory(name);
        let listed = self.objects.list_all(&root).await;
        let listed = listed.map_err(|source| self.error(format!("list {root}"), source))?;
        // By the first two parts of their paths below the model's.
        let mut groups = BTreeMap::<[String; 2], Vec<ObjectMeta>>::new();
        for object in listed {
            let parts: Vec<_> = match object.location.prefix_match(&root) {
                Some(parts) => parts.map(|part| part.as_ref().to_owned()).collect(),
                None => continue,
            };
            let mut parts = parts.into_iter();
            let (Some(first), second) = (parts.next(), parts.next()) else {
                continue;
            };
            let is_number = first.parse::<u32>().is_ok();
            let second = second.filter(|_| !is_number).unwrap_or_default();
            groups.entry([first, second]).or_default().push(object);
        }
        let published = self.published(name).await?;
        let readable: BTreeSet<_> = published.iter().map(|(version, _)| *version).collect();
        let finished: BTreeSet<_> = published.into_iter().map(|(_, run)| run).collect();
        let mut are_unreadable = false;
        let current = self.current(name).await?;
        let mut holdings = Vec::new();
        // Folders of files that manifests name.
        let mut named = BTreeSet::new();
        for ([first, second], objects) in &groups {
            let kind = match (first.as_str(), second.as_str()) {
                (CHECKPOINTS, run) => match run.parse() {
                    Ok(run) if finished.contains(&run) => HoldingKind::Finished(run),
                    Ok(run) => HoldingKind::Unfinished(run),
                    Err(_) => continue,
                },
                (UNPUBLISHED | ATTEMPTS, _) => HoldingKind::Unpublished,
                (number, _) => match number.parse() {
                    Ok(version) => {
                        let is_manifest =
                            |object: &ObjectMeta| object.location.filename() == Some(MANIFEST);
                        match objects.iter().any(is_manifest) {
                            true => HoldingKind::Version {
                                version,
                                current: current == Some(version),
                            },
                            false => HoldingKind::Incomplete(version),
                        }
                    }
                    Err(_) => continue,
                },
            };
            let mut holding = Holding {
                model: name.clone(),
                kind,
                bytes: objects.iter().map(|object| object.size).sum(),
                written: newest(objects),
                damage: None,
                maybe_needed: false,
                files: objects
                    .iter()
                    .map(|object| object.location.clone())
                    .collect(),
            };
            match kind {
                HoldingKind::Version { version, .. } => {
                    are_unreadable |= !readable.contains(&version);
                    let elsewhere = self
                        .files_elsewhere(name, &self.file(name, version, MANIFEST))
                        .await?;
                    named.extend(elsewhere.iter().filter_map(folder_of));
                    let folders: BTreeSet<_> = elsewhere.iter().filter_map(folder_of).collect();
                    let beside = groups.iter().filter(|([first, second], _)| {
                        first == ATTEMPTS && folders.contains(second)
                    });
                    holding.bytes += beside
                        .flat_map(|(_, objects)| objects)
                        .map(|object| object.size)
                        .sum::<u64>();
                    holding.files.extend(elsewhere);
                    if reads {
                        holding.damage = self.damage_of(name, version).await?;
                    }
                }
                HoldingKind::Unfinished(run) if reads => {
                    let found = self.newest_checkpoint(name, Some(run)).await?;
                    // One that is being written is not whole yet.
                    let damaged = found
                        .skipped
                        .into_iter()
                        .filter(|why| !why.contains(UNFINISHED));
                    let damaged = damaged.collect::<Vec<_>>().join("; ");
                    holding.damage = (!damaged.is_empty()).then_some(damaged);
                }
                _ => {}
            }
            holdings.push((second.clone(), holding));
        }
        let is_left = |(folder, holding): &(String, Holding)| {
            holding.kind != HoldingKind::Unpublished || !named.contains(folder)
        };
        holdings.retain(is_left);
        let mut holdings: Vec<_> = holdings.into_iter().map(|(_, holding)| holding).collect();
        for holding in &mut holdings {
            let is_version = matches!(holding.kind, HoldingKind::Version { .. });
            holding.maybe_needed = are_unreadable && !is_version;
        }
        Ok(holdings)
    }

    /// Returns what is wrong with a published version, if anything is.
    async fn damage_of(&self, name: &ModelName, version: u32) -> Result<Option<String>> {
        let manifest = match self.manifest(name, Some(version)).await {
            Ok(manifest) => manifest,
            // It may have been dropped meanwhile.
            Err(Error::UnknownVersion { .. } | Error::UnknownModel { .. }) => return Ok(None),
            Err(error @ Error::Store { .. }) => return Err(error),
            Err(error) => return Ok(Some(chain(&error))),
        };
        let model = ModelRef {
            name: name.clone(),
            version,
            store: self.url.clone(),
        };
        for file in &manifest.files {
            match self.read(&model, &manifest, &file.name).await {
                Ok(_) => {}
                Err(error @ Error::Store { .. }) => return Err(error),
                Err(error) => return Ok(Some(chain(&error))),
            }
        }
        Ok(None)
    }

    /// Removes a holding; of a version, its manifest first.
    ///
    /// # Errors
    /// When it is a current version, or the store cannot be written.
    pub async fn remove(&self, holding: &Holding) -> Result<()> {
        if let HoldingKind::Version { version, .. } = holding.kind {
            return self.drop_version(&holding.model, version).await;
        }
        for file in &holding.files {
            self.delete(file).await?;
        }
        self.clear_folder_of(&holding.files).await
    }

    /// Removes one version of a model.
    ///
    /// # Errors
    /// When there is no such version, or it is the current one: the next version would get its number, and who has read
    /// it before would not notice.
    pub async fn drop_version(&self, name: &ModelName, version: u32) -> Result<()> {
        let versions = self.versions(name).await?;
        if !versions.contains(&version) {
            return Err(self.no_version(name, version).await?);
        }
        if versions.last() == Some(&version) {
            return Err(Error::CurrentVersion {
                name: name.to_string(),
                version,
            });
        }
        let manifest = self.file(name, version, MANIFEST);
        let elsewhere = self.files_elsewhere(name, &manifest).await?;
        self.delete(&manifest).await?;
        let folder = self.directory(name).join(version.to_string());
        let beside = self.files_under(&folder).await?;
        let files: Vec<_> = beside.into_iter().chain(elsewhere).collect();
        for file in &files {
            self.delete(file).await?;
        }
        self.clear_folder_of(&files).await
    }

    /// Removes the empty folders that these files have left on a disk.
    async fn clear_folder_of(&self, files: &[Path]) -> Result<()> {
        if self.kind != Kind::Folder {
            return Ok(());
        }
        let folders: BTreeSet<_> = files
            .iter()
            .filter_map(|file| self.local(file).ok()?.parent().map(ToOwned::to_owned))
            .collect();
        let clear = move || {
            for folder in folders {
                // One that is not empty is in use.
                std::fs::remove_dir(folder).ok();
            }
            Ok(())
        };
        self.on_disk("clear folders".to_owned(), clear).await
    }

    /// Copies the published versions of a model, or of all models, to another store, with their reports. Each file is
    /// compared with its hash on the way. `tells` is told of each version. A version that cannot be copied, because it is
    /// damaged or the other store has another one of its number, does not stop the rest.
    ///
    /// # Errors
    /// When a store cannot be read or written. What was copied before is whole.
    pub async fn copy_to(
        &self,
        to: &Self,
        only: Option<&ModelName>,
        comparison: Comparison,
        mut tells: impl FnMut(&ModelName, u32, VersionCopy),
    ) -> Result<Copied> {
        let names = match only {
            Some(name) => vec![name.clone()],
            None => self.names().await?,
        };
        let mut copied = Copied::default();
        for name in names {
            for version in self.versions(&name).await? {
                match self.copy_version(to, &name, version, comparison).await {
                    Ok((done, bytes)) => {
                        tells(&name, version, done);
                        *match done {
                            VersionCopy::New => &mut copied.versions,
                            VersionCopy::Repaired => &mut copied.repaired,
                            VersionCopy::Present => &mut copied.present,
                        } += 1;
                        copied.bytes += bytes;
                    }
                    // It was dropped meanwhile.
                    Err(Error::UnknownVersion { .. } | Error::UnknownModel { .. }) => {}
                    Err(error @ Error::Store { .. }) => return Err(error),
                    Err(error) => {
                        let failure = format!("{name} version {version}: {}", chain(&error));
                        copied.failures.push(failure);
                    }
                }
            }
        }
        Ok(copied)
    }

    /// Copies a version. Returns what was done, and the bytes that were written.
    async fn copy_version(
        &self,
        to: &Self,
        name: &ModelName,
        version: u32,
        comparison: Comparison,
    ) -> Result<(VersionCopy, u64)> {
        let manifest = self.manifest(name, Some(version)).await?;
        let text = self.read_path(&self.file(name, version, MANIFEST)).await?;
        let other = || Error::OtherVersion {
            name: name.to_string(),
            version,
            store: to.url.to_string(),
        };
        let there = to.file(name, version, MANIFEST);
        let mut manifest_is_damaged = false;
        let is_there = match to.read_if_there(&there).await? {
            Some(found) => {
                let compares = comparison == Comparison::Contents;
                let is_json = || serde_json::from_slice::<IgnoredAny>(&found).is_ok();
                match serde_json::from_slice::<Manifest>(&found) {
                    // A manifest is never changed.
                    Ok(known) if known.spec.train_id == manifest.spec.train_id => {
                        manifest_is_damaged = compares && found != text;
                    }
                    // A later build may have written another one; what is not even JSON, nobody has.
                    Err(_) if compares && !is_json() => manifest_is_damaged = true,
                    _ => return Err(other()),
                }
                true
            }
            None => false,
        };
        // On a disk, a version is moved into place whole.
        let own = format!(
            "{}-copy-{}",
            manifest.spec.train_id,
            Uuid::new_v4().simple()
        );
        let staged = to.directory(name).join(UNPUBLISHED).join(own);
        let is_staged = !is_there && to.kind == Kind::Folder;
        let place = |file: &WrittenFile| match is_staged && file.path.is_none() {
            true => staged.clone().join(file.name.as_str()),
            false => to.path_of(name, version, file),
        };
        let model = ModelRef {
            name: name.clone(),
            version,
            store: self.url.clone(),
        };
        let mut bytes = 0;
        for file in &manifest.files {
            let path = place(file);
            if is_there && to.has_file(&path, file, comparison).await? {
                continue;
            }
            let content = self.read(&model, &manifest, &file.name).await?;
            bytes += content.len() as u64;
            to.write(&path, content).await?;
        }
        if let Some(report) = self.report(name, version).await? {
            let path = match is_staged {
                true => staged.clone().join(REPORT),
                false => to.report_path(name, version),
            };
            if !is_there || to.read_if_there(&path).await?.as_ref() != Some(&report) {
                bytes += report.len() as u64;
                to.write(&path, report).await?;
            }
        }
        if manifest_is_damaged {
            bytes += text.len() as u64;
            to.write(&there, text).await?;
            return Ok((VersionCopy::Repaired, bytes));
        }
        if is_there {
            return Ok(match bytes {
                0 => (VersionCopy::Present, 0),
                bytes => (VersionCopy::Repaired, bytes),
            });
        }
        bytes += text.len() as u64;
        let taken = match to.kind {
            Kind::Objects => {
                let created = to.objects.create(&there, &text).await;
                created.map_err(|source| to.unwritten(&there, source))?
            }
            Kind::Folder => {
                to.write(&staged.clone().join(MANIFEST), text).await?;
                let version = to.directory(name).join(version.to_string());
                let (from, place) = (to.local(&staged)?, to.local(&version)?);
                let publish = move || disk::move_folder(&from, &place);
                to.on_disk(format!("publish {version}"), publish).await?
            }
        };
        match taken {
            true => Ok((VersionCopy::New, bytes)),
            false => Err(other()),
        }
    }

    /// Checks whether a file is there, by its length or its content.
    async fn has_file(
        &self,
        path: &Path,
        written: &WrittenFile,
        comparison: Comparison,
    ) -> Result<bool> {
        if comparison == Comparison::Contents {
            let read = self.read_at_most(path, written.bytes).await?;
            return Ok(matches!(read, Some(Ok(found)) if written.differs(&found).is_none()));
        }
        match self.objects.head(path).await {
            Ok(found) => Ok(found.size == written.bytes),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(self.error(format!("look for {path}"), source)),
        }
    }
}

fn newest(objects: &[ObjectMeta]) -> SystemTime {
    let times = objects
        .iter()
        .map(|object| SystemTime::from(object.last_modified));
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the name of the folder that a file is in.
fn folder_of(file: &Path) -> Option<String> {
    let mut parts: Vec<_> = file.parts().collect();
    parts.pop();
    Some(parts.pop()?.as_ref().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::scene::Scene;
    use super::*;
    use crate::spec::IfExists;

    fn kinds(holdings: &[Holding]) -> Vec<HoldingKind> {
        holdings.iter().map(|holding| holding.kind).collect()
    }

    async fn publish(scene: &Scene, run: TrainId) {
        scene.publish(run, IfExists::Replace).await.unwrap();
    }

    fn version(version: u32, current: bool) -> HoldingKind {
        HoldingKind::Version { version, current }
    }

    #[tokio::test]
    async fn what_a_store_holds_is_told_apart() {
        for scene in Scene::all() {
            let (published, unfinished) = (TrainId::generate(), TrainId::generate());
            publish(&scene, published).await;
            publish(&scene, TrainId::generate()).await;
            scene.save(published, 7).await;
            scene.save(unfinished, 9).await;
            let remains = match scene.is_folder() {
                true => "models/sales/unpublished/x-1/weights.safetensors",
                false => "models/sales/files/x-000001-1/weights.safetensors",
            };
            scene.put(&scene.object(remains), "half").await;
            scene
                .put(&scene.object("models/sales/9/weights"), "no manifest")
                .await;
            let store = &scene.store;
            let found = store.examine(None, true).await.unwrap();
            let mut found_kinds = kinds(&found);
            found_kinds.sort_by_key(|kind| format!("{kind:?}"));
            let mut expected = vec![
                version(1, false),
                version(2, true),
                HoldingKind::Finished(published),
                HoldingKind::Unfinished(unfinished),
                HoldingKind::Unpublished,
                HoldingKind::Incomplete(9),
            ];
            expected.sort_by_key(|kind| format!("{kind:?}"));
            assert_eq!(found_kinds, expected);
            assert!(
                found.iter().all(|holding| holding.damage.is_none()),
                "{found:?}"
            );
            let age = SystemTime::now().duration_since(found[0].written);
            assert!(age.unwrap_or_default() < Duration::from_secs(60));
            for holding in &found {
                let current = holding.kind == version(2, true);
                assert_eq!(store.remove(holding).await.is_err(), current, "{holding:?}");
            }
            let left = store.examine(None, true).await.unwrap();
            assert_eq!(kinds(&left), [version(2, true)]);
            assert_eq!(store.versions(&scene.model).await.unwrap(), [2]);
            assert!(left[0].damage.is_none());
        }
    }

    #[tokio::test]
    async fn damage_is_found() {
        for scene in Scene::all() {
            publish(&scene, TrainId::generate()).await;
            let run = TrainId::generate();
            scene.save(run, 7).await;
            let store = &scene.store;
            let of = |kind: HoldingKind, found: &[Holding]| {
                let holding = found.iter().find(|holding| holding.kind == kind);
                holding.unwrap().damage.clone()
            };
            let files = store.files_under(&scene.object("models")).await.unwrap();
            for file in files {
                if !file.as_ref().ends_with(".json") {
                    scene.put(&file, "other").await;
                }
            }
            let found = store.examine(Some(&scene.model), true).await.unwrap();
            for kind in [version(1, true), HoldingKind::Unfinished(run)] {
                assert!(of(kind, &found).is_some(), "{found:?}");
            }
            let unread = store.examine(None, false).await.unwrap();
            assert!(unread.iter().all(|holding| holding.damage.is_none()));
        }
    }

    #[tokio::test]
    async fn what_an_unreadable_manifest_may_name_is_told() {
        for scene in Scene::all() {
            publish(&scene, TrainId::generate()).await;
            scene.save(TrainId::generate(), 7).await;
            let store = &scene.store;
            let sure = store.examine(None, false).await.unwrap();
            assert!(sure.iter().all(|holding| !holding.maybe_needed));
            scene.put(&store.file(&scene.model, 1, MANIFEST), "{").await;
            let unsure = store.examine(None, false).await.unwrap();
            let others = unsure
                .iter()
                .filter(|holding| holding.kind != version(1, true));
            assert!(others.clone().count() > 0);
            assert!(
                others.clone().all(|holding| holding.maybe_needed),
                "{unsure:?}"
            );
        }
    }

    #[tokio::test]
    async fn stores_and_models_that_do_not_exist_are_named() {
        let nope: ModelName = "nope".parse().unwrap();
        for scene in Scene::all() {
            if !scene.is_folder() {
                let none = scene
                    .store
                    .check_exists(None)
                    .await
                    .unwrap_err()
                    .to_string();
                assert!(none.ends_with(" does not exist"), "{none}");
            }
            scene.save(TrainId::generate(), 7).await;
            let store = &scene.store;
            store.check_exists(Some(&scene.model)).await.unwrap();
            let none = store.check_exists(Some(&nope)).await.unwrap_err();
            assert!(matches!(none, Error::UnknownModel { .. }), "{none}");
        }
        let dir = tempfile::tempdir().unwrap();
        let url = ModelStore::directory_url(&dir.path().join("none")).unwrap();
        let none = ModelStore::open(&url).unwrap().check_exists(None).await;
        let none = none.unwrap_err().to_string();
        assert_eq!(none, format!("the store {url} does not exist"));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let url = ModelStore::directory_url(&file).unwrap();
        let file = ModelStore::open(&url).unwrap().check_exists(None).await;
        let said = chain(&file.unwrap_err());
        assert!(said.ends_with("not a directory"), "{said}");
    }

    #[tokio::test]
    async fn a_copy_is_a_store() {
        let scenes = || Scene::all().into_iter();
        for (from, to) in scenes().flat_map(|_| scenes().zip(scenes().rev())) {
            publish(&from, TrainId::generate()).await;
            publish(&from, TrainId::generate()).await;
            let mut told = Vec::new();
            let copied = from.store.copy_to(
                &to.store,
                None,
                Comparison::Lengths,
                |model, version, done| {
                    told.push((model.to_string(), version, done));
                },
            );
            let copied = copied.await.unwrap();
            assert_eq!((copied.versions, copied.present), (2, 0));
            let new = VersionCopy::New;
            assert_eq!(told, [("sales".into(), 1, new), ("sales".into(), 2, new)]);
            let found = to.store.examine(None, true).await.unwrap();
            assert_eq!(kinds(&found), [version(1, false), version(2, true)]);
            assert!(
                found.iter().all(|holding| holding.damage.is_none()),
                "{found:?}"
            );
            let again = from.store.copy_to(
                &to.store,
                Some(&from.model),
                Comparison::Contents,
                |_, _, done| {
                    assert_eq!(done, VersionCopy::Present);
                },
            );
            assert_eq!(again.await.unwrap().present, 2);
            // What is missing there is copied again, and so is a report that was written later.
            let files = to.store.files_under(&to.object("models")).await.unwrap();
            let mut weights = files.iter();
            let weights = weights.find(|file| !file.as_ref().ends_with(".json"));
            to.remove(weights.unwrap()).await;
            let html = "<p>".to_owned();
            from.store.keep_report(&from.model, 2, html).await.unwrap();
            let copy = async |from: &Scene, comparison| {
                let copied = from
                    .store
                    .copy_to(&to.store, None, comparison, |_, _, _| {});
                copied.await.unwrap()
            };
            let again = copy(&from, Comparison::Lengths).await;
            assert_eq!(again.failures, [""; 0]);
            assert_eq!(again.versions, 0);
            assert!(again.repaired > 0, "{again:?}");
            let found = to.store.examine(None, true).await.unwrap();
            assert!(found.iter().all(|holding| holding.damage.is_none()));
            assert!(to.store.has_report(&to.model, 2).await.unwrap());
            // Damage that keeps the length is found by the content alone.
            let weights = weights.unwrap();
            let damaged = vec![0; to.get(weights).await.len()];
            to.put(weights, damaged).await;
            to.put(&to.store.file(&to.model, 2, MANIFEST), "{").await;
            let again = copy(&from, Comparison::Lengths).await;
            assert_eq!((again.repaired, again.failures.len()), (0, 1), "{again:?}");
            let again = copy(&from, Comparison::Contents).await;
            assert!(again.repaired > 0 && again.failures.is_empty(), "{again:?}");
            let found = to.store.examine(None, true).await.unwrap();
            assert!(
                found.iter().all(|holding| holding.damage.is_none()),
                "{found:?}"
            );
            let other = Scene::folder();
            publish(&other, TrainId::generate()).await;
            let failures = copy(&other, Comparison::Contents).await.failures;
            assert_eq!(failures.len(), 1);
            assert!(failures[0].contains("another run"), "{failures:?}");
        }
    }
}
