//! Parts of CSV files that begin and end with records, also where quoted values have line breaks.
//!
//! DataFusion cuts a large file anywhere and has each part begin after the next line break, which may be in the midst of a
//! value. Here a part is that of [its records](part_of_records). Where it ends within one after all, as its parser sees at
//! its end, that is an error. Parsing is Arrow's, and whole files are DataFusion's.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Decoder as CsvDecoder;
use datafusion::arrow::error::ArrowError;
use datafusion::common::{exec_datafusion_err, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::ObjectStore;
use datafusion_datasource::boundary_stream::AlignedBoundaryStream;
use datafusion_datasource::decoder::{Decoder, DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::{ProjectionOpener, SplitProjection};
use futures::{StreamExt, TryStreamExt, stream};
use volley_engine::{CsvDialect, part_of_records};

/// Opens CSV files.
pub(super) struct Opener {
    whole: Arc<dyn FileOpener>,
    part: Arc<dyn FileOpener>,
}

impl Opener {
    /// Of a source that has its columns and the size of its batches.
    pub(super) fn of(
        source: &CsvSource,
        batch_size: usize,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Self> {
        let table = source.table_schema();
        let columns = match source.projection() {
            Some(projection) => SplitProjection::new(table.file_schema(), projection),
            None => SplitProjection::unprojected(table),
        };
        let part = Arc::new(PartOpener {
            source: source.clone(),
            batch_size,
            columns: columns.file_indices.clone(),
            store: Arc::clone(&store),
        });
        Ok(Self {
            whole: source.create_file_opener(store, scan, partition)?,
            part: ProjectionOpener::try_new(columns, part, table.file_schema())?,
        })
    }
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        match file.range {
            Some(_) => self.part.open(file),
            None => self.whole.open(file),
        }
    }
}

/// Opens parts of CSV files.
#[derive(Clone)]
struct PartOpener {
    source: CsvSource,
    batch_size: usize,
    /// The columns that are read, of those of the file.
    columns: Vec<usize>,
    store: Arc<dyn ObjectStore>,
}

impl PartOpener {
    fn decoder(&self, has_header: bool) -> CsvDecoder {
        let source = &self.source;
        let mut builder = ReaderBuilder::new(Arc::clone(source.table_schema().file_schema()))
            .with_header(has_header)
            .with_delimiter(source.delimiter())
            .with_quote(source.quote())
            .with_truncated_rows(source.truncate_rows())
            .with_projection(self.columns.clone())
            .with_batch_size(self.batch_size);
        if let Some(escape) = source.escape() {
            builder = builder.with_escape(escape);
        }
        if let Some(terminator) = source.terminator() {
            builder = builder.with_terminator(terminator);
        }
        if let Some(comment) = source.comment() {
            builder = builder.with_comment(comment);
        }
        builder.build_decoder()
    }
}

impl FileOpener for PartOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let opener = self.clone();
        Ok(Box::pin(async move {
            let file_size = file.object_meta.size;
            let byte = |byte: i64| u64::try_from(byte).unwrap_or(0).min(file_size);
            let range = file.range.as_ref();
            let range = range.ok_or_else(|| internal_datafusion_err!("a part has a range"))?;
            let range = byte(range.start)..byte(range.end);
            let (store, dialect) = (&opener.store, CsvDialect::from(&opener.source));
            let part = part_of_records(store.as_ref(), &file.object_meta, range, dialect).await?;
            if part.start > part.end {
                return Err(cut_within(part.end));
            }
            if part.is_empty() {
                return Ok(stream::empty().boxed());
            }
            let bytes = AlignedBoundaryStream::new(
                Arc::clone(store),
                file.object_meta.location,
                part.start,
                part.end,
                file_size,
                opener.source.terminator().unwrap_or(b'\n'),
            );
            let bytes = bytes.await?.map_err(DataFusionError::from);
            let decoder = PartDecoder {
                decoder: opener.decoder(opener.source.has_header() && part.start == 0),
                cut_at: (part.end < file_size).then_some(part.end),
            };
            let rows = deserialize_stream(bytes, DecoderDeserializer::new(decoder));
            Ok(rows.map_err(DataFusionError::from).boxed())
        }))
    }
}

/// Parses the records of a part.
#[derive(Debug)]
struct PartDecoder {
    decoder: CsvDecoder,
    /// Where the part ends, if the file does not end there.
    cut_at: Option<u64>,
}

impl Decoder for PartDecoder {
    fn decode(&mut self, bytes: &[u8]) -> Result<usize, ArrowError> {
        let before = self.decoder.capacity();
        let decoded = self.decoder.decode(bytes)?;
        match self.cut_at {
            // No more bytes: what is a record only now has not ended.
            Some(byte) if bytes.is_empty() && self.decoder.capacity() < before => {
                Err(ArrowError::from_external_error(Box::new(cut_within(byte))))
            }
            _ => Ok(decoded),
        }
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        self.decoder.flush()
    }

    fn can_flush_early(&self) -> bool {
        self.decoder.capacity() == 0
    }
}

/// That a file was not cut where a record begins.
fn cut_within(byte: u64) -> DataFusionError {
    exec_datafusion_err!(
        "it was cut at byte {byte}, in the midst of a quoted value: \
         OPTIONS ('format.newlines_in_values' 'true') of its table has it read in one piece"
    )
}
