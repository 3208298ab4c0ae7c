//! Copies of a job's shuffle files in an object store or a shared folder, which outlive the executors that wrote them.
//!
//! ```text
//!   executor    WORK-FOLDER/ATTEMPT/STAGE/… ── upload ──► STORE/volley-shuffle/JOB/ATTEMPT/STAGE/…
//!   another one ◄──────── download, in a later attempt ──┘                  │
//!   scheduler   at the end of the job ─────────── remove ───────────────────┘
//! ```
//!
//! A job keeps its id when it runs again, also under a restarted scheduler: removing the job's folder removes the copies of
//! all of its attempts. Not here: which files are copied, and whether the store may be used.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use url::Url;

use super::{Stores, shown};

/// Folder of the copies in a store.
const FOLDER: &str = "volley-shuffle";
/// Size of the parts of larger files, in bytes: at least 5 MiB on S3, equal ones on R2.
const PART: u64 = 8 << 20;
/// Maximum number of parts on S3 and R2.
const PARTS: u64 = 10_000;
/// Number of parts of one file that are in memory at once.
const PARTS_AT_ONCE: usize = 2;
/// Time limit for the answer to a request, with the client's retries, and for a pause in a download.
const SILENCE: Duration = Duration::from_secs(120);

/// Copies of one job's shuffle files; cheap to clone.
#[derive(Debug, Clone)]
pub struct ShuffleStore {
    stores: Stores,
    url: Url,
    job: String,
}

/// Failure of a transfer to or from a shuffle store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A request has failed, or the store cannot be opened.
    #[error("object {object} of the shuffle store {store}")]
    Object {
        /// Path of the object.
        object: String,
        /// URL of the store.
        store: String,
        /// Error of the store.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A local file cannot be read or written.
    #[error("file {}", .file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl TransferError {
    /// Checks whether the object, or the local file, does not exist.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Object { source, .. } => {
                matches!(source.downcast_ref(), Some(Error::NotFound { .. }))
            }
            Self::File { source, .. } => source.kind() == ErrorKind::NotFound,
        }
    }
}

impl ShuffleStore {
    /// Returns the copies of a job's files in a store. It is opened on first use.
    pub fn new(stores: &Stores, url: &Url, job: &str) -> Self {
        Self {
            stores: stores.clone(),
            url: url.clone(),
            job: job.to_owned(),
        }
    }

    /// Returns the URL of the store.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Copies a file to the store, under its name below an executor's folder.
    ///
    /// # Errors
    /// When the file cannot be read, or the store does not take it.
    pub async fn upload(&self, file: &Path, name: &Path) -> Result<(), TransferError> {
        let object = self.object(name)?;
        let mut input = File::open(file).await.map_err(|e| of_file(file, e))?;
        let found = input.metadata().await.map_err(|e| of_file(file, e))?;
        let size = found.len();
        if size <= PART {
            let mut content = Vec::new();
            let read = input.read_to_end(&mut content).await;
            read.map_err(|e| of_file(file, e))?;
            let put = object.store.put(&object.key, content.into());
            return object.answer(put).await.map(drop);
        }
        let begun = object.store.put_multipart(&object.key);
        let mut upload = object.answer(begun).await?;
        let part = PART.max(size.div_ceil(PARTS));
        let sent = object.send(&mut *upload, (file, input), part).await;
        let completed = match sent {
            Ok(()) => object.answer(upload.complete()).await.map(drop),
            Err(error) => Err(error),
        };
        let Err(error) = completed else {
            return Ok(());
        };
        // The store may have completed it, and its answer was lost. Nobody else writes this object.
        if let Ok(found) = object.answer(object.store.head(&object.key)).await
            && found.size == size
        {
            return Ok(());
        }
        // Otherwise its parts stay until the store's own rules remove them.
        object.answer(upload.abort()).await.ok();
        Err(error)
    }

    /// Copies a file of this name from the store.
    ///
    /// # Errors
    /// When it is not in the store, cannot be read there as a whole, or cannot be written here.
    pub async fn download(&self, name: &Path, file: &Path) -> Result<(), TransferError> {
        let object = self.object(name)?;
        let found = object.answer(object.store.get(&object.key)).await?;
        let size = found.meta.size;
        let mut content = found.into_stream();
        // Readers know it by its name.
        let mut name = OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        let part = file.with_file_name(name);
        let mut output = File::create(&part).await.map_err(|e| of_file(file, e))?;
        let mut written = 0;
        while let Some(bytes) = object.answer(content.try_next()).await? {
            written += bytes.len() as u64;
            let wrote = output.write_all(&bytes).await;
            wrote.map_err(|e| of_file(file, e))?;
        }
        output.flush().await.map_err(|e| of_file(file, e))?;
        if written != size {
            return Err(object.failed(format!("{written} of its {size} bytes were read")));
        }
        let renamed = fs::rename(&part, file).await;
        renamed.map_err(|e| of_file(file, e))
    }

