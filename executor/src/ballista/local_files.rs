//! Files of this host, written without endless retries.
//!
//! The underlying store stages a file beside its final path. When the file system reports that the folder does not
//! exist, the store creates the folder and retries. It does so for ever, on a thread that nothing can stop, where
//! the folder exists but accepts no files, such as in `/proc`. The wrapper first tries to create a file there.

use std::fmt;
use std::fs::{OpenOptions, create_dir_all, remove_file};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use futures::stream::BoxStream;

/// Object store of the host's file system.
#[derive(Debug)]
pub(super) struct LocalFiles {
    files: Arc<LocalFileSystem>,
}

impl LocalFiles {
    pub(super) fn new() -> Self {
        Self {
            files: Arc::new(LocalFileSystem::new()),
        }
    }

    /// Checks that a file can be created beside another.
    async fn takes(&self, location: &Path) -> Result<()> {
        let path = self.files.path_to_filesystem(location)?;
        can_be_made(path).await.map_err(|error| Error::Generic {
            store: "LocalFileSystem",
            source: error.into(),
        })
    }
}

/// Checks that a file can be created.
///
/// # Errors
/// Text with the path and the system's reason, when it cannot.
pub(super) async fn can_be_made(path: PathBuf) -> std::result::Result<(), String> {
    let shown = path.display().to_string();
    let tried = tokio::task::spawn_blocking(move || try_beside(&path));
    let tried = tried.await.map_err(std::io::Error::other);
    let made = tried.and_then(|tried| tried);
    made.map_err(|error| format!("no file can be made at {shown}: {error}"))
}

/// Creates a file beside another, and removes it.
fn try_beside(path: &std::path::Path) -> std::io::Result<()> {
    let mut probe = path.as_os_str().to_owned();
    // The underlying store counts from 1.
    probe.push("#0");
    let probe = PathBuf::from(probe);
    let create = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).open(&probe).map(drop)
    };
    let created = match create() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().map(create_dir_all);
            folder.unwrap_or(Ok(())).and_then(|()| create())
        }
        created => created,
    };
    match created {
        // Another writer of the same file is active as well.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            // Another writer may have removed the probe.
            remove_file(&probe).ok();
            Ok(())
        }
    }
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.takes(location).await?;
        self.files.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.takes(location).await?;
        self.files.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.takes(to).await?;
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.takes(to).await?;
        self.files.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use datafusion::object_store::ObjectStoreExt;

    use super::*;

    #[tokio::test]
    async fn a_folder_that_takes_no_files_is_an_error_and_one_that_is_not_there_is_made() {
        let files = LocalFiles::new();
        let put = async |path: &std::path::Path| {
            let path = Path::from_absolute_path(path).unwrap();
            files.put(&path, "x".into()).await
        };
        let error = put("/proc/x.csv".as_ref()).await.unwrap_err().to_string();
        assert!(
            error.contains("no file can be made at /proc/x.csv"),
            "{error}"
        );
        let dir = tempfile::tempdir().unwrap();
        put(&dir.path().join("a/b/x.csv")).await.unwrap();
        let made = std::fs::read_dir(dir.path().join("a/b")).unwrap();
        assert_eq!(made.count(), 1, "what was tried is gone");
    }
}
