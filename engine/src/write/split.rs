//! Splits rows by the values of the partition columns into a file for each combination.
//!
//! DataFusion's writers take a stream for each file. Its own splitter, which this replaces, formats
//! every row's values as text, and writes NULL as if it were `''` or 0. Here a run of rows with the
//! same values is formatted once, and the folder of NULL has the name that Hive and Spark give it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{BooleanArray, BooleanBufferBuilder};
use datafusion::arrow::compute::{filter_record_batch, partition};
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{ScalarValue, exec_err, not_impl_err, plan_err};
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::DataSink;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::TryStreamExt;
use object_store::path::Path;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedSender};
use uuid::Uuid;

/// The name of a folder whose partition column is NULL, as Hive and Spark write it.
pub const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// A writer of the files of partitioned folders.
#[derive(Debug)]
pub(super) struct SplitSink(pub(super) Arc<dyn FileSink>);

impl DisplayAs for SplitSink {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(kind, f)
    }
}

#[async_trait]
impl DataSink for SplitSink {
    fn schema(&self) -> &SchemaRef {
        self.0.schema()
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.0.metrics()
    }

    async fn write_all(
        &self,
        rows: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        write_split(self.0.as_ref(), rows, context).await
    }
}

/// Writes each row into the folder of its values. Returns the number of rows.
pub(super) async fn write_split(
    sink: &dyn FileSink,
    mut rows: SendableRecordBatchStream,
    context: &Arc<TaskContext>,
) -> Result<u64> {
    let config = sink.config();
    let store = &config.object_store_url;
    let store = context.runtime_env().object_store(store)?;
    // Any number of files: were there a bound, the splitter could wait for a writer of one that
    // nobody has begun.
    let (files, opened) = mpsc::unbounded_channel();
    let options = &context.session_config().options().execution;
    let buffered = options.max_buffered_batches_per_output_file.get();
    let mut splitter = Splitter::new(config, &rows.schema(), files, buffered)?;
    let splitting = SpawnedTask::spawn(async move {
        while let Some(batch) = rows.try_next().await? {
            splitter.send(&batch).await?;
        }
        Ok(())
    });
    sink.spawn_writer_tasks_and_join(context, splitting, opened, store)
        .await
}

/// Path and batches of a file, as its writer receives them.
type File = (Path, Receiver<RecordBatch>);

struct Splitter {
    /// Partition columns of the rows, with their names.
    by: Vec<(usize, String)>,
    /// Columns of the rows that the files have.
    kept: Vec<usize>,
    folder: Path,
    /// Name of every file.
    name: String,
    /// Open files by partition values.
    files: HashMap<Vec<String>, Sender<RecordBatch>>,
    opened: UnboundedSender<File>,
    buffered: usize,
}

impl Splitter {
    fn new(
        config: &FileSinkConfig,
        schema: &Schema,
        opened: UnboundedSender<File>,
        buffered: usize,
    ) -> Result<Self> {
        let mut by = Vec::new();
        for (name, _) in &config.table_partition_cols {
            let column = schema.index_of(name)?;
            let data_type = schema.field(column).data_type();
            if !has_name(data_type) {
                return not_impl_err!(
                    "{name:?} in PARTITIONED BY is of type {data_type}, whose values cannot name folders: use \
                     a number, a text, a date or a boolean"
                );
            }
            by.push((column, name.clone()));
        }
        // As the files' writers leave them out: by name.
        let stays = |column: &usize| {
            let name = schema.field(*column).name();
            config.keep_partition_by_columns || by.iter().all(|(_, split)| split != name)
        };
        let kept: Vec<_> = (0..schema.fields().len()).filter(stays).collect();
        if kept.is_empty() {
            return plan_err!("PARTITIONED BY names every column, and leaves none for the files");
        }
        let name = Uuid::new_v4().simple();
        Ok(Self {
            by,
            kept,
            folder: config.table_paths[0].prefix().clone(),
            name: format!("{name}.{}", config.file_extension),
            files: HashMap::new(),
            opened,
            buffered,
        })
    }

    /// Sends each row to the writer of its file.
    async fn send(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = self.by.iter().map(|(column, _)| batch.column(*column));
        let columns: Vec<_> = columns.cloned().collect();
        let runs = partition(&columns)?.ranges();
        let mut parts: HashMap<_, Vec<_>> = HashMap::new();
        for run in runs {
            let values = self.values(batch, run.start)?;
            parts.entry(values).or_default().push(run);
        }
        let kept = batch.project(&self.kept)?;
        for (values, runs) in parts {
            let rows = rows_of(&kept, &runs)?;
            let path = self.path(&values);
            if self.file(values, &path).send(rows).await.is_err() {
                return exec_err!("the writer of {path} has ended");
            }
        }
        Ok(())
    }

    /// Returns the folder names of a row's values, spelled as queries that filter on them look for them.
    fn values(&self, batch: &RecordBatch, row: usize) -> Result<Vec<String>> {
        let values = self.by.iter().map(|(column, name)| {
            let value = ScalarValue::try_from_array(batch.column(*column), row)?;
            if value.is_null() {
                return Ok(NULL_PARTITION.to_owned());
            }
            Ok(match value {
                ScalarValue::Date64(Some(at)) if at % DAY == 0 => {
                    value.cast_to(&DataType::Date32)?.to_string()
                }
                ScalarValue::Date64(_) => {
                    return exec_err!(
                        "{name:?} in PARTITIONED BY has a time of day in some rows, which a folder's name \
                         cannot hold: use CAST({name:?} AS DATE)"
                    );
                }
                value => match value.to_string() {
                    text if text == NULL_PARTITION => {
                        return exec_err!(
                            "{name:?} in PARTITIONED BY is the text '{NULL_PARTITION}' in some rows, which is \
                             the folder name of NULL"
                        );
                    }
                    text => text,
                },
            })
        });
        values.collect()
    }

    /// Returns the file for rows with these values; opens it for the first ones.
    fn file(&mut self, values: Vec<String>, path: &Path) -> &Sender<RecordBatch> {
        self.files.entry(values).or_insert_with(|| {
            let (sender, rows) = mpsc::channel(self.buffered);
            // Where nobody listens, sending rows says so.
            let _ = self.opened.send((path.clone(), rows));
            sender
        })
    }

    fn path(&self, values: &[String]) -> Path {
        let names = self.by.iter().zip(values);
        let folder = names.fold(self.folder.clone(), |folder, ((_, name), value)| {
            folder.join(format!("{name}={value}"))
        });
        folder.join(self.name.as_str())
    }
}

/// Milliseconds of a day.
const DAY: i64 = 86_400_000;

/// Checks whether values of a type can be read back from folder names, and are looked for by the same names.
fn has_name(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean | DataType::Date32 | DataType::Date64 => true,
        DataType::Dictionary(_, values) => values.is_string(),
        other => other.is_numeric() || other.is_string(),
    }
}

/// Returns the rows of these runs, which are copied only if they are not adjacent.
fn rows_of(batch: &RecordBatch, runs: &[Range<usize>]) -> Result<RecordBatch> {
    if let [run] = runs {
        return Ok(batch.slice(run.start, run.len()));
    }
    let mut mask = BooleanBufferBuilder::new(batch.num_rows());
    for run in runs {
        mask.append_n(run.start - mask.len(), false);
        mask.append_n(run.len(), true);
    }
    mask.append_n(batch.num_rows() - mask.len(), false);
    let mask = BooleanArray::new(mask.finish(), None);
    Ok(filter_record_batch(batch, &mask)?)
}
