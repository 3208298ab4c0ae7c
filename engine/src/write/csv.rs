//! A writer of CSV files that tells NULL from a text without characters.
//!
//! Arrow's writer has no characters for both, or `""` where all values are quoted. Here NULL has none, or those of
//! `format.null_value`, and the text is `""` in every style but `Never`, which has no quotes. In a file of one column NULL
//! would be a line without characters, which readers pass over: a text column is refused, and another type has `""`.
//! Encoding is Arrow's.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::csv::QuoteStyle;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::exec_err;
use datafusion::common::file_options::csv_writer::CsvWriterOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::file_format::csv::{CsvSerializer, CsvSink};
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::DataSink;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use datafusion_datasource::write::BatchSerializer;
use datafusion_datasource::write::demux::DemuxedStreamReceiver;
use datafusion_datasource::write::orchestration::spawn_writer_tasks_and_join;
use memchr::memmem;
use object_store::ObjectStore;

use crate::EmptyTextMark;

/// A sink of CSV files.
#[derive(Debug)]
pub(super) struct CsvTextSink {
    config: FileSinkConfig,
    options: CsvWriterOptions,
}

impl CsvTextSink {
    pub(super) fn like(sink: &CsvSink) -> Self {
        Self {
            config: sink.config().clone(),
            options: sink.writer_options().clone(),
        }
    }
}

impl DisplayAs for CsvTextSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsvTextSink")
    }
}

#[async_trait]
impl DataSink for CsvTextSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(
        &self,
        rows: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        FileSink::write_all(self, rows, context).await
    }
}

#[async_trait]
impl FileSink for CsvTextSink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        split: SpawnedTask<Result<()>>,
        files: DemuxedStreamReceiver,
        store: Arc<dyn ObjectStore>,
    ) -> Result<u64> {
        let CsvWriterOptions {
            compression,
            compression_level,
            ..
        } = self.options;
        spawn_writer_tasks_and_join(
            context,
            Arc::new(Serializer::new(&self.options)),
            compression.into(),
            compression_level,
            store,
            split,
            files,
        )
        .await
    }
}

/// Encodes rows.
struct Serializer {
    options: CsvWriterOptions,
    mark: EmptyTextMark,
}

impl Serializer {
    fn new(options: &CsvWriterOptions) -> Self {
        Self {
            options: options.clone(),
            mark: EmptyTextMark::new(),
        }
    }

    /// Encodes rows, NULL as this text, and puts another text for each that was marked.
    fn encoded(
        &self,
        rows: RecordBatch,
        initial: bool,
        null: &str,
        (marked, instead): (&[u8], &[u8]),
    ) -> Result<Bytes> {
        let builder = self.options.writer_options.clone();
        let header = builder.header();
        let serializer = CsvSerializer::new()
            .with_builder(builder.with_null(null.to_owned()))
            .with_header(header);
        let bytes = serializer.serialize(rows, initial)?;
        let mut replaced = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for at in memmem::find_iter(&bytes, marked) {
            replaced.extend_from_slice(&bytes[from..at]);
            replaced.extend_from_slice(instead);
            from = at + marked.len();
        }
        if from == 0 {
            return Ok(bytes);
        }
        replaced.extend_from_slice(&bytes[from..]);
        Ok(replaced.into())
    }
}

impl BatchSerializer for Serializer {
    fn serialize(&self, rows: RecordBatch, initial: bool) -> Result<Bytes> {
        let options = &self.options.writer_options;
        let (null, style) = (options.null(), options.quote_style());
        let quote = options.quote();
        let mark = self.mark.as_str();
        let as_they_are = |rows| self.encoded(rows, initial, null, (mark.as_bytes(), b""));
        if matches!(style, QuoteStyle::Never) {
            return as_they_are(rows);
        }
        if !null.is_empty() {
            return match style {
                QuoteStyle::Necessary => self.marked_and_encoded(&rows, initial, null),
                // Every text is quoted.
                _ => as_they_are(rows),
            };
        }
        if let [column] = rows.columns() {
            let is_text = is_text(column.data_type());
            if is_text && column.logical_null_count() > 0 {
                let name = rows.schema_ref().field(0).name().clone();
                return exec_err!(
                    "column {name:?} is the only one of a CSV file, where NULL is an empty line, which \
                     readers skip: OPTIONS ('format.null_value' 'NULL') writes a text instead"
                );
            }
            if !is_text {
                return as_they_are(rows);
            }
        }
        match style {
            QuoteStyle::Necessary => self.marked_and_encoded(&rows, initial, null),
            _ => {
                let quoted = [&[quote], mark.as_bytes(), &[quote]].concat();
                self.encoded(rows, initial, mark, (&quoted, b""))
            }
        }
    }
}

impl Serializer {
    /// Encodes rows with `""` for texts without characters.
    fn marked_and_encoded(&self, rows: &RecordBatch, initial: bool, null: &str) -> Result<Bytes> {
        let quote = self.options.writer_options.quote();
        let marked = self.marked(rows)?;
        let mark = self.mark.as_str().as_bytes();
        self.encoded(marked, initial, null, (mark, &[quote, quote]))
    }

    /// Marks texts without characters.
    fn marked(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = rows
            .columns()
            .iter()
            .map(|column| match column.data_type() {
                DataType::Dictionary(_, values) if is_text(values) => {
                    Ok(self.mark.put(&cast(column, values)?))
                }
                _ => Ok(self.mark.put(column)),
            });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        let fields = rows.schema_ref().fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| {
            let field = field.as_ref().clone();
            field.with_data_type(column.data_type().clone())
        });
        let schema = Schema::new(fields.collect::<Vec<_>>());
        Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_string(),
        of => of.is_string(),
    }
}
