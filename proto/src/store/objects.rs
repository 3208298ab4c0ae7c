//! Object store with deadlines and retries: every request has a deadline, and is repeated after a transient failure.
//!
//! ```text
//!   request ──► answered                                            ──► result
//!           └─► 503, reset, silence ──► may it have been done? ──no──► pause, again
//!                                        └─yes─► conditional put: read the object; one's own content is a success
//! ```
//!
//! Reads, deletions and puts of the same bytes may be repeated. A conditional put may not: if the store has done it and
//! the answer was lost, it refuses the repeated put. So a refused put is followed by a read, and counts as done when
//! the object has the same bytes: each writer's must be unique. This module attaches no meaning to objects.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, Result,
    UpdateVersion,
};

use crate::object_stores::{Attempts, RetryPolicy, is_transient, retried};

/// Longer objects are put in parts of this length: at least 5 MiB on S3, equal ones on R2.
pub(super) const PART: usize = 8 * 1024 * 1024;
/// Maximum number of parts on S3 and R2.
const PARTS: usize = 10_000;
/// Number of parts of one object that are sent concurrently.
const PARTS_AT_ONCE: usize = 4;

/// Object store with its retry policy.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) retry: RetryPolicy,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("store", &self.store.to_string())
            .field("retry", &self.retry)
            .finish()
    }
}

impl Objects {
    /// Returns an object's metadata.
    pub(super) async fn head(&self, path: &Path) -> Result<ObjectMeta> {
        self.retried(move || self.in_time(self.store.head(path)).boxed())
            .await
    }

    /// Returns an object's content.
    pub(super) async fn read(&self, path: &Path) -> Result<Bytes> {
        let read = self.read_at_most(path, u64::MAX).await?;
        // No object exceeds the limit.
        Ok(read.unwrap_or_default())
    }

    /// Returns an object's content, or its size if that exceeds `most` bytes.
    pub(super) async fn read_at_most(
        &self,
        path: &Path,
        most: u64,
    ) -> Result<std::result::Result<Bytes, u64>> {
        self.retried(move || self.read_once(path, most).boxed())
            .await
    }

    async fn read_once(&self, path: &Path, most: u64) -> Result<std::result::Result<Bytes, u64>> {
        let found = self.in_time(self.store.get(path)).await?;
        if found.meta.size > most {
            return Ok(Err(found.meta.size));
        }
        if self.retry == RetryPolicy::LOCAL {
            return found.bytes().await.map(Ok); // a file, read at once
        }
        let length = usize::try_from(found.range.end - found.range.start).unwrap_or_default();
        let mut content = found.into_stream();
        let mut read = BytesMut::with_capacity(length);
        while let Some(chunk) = self.in_time(content.try_next()).await? {
            read.extend_from_slice(&chunk);
        }
        Ok(Ok(read.freeze()))
    }

    /// Lists the objects directly under a path, and the prefixes below it.
    pub(super) async fn list_here(&self, path: &Path) -> Result<ListResult> {
        let list = move || {
            let list = self.store.list_with_delimiter(Some(path));
            self.in_time(list).boxed()
        };
        self.retried(list).await
    }

    /// Lists all objects under a path.
    pub(super) async fn list_all(&self, path: &Path) -> Result<Vec<ObjectMeta>> {
        self.retried(move || self.list_once(path).boxed()).await
    }

    async fn list_once(&self, path: &Path) -> Result<Vec<ObjectMeta>> {
        let mut listed = self.store.list(Some(path));
        let mut objects = Vec::new();
        while let Some(object) = self.in_time(listed.try_next()).await? {
            objects.push(object);
        }
        Ok(objects)
    }

    /// Checks whether there is an object under a path.
    pub(super) async fn has_any(&self, path: &Path) -> Result<bool> {
        let any = move || {
            let first = async move { self.store.list(Some(path)).try_next().await };
            self.in_time(first).boxed()
        };
        self.retried(any).await.map(|first| first.is_some())
    }

