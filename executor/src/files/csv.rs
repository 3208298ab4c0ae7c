//! CSV files whose quotes are checked, and parts of them that begin and end with records.
//!
//! DataFusion cuts a large file anywhere and has each part begin after the next line break, which may be in the midst of a
//! quoted value. Here a part is that of [its records](part_of_records). Where a quote is open at the end of what is read,
//! or lines are one value though its quotes are malformed, that is an error: Arrow's parser takes all rows up to there for
//! a text. Parsing is Arrow's.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Decoder;
use datafusion::common::exec_datafusion_err;
use datafusion::datasource::file_format::csv::CsvDecoder;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::{ProjectionOpener, SplitProjection};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use volley_engine::{CsvDialect, OpenQuote, QuoteCheck, decompressed, part_of_records};

use super::pieces;

/// Opens CSV files and parts of them.
///
/// # Errors
/// When the source's projection does not go with its columns.
pub(super) fn opener(
    source: &CsvSource,
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
        source: source.clone(),
        batch_size,
        columns: columns.file_indices.clone(),
        compression: scan.file_compression_type,
        store,
    };
    ProjectionOpener::try_new(columns, Arc::new(opener), table.file_schema())
}

#[derive(Clone)]
struct Opener {
    source: CsvSource,
    batch_size: usize,
    /// The columns that are read, of those of the file.
    columns: Vec<usize>,
    compression: FileCompressionType,
    store: Arc<dyn ObjectStore>,
}

impl Opener {
    fn decoder(&self, has_header: bool) -> Decoder {
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

    fn dialect(&self) -> CsvDialect {
        CsvDialect::from(&self.source)
    }

    /// Reads bytes of a file, which are not compressed any more; all of them if no range is given.
    async fn bytes(
        &self,
        file: &ObjectMeta,
        range: Option<GetRange>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let read = self.store.get_opts(&file.location, options).await?;
        Ok(decompressed(pieces(read)?, self.compression))
    }

    /// Reads the rows from one record on up to another, or to the end of the file.
    async fn rows(
        self,
        file: ObjectMeta,
        part: Option<std::ops::Range<u64>>,
    ) -> Result<BoxStream<'static, Result<datafusion::arrow::array::RecordBatch>>> {
        let begins_file = part.as_ref().is_none_or(|part| part.start == 0);
        let cut_at = part
            .as_ref()
            .map(|part| part.end)
            .filter(|end| *end < file.size);
        let bytes = self.bytes(&file, part.map(GetRange::Bounded)).await?;
        let decoder = self.decoder(self.source.has_header() && begins_file);
        let check = QuoteCheck::new(self.dialect(), begins_file);
        let is_compressed = self.compression.is_compressed();
        debug_assert!(
            !is_compressed || cut_at.is_none(),
            "a compressed file is read whole"
        );
        let known = begins_file && cut_at.is_none();
        let begun = (bytes, check, Arc::new((self, file)));
        let checked = stream::try_unfold(begun, move |(mut bytes, mut check, whole)| async move {
            let piece = bytes.try_next().await?;
            let checked = match &piece {
                Some(piece) => check.follow(piece),
                None => check.end(),
            };
            match checked {
                Ok(()) => Ok(piece.map(|piece| (piece, (bytes, check, whole)))),
                Err(open) if known => Err(open.error()),
                Err(_) => {
                    let (opener, file) = whole.as_ref();
                    Err(opener.open_quote(file, cut_at).await)
                }
            }
        });
        let rows = deserialize_stream(
            checked.boxed(),
            DecoderDeserializer::new(CsvDecoder::new(decoder)),
        );
        Ok(rows.map_err(DataFusionError::from).boxed())
    }

    /// Explains a quote that is open where a part ends: it is in the whole file as well, or the file was cut within a value.
    async fn open_quote(&self, file: &ObjectMeta, cut_at: Option<u64>) -> DataFusionError {
        let in_whole_file = async {
            let mut bytes = self.bytes(file, None).await?;
            let mut check = QuoteCheck::new(self.dialect(), true);
            while let Some(piece) = bytes.try_next().await? {
                if let Err(open) = check.follow(&piece) {
                    return Ok(Some(open));
                }
            }
            Ok(check.end().err())
        };
        match in_whole_file.await {
            Err(error) => error,
            Ok(Some(open)) => OpenQuote::error(open),
            Ok(None) => cut_within(cut_at.unwrap_or(file.size)),
        }
    }
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let opener = self.clone();
        Ok(Box::pin(async move {
            let (range, file) = (file.range, file.object_meta);
            let Some(range) = range else {
                return opener.rows(file, None).await;
            };
            let byte = |byte: i64| u64::try_from(byte).unwrap_or(0).min(file.size);
            let range = byte(range.start)..byte(range.end);
            let dialect = opener.dialect();
            let part = part_of_records(opener.store.as_ref(), &file, range, dialect).await?;
            if part.start > part.end {
                return Err(opener.open_quote(&file, Some(part.end)).await);
            }
            if part.is_empty() {
                return Ok(stream::empty().boxed());
            }
            opener.rows(file, Some(part)).await
        }))
    }
}

/// That a file was not cut where a record begins.
fn cut_within(byte: u64) -> DataFusionError {
    exec_datafusion_err!(
        "it was cut at byte {byte}, in the midst of a quoted value: \
         OPTIONS ('format.newlines_in_values' 'true') of its table has it read in one piece"
    )
}
