//! Checkpoints: saved states of an unfinished run, so that it need not start over.
//!
//! ```text
//! models/<name>/checkpoints/<train id>/<generation, 6 digits>-<steps, 12 digits>.state   written by the trainer
//!                                     /<generation>-<steps>.json    written last: the checkpoint exists
//! ```
//!
//! On an object store, where a put may arrive after the put that was to replace it, a state has a name that is never
//! used again, `<generation>-<steps>.<random>.state`, and its information file names it. A writer at the same step
//! replaces the information by a put that depends on the version it replaces.
//!
//! The generation is a fencing token: each generation uses its own names, so that a superseded one that is still
//! running overwrites nothing of a later one. It refuses to write where a later one has written, and deletes only files
//! that it saw before it wrote, all of which are of its own generation or earlier ones. The newest checkpoint is that
//! of the latest generation with the most steps; the newest two of a run are kept.
//!
//! A reader checks length and hash, and falls back to the previous checkpoint if a file differs from the written one.
//! The store does not know a state's contents, and a checkpoint is not a version: models are listed, read and predicted
//! with as if there were none.

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

/// Version of the layout that this build writes and reads.
const FORMAT: u32 = 1;

pub(super) const DIRECTORY: &str = "checkpoints";

/// Reason why a state without information is skipped.
pub(super) const UNFINISHED: &str = "was not written to its end";

/// Position in a training: the next step, and the number of steps done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Epoch under way, from 1.
    pub epoch: usize,
    /// Next step within the epoch, from 0; the number of steps when only the evaluation is left.
    pub step: u64,
    /// Optimizer steps done since training began.
    pub steps: u64,
}

impl Position {
    /// Start of training.
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

/// Writer of checkpoints: rank 0 of a run's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Run of the writer.
    pub run: TrainId,
    /// Generation, from 1.
    pub generation: u64,
}

/// Key of a checkpoint within a run, ordered from oldest to newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    generation: u64,
    steps: u64,
}

impl Key {
    fn parse(name: &str) -> Option<Self> {
        let (generation, steps) = name.split_once('-')?;
        Some(Self {
            generation: generation.parse().ok()?,
            steps: steps.parse().ok()?,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}-{:012}", self.generation, self.steps)
    }
}

/// Information about a checkpoint, apart from its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Version of the layout.
    pub format: u32,
    /// Run that wrote it.
    pub train_id: TrainId,
    /// Generation that wrote it.
    pub generation: u64,
    /// Position of the training.
    #[serde(flatten)]
    pub position: Position,
    /// Length of the state in bytes.
    pub bytes: u64,
    /// Hash of the state (XXH64, seed 0), in hexadecimal.
    pub hash: String,
    /// Time at which it was written.
    #[serde(with = "humantime_serde")]
    pub written: SystemTime,
    /// File of the state; none if its name is that of this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Options of the run that a run which resumes from it takes over.
    #[serde(flatten)]
    pub kept: KeptOptions,
}

/// Options of a run that a run which resumes takes over unless it sets them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOptions {
    /// Columns that the run computes from its rows, with the fitted numbers: a run that resumes fits none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
    /// Number of shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
}

/// Result of a search for a model's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundCheckpoint {
    /// Newest intact checkpoint.
    pub checkpoint: Option<(CheckpointInfo, Bytes)>,
    /// Reasons why newer ones cannot be used.
    pub skipped: Vec<String>,
}

/// Existing files of one checkpoint.
#[derive(Debug, Default)]
struct Files {
    /// One file if the store is a folder.
    states: Vec<ObjectMeta>,
    info: Option<ObjectMeta>,
}

/// Checkpoint that may be intact.
#[derive(Debug)]
struct Candidate {
    run: TrainId,
    key: Key,
    /// Information, or the reason why there is none.
    info: Result<CheckpointInfo, String>,
    written: SystemTime,
}

impl ModelStore {
    /// Writes a run's checkpoint, which is on disk when the call returns, and removes older ones except the previous
    /// one.
    ///
    /// # Errors
    /// When a later generation has written one, or the store cannot be written; then the previous checkpoint is intact.
    pub async fn save_checkpoint(
        &self,
        model: &ModelName,
        writer: Writer,
        position: Position,
        kept: KeptOptions,
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
            kept,
        };
        match self.kind {
            Kind::Folder => {
                if let Some(Files {
                    info: Some(old), ..
                }) = earlier.get(&key)
                {
                    self.delete(&old.location).await?; // it does not describe the new state
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
                // The replaced states.
                for state in files.states {
                    self.delete(&state.location).await?;
                }
            }
        }
        Ok(())
    }

    /// Puts a checkpoint's state under a name of its own, and then the information that names it.
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
        let source = "another writer has the checkpoint of this generation and step".into();
        let source = object_store::Error::Precondition { path, source };
        Err(self.unwritten(&info_path, source))
    }

    /// Returns the newest intact checkpoint of a run, or of all unfinished runs of the model.
    ///
    /// # Errors
    /// When the store cannot be read. A damaged checkpoint is not an error: it is skipped.
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
            // Includes the files of an interrupted write; a file that cannot be removed does no harm.
            std::fs::remove_dir_all(&folder).ok();
            Ok(())
        };
        self.on_disk(format!("clear {path}"), clear).await
    }

    /// Removes the checkpoints of runs that have published, except those of one run that is still active.
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

    /// Returns the runs of the model's published versions.
    async fn published_runs(&self, model: &ModelName) -> Result<Vec<TrainId>> {
        let published = self.published(model).await?;
        Ok(published.into_iter().map(|(_, run)| run).collect())
    }

    /// Returns a run's checkpoints, intact or not, newest first.
    async fn candidates(&self, model: &ModelName, run: TrainId) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        for (key, files) in self.checkpoint_files(model, run).await?.into_iter().rev() {
            let (info, met) = match (files.info, files.states.into_iter().next()) {
                (Some(meta), _) => {
                    // A superseded generation may delete it meanwhile, but never the newest.
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
                (None, Some(meta)) => (Err(UNFINISHED.to_owned()), meta),
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

    /// Reads a checkpoint; returns the reason if it is not intact.
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
            return Ok(Err("is corrupt: it belongs to another run or step".into()));
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

    /// Lists the files of a run's checkpoints, oldest first.
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

    /// Returns the paths of a checkpoint's state and of its information.
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
