//! A commit in a store that cannot move files: tasks start uploads, and one task completes them.
//!
//! ```text
//!  task       starts uploads of FOLDER/JOB-…       .volley-JOB/TASK/….begun.uncommitted    a record each
//!             uploads all parts                    .volley-JOB/TASK/uploads.json.uncommitted
//!  committer  gathers the uploads of the tasks whose output counts
//!             .volley-JOB/commit.json.uncommitted  created only where there is none: the first has decided
//!               ▼
//!             each upload is completed, unless it already is ─► others' uploads are aborted ─► records are deleted
//! ```
//!
//! A file is listed when its upload is completed, as a whole. Any attempt that finds the commit record rolls it
//! forward, as in a [local folder](super::moves); files have the job's name in their names here too, and a committer
//! that comes after the end finds them, and completes nothing. This requires a store that lists what was written, and
//! that creates an object only where there is none (`If-None-Match: *`).
//! creates an object only where there is none (`If-None-Match: *`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use futures::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Target;
use crate::error::{External, Malformed};
use crate::object_stores::Stores;
use volley_proto::object_stores::{RetryPolicy, is_unanswered, retried};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 16;

/// Name of a task's record of its uploads, in its folder; no reader takes it for a file of the table.
const TASK: &str = "uploads.json.uncommitted";
/// Suffix of the names of records of started uploads.
const BEGUN: &str = ".begun.uncommitted";
/// Name of the commit record.
const COMMIT: &str = "commit.json.uncommitted";

/// Started upload.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begun {
    pub(super) path: String,
    pub(super) id: String,
}

/// Upload whose parts are all there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Upload {
    /// Final path of the file.
    pub(super) path: String,
    /// Id of the upload; `None` for a file without bytes.
    pub(super) id: Option<String>,
    /// Ids of its parts in the store.
    pub(super) parts: Vec<String>,
    pub(super) bytes: u64,
}

/// Commit record: the uploads to complete, and their number of rows.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    rows: u64,
    uploads: Vec<Upload>,
}

impl Commit {
    /// Checks whether there are no uploads to complete.
    pub(super) fn is_empty(&self) -> bool {
        self.uploads.is_empty()
    }

    /// Returns the number of rows of the files.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the paths of the files.
    pub(super) fn files(&self) -> HashSet<String> {
        let uploads = self.uploads.iter();
        uploads.map(|upload| upload.path.clone()).collect()
    }

    fn paths(&self) -> HashSet<&str> {
        let uploads = self.uploads.iter();
        uploads.map(|upload| upload.path.as_str()).collect()
    }

    /// Checks whether these files of the job, which are in place, belong to another record, which has been carried out.
    fn is_late(&self, in_place: &[Path]) -> bool {
        let own = self.paths();
        in_place
            .iter()
            .any(|file| !own.contains::<str>(file.as_ref()))
    }
}

/// Uploads of a job.
#[derive(Clone)]
pub(super) struct Uploads {
    store: Arc<dyn ObjectStore>,
    multipart: Arc<dyn MultipartStore>,
    /// Folder of the job's records.
    staging: Path,
    /// Name of the target, for errors.
    target: String,
}

impl Uploads {
    /// Opens the store of a target.
    ///
    /// # Errors
    /// When its store cannot be opened, or takes no uploads.
    pub(super) fn of(target: &Target, context: &TaskContext) -> Result<Self> {
        let stores = Stores::of_task(context).external()?;
        let opened = stores.opened(target.folder().get_url()).external()?;
        let Some(multipart) = opened.multipart else {
            return exec_err!("{target} is on a web server, which is read-only");
        };
        Ok(Self {
            store: opened.store,
            multipart,
            staging: target.staging()?.prefix().clone(),
            target: target.to_string(),
        })
    }

    pub(super) fn store(&self) -> &dyn ObjectStore {
        self.store.as_ref()
    }

    pub(super) fn multipart(&self) -> &Arc<dyn MultipartStore> {
        &self.multipart
    }

    /// Records that an upload was started.
    pub(super) async fn note(&self, task: &str, begun: &Begun) -> object_store::Result<()> {
        let name = format!("{}{BEGUN}", Uuid::new_v4().simple());
        let place = self.staging.clone().join(task).join(name);
        let json = serde_json::to_vec(begun).map_err(|error| object_store::Error::Generic {
            store: "upload",
            source: error.into(),
        })?;
        self.store.put(&place, json.into()).await?;
        Ok(())
    }

    /// Records the uploads of a task.
    pub(super) async fn record(&self, task: &str, uploads: &[Upload]) -> Result<()> {
        let json = serde_json::to_vec(uploads).malformed("uploads")?;
        let place = self.staging.clone().join(task).join(TASK);
        self.store.put(&place, json.into()).await?;
        Ok(())
    }

    /// Aborts uploads; failures go to the log.
    pub(super) async fn abort(&self, uploads: Vec<Begun>) {
        let abort = |upload: Begun| async move {
            let Ok(path) = Path::parse(&upload.path) else {
                return;
            };
            match self.multipart.abort_multipart(&path, &upload.id).await {
                // It was completed or aborted before.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(%path, %error, "an uncommitted upload cannot be aborted");
                }
            }
        };
        let aborts = futures::stream::iter(uploads).map(abort);
        aborts.buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// Returns the paths of the job's records.
    pub(super) async fn records(&self) -> Result<Vec<Path>> {
        let records = self.store.list(Some(&self.staging));
        let records = records.map_ok(|record| record.location);
        Ok(records.try_collect().await?)
    }