    /// Deletes an object, which may be gone already.
    pub(super) async fn delete(&self, path: &Path) -> Result<()> {
        let deleted = self
            .retried(move || self.in_time(self.store.delete(path)).boxed())
            .await;
        match deleted {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    /// Writes an object, replacing the one that may exist.
    pub(super) async fn replace(&self, path: &Path, content: &Bytes) -> Result<()> {
        let put = move || self.put_once(path, content, PutMode::Overwrite).boxed();
        self.retried(put).await
    }

    /// Writes an object at a path that nobody else writes to, in parts if it is large.
    pub(super) async fn write_own(&self, path: &Path, content: &Bytes) -> Result<()> {
        if content.len() <= PART {
            return self.replace(path, content).await;
        }
        self.retried(move || self.put_in_parts(path, content).boxed())
            .await
    }

    /// Writes an object unless one exists. Returns whether the object has this content now.
    pub(super) async fn create(&self, path: &Path, content: &Bytes) -> Result<bool> {
        self.put_if(path, content, &PutMode::Create).await
    }

    /// Replaces this version of an object. Returns whether the object has this content now.
    pub(super) async fn update(
        &self,
        path: &Path,
        content: &Bytes,
        version: UpdateVersion,
    ) -> Result<bool> {
        let mode = PutMode::Update(version);
        self.put_if(path, content, &mode).await
    }

    async fn put_if(&self, path: &Path, content: &Bytes, mode: &PutMode) -> Result<bool> {
        let mut attempts = Attempts::new(self.retry);
        loop {
            let failure = match self.put_once(path, content, mode.clone()).await {
                Ok(()) => return Ok(true),
                Err(failure) if is_transient(&failure) => failure,
                Err(failure) => return Err(failure),
            };
            // The store may have done it, in this attempt or an earlier one.
            match (self.read(path).await, &failure) {
                (Ok(found), _) if found == *content => return Ok(true),
                (Ok(_), Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    return Ok(false);
                }
                // Another object where none must be; in an update it is the one to be replaced.
                (Ok(_), _) if *mode == PutMode::Create => return Ok(false),
                // The object to be replaced is gone.
                (Err(Error::NotFound { .. }), Error::Precondition { .. }) => return Ok(false),
                (Ok(_) | Err(Error::NotFound { .. }), _) => {}
                (Err(unread), _) => return Err(unread),
            }
            attempts.again(failure).await?;
        }
    }

    async fn put_once(&self, path: &Path, content: &Bytes, mode: PutMode) -> Result<()> {
        let put = self
            .store
            .put_opts(path, PutPayload::from(content.clone()), mode.into());
        self.in_time(put).await.map(|_| ())
    }

    async fn put_in_parts(&self, path: &Path, content: &Bytes) -> Result<()> {
        let part = PART.max(content.len().div_ceil(PARTS));
        let mut upload = self.in_time(self.store.put_multipart(path)).await?;
        let idle_timeout = self.retry.idle_timeout;
        let mut parts: Vec<BoxFuture<'static, Result<()>>> = Vec::new();
        for at in (0..content.len()).step_by(part) {
            let bytes = content.slice(at..content.len().min(at + part));
            let put = upload.put_part(bytes.into());
            parts.push(in_time(idle_timeout, put).boxed());
        }
        let put = stream::iter(parts)
            .buffer_unordered(PARTS_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await;
        if let Err(failure) = put {
            // Best effort: remaining parts are not an object, and expire by the store's own rules.
            self.in_time(upload.abort()).await.ok();
            return Err(failure);
        }
        let Err(failure) = self.in_time(upload.complete()).await else {
            return Ok(());
        };
        // The store no longer knows an upload that was completed, so that completing it again fails.
        match self.head(path).await {
            Ok(found) if found.size == content.len() as u64 => Ok(()),
            _ => {
                self.in_time(upload.abort()).await.ok();
                Err(made_transient(failure))
            }
        }
    }

    async fn retried<'a, T>(&self, request: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
        retried(self.retry, is_transient, request).await
    }

    async fn in_time<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        in_time(self.retry.idle_timeout, request).await
    }
}

async fn in_time<T>(idle_timeout: Duration, request: impl Future<Output = Result<T>>) -> Result<T> {
    if idle_timeout == Duration::MAX {
        return request.await; // a folder may be used outside of a runtime
    }
    match tokio::time::timeout(idle_timeout, request).await {
        Ok(answered) => answered,
        Err(_) => Err(Error::Generic {
            store: "object store",
            source: format!("no answer in {} s", idle_timeout.as_secs()).into(),
        }),
    }
}

/// Makes the failure of an upload that the store does not know transient: another upload may succeed.
fn made_transient(failure: Error) -> Error {
    match failure {
        Error::NotFound { path, source } => Error::Generic {
            store: "object store",
            source: format!("the upload of {path} is not known any more: {source}").into(),
        },
        failure => failure,
    }
}