    /// Removes all copies of the job.
    ///
    /// # Errors
    /// When some cannot be removed.
    pub async fn remove(&self) -> Result<(), TransferError> {
        if self.url.scheme() == "file"
            && let Ok(folder) = self.url.to_file_path()
        {
            let folder = folder.join(FOLDER).join(&self.job);
            return match fs::remove_dir_all(&folder).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(of_file(&folder, error)),
                _ => Ok(()),
            };
        }
        let all = self.object(Path::new(""))?;
        let found = all.store.list(Some(&all.key));
        let found = found.map_ok(|object| object.location).boxed();
        let mut removed = all.store.delete_stream(found);
        loop {
            match all.answer(removed.try_next()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the object of a file's name below an executor's folder.
    fn object(&self, name: &Path) -> Result<Object, TransferError> {
        let failed = |source| TransferError::Object {
            object: name.display().to_string(),
            store: shown(self.url.as_str()),
            source,
        };
        let store = self.stores.get_store(&self.url);
        let root = Key::from_url_path(self.url.path());
        let root = root.map_err(|error| failed(error.into()))?;
        let job = root.join(FOLDER).join(self.job.as_str());
        let key = name
            .iter()
            .fold(job, |key, part| key.join(&*part.to_string_lossy()));
        Ok(Object {
            store: store.map_err(|error| failed(error.into()))?,
            key,
            of: shown(self.url.as_str()),
        })
    }
}

/// Object of a store.
struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    /// URL of the shuffle store.
    of: String,
}

impl Object {
    /// Sends the parts of a file, a few at a time.
    async fn send(
        &self,
        upload: &mut dyn MultipartUpload,
        (file, mut input): (&Path, File),
        part: u64,
    ) -> Result<(), TransferError> {
        let mut sending = FuturesUnordered::new();
        loop {
            let mut bytes = Vec::with_capacity(usize::try_from(part).unwrap_or_default());
            let read = (&mut input).take(part).read_to_end(&mut bytes).await;
            read.map_err(|e| of_file(file, e))?;
            let is_last = (bytes.len() as u64) < part;
            if !bytes.is_empty() {
                sending.push(upload.put_part(bytes.into()));
            }
            while sending.len() >= PARTS_AT_ONCE || (is_last && !sending.is_empty()) {
                self.answer(sending.try_next()).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Waits for the answer to a request.
    async fn answer<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, TransferError> {
        let answer: Result<T, Box<dyn StdError + Send + Sync>> =
            match timeout(SILENCE, request).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(format!("no answer in {} s", SILENCE.as_secs()).into()),
            };
        answer.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> TransferError {
        TransferError::Object {
            object: self.key.to_string(),
            store: self.of.clone(),
            source: source.into(),
        }
    }
}

fn of_file(file: &Path, source: io::Error) -> TransferError {
    TransferError::File {
        file: file.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use volley_proto::object_stores::Opened;

    use super::*;

    /// Returns a store in a folder, and one of a bucket.
    fn stores(folder: &Path) -> [(Stores, Url); 2] {
        let bucket: Url = "s3://bucket/some/prefix".parse().unwrap();
        let stores = Stores::default();
        stores.register(
            &bucket,
            Opened {
                root: "s3://bucket".to_owned(),
                store: Arc::new(InMemory::new()),
                multipart: None,
            },
        );
        let folder = Url::from_directory_path(folder).unwrap();
        [(Stores::default(), folder), (stores, bucket)]
    }

    #[tokio::test]
    async fn files_come_back_as_they_were() {
        let (here, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (stores, url) in stores(shared.path()) {
            let store = ShuffleStore::new(&stores, &url, "j");
            // None, some, exactly two parts, and a part and a bit.
            for size in [0, 100, 2 * PART, PART + 3] {
                let content: Vec<_> = (0..size).map(|at| (at % 251) as u8).collect();
                let (file, back) = (here.path().join("file"), here.path().join("back"));
                std::fs::write(&file, &content).unwrap();
                let name = format!("j/1/{size}/data.arrow");
                store.upload(&file, Path::new(&name)).await.unwrap();
                store.download(Path::new(&name), &back).await.unwrap();
                assert!(std::fs::read(&back).unwrap() == content, "{url} {size}");
            }
        }
    }

    #[tokio::test]
    async fn the_files_of_a_job_are_removed_and_no_others() {
        let (here, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = here.path().join("file");
        std::fs::write(&file, "rows").unwrap();
        for (stores, url) in stores(shared.path()) {
            let [one, other] = ["j", "k"].map(|job| ShuffleStore::new(&stores, &url, job));
            let names = ["j/1/0/data.arrow", "l/2/0/data-7.arrow"].map(Path::new);
            for name in names {
                one.upload(&file, name).await.unwrap();
                other.upload(&file, name).await.unwrap();
            }
            one.remove().await.unwrap();
            one.remove().await.unwrap();
            let back = here.path().join("back");
            for name in names {
                let error = one.download(name, &back).await.unwrap_err();
                assert!(error.is_missing(), "{error:?}");
                let said = error.to_string();
                assert!(said.contains(url.as_str()), "{said}");
                assert!(said.contains(name.to_str().unwrap()), "{said}");
                other.download(name, &back).await.unwrap();
            }
            let error = one.upload(&here.path().join("none"), names[0]).await;
            assert!(error.unwrap_err().is_missing());
        }
    }
}