    /// Reads the uploads of the tasks in `files`, and returns them with the number of missing files.
    pub(super) async fn find(
        &self,
        records: &[Path],
        rows: u64,
        files: &HashMap<String, u64>,
    ) -> Result<(Commit, u64)> {
        let of_task = |record: &&Path| {
            let task = self.task_of(record, TASK);
            task.is_some_and(|task| files.contains_key(&task))
        };
        let records: Vec<_> = records.iter().filter(of_task).cloned().collect();
        let read = |record: Path| async move {
            let uploads: Vec<Upload> = self.read(&record).await?.unwrap_or_default();
            Ok::<_, DataFusionError>(uploads)
        };
        let found = futures::stream::iter(records).map(read);
        let found: Vec<_> = found.buffered(AT_ONCE).try_collect().await?;
        let uploads: Vec<_> = found.into_iter().flatten().collect();
        let missing = files.values().sum::<u64>();
        let missing = missing.saturating_sub(uploads.len() as u64);
        Ok((Commit { rows, uploads }, missing))
    }

    /// Returns the commit record, if there is one.
    pub(super) async fn decided(&self) -> Result<Option<Commit>> {
        self.read(&self.staging.clone().join(COMMIT)).await
    }

    /// Creates the commit record unless there is one. Returns the record in force; `None` if the commit is already
    /// over.
    pub(super) async fn decide(&self, commit: Commit) -> Result<Option<Commit>> {
        let json = serde_json::to_vec(&commit).malformed("commit")?;
        let place = self.staging.clone().join(COMMIT);
        let json = PutPayload::from(json);
        // The client retries no conditional request whose response was lost. Here it may be: if the first attempt has
        // created the record, it is read.
        let create = || {
            let create = PutMode::Create.into();
            self.store.put_opts(&place, json.clone(), create)
        };
        match retried(RetryPolicy::REMOTE, is_unanswered, create).await {
            Ok(_) => Ok(Some(commit)),
            Err(object_store::Error::AlreadyExists { .. }) => self.read(&place).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Completes the uploads that are not in place yet, unless the files in place belong to another record. Returns
    /// whether it did.
    pub(super) async fn carry_out(&self, commit: &Commit, in_place: &[Path]) -> Result<bool> {
        if commit.is_late(in_place) {
            return Ok(false);
        }
        let done: HashSet<&str> = in_place.iter().map(AsRef::as_ref).collect();
        let due = commit.uploads.iter();
        let due: Vec<_> = due
            .filter(|upload| !done.contains(upload.path.as_str()))
            .cloned()
            .collect();
        let completed = futures::stream::iter(due).map(|upload| self.complete(upload));
        let completed = completed.buffer_unordered(AT_ONCE);
        completed.try_collect::<()>().await?;
        Ok(true)
    }

    async fn complete(&self, upload: Upload) -> Result<()> {
        let path = Path::parse(&upload.path).malformed("commit")?;
        let completed = match &upload.id {
            None => self.store.put(&path, PutPayload::new()).await,
            Some(id) => {
                let parts = upload.parts.into_iter();
                let parts = parts.map(|content_id| PartId { content_id }).collect();
                self.multipart.complete_multipart(&path, id, parts).await
            }
        };
        let Err(error) = completed else {
            return Ok(());
        };
        // Another committer may have been here, or the response was lost.
        match self.store.head(&path).await {
            Ok(file) if file.size == upload.bytes => Ok(()),
            _ => exec_err!(
                "the upload of {path} to {} cannot be completed: {}",
                self.target,
                volley_proto::failure::chain(&error)
            ),
        }
    }

    /// Removes what the commit leaves: the uploads of these records that are not in place, the records, and last the
    /// commit record. The attempt of a task that has started since will remove that task's records.
    pub(super) async fn clear(&self, records: Vec<Path>, in_place: &HashSet<String>) {
        let begun = records.iter().filter(|record| is_begun(record)).cloned();
        let read = |record: Path| async move {
            let begun: Option<Begun> = self.read(&record).await.ok().flatten();
            begun.filter(|begun| !in_place.contains(&begun.path))
        };
        let begun: Vec<_> = begun.collect();
        let begun = futures::stream::iter(begun).map(read);
        let begun = begun.buffer_unordered(AT_ONCE);
        let begun: Vec<_> = begun.filter_map(std::future::ready).collect().await;
        self.abort(begun).await;
        let decided = self.staging.clone().join(COMMIT);
        let others = records.into_iter().filter(|record| *record != decided);
        self.delete(others.collect()).await;
        self.delete(vec![decided]).await;
    }

    async fn delete(&self, records: Vec<Path>) {
        let records = futures::stream::iter(records.into_iter().map(Ok)).boxed();
        let mut deleted = self.store.delete_stream(records);
        while let Some(deleted) = deleted.next().await {
            match deleted {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => tracing::warn!(%error, "the record of a commit cannot be removed"),
            }
        }
    }

    /// Returns the task of a record of this name.
    fn task_of(&self, record: &Path, name: &str) -> Option<String> {
        let mut parts = record.prefix_match(&self.staging)?;
        let task = parts.next()?.as_ref().to_owned();
        let is_named = parts.next()?.as_ref() == name && parts.next().is_none();
        is_named.then_some(task)
    }

    async fn read<T: DeserializeOwned>(&self, record: &Path) -> Result<Option<T>> {
        let json = match self.store.get(record).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let record = serde_json::from_slice(&json);
        record.malformed("record of uploads").map(Some)
    }
}

fn is_begun(record: &Path) -> bool {
    record.as_ref().ends_with(BEGUN)
}
