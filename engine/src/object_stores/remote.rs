//! A store as the engine sees it: it shows no credentials, its files differ by more than their paths, and truncated
//! responses to listings and to the creation of multipart uploads are retried.
//!
//! The engine caches what it has read of a file by path, length and modification time, which stores report in seconds,
//! so it can mistake one store's file for another's. So the time gets a fraction of a second that depends on the store
//! and on the file's tag: a file of another store, or an overwritten file, has a different time.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use twox_hash::XxHash64;

use volley_proto::object_stores::{RetryPolicy, is_truncated, retried};

/// Open store, named by its root.
pub(super) struct Remote {
    name: Arc<str>,
    store: Arc<dyn ObjectStore>,
}

impl Remote {
    pub(super) fn new(name: &str, store: Arc<dyn ObjectStore>) -> Self {
        Self {
            name: name.into(),
            store,
        }
    }

    /// Lists files, and retries a truncated response: the listing is complete before the first file is returned, since
    /// stores need not list in order.
    fn listed(
        &self,
        list: impl Fn() -> BoxStream<'static, Result<ObjectMeta>> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let name = Arc::clone(&self.name);
        let files = async move {
            let list = || list().try_collect::<Vec<_>>().boxed();
            let files = retried(RetryPolicy::REMOTE, is_truncated, list).await?;
            let files = files.into_iter();
            Ok(stream::iter(
                files.map(move |file| Ok(told_apart(&name, file))),
            ))
        };
        files.try_flatten_stream().boxed()
    }
}

/// Gives a file a modification time that depends on its store and tag.
fn told_apart(name: &str, mut file: ObjectMeta) -> ObjectMeta {
    let tag = file.e_tag.as_deref().unwrap_or_default();
    let key = format!("{name}\n{}", tag.trim_matches('"'));
    let nanoseconds = XxHash64::oneshot(0, key.as_bytes()) % 1_000_000_000;
    let seconds = file.last_modified.timestamp();
    let time = chrono::DateTime::from_timestamp(seconds, nanoseconds as u32);
    file.last_modified = time.unwrap_or(file.last_modified);
    file
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.name).finish()
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[async_trait]
impl ObjectStore for Remote {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begin = || self.store.put_multipart_opts(location, options.clone());
        retried(RetryPolicy::REMOTE, is_truncated, begin).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.store.get_opts(location, options).await?;
        found.meta = told_apart(&self.name, found.meta);
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.store.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (Arc::clone(&self.store), prefix.cloned());
        self.listed(move || store.list(prefix.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (Arc::clone(&self.store), prefix.cloned());
        let offset = offset.clone();
        self.listed(move || store.list_with_offset(prefix.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let list = || self.store.list_with_delimiter(prefix);
        let mut found = retried(RetryPolicy::REMOTE, is_truncated, list).await?;
        let files = found.objects.into_iter();
        found.objects = files.map(|file| told_apart(&self.name, file)).collect();
        Ok(found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.store.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn files_of_the_same_path_differ_by_store_and_by_content() {
        let memory = Arc::new(InMemory::new());
        let [a, b] = ["s3://a", "s3://b"].map(|name| Remote::new(name, Arc::clone(&memory) as _));
        let path = Path::from("x.parquet");
        a.put(&path, "1".into()).await.unwrap();
        let first = a.head(&path).await.unwrap();
        assert_eq!(a.head(&path).await.unwrap(), first);
        let listed: Vec<_> = a.list(None).collect().await;
        assert_eq!(listed[0].as_ref().unwrap(), &first);
        assert_ne!(
            b.head(&path).await.unwrap().last_modified,
            first.last_modified
        );
        a.put(&path, "2".into()).await.unwrap();
        assert_ne!(
            a.head(&path).await.unwrap().last_modified,
            first.last_modified
        );
    }
}
