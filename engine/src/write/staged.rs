//! A store whose files do not appear: writers upload their parts, and nothing here completes the uploads.
//!
//! A writer writes into a task's folder of `.volley-JOB`, as it would in a local folder. Each write becomes an upload
//! to the file's final path, recorded from its start.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::error::Result as DfResult;
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::stream::BoxStream;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use url::Url;

use super::Target;
use super::uploads::{Begun, Upload, Uploads};
use volley_proto::object_stores::{RetryPolicy, is_truncated, retried};

/// The store as one task sees it.
pub(super) struct Staged {
    target: Target,
    task: String,
    uploads: Uploads,
    written: Arc<Mutex<Vec<Upload>>>,
    begun: Mutex<Vec<Begun>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of writing a file, which has no tag yet.
const NO_TAG: PutResult = PutResult {
    e_tag: None,
    version: None,
};

fn failed(what: String) -> Error {
    Error::Generic {
        store: "upload",
        source: what.into(),
    }
}

impl Staged {
    pub(super) fn new(target: Target, task: &str, uploads: Uploads) -> Arc<Self> {
        Arc::new(Self {
            target,
            task: task.to_owned(),
            uploads,
            written: Arc::default(),
            begun: Mutex::default(),
        })
    }

    /// Records the task's uploads. Returns the number of files.
    pub(super) async fn record(&self) -> DfResult<u64> {
        let written = locked(&self.written).clone();
        if !written.is_empty() {
            self.uploads.record(&self.task, &written).await?;
        }
        Ok(written.len() as u64)
    }

    /// Aborts the task's uploads, as far as the store can be reached.
    pub(super) async fn abort(&self) {
        let begun = std::mem::take(&mut *locked(&self.begun));
        self.uploads.abort(begun).await;
    }

    /// Returns the final path of a file that is written here.
    fn belongs(&self, location: &Path) -> Result<Path> {
        let staging = self.target.staging().map_err(|e| failed(e.to_string()))?;
        let place = self.target.committed(&staging, location);
        let place = place.filter(|(task, _)| *task == self.task);
        let (_, place) =
            place.ok_or_else(|| failed(format!("{location} is not a file of the task")))?;
        Ok(place)
    }

    /// Starts an upload and records it.
    async fn begin(&self, path: Path) -> Result<Uploading> {
        let multipart = Arc::clone(self.uploads.multipart());
        // An upload whose id was lost is orphaned, without parts: the bucket's lifecycle rule aborts it.
        let create = || multipart.create_multipart(&path);
        let id = retried(RetryPolicy::REMOTE, is_truncated, create).await?;
        let begun = Begun {
            path: path.to_string(),
            id: id.clone(),
        };
        locked(&self.begun).push(begun.clone());
        self.uploads.note(&self.task, &begun).await?;
        Ok(Uploading {
            multipart,
            path,
            id,
            parts: Arc::default(),
            bytes: 0,
            written: Arc::clone(&self.written),
        })
    }
}

/// Upload that receives parts.
struct Uploading {
    multipart: Arc<dyn MultipartStore>,
    path: Path,
    id: String,
    parts: Arc<Mutex<Vec<Option<PartId>>>>,
    bytes: u64,
    written: Arc<Mutex<Vec<Upload>>>,
}

impl fmt::Debug for Uploading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Uploading").field(&self.path).finish()
    }
}

#[async_trait]
impl MultipartUpload for Uploading {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.bytes += data.content_length() as u64;
        let index = {
            let mut parts = locked(&self.parts);
            parts.push(None);
            parts.len() - 1
        };
        let (multipart, parts) = (Arc::clone(&self.multipart), Arc::clone(&self.parts));
        let (path, id) = (self.path.clone(), self.id.clone());
        Box::pin(async move {
            let part = multipart.put_part(&path, &id, index, data).await?;
            locked(&parts)[index] = Some(part);
            Ok(())
        })
    }

    /// Ends the upload's parts; the commit completes it with all others.
    async fn complete(&mut self) -> Result<PutResult> {
        let parts = locked(&self.parts).clone().into_iter();
        let parts: Option<Vec<_>> = parts.map(|part| Some(part?.content_id)).collect();
        let parts = parts.ok_or_else(|| failed(format!("a part of {} is missing", self.path)))?;
        let written = Upload {
            path: self.path.to_string(),
            id: Some(self.id.clone()),
            parts,
            bytes: self.bytes,
        };
        locked(&self.written).push(written);
        Ok(NO_TAG)
    }

    async fn abort(&mut self) -> Result<()> {
        self.multipart.abort_multipart(&self.path, &self.id).await
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Staged").field(&self.task).finish()
    }
}

impl fmt::Display for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.uploads.store(), f)
    }
}

#[async_trait]
impl ObjectStore for Staged {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        _: PutOptions,
    ) -> Result<PutResult> {
        let path = self.belongs(location)?;
        if payload.content_length() == 0 {
            // No store has parts without bytes.
            let written = Upload {
                path: path.to_string(),
                id: None,
                parts: Vec::new(),
                bytes: 0,
            };
            locked(&self.written).push(written);
            return Ok(NO_TAG);
        }
        let mut upload = self.begin(path).await?;
        upload.put_part(payload).await?;
        upload.complete().await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let path = self.belongs(location)?;
        Ok(Box::new(self.begin(path).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.uploads.store().get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.uploads.store().get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.uploads.store().delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.uploads.store().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.uploads.store().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.uploads.store().copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.uploads.store().rename_opts(from, to, options).await
    }
}

/// Registry that returns one store for any URL, for a writer that asks for its target's.
#[derive(Debug)]
pub(super) struct Only(pub(super) Arc<Staged>);

impl ObjectStoreRegistry for Only {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, _: &Url) -> DfResult<Arc<dyn ObjectStore>> {
        Ok(Arc::clone(&self.0) as _)
    }
}
