//! Checkpoints: what an unfinished run left, so that it need not begin again.
//!
//! ```text
//! models/<name>/checkpoints/<train id>/<generation, 6 digits>-<steps, 12 digits>.state   what the trainer wrote
//!                                     /<generation>-<steps>.json    written last: the checkpoint exists
//! ```
//!
//! On an object store, where a put may arrive after the one that was to replace it, a state has a name that is never used again,
//! `<generation>-<steps>.<random>.state`, and its information names it. Who writes at the same step again replaces
//! the information by a put that depends on the version it replaces.
//!
//! The generation is a fencing token: its names are its own, so that a superseded one that goes on all the same writes
//! over nothing of a later one. It refuses to begin where a later one has written, and deletes only what it saw before it wrote,
//! all of which is of its own generation or of earlier ones. The newest checkpoint is the one of the
//! latest generation, and of that the one of most steps; the newest two of a run are kept.
//!
//! A reader checks length and hash, and goes back to the one before where a file is not what was written. The store
//! does not know what a state holds, and a checkpoint is no version: models are listed, read and
//! predicted with as if there were none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectMeta, UpdateVersion};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ModelStore;
use super::file::WrittenFile;
use super::open::Kind;
use crate::limits::DOCUMENT_LIMIT;
use crate::spec::Transform;
use crate::{Error, ModelName, Result, TrainId};

/// The layout this build writes and reads.
const FORMAT: u32 = 1;

const DIRECTORY: &str = "checkpoints";

/// A place in training: what comes next, and how much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The epoch under way, from 1.
    pub epoch: usize,
    /// The next step within it, from 0; the number of steps when only its evaluation is left.
    pub step: u64,
    /// Optimizer steps done since training began.
    pub steps: u64,
}

impl Position {
    /// Where training begins.
    pub const START: Self = Self {
        epoch: 1,
        step: 0,
        steps: 0,
    };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, step {}", self.epoch, self.step)
    }
}

/// Who writes checkpoints: the rank 0 of a run's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The run.
    pub run: TrainId,
    /// The generation, from 1.
    pub generation: u64,
}

/// Which checkpoint of a run, in the order in which they are the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// 0 in names of old, which say nothing of it.
    generation: u64,
    steps: u64,
}

impl Key {
    fn parse(name: &str) -> Option<Self> {
        let (generation, steps) = name.split_once('-').unwrap_or(("0", name));
        Some(Self {
            generation: generation.parse().ok()?,
            steps: steps.parse().ok()?,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.generation > 0 {
            write!(f, "{:06}-", self.generation)?;
        }
        write!(f, "{:012}", self.steps)
    }
}

/// What is known of a checkpoint without reading its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// The layout's version.
    pub format: u32,
    /// The run that wrote it.
    pub train_id: TrainId,
    /// The generation that wrote it; 0 in those of old.
    #[serde(default)]
    pub generation: u64,
    /// Where training stood.
    #[serde(flatten)]
    pub position: Position,
    /// The state's length.
    pub bytes: u64,
    /// The state's hash (XXH64, seed 0), in hexadecimal.
    pub hash: String,
    /// When it was written.
    #[serde(with = "humantime_serde")]
    pub written: SystemTime,
    /// The file of its state; none where that has the name of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What the run computes of its rows, with the numbers that it fitted: those who go on fit no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
}

/// What was found of a model's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundCheckpoint {
    /// The newest whole one.
    pub checkpoint: Option<(CheckpointInfo, Bytes)>,
    /// Of each newer one that cannot be used, why not.
    pub skipped: Vec<String>,
}

/// The files of one checkpoint that are there.
#[derive(Debug, Default)]
struct Files {
    /// One in a folder.
    states: Vec<ObjectMeta>,
    info: Option<ObjectMeta>,
}

/// A checkpoint that may be whole.
#[derive(Debug)]
struct Candidate {
    run: TrainId,
    key: Key,
    /// Its information, or why there is none.
    info: Result<CheckpointInfo, String>,
    written: SystemTime,
}

