//! A store whose traffic is counted: the bytes of files that are read and written, and requests that fail.
//!
//! A request that is retried until it succeeds has not failed. Not here: the model store, which is opened otherwise.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartId,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, UploadPart,
};
use volley_proto::metrics::Count;
use volley_proto::object_stores::Opened;

/// Traffic with the files of tables, since the process started.
#[derive(Debug, Default)]
pub struct Traffic {
    read: Count,
    written: Count,
    errors: Count,
}

impl Traffic {
    /// Returns the bytes that were read.
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Returns the bytes that were written.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Returns the number of requests that have failed; a file that is not there is no failure.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    fn reads(&self, bytes: u64) {
        self.read.add(bytes);
    }

    fn writes(&self, bytes: usize) {
        self.written.add(bytes as u64);
    }

    fn of<T>(&self, result: Result<T>) -> Result<T> {
        let is_answer = |error: &Error| {
            matches!(
                error,
                Error::NotFound { .. }
                    | Error::AlreadyExists { .. }
                    | Error::Precondition { .. }
                    | Error::NotModified { .. }
            )
        };
        result.inspect_err(|error| {
            if !is_answer(error) {
                self.errors.add(1);
            }
        })
    }
}

/// Returns the store with its traffic counted.
pub(super) fn counted(opened: Opened, traffic: &Arc<Traffic>) -> Opened {
    Opened {
        store: counted_store(opened.store, traffic),
        multipart: opened.multipart.map(|store| {
            let traffic = Arc::clone(traffic);
            Arc::new(Counted { store, traffic }) as _
        }),
        ..opened
    }
}

/// Returns the store with its traffic counted.
pub(super) fn counted_store(
    store: Arc<dyn ObjectStore>,
    traffic: &Arc<Traffic>,
) -> Arc<dyn ObjectStore> {
    let traffic = Arc::clone(traffic);
    Arc::new(Counted { store, traffic })
}

struct Counted<S: ?Sized> {
    traffic: Arc<Traffic>,
    store: Arc<S>,
}

impl fmt::Debug for Counted<dyn ObjectStore> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.store, f)
    }
}

impl fmt::Display for Counted<dyn ObjectStore> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.store, f)
    }
}

#[async_trait]
impl ObjectStore for Counted<dyn ObjectStore> {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length();
        let put = self.store.put_opts(location, payload, options).await;
        self.traffic.of(put).inspect(|_| self.traffic.writes(bytes))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.store.put_multipart_opts(location, options).await;
        let upload = self.traffic.of(begun)?;
        let traffic = Arc::clone(&self.traffic);
        Ok(Box::new(Uploading { upload, traffic }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let found = self.store.get_opts(location, options).await;
        let mut found = self.traffic.of(found)?;
        if head {
            return Ok(found);
        }
        found.payload = match found.payload {
            GetResultPayload::Stream(chunks) => {
                let traffic = Arc::clone(&self.traffic);
                let chunks = chunks.map(move |chunk| {
                    traffic
                        .of(chunk)
                        .inspect(|chunk| traffic.reads(chunk.len() as u64))
                });
                GetResultPayload::Stream(chunks.boxed())
            }
            // The caller reads it.
            file => {
                self.traffic.reads(found.range.end - found.range.start);
                file
            }
        };
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let found = self.store.get_ranges(location, ranges).await;
        let bytes = |found: &Vec<Bytes>| found.iter().map(|range| range.len() as u64).sum::<u64>();
        self.traffic
            .of(found)
            .inspect(|found| self.traffic.reads(bytes(found)))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let traffic = Arc::clone(&self.traffic);
        let deleted = self.store.delete_stream(locations);
        deleted.map(move |path| traffic.of(path)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let traffic = Arc::clone(&self.traffic);
        let files = self.store.list(prefix);
        files.map(move |file| traffic.of(file)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let traffic = Arc::clone(&self.traffic);
        let files = self.store.list_with_offset(prefix, offset);
        files.map(move |file| traffic.of(file)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.store.list_with_delimiter(prefix).await;
        self.traffic.of(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.store.copy_opts(from, to, options).await;
        self.traffic.of(copied)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let renamed = self.store.rename_opts(from, to, options).await;
        self.traffic.of(renamed)
    }
}

#[async_trait]
impl MultipartStore for Counted<dyn MultipartStore> {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let created = self.store.create_multipart(path).await;
        self.traffic.of(created)
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let bytes = data.content_length();
        let put = self.store.put_part(path, id, part_idx, data).await;
        self.traffic.of(put).inspect(|_| self.traffic.writes(bytes))
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let completed = self.store.complete_multipart(path, id, parts).await;
        self.traffic.of(completed)
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let aborted = self.store.abort_multipart(path, id).await;
        self.traffic.of(aborted)
    }
}

/// Upload of one file in parts.
#[derive(Debug)]
struct Uploading {
    upload: Box<dyn MultipartUpload>,
    traffic: Arc<Traffic>,
}

#[async_trait]
impl MultipartUpload for Uploading {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (bytes, traffic) = (data.content_length(), Arc::clone(&self.traffic));
        let part = self.upload.put_part(data);
        Box::pin(async move { traffic.of(part.await).inspect(|()| traffic.writes(bytes)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.upload.complete().await;
        self.traffic.of(completed)
    }

    async fn abort(&mut self) -> Result<()> {
        let aborted = self.upload.abort().await;
        self.traffic.of(aborted)
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    use super::*;

    async fn of(store: Arc<dyn ObjectStore>) {
        let traffic = Arc::new(Traffic::default());
        let store = counted_store(store, &traffic);
        let numbers = || (traffic.read(), traffic.written(), traffic.errors());
        let path = Path::from("a/b");
        store.put(&path, vec![0; 100].into()).await.unwrap();
        assert_eq!(numbers(), (0, 100, 0));
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part(vec![0; 7].into()).await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(numbers(), (0, 107, 0));
        store.head(&path).await.unwrap();
        assert_eq!(numbers(), (0, 107, 0));
        let all = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!((all.len(), numbers()), (7, (7, 107, 0)));
        store.get_ranges(&path, &[0..2, 3..6]).await.unwrap();
        assert_eq!(numbers(), (12, 107, 0));
        // That a file is not there is an answer; that a range is beyond its end is a mistake.
        store.get(&Path::from("none")).await.unwrap_err();
        assert_eq!(numbers(), (12, 107, 0));
        store.get_range(&path, 90..100).await.unwrap_err();
        assert_eq!(numbers(), (12, 107, 1));
    }

    #[tokio::test]
    async fn bytes_and_failures_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        of(Arc::new(InMemory::new())).await;
        of(Arc::new(
            LocalFileSystem::new_with_prefix(dir.path()).unwrap(),
        ))
        .await;
    }
}
