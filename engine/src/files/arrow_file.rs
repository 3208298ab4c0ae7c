//! Metadata of an Arrow file: its columns, and which of Arrow's two formats it has.
//!
//! Only the footer of a file that has one is read, and only the beginning of one that has none. Errors do not name the
//! file: the caller that opens it adds the name. Batches are read by DataFusion.

use std::sync::Arc;

use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::convert::fb_to_schema;
use datafusion::arrow::ipc::reader::{StreamDecoder, read_footer_length};
use datafusion::arrow::ipc::root_as_footer;
use datafusion::common::exec_err;
use datafusion::error::Result;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

/// Magic bytes at both ends of a file with a footer; a file of the other format begins with a length.
const MAGIC: &[u8] = b"ARROW1";
/// A footer's length and the magic after it, in bytes.
const TRAILER: u64 = 10;

/// Metadata of an Arrow file.
#[derive(Debug)]
pub struct ArrowFile {
    /// Its columns.
    pub schema: SchemaRef,
    /// True for Arrow's file format, whose footer locates its batches; false for its streaming format.
    pub has_footer: bool,
}

impl ArrowFile {
    /// Reads the metadata of a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is of neither format.
    pub async fn in_store(store: &dyn ObjectStore, file: &ObjectMeta) -> Result<Self> {
        let (place, size) = (&file.location, file.size);
        let magic = MAGIC.len() as u64;
        let has_footer =
            size >= magic + TRAILER && store.get_range(place, 0..magic).await? == MAGIC;
        let schema = match has_footer {
            true => {
                let trailer = store.get_range(place, size - TRAILER..size).await?;
                let Ok(trailer) = trailer.as_ref().try_into() else {
                    return exec_err!("its last {TRAILER} bytes are not there");
                };
                let length = read_footer_length(trailer)? as u64;
                let end = size - TRAILER;
                let Some(start) = end.checked_sub(length) else {
                    return exec_err!("its footer would be of {length} bytes, and it has {size}");
                };
                let footer = store.get_range(place, start..end).await?;
                schema_in_footer(&footer)?
            }
            false => schema_in_stream(store, file).await?,
        };
        Ok(Self { schema, has_footer })
    }
}

fn schema_in_footer(footer: &[u8]) -> Result<SchemaRef> {
    let schema = match root_as_footer(footer) {
        Ok(footer) => footer.schema(),
        Err(error) => return exec_err!("its footer cannot be read: {error}"),
    };
    match schema {
        Some(schema) => Ok(Arc::new(fb_to_schema(schema))),
        None => exec_err!("its footer has no columns"),
    }
}

async fn schema_in_stream(store: &dyn ObjectStore, file: &ObjectMeta) -> Result<SchemaRef> {
    let mut chunks = store.get(&file.location).await?.into_stream();
    let mut decoder = StreamDecoder::new();
    while let Some(chunk) = chunks.try_next().await? {
        let mut chunk = Buffer::from(chunk);
        while !chunk.is_empty() {
            decoder.decode(&mut chunk)?;
            if let Some(schema) = decoder.schema() {
                return Ok(schema);
            }
        }
    }
    exec_err!("it is not an Arrow file: it does not begin with columns")
}