impl ModelStore {
    /// Writes a run's checkpoint, which is on the disk then, and removes all but the one before.
    ///
    /// # Errors
    /// When a later generation has written one, or the store cannot be written; the checkpoint before is whole then.
    pub async fn save_checkpoint(
        &self,
        model: &ModelName,
        writer: Writer,
        position: Position,
        transform: Option<&Transform>,
        state: Bytes,
    ) -> Result<()> {
        let Writer { run, generation } = writer;
        let steps = position.steps;
        let key = Key { generation, steps };
        let earlier = self.checkpoint_files(model, run).await?;
        let latest = earlier
            .last_key_value()
            .map_or(0, |(key, _)| key.generation);
        if latest > generation {
            return Err(Error::Superseded {
                run: run.to_string(),
                generation,
                by: latest,
            });
        }
        let WrittenFile { bytes, hash, .. } = WrittenFile::of("", &state);
        let file = (self.kind == Kind::Objects)
            .then(|| format!("{key}.{}.state", Uuid::new_v4().simple()));
        let info = CheckpointInfo {
            format: FORMAT,
            train_id: run,
            generation,
            position,
            bytes,
            hash,
            written: SystemTime::now(),
            state: file,
            transform: transform.cloned(),
        };
        match self.kind {
            Kind::Folder => {
                if let Some(Files {
                    info: Some(old), ..
                }) = earlier.get(&key)
                {
                    self.delete(&old.location).await?; // it says nothing of the state that replaces its own
                }
                let [state_path, info_path] = self.checkpoint_paths(model, key, &info);
                self.write(&state_path, state).await?;
                self.write(&info_path, json(&info)?).await?;
            }
            Kind::Objects => self.put_checkpoint(model, key, &info, &state).await?,
        }

        let mut before = earlier.range(..key).rev();
        let before = before.find(|(_, files)| files.info.is_some());
        let before = before.map(|(before, _)| *before);
        for (other, files) in earlier {
            if other < key && Some(other) != before {
                self.delete_checkpoint(files).await?;
            } else if other == key && self.kind == Kind::Objects {
                // The states that were replaced.
                for state in files.states {
                    self.delete(&state.location).await?;
                }
            }
        }
        Ok(())
    }

    /// Puts a checkpoint's state at a name of its own, and then what names it.
    async fn put_checkpoint(
        &self,
        model: &ModelName,
        key: Key,
        info: &CheckpointInfo,
        state: &Bytes,
    ) -> Result<()> {
        let [state_path, info_path] = self.checkpoint_paths(model, key, info);
        let written = self.objects.write_own(&state_path, state).await;
        written.map_err(|source| self.unwritten(&state_path, source))?;
        let json = json(info)?;
        let created = self.objects.create(&info_path, &json).await;
        if created.map_err(|source| self.unwritten(&info_path, source))? {
            return Ok(());
        }
        let before = self.objects.head(&info_path).await;
        let before = before.map_err(|source| self.unwritten(&info_path, source))?;
        let version = UpdateVersion {
            e_tag: before.e_tag,
            version: before.version,
        };
        let updated = self.objects.update(&info_path, &json, version).await;
        if updated.map_err(|source| self.unwritten(&info_path, source))? {
            return Ok(());
        }
        self.delete(&state_path).await?;
        let path = info_path.to_string();
        let source = "somebody else writes the checkpoint of this generation and step".into();
        let source = object_store::Error::Precondition { path, source };
        Err(self.unwritten(&info_path, source))
    }

    /// The newest whole checkpoint of a run, or of all unfinished runs of the model.
    ///
    /// # Errors
    /// When the store cannot be read. A checkpoint that is not whole is no error: it is skipped.
    pub async fn newest_checkpoint(
        &self,
        model: &ModelName,
        run: Option<TrainId>,
    ) -> Result<FoundCheckpoint> {
        let mut runs = Vec::new();
        for run in match run {
            Some(run) => vec![run],
            None => {
                let published = self.published_runs(model).await?;
                let mut runs = self.checkpointed_runs(model).await?;
                runs.retain(|run| !published.contains(run));
                runs
            }
        } {
            runs.push(self.candidates(model, run).await?);
        }
        runs.sort_by_key(|candidates| Reverse(candidates.iter().map(|c| c.written).max()));

        let mut found = FoundCheckpoint::default();
        for candidate in runs.into_iter().flatten() {
            let Candidate { run, key, .. } = candidate;
            let steps = key.steps;
            match self.read_checkpoint(model, candidate).await? {
                Ok(checkpoint) => {
                    found.checkpoint = Some(checkpoint);
                    break;
                }
                Err(reason) => found
                    .skipped
                    .push(format!("checkpoint at step {steps} of run {run} {reason}")),
            }
        }
        let instead = match found.checkpoint {
            Some(_) => "using the one before",
            None => "there is none before it",
        };
        if let Some(last) = found.skipped.last_mut() {
            *last = format!("{last}; {instead}");
        }
        Ok(found)
    }

