//! The prediction nodes, which add the columns of a prediction to those of their input.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Column, DFSchema, DFSchemaRef, Statistics};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};

use crate::nodes::train::{only, rows_of_input};
use crate::operator;
use crate::runtime::Runtimes;
use crate::settings::JobSettings;
use volley_proto::ModelRef;
use volley_proto::settings::PredictDevice;
use volley_proto::store::PredictedColumns;

/// Logical node that adds a model's prediction to the input's rows.
#[derive(Debug, Clone)]
pub struct PredictNode {
    model: ModelRef,
    columns: PredictedColumns,
    input: LogicalPlan,
    schema: DFSchemaRef,
    /// Columns that the model reads, where they are known: in the session that has planned it, and not where it is decoded.
    features: Option<Arc<[String]>>,
}

impl PredictNode {
    /// Adds `columns`, the prediction of `model`, to the rows of `input`.
    ///
    /// The caller has checked the input against the model's manifest.
    ///
    /// # Errors
    /// When the input already has a column of one of these names.
    pub fn try_new(model: ModelRef, columns: PredictedColumns, input: LogicalPlan) -> Result<Self> {
        let fields = input
            .schema()
            .iter()
            .map(|(q, field)| (q.cloned(), Arc::clone(field)));
        let prediction = columns.fields().into_iter();
        let prediction = prediction.map(|field| (None, Arc::new(field)));
        let schema = DFSchema::new_with_metadata(
            fields.chain(prediction).collect(),
            input.schema().metadata().clone(),
        )?;
        Ok(Self {
            model,
            columns,
            input,
            schema: Arc::new(schema),
            features: None,
        })
    }

    /// Tells the names of the columns that the model reads: others are not needed where nothing else reads them.
    #[must_use]
    pub fn with_features(mut self, features: Vec<String>) -> Self {
        self.features = Some(features.into());
        self
    }

    /// Returns the node over those columns of its input that the model reads or `needed` has; `None` if these are all, or
    /// the model's are not known.
    ///
    /// # Errors
    /// When the columns cannot be projected.
    pub(crate) fn narrowed(&self, needed: &HashSet<Column>) -> Result<Option<Self>> {
        let needed = needed.iter();
        let needed = needed.filter_map(|column| self.schema.maybe_index_of_column(column));
        let all = self.input.schema();
        let Some(kept) = self
            .columns_read(needed)
            .filter(|kept| kept.len() < all.fields().len())
        else {
            return Ok(None);
        };
        let kept = kept.into_iter();
        let kept = kept.map(|index| Expr::Column(Column::from(all.qualified_field(index))));
        let input = Projection::try_new(kept.collect(), Arc::new(self.input.clone()))?;
        self.over(LogicalPlan::Projection(input)).map(Some)
    }

    /// Returns the indices of the input's columns that the model reads, or that are among these of the node's own; `None`
    /// if the model's are not known.
    fn columns_read(&self, output: impl Iterator<Item = usize>) -> Option<BTreeSet<usize>> {
        let input = self.input.schema();
        let features = self.features.as_ref()?.iter();
        let features = features.map(|feature| input.index_of_column_by_name(None, feature));
        let read: Option<BTreeSet<_>> = features.collect();
        let mut read = read?;
        read.extend(output.filter(|index| *index < input.fields().len()));
        Some(read)
    }

    /// Returns the node over another input.
    fn over(&self, input: LogicalPlan) -> Result<Self> {
        let node = Self::try_new(self.model.clone(), self.columns.clone(), input)?;
        Ok(Self {
            features: self.features.clone(),
            ..node
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelRef {
        &self.model
    }

    /// Returns the prediction's columns.
    pub fn columns(&self) -> &PredictedColumns {
        &self.columns
    }
}

/// The features follow from the model.
impl PartialEq for PredictNode {
    fn eq(&self, other: &Self) -> bool {
        self.model == other.model && self.columns == other.columns && self.input == other.input
    }
}

impl Eq for PredictNode {}

impl Hash for PredictNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.model, &self.columns, &self.input).hash(state);
    }
}

