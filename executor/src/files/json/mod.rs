//! JSON files, one object per line, whose values are checked against the types of their columns.
//!
//! Arrow's reader makes the number 12 of the text `"0012"`, and 7 of 7.5, where the rows from which the types were inferred
//! had whole numbers only. Here each value is [checked](check) before it is read, and an error names its line and its
//! column. Numbers and booleans are text in a column of text. Parsing is Arrow's.

mod check;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::ReaderBuilder;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonDecoder;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource, JsonSource,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{GetRange, ObjectMeta, ObjectStore};
use datafusion_datasource::boundary_stream::AlignedBoundaryStream;
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::{ProjectionOpener, SplitProjection};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use self::check::{Check, Misfit, lines};
use super::bytes_of;

/// Opens JSON files and parts of them.
///
/// # Errors
/// When the source's projection does not go with its columns.
pub(super) fn opener(
    source: &JsonSource,
    batch_size: usize,
    store: Arc<dyn ObjectStore>,
    scan: &FileScanConfig,
) -> Result<Arc<dyn FileOpener>> {
    let table = source.table_schema();
    let columns = match source.projection() {
        Some(projection) => SplitProjection::new(table.file_schema(), projection),
        None => SplitProjection::unprojected(table),
    };
    let opener = Opener {
        schema: Arc::new(table.file_schema().project(&columns.file_indices)?),
        batch_size,
        compression: scan.file_compression_type,
        store,
    };
    ProjectionOpener::try_new(columns, Arc::new(opener), table.file_schema())
}

#[derive(Clone)]
struct Opener {
    /// The columns that are read.
    schema: SchemaRef,
    batch_size: usize,
    compression: FileCompressionType,
    store: Arc<dyn ObjectStore>,
}

impl Opener {
    /// Reads bytes of a file, decompressed; all of them if no range is given.
    async fn bytes(
        &self,
        file: &ObjectMeta,
        range: Option<GetRange>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        bytes_of(self.store.as_ref(), file, range, self.compression).await
    }

    /// Reads the lines that begin in a part of a file.
    async fn lines_of(
        &self,
        file: &ObjectMeta,
        start: u64,
        end: u64,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let store = Arc::clone(&self.store);
        let location = file.location.clone();
        let part = AlignedBoundaryStream::new(store, location, start, end, file.size, b'\n');
        Ok(part.await?.map_err(DataFusionError::from).boxed())
    }

    /// Describes a value that does not go with its column.
    async fn misfit(&self, file: &ObjectMeta, start: u64, misfit: Misfit) -> DataFusionError {
        let before = async {
            // The part begins after the first line end from the byte before its start on.
            let Some(last) = start.checked_sub(1) else {
                return Ok(0);
            };
            if last == 0 {
                return Ok(1);
            }
            let range = Some(GetRange::Bounded(0..last));
            let bytes = self.bytes(file, range).await?;
            let count = bytes.try_fold(0, async |count, piece| Ok(count + lines(&piece)));
            Ok(count.await? + 1)
        };
        match before.await {
            Ok(before) => misfit.error(before),
            Err(error) => error,
        }
    }
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let opener = self.clone();
        Ok(Box::pin(async move {
            let (range, file) = (file.range, file.object_meta);
            let byte = |byte: i64| u64::try_from(byte).unwrap_or(0);
            let start = range.as_ref().map_or(0, |range| byte(range.start));
            let bytes = match range {
                Some(range) => opener.lines_of(&file, start, byte(range.end)).await?,
                None => opener.bytes(&file, None).await?,
            };
            let decoder = ReaderBuilder::new(Arc::clone(&opener.schema))
                .with_batch_size(opener.batch_size)
                .with_coerce_primitive(true)
                .build_decoder()?;
            let check = Check::new(&opener.schema);
            let begun = (bytes, check, opener);
            let checked = stream::try_unfold(begun, move |(mut bytes, mut check, opener)| {
                let file = file.clone();
                async move {
                    let Some(piece) = bytes.try_next().await? else {
                        return Ok(None);
                    };
                    match check.follow(&piece) {
                        Ok(()) => Ok(Some((piece, (bytes, check, opener)))),
                        Err(misfit) => Err(opener.misfit(&file, start, misfit).await),
                    }
                }
            });
            let rows = deserialize_stream(
                checked.boxed(),
                DecoderDeserializer::new(JsonDecoder::new(decoder)),
            );
            Ok(rows.map_err(DataFusionError::from).boxed())
        }))
    }
}