    /// Removes a run's checkpoints, if it has any.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn drop_checkpoints(&self, model: &ModelName, run: TrainId) -> Result<()> {
        for files in self.checkpoint_files(model, run).await?.into_values() {
            self.delete_checkpoint(files).await?;
        }
        if self.kind == Kind::Objects {
            return Ok(());
        }
        let path = self.checkpoints(model, run);
        let folder = self.local(&path)?;
        let clear = move || {
            // With what was being written when its writer died; whatever stays counts for nothing.
            std::fs::remove_dir_all(&folder).ok();
            Ok(())
        };
        self.on_disk(format!("clear {path}"), clear).await
    }

    /// Removes what runs that have published have left, but for one run that is still at it.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn drop_finished_checkpoints(
        &self,
        model: &ModelName,
        except: TrainId,
    ) -> Result<()> {
        for run in self.published_runs(model).await? {
            if run != except {
                self.drop_checkpoints(model, run).await?;
            }
        }
        Ok(())
    }

    /// The runs of the model's published versions.
    async fn published_runs(&self, model: &ModelName) -> Result<Vec<TrainId>> {
        let published = self.published(model).await?;
        Ok(published.into_iter().map(|(_, run)| run).collect())
    }

    /// A run's checkpoints, whole or not, newest first.
    async fn candidates(&self, model: &ModelName, run: TrainId) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        for (key, files) in self.checkpoint_files(model, run).await?.into_iter().rev() {
            let (info, met) = match (files.info, files.states.into_iter().next()) {
                (Some(meta), _) => {
                    // One that was given up may delete meanwhile, though never the newest.
                    let read = self.read_at_most(&meta.location, DOCUMENT_LIMIT).await?;
                    let info = match read {
                        None => continue,
                        Some(Ok(bytes)) => serde_json::from_slice(&bytes)
                            .map_err(|error| format!("is corrupt: {error}")),
                        Some(Err(found)) => {
                            Err(format!("is corrupt: its information has {found} bytes"))
                        }
                    };
                    (info, meta)
                }
                (None, Some(meta)) => (Err("was not written to its end".to_owned()), meta),
                (None, None) => continue,
            };
            let seen = SystemTime::from(met.last_modified);
            let written = info
                .as_ref()
                .map_or(seen, |info: &CheckpointInfo| info.written);
            candidates.push(Candidate {
                run,
                key,
                info,
                written,
            });
        }
        Ok(candidates)
    }

    /// The checkpoint, or why it is none.
    async fn read_checkpoint(
        &self,
        model: &ModelName,
        candidate: Candidate,
    ) -> Result<Result<(CheckpointInfo, Bytes), String>> {
        let Candidate { run, key, info, .. } = candidate;
        let info = match info {
            Ok(info) if info.format != FORMAT => {
                let reason = format!("has format {}, this build reads {FORMAT}", info.format);
                return Ok(Err(reason));
            }
            Ok(info) => info,
            Err(reason) => return Ok(Err(reason)),
        };
        let (generation, steps) = (info.generation, info.position.steps);
        if info.train_id != run || (Key { generation, steps }) != key {
            return Ok(Err("is corrupt: it is of another run or step".into()));
        }
        let [path, _] = self.checkpoint_paths(model, key, &info);
        let state = match self.read_at_most(&path, info.bytes).await? {
            Some(Ok(state)) => state,
            Some(Err(found)) => {
                let expected = info.bytes;
                return Ok(Err(format!(
                    "is corrupt: its state has {found} bytes instead of {expected} bytes"
                )));
            }
            None => return Ok(Err("is corrupt: its state is missing".into())),
        };
        let written = WrittenFile {
            name: String::new(),
            bytes: info.bytes,
            hash: info.hash.clone(),
            path: None,
        };
        Ok(match written.differs(&state) {
            None => Ok((info, state)),
            Some([found, expected]) => Err(format!(
                "is corrupt: its state has {found} instead of {expected}"
            )),
        })
    }

    /// The files of a run's checkpoints, oldest first.
    async fn checkpoint_files(
        &self,
        model: &ModelName,
        run: TrainId,
    ) -> Result<BTreeMap<Key, Files>> {
        let mut found = BTreeMap::<Key, Files>::new();
        for object in self.objects_in(&self.checkpoints(model, run)).await? {
            let Some((name, extension)) =
                object.location.filename().and_then(|f| f.split_once('.'))
            else {
                continue;
            };
            let Some(key) = Key::parse(name) else {
                continue;
            };
            if extension == "json" {
                found.entry(key).or_default().info = Some(object);
            } else if extension == "state" || extension.ends_with(".state") {
                found.entry(key).or_default().states.push(object);
            }
        }
        Ok(found)
    }

    async fn checkpointed_runs(&self, model: &ModelName) -> Result<Vec<TrainId>> {
        let runs = self.directory(model).join(DIRECTORY);
        let runs = self.directories(&runs).await?;
        Ok(runs.iter().filter_map(|run| run.parse().ok()).collect())
    }

    async fn delete_checkpoint(&self, files: Files) -> Result<()> {
        for file in files.info.into_iter().chain(files.states) {
            self.delete(&file.location).await?;
        }
        Ok(())
    }

    fn checkpoints(&self, model: &ModelName, run: TrainId) -> Path {
        self.directory(model).join(DIRECTORY).join(run.to_string())
    }

    /// Where a checkpoint's state and its information are.
    fn checkpoint_paths(&self, model: &ModelName, key: Key, info: &CheckpointInfo) -> [Path; 2] {
        let state = info.state.clone();
        let files = [
            state.unwrap_or_else(|| format!("{key}.state")),
            format!("{key}.json"),
        ];
        files.map(|file| self.checkpoints(model, info.train_id).join(file))
    }
}

fn json(info: &CheckpointInfo) -> Result<Bytes> {
    serde_json::to_vec_pretty(info)
        .map(Bytes::from)
        .map_err(|source| Error::malformed("checkpoint", source))
}
