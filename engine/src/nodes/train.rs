//! The training nodes, from which the barrier stage is built.
//!
//! `TrainExec` has exactly M input partitions, the virtual shards, and as many output partitions. A task of its stage
//! owns a slice of them and is one rank: its first local partition runs the rank over the whole slice and yields one
//! row; the others yield nothing. The number of ranks is decided when the gang is bound, not here.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use ballista_core::execution_plans::{ShuffleReaderExec, UnresolvedShuffleExec};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, DFSchemaRef, Statistics};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties,
    Partitioning, PlanProperties,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::prepared::PreparedExec;
use crate::error::External;
use crate::operator;
use crate::runtime::{RankTask, Runtimes, TaskIdentity};
use volley_proto::PreparedId;
use volley_proto::spec::{BatchSize, TrainSpec};

static TRAIN_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let required = |name: &str, data_type| Field::new(name, data_type, false);
    let optional = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        required("model", DataType::Utf8),
        required("version", DataType::UInt32),
        required("rank", DataType::UInt32),
        required("world_size", DataType::UInt32),
        required("executor", DataType::Utf8),
        required("device", DataType::Utf8),
        required("precision", DataType::Utf8),
        required("threads", DataType::UInt32),
        required("train_rows", DataType::UInt64),
        required("eval_rows", DataType::UInt64),
        required("epochs", DataType::UInt32),
        required("kept_epoch", DataType::UInt32),
        required("loss", DataType::Float64),
        optional("eval_loss", DataType::Float64),
        optional("eval_mae", DataType::Float64),
        optional("eval_rmse", DataType::Float64),
        optional("eval_r2", DataType::Float64),
        optional("eval_accuracy", DataType::Float64),
        optional("eval_majority", DataType::Float64),
        optional("eval_rmspe", DataType::Float64),
        optional("eval_interval_coverage", DataType::Float64),
        required("eval_train_loss", DataType::Float64),
        optional("refit_rows", DataType::UInt64),
        required("load_seconds", DataType::Float64),
        required("train_seconds", DataType::Float64),
    ]))
});

/// Returns the schema of a training's result: one row per rank, with the kept epoch's metrics.
pub fn train_schema() -> SchemaRef {
    Arc::clone(&TRAIN_SCHEMA)
}

/// Logical node that trains a model on the input's rows.
#[derive(Debug, Clone)]
pub struct TrainNode {
    spec: Arc<TrainSpec>,
    input: LogicalPlan,
    schema: DFSchemaRef,
}

impl TrainNode {
    /// Creates a node that trains `spec` on the rows of `input`.
    ///
    /// # Errors
    /// When the spec does not fit the input's schema; see [`TrainSpec::check`].
    pub fn try_new(spec: Arc<TrainSpec>, input: LogicalPlan) -> Result<Self> {
        spec.check(input.schema().as_arrow()).external()?;
        let schema = Arc::new(DFSchema::try_from(train_schema())?);
        Ok(Self {
            spec,
            input,
            schema,
        })
    }

    /// Returns the training specification.
    pub fn spec(&self) -> &Arc<TrainSpec> {
        &self.spec
    }
}

impl PartialEq for TrainNode {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec && self.input == other.input
    }
}

impl Eq for TrainNode {}

impl Hash for TrainNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.spec.train_id.hash(state);
        self.input.hash(state);
    }
}

impl PartialOrd for TrainNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.spec
            .train_id
            .partial_cmp(&other.spec.train_id)
            .filter(|_| self == other)
    }
}

impl UserDefinedLogicalNodeCore for TrainNode {
    fn name(&self) -> &str {
        "Train"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Train: {}", Summary(&self.spec))
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::try_new(Arc::clone(&self.spec), only(inputs)?)
    }
}

/// Operator of the barrier stage.
#[derive(Debug, Clone)]
pub struct TrainExec {
    spec: Arc<TrainSpec>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    /// Id by which executors keep the encoded shards for the next training on the same rows.
    prepared: Option<PreparedId>,
    task: Option<(TaskIdentity, PathBuf)>,
    cancel: CancellationToken,
}

impl TrainExec {
    /// Creates an operator that trains `spec` on the rows of `input`, hashed into the spec's shards by an exchange.
    ///
    /// # Errors
    /// When a column of `shard_by` is missing.
    pub fn try_new(spec: Arc<TrainSpec>, input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let input = shard(&spec, input)?;
        Ok(Self::over(spec, input))
    }

    /// Creates the operator over an input that is already sharded, as it arrives at an executor.
    pub(crate) fn over(spec: Arc<TrainSpec>, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(train_schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        Self {
            spec,
            input,
            properties,
            prepared: None,
            task: None,
            cancel: CancellationToken::new(),
        }
    }

    /// Returns the training specification.
    pub fn spec(&self) -> &Arc<TrainSpec> {
        &self.spec
    }

    /// Returns the operator with another input, already sharded or prepared, whose shards executors keep by this id.
    pub fn preparing(&self, prepared: PreparedId, input: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            prepared: Some(prepared),
            ..Self::over(Arc::clone(&self.spec), input)
        }
    }