impl PartialOrd for PredictNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.model
            .partial_cmp(&other.model)
            .filter(|_| self == other)
    }
}

impl UserDefinedLogicalNodeCore for PredictNode {
    fn name(&self) -> &str {
        "Predict"
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

    /// Lets only conditions on the input's own columns pass, which are worth checking before predicting.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let fields = self.columns.fields().into_iter();
        fields.map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Predict: {}", described(&self.model, &self.columns))
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        self.over(only(inputs)?)
    }

    fn necessary_children_exprs(&self, output: &[usize]) -> Option<Vec<Vec<usize>>> {
        let read = self.columns_read(output.iter().copied())?;
        Some(vec![read.into_iter().collect()])
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }
}

/// Describes a prediction in a displayed plan.
fn described(model: &ModelRef, columns: &PredictedColumns) -> String {
    let names: Vec<_> = columns.names().collect();
    let names = names.join(", ");
    match columns.explained_by {
        None => format!("{model} AS {names}"),
        Some(top) => format!("{model} AS {names}, explained by {top} features"),
    }
}

/// Operator that predicts the input's rows, batch by batch.
#[derive(Debug, Clone)]
pub struct PredictExec {
    model: ModelRef,
    columns: PredictedColumns,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl PredictExec {
    /// Adds `columns`, the prediction of `model`, to the rows of `input`.
    pub fn new(model: ModelRef, columns: PredictedColumns, input: Arc<dyn ExecutionPlan>) -> Self {
        let rows = input.schema();
        let prediction = columns.fields().into_iter().map(Arc::new);
        let schema: SchemaRef = Arc::new(Schema::new_with_metadata(
            rows.fields()
                .iter()
                .cloned()
                .chain(prediction)
                .collect::<Vec<_>>(),
            rows.metadata().clone(),
        ));
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            input.output_partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self {
            model,
            columns,
            input,
            properties,
        }
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelRef {
        &self.model
    }

    /// Returns the prediction's columns.
    pub fn columns(&self) -> &PredictedColumns {
        &self.columns
    }
}

impl DisplayAs for PredictExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PredictExec: {}", described(&self.model, &self.columns))
    }
}

impl ExecutionPlan for PredictExec {
    operator!("PredictExec", input, |predict, input| {
        let (model, columns) = (predict.model.clone(), predict.columns.clone());
        Ok(Self::new(model, columns, input))
    });

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        // The count is inexact: a query that counts predictions wants them made.
        rows_of_input(inputs, &self.schema())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let runtimes = Runtimes::of(&context)?;
        let options = context.session_config().options();
        let job = options.extensions.get::<JobSettings>();
        let device = job.map_or_else(PredictDevice::default, |job| job.predict_device);
        let rows = self.input.execute(partition, context)?;
        let (model, schema) = (self.model.clone(), self.schema());
        let output = Arc::clone(&schema);
        let explained_by = self.columns.explained_by;
        let predicted = async move {
            let predictor = runtimes.models.predictor(&model).await?;
            let predict = move |rows: RecordBatch| {
                let (predictor, schema) = (Arc::clone(&predictor), Arc::clone(&output));
                async move {
                    let work = move || {
                        let mut columns = rows.columns().to_vec();
                        columns.extend(match explained_by {
                            None => predictor.predict(&rows, device)?,
                            Some(top) => predictor.explain(&rows, top, device)?,
                        });
                        Ok(RecordBatch::try_new(schema, columns)?)
                    };
                    // A batch takes long enough to starve the I/O that shares this thread.
                    let done = tokio::task::spawn_blocking(work).await;
                    done.map_err(|e| DataFusionError::External(Box::new(e)))?
                }
            };
            Ok::<_, DataFusionError>(rows.and_then(predict).boxed())
        };
        let stream = futures::stream::once(predicted).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }
}
