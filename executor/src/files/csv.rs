//! Parts of CSV files that begin and end with records, also where quoted values have line breaks.
//!
//! DataFusion cuts a large file anywhere and has each part begin after the next line break, which may be in the midst of a
//! value. Here a part is moved to where [records begin](record_start) before it is opened. Its bytes are followed as they
//! are read: quotes that are open at its end are an error, as it was cut in the midst of a value after all. Reading is
//! DataFusion's.

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::exec_err;
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::error::Result;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult,
};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use volley_proto::plan::{CsvDialect, Scanner, record_start};

/// How much of a local file is read at once, in bytes.
const AT_ONCE: u64 = 64 << 10;

/// Opens CSV files.
#[derive(Clone)]
pub(super) struct Opener {
    pub(super) source: Arc<dyn FileSource>,
    pub(super) dialect: CsvDialect,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) scan: FileScanConfig,
    pub(super) partition: usize,
}

impl Opener {
    fn opener(&self, store: Arc<dyn ObjectStore>) -> Result<Arc<dyn FileOpener>> {
        self.source
            .create_file_opener(store, &self.scan, self.partition)
    }
}

impl FileOpener for Opener {
    fn open(&self, mut file: PartitionedFile) -> Result<FileOpenFuture> {
        let Some(part) = file.range.clone() else {
            return self.opener(Arc::clone(&self.store))?.open(file);
        };
        let opener = self.clone();
        Ok(Box::pin(async move {
            let (store, dialect) = (&opener.store, opener.dialect);
            let start_of_record = async |byte: i64| {
                let byte = u64::try_from(byte).unwrap_or(0);
                record_start(store.as_ref(), &file.object_meta, byte, dialect).await
            };
            let part = start_of_record(part.start).await?..start_of_record(part.end).await?;
            if part.is_empty() {
                return Ok(stream::empty().boxed());
            }
            let is_last = part.end == file.object_meta.size;
            file.range = Some(FileRange {
                start: part.start as i64,
                end: part.end as i64,
            });
            let end = part.end;
            let scanner = Arc::new(Mutex::new(Scanner::new(dialect)));
            let followed = Followed {
                store: Arc::clone(store),
                part,
                scanner: Arc::clone(&scanner),
            };
            let rows = opener.opener(Arc::new(followed))?.open(file)?.await?;
            let check = stream::once(async move {
                if !is_last && scanner.lock().is_quoted() {
                    return exec_err!(
                        "it was cut at byte {end}, in the midst of a quoted value: \
                         OPTIONS ('format.newlines_in_values' 'true') of its table has it read in one piece"
                    );
                }
                Ok(None)
            });
            let check = check.filter_map(|checked| async move { checked.transpose() });
            Ok(rows.chain(check).boxed())
        }))
    }
}

/// A store of a file, of which a part is followed as it is read.
struct Followed {
    store: Arc<dyn ObjectStore>,
    part: Range<u64>,
    scanner: Arc<Mutex<Scanner>>,
}

impl Followed {
    /// Follows those of the bytes that are of the part, of which the first is at `begun`.
    fn follow(part: &Range<u64>, scanner: &Mutex<Scanner>, begun: u64, bytes: &[u8]) {
        let within = |byte: u64| {
            let byte = byte.clamp(begun, begun + bytes.len() as u64);
            (byte - begun) as usize
        };
        let bytes = &bytes[within(part.start)..within(part.end)];
        scanner.lock().follow(bytes);
    }
}

/// The bytes that were asked for. Those of a local file are read where they are asked for, as DataFusion reads them.
fn bytes_of(result: GetResult) -> StoreResult<BoxStream<'static, StoreResult<Bytes>>> {
    let range = result.range.clone();
    let GetResultPayload::File(mut file, _) = result.payload else {
        return Ok(result.into_stream());
    };
    let failed = |error: std::io::Error| Error::Generic {
        store: "LocalFileSystem",
        source: error.into(),
    };
    file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
    let mut left = range.end - range.start;
    let pieces = std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(left.min(AT_ONCE) as usize);
        let read = (&mut file).take(left.min(AT_ONCE)).read_to_end(&mut piece);
        match read {
            Err(error) => {
                left = 0;
                Some(Err(failed(error)))
            }
            Ok(0) => None,
            Ok(read) => {
                left -= read as u64;
                Some(Ok(Bytes::from(piece)))
            }
        }
    });
    Ok(stream::iter(pieces).boxed())
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Followed").field(&self.part).finish()
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Followed {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let result = self.store.get_opts(location, options).await?;
        let range = result.range.clone();
        if range.start >= self.part.end {
            return Ok(result);
        }
        let (meta, attributes) = (result.meta.clone(), result.attributes.clone());
        let (part, scanner) = (self.part.clone(), Arc::clone(&self.scanner));
        let mut next = range.start;
        let bytes = bytes_of(result)?.inspect(move |bytes| {
            if let Ok(bytes) = bytes {
                Self::follow(&part, &scanner, next, bytes);
                next += bytes.len() as u64;
            }
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(bytes.boxed()),
            meta,
            range,
            attributes,
        })
    }

    async fn put_opts(
        &self,
        to: &Path,
        bytes: PutPayload,
        how: PutOptions,
    ) -> StoreResult<PutResult> {
        self.store.put_opts(to, bytes, how).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        how: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(to, how).await
    }

    fn delete_stream(
        &self,
        files: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.store.delete_stream(files)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> StoreResult<()> {
        self.store.copy_opts(from, to, how).await
    }
}
