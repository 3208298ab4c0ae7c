//! The operator that writes rows where they are computed.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use datafusion::arrow::array::{Array, ArrayRef, StringArray, UInt64Array};
use datafusion::arrow::compute::cast_with_options;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::format::DEFAULT_CAST_OPTIONS;
use datafusion::common::{exec_err, internal_datafusion_err};
use datafusion::datasource::physical_plan::FileSink;
use datafusion::datasource::sink::DataSink;
use datafusion::error::Result;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use super::Target;
use super::split::write_split;
use super::staged::{Only, Staged};
use super::uploads::Uploads;
use crate::operator;

/// One row per partition: the task that wrote it, its rows and its files.
pub(super) static WRITTEN: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("task", DataType::Utf8, false),
        Field::new("rows", DataType::UInt64, false),
        Field::new("files", DataType::UInt64, false),
    ]))
});

/// Operator that writes each partition of the input into files of its own, which are not committed yet.
#[derive(Debug, Clone)]
pub(crate) struct WriteExec {
    target: Target,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    /// Sinks of the partitions written so far, for their metrics.
    sinks: Arc<Mutex<Vec<Arc<dyn FileSink>>>>,
}

impl WriteExec {
    pub(crate) fn new(target: Target, input: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&WRITTEN)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        Self {
            target,
            input,
            properties,
            sinks: Arc::default(),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}

impl DisplayAs for WriteExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WriteExec: {} files in {}",
            self.target.format(),
            self.target
        )
    }
}

