//! The services that plan nodes need at run time, as traits that only the executor implements.
//!
//! An executor puts a [`Runtimes`] into the session configuration of its tasks; the nodes of this crate look it up
//! there when they execute. Anywhere else the lookup fails with an error that says so: the scheduler and the client
//! plan these nodes, but never run them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use tokio_util::sync::CancellationToken;

use volley_proto::settings::PredictDevice;
use volley_proto::spec::TrainSpec;
use volley_proto::{ModelRef, PreparedId};

/// Runtimes of ranks and predictors, one per executor.
#[derive(Debug, Clone)]
pub struct Runtimes {
    /// Runtime of the ranks of barrier stages.
    pub ranks: Arc<dyn RankRuntime>,
    /// Loader of models for prediction.
    pub models: Arc<dyn ModelRuntime>,
}

impl Runtimes {
    /// Returns the runtimes installed in the task's session.
    ///
    /// # Errors
    /// When there are none: the plan was run outside an executor.
    pub fn of(context: &TaskContext) -> Result<Arc<Self>> {
        context
            .session_config()
            .get_extension::<Self>()
            .ok_or_else(|| {
                DataFusionError::Execution(
                "training and prediction run on Volley executors only: connect the session to a \
                 Volley cluster"
                    .into(),
            )
            })
    }
}

/// Returns a task's context with another configuration and runtime environment.
pub fn context_with(
    context: &TaskContext,
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        runtime,
    ))
}

/// Advice at the end of errors about the memory of a task.
pub const MORE_PARTITIONS: &str =
    "; with more partitions (SET datafusion.execution.target_partitions) a task has fewer rows";

/// Returns an error about the memory of a task, with what needs it and the advice that helps there.
pub fn advised(failure: DataFusionError, needed: &str, advice: &str) -> DataFusionError {
    let DataFusionError::ResourcesExhausted(reason) = failure.find_root() else {
        return failure;
    };
    let reason = reason.trim_end_matches(MORE_PARTITIONS);
    DataFusionError::ResourcesExhausted(format!("{needed}: {reason}; {advice}"))
}

/// Returns the bytes of a batch's rows in memory, without what others share its buffers.
pub fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(bytes_of_column).sum()
}

/// Returns the bytes of a column in memory, without what others share its buffers.
pub fn bytes_of_column(column: &ArrayRef) -> usize {
    let rows = column.len();
    let list = |values: &ArrayRef, from: usize, to: usize| {
        bytes_of_column(&values.slice(from, to - from)) + rows * size_of::<i64>()
    };
    match column.data_type() {
        DataType::Dictionary(..) => {
            let values = column.as_any_dictionary().values();
            let share = values.get_array_memory_size() / values.len().max(1);
            rows * (size_of::<i64>() + share)
        }
        DataType::List(_) => {
            let (values, offsets) = (
                column.as_list::<i32>().values(),
                column.as_list::<i32>().offsets(),
            );
            list(values, offsets[0] as usize, offsets[rows] as usize)
        }
        DataType::LargeList(_) => {
            let (values, offsets) = (
                column.as_list::<i64>().values(),
                column.as_list::<i64>().offsets(),
            );
            list(values, offsets[0] as usize, offsets[rows] as usize)
        }
        DataType::Struct(_) => column
            .as_struct()
            .columns()
            .iter()
            .map(bytes_of_column)
            .sum(),
        // Bytes outside of views are not of the slice.
        DataType::Utf8View => 16 * rows + column.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => 16 * rows + column.as_binary_view().total_buffer_bytes_used(),
        _ => {
            let data = column.to_data();
            let own = data.get_slice_memory_size();
            own.unwrap_or_else(|_| column.get_array_memory_size())
        }
    }
}

/// Runtime of one rank of a barrier stage.
#[async_trait]
pub trait RankRuntime: Send + Sync + Debug {
    /// Streams the task's shards, trains, and returns one row in the schema of
    /// [`crate::train_schema`].
    ///
    /// # Errors
    /// The error that ended the rank, root cause first, even if a peer caused it.
    async fn run(&self, task: RankTask) -> Result<RecordBatch>;
}

/// Task of one rank.
#[derive(Debug)]
pub struct RankTask {
    /// Specification of the training run.
    pub spec: Arc<TrainSpec>,
    /// Identity of this task of the barrier stage.
    pub identity: TaskIdentity,
    /// Plan of the rows of its virtual shards: a partition each, in the order of `identity.partitions`.
    pub input: Arc<dyn ExecutionPlan>,
    /// Context in which the input is executed.
    pub context: Arc<TaskContext>,
    /// Folder for files that the task leaves for later tasks of its stage on this executor; not created in advance. They
    /// are removed with the job's data, unless they are [prepared](Self::prepared) rows.
    pub folder: PathBuf,
    /// Id of the folder, if its files are kept for the next training on the same rows.
    pub prepared: Option<PreparedId>,
    /// Token that is cancelled when the job is, or when nobody waits for the rank any more.
    pub cancel: CancellationToken,
}

impl RankTask {
    /// Returns a function that opens the rows of the virtual shard at an index of `identity.partitions`.
    pub fn rows(
        &self,
        at: usize,
    ) -> impl FnOnce() -> Result<SendableRecordBatchStream> + Send + use<> {
        let (input, context) = (Arc::clone(&self.input), Arc::clone(&self.context));
        move || input.execute(at, context)
    }
}

/// Identity of the task that a plan runs in: its job, stage and number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskIdentity {
    /// Id of the job as the engine has it, which is that of the attempt.
    pub job_id: String,
    /// Id of the job in lists and logs, which is that of its first attempt.
    pub first_attempt: String,
    /// Id of the stage.
    pub stage_id: usize,
    /// Number of the task within its stage.
    pub task_id: usize,
    /// Partitions of the stage that this task runs, by their global numbers.
    pub partitions: Vec<usize>,
}

/// Loader of models for prediction, which keeps those in use.
#[async_trait]
pub trait ModelRuntime: Send + Sync + Debug {
    /// Returns a predictor for the model.
    ///
    /// # Errors
    /// When the store does not hold the model, or it cannot be decoded.
    async fn predictor(&self, model: &ModelRef) -> Result<Arc<dyn Predictor>>;
}

/// Predictor of batches with one loaded model.
pub trait Predictor: Send + Sync + Debug {
    /// Returns the prediction's columns, as [`PredictedColumns`](volley_proto::store::PredictedColumns) describes them:
    /// a number in the label's own scale and its quantiles if it has several, or a class and the probabilities of all.
    /// Reads the batch's columns by name. The CPU computes where the device cannot.
    ///
    /// # Errors
    /// When a feature column is missing, or has a type that the model was not trained on.
    fn predict(&self, rows: &RecordBatch, device: PredictDevice) -> Result<Vec<ArrayRef>>;

    /// Returns the prediction's columns, and those that explain it by its `top` features. The CPU computes where the
    /// device cannot.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    fn explain(
        &self,
        rows: &RecordBatch,
        top: usize,
        device: PredictDevice,
    ) -> Result<Vec<ArrayRef>>;
}