    /// Returns the id by which executors keep the encoded shards, if they do.
    pub fn prepared(&self) -> Option<PreparedId> {
        self.prepared
    }

    /// Returns the input: the rows, in shards.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Returns the operator as one task runs it, stopped by its token; tasks of the stage leave files for each other in
    /// the folder.
    pub fn in_task(
        &self,
        identity: TaskIdentity,
        folder: PathBuf,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            task: Some((identity, folder)),
            cancel,
            ..self.clone()
        }
    }
}

impl DisplayAs for TrainExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrainExec: {}", Summary(&self.spec))
    }
}

impl ExecutionPlan for TrainExec {
    operator!("TrainExec", input, |train, input| {
        let renewed = Self::try_new(Arc::clone(&train.spec), input)?;
        Ok(Self {
            prepared: train.prepared,
            task: train.task.clone(),
            cancel: train.cancel.clone(),
            ..renewed
        })
    });

    /// Needs no more partitions: the exchange below is the operator's own.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            return Ok(Box::pin(EmptyRecordBatchStream::new(train_schema())));
        }
        let runtimes = Runtimes::of(&context)?;
        let (identity, folder) = self.task.clone().ok_or_else(|| {
            DataFusionError::Internal("a rank was started outside of a barrier stage".into())
        })?;
        let task = RankTask {
            spec: Arc::clone(&self.spec),
            identity,
            input: Arc::clone(&self.input),
            context,
            folder,
            prepared: self.prepared,
            cancel: self.cancel.clone(),
        };
        // Whoever reads the row may have moved to a thread that knows nothing of the task.
        let run = async move { runtimes.ranks.run(task).await };
        let run = run.instrument(Span::current());
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            train_schema(),
            futures::stream::once(run),
        )))
    }
}

/// Adds the exchange into M shards below the node, unless the input already comes from one.
///
/// The optimizer removes a repartition that nothing requires, and would give a required hash distribution
/// `target_partitions` partitions rather than M; so the node adds its own again whenever its child is replaced. Once
/// the plan is cut into stages, the child is the reader of an exchange and stays as it is.
fn shard(spec: &TrainSpec, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let exchanged = input.is::<ShuffleReaderExec>()
        || input.is::<UnresolvedShuffleExec>()
        || input.is::<PreparedExec>()
        || input.name() == "StageInput"; // the scheduler's operator, private to it
    let sharded = input.downcast_ref::<RepartitionExec>().is_some_and(
        |exchange| matches!(exchange.partitioning(), Partitioning::Hash(_, m) if *m == spec.shards),
    );
    if exchanged || sharded {
        return Ok(input);
    }
    let schema = input.schema();
    let key = |index: usize| {
        Arc::new(Column::new(schema.field(index).name(), index)) as Arc<dyn PhysicalExpr>
    };
    let keys: Vec<_> = if spec.shard_by.is_empty() {
        (0..schema.fields().len()).map(key).collect()
    } else {
        let index = |name: &String| Ok(key(schema.index_of(name)?));
        spec.shard_by.iter().map(index).collect::<Result<_>>()?
    };
    Ok(Arc::new(RepartitionExec::try_new(
        input,
        Partitioning::Hash(keys, spec.shards),
    )?))
}

/// One-line description of the node in a plan.
struct Summary<'a>(&'a TrainSpec);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainSpec {
            model,
            ranks,
            shards,
            epochs,
            batch_size,
            device,
            precision,
            ..
        } = self.0;
        write!(
            f,
            "model={model}, ranks={ranks:?}, shards={shards}, device={device}"
        )?;
        if let Some(precision) = precision {
            write!(f, ", precision={precision}")?;
        }
        if let Some((option, rows)) = batch_size.map(BatchSize::option) {
            write!(f, ", {option}={rows}")?;
        }
        match epochs {
            Some(epochs) => write!(f, ", epochs={epochs}"),
            None => Ok(()),
        }
    }
}

/// Returns the statistics of an operator that has about as many rows as its input, with nothing else known.
pub(crate) fn rows_of_input(
    inputs: &[Arc<Statistics>],
    schema: &Schema,
) -> Result<Arc<Statistics>> {
    let input = only(inputs.to_vec())?;
    Ok(Arc::new(Statistics {
        num_rows: input.num_rows.to_inexact(),
        ..Statistics::new_unknown(schema)
    }))
}

pub(crate) fn only<T>(items: Vec<T>) -> Result<T> {
    let [item] = <[T; 1]>::try_from(items).map_err(|items| {
        let message = format!("a node of one input was given {}", items.len());
        DataFusionError::Internal(message)
    })?;
    Ok(item)
}