impl ExecutionPlan for WriteExec {
    operator!("WriteExec", input, |write, input| {
        Ok(Self::new(write.target.clone(), input))
    });

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let target = self.target.clone();
        let writer = Writer::begin(&target, &context)?;
        let sink = Arc::clone(&writer.sink);
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.push(Arc::clone(&sink));
        let rows = self.input.execute(partition, Arc::clone(&context))?;
        let rows = as_declared(rows, sink.schema(), &target);
        let write = async move {
            let (rows, files) = writer.write(rows).await?;
            if rows > 0 && files == 0 {
                return exec_err!("files of {rows} rows that were written to {target} are gone");
            }
            let task = writer.task;
            let columns: [ArrayRef; 3] = [
                Arc::new(StringArray::from(vec![task])),
                Arc::new(UInt64Array::from(vec![rows])),
                Arc::new(UInt64Array::from(vec![files])),
            ];
            Ok(RecordBatch::try_new(
                Arc::clone(&WRITTEN),
                columns.to_vec(),
            )?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            futures::stream::once(write),
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = MetricsSet::new();
        let metrics = sinks.iter().filter_map(|sink| sink.metrics());
        metrics.for_each(|of| of.iter().for_each(|one| all.push(Arc::clone(one))));
        Some(all)
    }
}

/// Casts rows to the types of a table's columns: within structs, the parts of a union may have other types than were
/// planned. Fails if a value does not fit, or is NULL in a column that is NOT NULL.
fn as_declared(
    rows: SendableRecordBatchStream,
    schema: &SchemaRef,
    target: &Target,
) -> SendableRecordBatchStream {
    let (planned, schema, target) = (rows.schema(), Arc::clone(schema), target.clone());
    let may_be_null = planned.fields().iter().map(|field| field.is_nullable());
    let may_be_null: Vec<_> = may_be_null.collect();
    let as_declared = move |batch: RecordBatch| {
        let columns = || schema.fields().iter().zip(batch.columns());
        for ((due, column), may_be_null) in columns().zip(&may_be_null) {
            if *may_be_null && !due.is_nullable() && column.logical_null_count() > 0 {
                let column = due.name();
                return exec_err!(
                    "column {column} of {target} is NOT NULL, and a row has NULL in it"
                );
            }
        }
        if columns().all(|(due, column)| due.data_type() == column.data_type()) {
            return Ok(batch);
        }
        let columns = columns().map(|(due, column)| {
            Ok(cast_with_options(
                column,
                due.data_type(),
                &DEFAULT_CAST_OPTIONS,
            )?)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
    };
    let rows = rows.map(move |batch| as_declared(batch?));
    Box::pin(RecordBatchStreamAdapter::new(planned, rows))
}

/// Writes one file without rows, from which readers learn the columns. Returns its task and the number of files, 0
/// where rows are spread over folders by their values.
pub(super) async fn write_no_rows(
    target: &Target,
    context: &Arc<TaskContext>,
) -> Result<(String, u64)> {
    let writer = Writer::begin(target, context)?;
    if !writer.sink.config().table_partition_cols.is_empty() {
        return Ok((writer.task, 0));
    }
    let schema = Arc::clone(writer.sink.schema());
    let none = RecordBatch::new_empty(Arc::clone(&schema));
    let none = futures::stream::iter([Ok(none)]);
    let none = Box::pin(RecordBatchStreamAdapter::new(schema, none));
    let (_, files) = writer.write(none).await?;
    Ok((writer.task, files))
}

/// Writer of one partition's files.
struct Writer {
    target: Target,
    task: String,
    /// Sink that encodes the files.
    sink: Arc<dyn FileSink>,
    /// Context of the sink.
    context: Arc<TaskContext>,
    /// Uploads, if the target is in a store.
    staged: Option<Arc<Staged>>,
}

impl Writer {
    fn begin(target: &Target, context: &TaskContext) -> Result<Self> {
        let task = Uuid::new_v4().simple().to_string();
        let sink = target
            .sink(&task)?
            .ok_or_else(|| internal_datafusion_err!("the target is not a folder: {target}"))?;
        let staged = match target.is_remote() {
            true => {
                let uploads = Uploads::of(target, context)?;
                Some(Staged::new(target.clone(), &task, uploads))
            }
            false => None,
        };
        Ok(Self {
            target: target.clone(),
            context: writing(context, staged.as_ref())?,
            task,
            sink,
            staged,
        })
    }

    /// Writes rows. Returns the numbers of rows and of files.
    async fn write(&self, rows: SendableRecordBatchStream) -> Result<(u64, u64)> {
        let written = async {
            let rows = match self.sink.config().table_partition_cols.as_slice() {
                [] => DataSink::write_all(self.sink.as_ref(), rows, &self.context).await?,
                _ => write_split(self.sink.as_ref(), rows, &self.context).await?,
            };
            let files = match &self.staged {
                Some(staged) => staged.record().await?,
                None => files_of(&self.target, &self.task, &self.context).await?,
            };
            Ok((rows, files))
        };
        let written = written.await;
        if let (Err(_), Some(staged)) = (&written, &self.staged) {
            staged.abort().await;
        }
        written
    }
}

/// Creates the context of a writer that starts a file when the one before is full, not several at once: other
/// partitions are written concurrently. Where files are uploads, the context has their store.
fn writing(context: &TaskContext, staged: Option<&Arc<Staged>>) -> Result<Arc<TaskContext>> {
    let mut config = context.session_config().clone();
    let execution = &mut config.options_mut().execution;
    execution.minimum_parallel_output_files = ConfigNonZeroUsize::try_new(1)?;
    let runtime = match staged {
        None => context.runtime_env(),
        Some(staged) => RuntimeEnvBuilder::from_runtime_env(&context.runtime_env())
            .with_object_store_registry(Arc::new(Only(Arc::clone(staged))))
            .build_arc()?,
    };
    let context = TaskContext::default().with_runtime(runtime);
    Ok(Arc::new(context.with_session_config(config)))
}

/// Counts the files that the task has written.
async fn files_of(target: &Target, task: &str, context: &TaskContext) -> Result<u64> {
    let url = target.of_task(task)?;
    let store = context.runtime_env().object_store(url.object_store())?;
    let files: Vec<_> = store.list(Some(url.prefix())).try_collect().await?;
    Ok(files.len() as u64)
}
