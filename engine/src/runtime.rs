//! What plan nodes need at run time, as traits that only the executor implements.
//!
//! An executor puts a [`Runtimes`] into the session configuration of its tasks; the nodes of
//! this crate look it up there when they execute. Anywhere else the lookup fails with an
//! error that says so: the scheduler and the client plan these nodes, they never run them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use tokio_util::sync::CancellationToken;

use volley_proto::ModelRef;
use volley_proto::spec::TrainSpec;

/// Runs ranks and predictors: one per executor.
#[derive(Debug, Clone)]
pub struct Runtimes {
    /// Runs the ranks of barrier stages.
    pub ranks: Arc<dyn RankRuntime>,
    /// Loads models for prediction.
    pub models: Arc<dyn ModelRuntime>,
}

impl Runtimes {
    /// The runtimes installed in the task's session.
    ///
    /// # Errors
    /// When there are none: the plan was run outside of an executor.
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

/// Runs one rank of a barrier stage.
#[async_trait]
pub trait RankRuntime: Send + Sync + Debug {
    /// Streams the task's shards, trains, and returns one row in the schema of
    /// [`crate::train_schema`].
    ///
    /// # Errors
    /// Whatever ended the rank; the root cause first, also when it lay with a peer.
    async fn run(&self, task: RankTask) -> Result<RecordBatch>;
}

/// One rank's task.
#[derive(Debug)]
pub struct RankTask {
    /// What to train.
    pub spec: Arc<TrainSpec>,
    /// Which task of the barrier stage this is.
    pub identity: TaskIdentity,
    /// What gives the rows of its virtual shards: a partition each, in the order of `identity.partitions`.
    pub input: Arc<dyn ExecutionPlan>,
    /// What the input is executed in.
    pub context: Arc<TaskContext>,
    /// Where it may leave files for later tasks of its stage here. They go with the job's data; the folder is not made.
    pub folder: PathBuf,
    /// Cancelled when the job is, or when nobody waits for the rank any more.
    pub cancel: CancellationToken,
}

impl RankTask {
    /// What opens the rows of the virtual shard at a place of `identity.partitions`.
    pub fn rows(
        &self,
        at: usize,
    ) -> impl FnOnce() -> Result<SendableRecordBatchStream> + Send + use<> {
        let (input, context) = (Arc::clone(&self.input), Arc::clone(&self.context));
        move || input.execute(at, context)
    }
}

/// Which task of which job and stage a plan runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskIdentity {
    /// The job.
    pub job_id: String,
    /// The stage.
    pub stage_id: usize,
    /// The task's number within its stage.
    pub task_id: usize,
    /// The stage's partitions that this task runs, by their global number.
    pub partitions: Vec<usize>,
}

/// Loads models for prediction, and keeps those in use.
#[async_trait]
pub trait ModelRuntime: Send + Sync + Debug {
    /// A predictor for the model.
    ///
    /// # Errors
    /// When the store does not hold the model, or it cannot be decoded.
    async fn predictor(&self, model: &ModelRef) -> Result<Arc<dyn Predictor>>;
}

/// Predicts batches with one loaded model.
pub trait Predictor: Send + Sync + Debug {
    /// The prediction's columns, as [`PredictedColumns`](volley_proto::store::PredictedColumns) has them: a number in the
    /// label's own scale and its quantiles if it has several, or a class and the probabilities of all. Reads the batch's
    /// columns by name.
    ///
    /// # Errors
    /// When a feature column is missing or of a type the model was not trained on.
    fn predict(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>>;

    /// The prediction's columns, and those that explain it by its `top` features.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    fn explain(&self, rows: &RecordBatch, top: usize) -> Result<Vec<ArrayRef>>;
}
