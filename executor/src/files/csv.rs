//! CSV files whose quotes are checked, and parts of them that begin and end with records.
//!
//! DataFusion cuts a large file anywhere and has each part begin after the next line break, which may be in the midst of a
//! quoted value. Here a part is that of [its records](part_of_records). Where a quote is open at the end of what is read,
//! or lines are one value though its quotes are malformed, that is an error: Arrow's parser takes all rows up to there for
//! a text. A value `""` of a text column is a text without characters, and not NULL. Parsing is Arrow's; errors about a
//! record have the number of its line.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Decoder;
use datafusion::arrow::datatypes::FieldRef;
use datafusion::arrow::error::ArrowError;
use datafusion::common::exec_datafusion_err;
use datafusion::datasource::file_format::csv::CsvDecoder;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{GetRange, ObjectMeta, ObjectStore};
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::{ProjectionOpener, SplitProjection};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use volley_engine::{
    CsvDialect, EmptyText, EmptyTextMark, OpenQuote, QuoteCheck, line_of_record, part_of_records,
};

use super::{MistypedValue, bytes_of};

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

    /// Reads bytes of a file, decompressed; all of them if no range is given.
    async fn bytes(
        &self,
        file: &ObjectMeta,
        range: Option<GetRange>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        bytes_of(self.store.as_ref(), file, range, self.compression).await
    }

    /// Reads the rows from one record on up to another, or to the end of the file.
    async fn rows(
        self,
        file: ObjectMeta,
        part: Option<std::ops::Range<u64>>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let begins_file = part.as_ref().is_none_or(|part| part.start == 0);
        let cut_at = part
            .as_ref()
            .map(|part| part.end)
            .filter(|end| *end < file.size);
        let start = part.as_ref().map_or(0, |part| part.start);
        let bytes = self.bytes(&file, part.map(GetRange::Bounded)).await?;
        let decoder = self.decoder(self.source.has_header() && begins_file);
        let check = QuoteCheck::new(self.dialect(), begins_file).with_empty_texts();
        let texts = EmptyTexts::new(&self.source, &self.columns);
        let (mark, is_marked) = (texts.mark.clone(), Arc::clone(&texts.is_marked));
        let is_compressed = self.compression.is_compressed();
        debug_assert!(
            !is_compressed || cut_at.is_none(),
            "a compressed file is read whole"
        );
        let whole = Arc::new((self, file));
        let of_errors = Arc::clone(&whole);
        let known = begins_file && cut_at.is_none();
        let begun = Some((bytes, check, texts, whole));
        let checked = stream::try_unfold(begun, move |reading| async move {
            let Some((mut bytes, mut check, mut texts, whole)) = reading else {
                return Ok(None);
            };
            let piece = bytes.try_next().await?;
            let checked = match &piece {
                Some(piece) => check.follow(piece),
                None => check.end(),
            };
            match checked {
                Ok(()) => Ok(match piece {
                    Some(piece) => {
                        let piece = texts.marked(piece, check.empty_texts());
                        Some((piece, Some((bytes, check, texts, whole))))
                    }
                    None => {
                        let last = check.ends_with_empty_text();
                        let last = last.map(|column| EmptyText { end: 0, column });
                        let last = last.map(|last| texts.marked(Bytes::new(), &[last]));
                        last.filter(|last| !last.is_empty())
                            .map(|last| (last, None))
                    }
                }),
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
        let rows = rows.then(move |rows| {
            let (mark, is_marked) = (mark.clone(), Arc::clone(&is_marked));
            let whole = Arc::clone(&of_errors);
            async move {
                match rows {
                    Ok(rows) if is_marked.load(Relaxed) => {
                        let columns = rows.columns().iter().map(|column| mark.take(column));
                        let rows = RecordBatch::try_new(rows.schema(), columns.collect())?;
                        Ok(rows)
                    }
                    Ok(rows) => Ok(rows),
                    Err(error) => {
                        let (opener, file) = whole.as_ref();
                        Err(opener.in_line(file, start, error).await)
                    }
                }
            }
        });
        Ok(rows.boxed())
    }

    /// Returns an error of Arrow's reader with the number of the line, where that of the record stands in it.
    async fn in_line(&self, file: &ObjectMeta, start: u64, error: ArrowError) -> DataFusionError {
        let (Some((number, record)), ArrowError::ParseError(text) | ArrowError::CsvError(text)) =
            (record_in(&error), &error)
        else {
            return error.into();
        };
        let line = async {
            let bytes = self.bytes(file, None).await?;
            line_of_record(bytes, self.dialect(), start, record).await
        };
        match line.await {
            Ok(line) => match self.mistyped(line, text) {
                Some(mistyped) => DataFusionError::External(Box::new(mistyped)),
                None => {
                    let (before, after) = (&text[..number.start], &text[number.end..]);
                    exec_datafusion_err!("{before}{line}{after}")
                }
            },
            Err(error) => error,
        }
    }

    /// Reads Arrow's error about a value that is not of its column's type.
    fn mistyped(&self, line: u64, text: &str) -> Option<MistypedValue> {
        let text = text.strip_prefix("Error while parsing value '")?;
        let (value, rest) = text.split_once("' as type '")?;
        let (data_type, rest) = rest.split_once("' for column ")?;
        let (column, _) = rest.split_once(' ')?;
        let column: usize = column.parse().ok()?;
        let fields = self.source.table_schema().file_schema().fields();
        let delimiter = self.source.delimiter();
        Some(MistypedValue {
            line,
            value: value.to_owned(),
            column: fields.get(column)?.name().clone(),
            data_type: data_type.to_owned(),
            delimiter: (delimiter != b',').then(|| char::from(delimiter)),
        })
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

/// Marks texts without characters before they are parsed.
struct EmptyTexts {
    mark: EmptyTextMark,
    /// True if there was any.
    is_marked: Arc<AtomicBool>,
    /// The columns of text that are read, of those of the file.
    columns: Vec<bool>,
}

impl EmptyTexts {
    fn new(source: &CsvSource, read: &[usize]) -> Self {
        let fields = source.table_schema().file_schema().fields().iter();
        let columns = fields.enumerate();
        let is_read_text = |(number, field): (usize, &FieldRef)| {
            field.data_type().is_string() && read.contains(&number)
        };
        Self {
            mark: EmptyTextMark::new(),
            is_marked: Arc::default(),
            columns: columns.map(is_read_text).collect(),
        }
    }

    /// Puts the mark behind each value `""` of a text column.
    fn marked(&mut self, piece: Bytes, empty: &[EmptyText]) -> Bytes {
        let is_text = |empty: &&EmptyText| self.columns.get(empty.column) == Some(&true);
        let mut empty = empty.iter().filter(is_text).peekable();
        if empty.peek().is_none() {
            return piece;
        }
        self.is_marked.store(true, Relaxed);
        let mut marked = Vec::with_capacity(piece.len() + piece.len() / 2);
        let mut from = 0;
        for EmptyText { end, .. } in empty {
            marked.extend_from_slice(&piece[from..*end]);
            marked.extend_from_slice(self.mark.as_str().as_bytes());
            from = *end;
        }
        marked.extend_from_slice(&piece[from..]);
        marked.into()
    }
}

/// Finds the number of a record in an error of Arrow's reader: its range in the text, and the number of records before
/// it.
fn record_in(error: &ArrowError) -> Option<(std::ops::Range<usize>, u64)> {
    // Errors about values count records from 0, those about records from 1.
    let (text, before, first) = match error {
        ArrowError::ParseError(text) => (text, " at line ", 0),
        ArrowError::CsvError(text) => (text, " for line ", 1),
        _ => return None,
    };
    let start = text.find(before)? + before.len();
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[start..start + digits].parse().ok()?;
    Some((start..start + digits, number.checked_sub(first)?))
}

/// Returns the error of a file that was not cut at the start of a record.
fn cut_within(byte: u64) -> DataFusionError {
    exec_datafusion_err!(
        "it was cut at byte {byte}, inside a quoted value: \
         OPTIONS ('format.newlines_in_values' 'true') on its table reads it in one piece"
    )
}
