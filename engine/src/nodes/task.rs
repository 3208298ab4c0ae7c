//! What a task runs, as one operator: nobody on the way looks into it or changes it.
//!
//! The scheduler cuts a stage's plan down to a task's partitions, checks it, and sends it as a
//! [`TaskPlan`]. On the executor it arrives as the plan itself: a `TaskPlan` is never executed.
//! Where a task has no partition of some part of its stage, it has a [`PrunedExec`] there.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{internal_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    AcrossPartitions, ConstExpr, EquivalenceProperties, LexOrdering, Partitioning, PhysicalExpr,
};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use crate::codec::encode_plan;
use crate::codec::stores::declared;
use crate::error::External;
use crate::object_stores::Stores;
use volley_proto::Error;

/// The plan of a task as a leaf, encoded.
#[derive(Debug)]
pub struct TaskPlan {
    message: Vec<u8>,
    properties: Arc<PlanProperties>,
}

impl TaskPlan {
    /// What a task runs below its writer, with what it needs to know of the stores that it reads and writes.
    ///
    /// # Errors
    /// Names an operator that cannot be sent.
    pub fn try_new(plan: &Arc<dyn ExecutionPlan>, stores: Option<&Stores>) -> Result<Self> {
        let partitions = plan.output_partitioning().partition_count();
        let declared = match stores {
            Some(stores) => declared(plan, stores)?,
            None => Vec::new(),
        };
        // Only executors are sent this, and it is decoded before anybody looks at the plan.
        let declared = serde_json::to_vec(&declared);
        let declared = declared
            .map_err(|e| Error::malformed("options of stores", e))
            .external()?;
        let mut message = (declared.len() as u64).to_le_bytes().to_vec();
        message.extend_from_slice(&declared);
        message.extend_from_slice(&encode_plan(plan)?);
        Ok(Self {
            message,
            properties: opaque(EquivalenceProperties::new(plan.schema()), partitions),
        })
    }

    /// How many bytes it takes when it is sent.
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// The part of a union that a task has no partitions of: it has none itself.
#[derive(Debug)]
pub struct PrunedExec {
    operators: usize,
    properties: Arc<PlanProperties>,
}

impl PrunedExec {
    /// Stands in for an input of so many operators that report metrics, of a union whose rows are in these orders, and
    /// in whose partitions these columns are constant: no rows are in any of them, and what is known of the union is to
    /// be known of the rest of it.
    ///
    /// # Errors
    /// When there is no such column.
    pub fn try_new(
        schema: SchemaRef,
        orders: Vec<LexOrdering>,
        constants: &[usize],
        operators: usize,
    ) -> Result<Self> {
        let mut known = EquivalenceProperties::new_with_orderings(Arc::clone(&schema), orders);
        let constants = constants
            .iter()
            .map(|column| match schema.fields().get(*column) {
                Some(field) => Ok(ConstExpr::new(
                    Arc::new(Column::new(field.name(), *column)),
                    AcrossPartitions::Heterogeneous,
                )),
                None => plan_err!("column {column} of {}", schema.fields().len()),
            });
        known.add_constants(constants.collect::<Result<Vec<_>>>()?)?;
        Ok(Self {
            operators,
            properties: opaque(known, 0),
        })
    }

    /// The columns that are constant in each of a plan's partitions.
    pub fn constants_of(known: &EquivalenceProperties) -> Vec<usize> {
        let constants = known.constants().into_iter();
        let columns = constants.filter_map(|constant| {
            let column = constant.expr.downcast_ref::<Column>();
            column.map(Column::index)
        });
        columns.collect()
    }

    /// The orders of the union.
    pub(crate) fn orders(&self) -> Vec<LexOrdering> {
        self.properties
            .eq_properties
            .oeq_class()
            .iter()
            .cloned()
            .collect()
    }

    /// How many operators it stands for that report metrics: tasks of a stage report of the same ones.
    pub fn operators(&self) -> usize {
        self.operators
    }
}

/// What is said of a plan that nobody is to look into.
fn opaque(known: EquivalenceProperties, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        known,
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

impl DisplayAs for TaskPlan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskPlan")
    }
}

impl ExecutionPlan for TaskPlan {
    fn name(&self) -> &str {
        "TaskPlan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a task's plan runs where it was decoded")
    }
}

impl DisplayAs for PrunedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrunedExec: operators={}", self.operators)
    }
}

impl ExecutionPlan for PrunedExec {
    fn name(&self) -> &str {
        "PrunedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("partition {partition} belongs to another task")
    }
}
