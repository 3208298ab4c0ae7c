//! The plan of a task as one operator, which nothing inspects or changes on the way.
//!
//! The scheduler cuts a stage's plan down to a task's partitions, checks it, and sends it as a [`TaskPlan`]. On the
//! executor it is decoded to the plan itself: a `TaskPlan` is never executed. Where a task has no partitions of a part
//! of its stage, it has a [`PrunedExec`].

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{internal_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    AcrossPartitions, ConstExpr, EquivalenceProperties, LexOrdering, Partitioning,
};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use super::encode_plan;
use super::stores::declared;
use crate::error::External;
use crate::nodes::kept::{KeptExec, KeptRows};
use crate::nodes::result::ResultExec;
use crate::object_stores::{Declared, Stores};
use crate::operator;
use serde::{Deserialize, Serialize};
use volley_proto::Error;

/// Encoded plan of a task, as a leaf.
#[derive(Debug)]
pub struct TaskPlan {
    message: Vec<u8>,
    properties: Arc<PlanProperties>,
}

/// Part of a task's message before its plan.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskHead {
    /// Options of the stores that the task reads and writes.
    stores: Vec<Declared>,
    /// Bytes up to which its rows come with its report, if they are the query's result.
    small_result: Option<usize>,
    /// Rows that it takes in place of computing: the plan that follows tells their columns.
    kept: Option<KeptRows>,
}

impl TaskPlan {
    /// Encodes the plan that a task runs below its writer, with the options of the stores that it reads and writes. If
    /// its rows are the query's result, up to `small_result` bytes of them come with its report.
    ///
    /// # Errors
    /// Names an operator that cannot be sent.
    pub fn try_new(
        plan: &Arc<dyn ExecutionPlan>,
        stores: Option<&Stores>,
        small_result: Option<usize>,
    ) -> Result<Self> {
        let partitions = plan.output_partitioning().partition_count();
        let stores = match stores {
            Some(stores) => declared(plan, stores)?,
            None => Vec::new(),
        };
        let mut message = encoded(&TaskHead {
            stores,
            small_result,
            kept: None,
        })?;
        message.extend_from_slice(&encode_plan(plan)?);
        Ok(Self {
            message,
            properties: opaque(EquivalenceProperties::new(plan.schema()), partitions),
        })
    }

    /// Encodes a task that takes rows which an earlier attempt has written, in place of running a plan of this schema.
    ///
    /// # Errors
    /// When they cannot be encoded.
    pub fn keeping(rows: KeptRows, schema: SchemaRef) -> Result<Self> {
        let mut message = encoded(&TaskHead {
            stores: Vec::new(),
            small_result: None,
            kept: Some(rows),
        })?;
        let columns: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::clone(&schema)));
        message.extend_from_slice(&encode_plan(&columns)?);
        Ok(Self {
            message,
            properties: opaque(EquivalenceProperties::new(schema), 1),
        })
    }

    /// Returns the size of the message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Takes the options of stores from a message, and decodes its plan.
    pub(crate) fn decode(
        message: &[u8],
        context: &TaskContext,
        decode_plan: impl FnOnce(&[u8]) -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let cut = || Error::malformed("task", "it is cut off");
        let (length, rest) = message.split_first_chunk().ok_or_else(cut).external()?;
        let length = usize::try_from(u64::from_le_bytes(*length))
            .map_err(|_| cut())
            .external()?;
        let (head, plan) = rest.split_at_checked(length).ok_or_else(cut).external()?;
        // The text of the error could contain secrets of a store.
        let head = serde_json::from_slice(head).map_err(|_| Error::malformed("task", "its head"));
        let TaskHead {
            stores,
            small_result,
            kept,
        } = head.external()?;
        if !stores.is_empty() {
            Stores::of_task(context).external()?.receive(stores);
        }
        let plan = decode_plan(plan)?;
        Ok(match (kept, small_result) {
            (Some(kept), _) => Arc::new(KeptExec::new(kept, plan.schema())),
            (None, Some(small)) => Arc::new(ResultExec::new(plan, small)),
            (None, None) => plan,
        })
    }
}

/// Encodes a head, after its length. Only executors receive it, and decode it before anything inspects the plan.
fn encoded(head: &TaskHead) -> Result<Vec<u8>> {
    let head = serde_json::to_vec(head).map_err(|error| Error::malformed("task", error));
    let head = head.external()?;
    let mut message = (head.len() as u64).to_le_bytes().to_vec();
    message.extend_from_slice(&head);
    Ok(message)
}

/// Placeholder for a part of a union of which a task has no partitions.
#[derive(Debug)]
pub struct PrunedExec {
    operators: usize,
    properties: Arc<PlanProperties>,
}

impl PrunedExec {
    /// Creates a placeholder for an input of a union, with the number of its operators that report metrics, the union's
    /// orderings, and the columns that are constant within its partitions. The placeholder has no rows, so all of these
    /// hold, and the rest of the union keeps its properties.
    ///
    /// # Errors
    /// When a column does not exist.
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

    /// Returns the columns that are constant within each of a plan's partitions.
    pub fn constants_of(known: &EquivalenceProperties) -> Vec<usize> {
        let constants = known.constants().into_iter();
        let columns = constants.filter_map(|constant| {
            let column = constant.expr.downcast_ref::<Column>();
            column.map(Column::index)
        });
        columns.collect()
    }

    /// Returns the orderings of the union.
    pub(crate) fn orders(&self) -> Vec<LexOrdering> {
        self.properties
            .eq_properties
            .oeq_class()
            .iter()
            .cloned()
            .collect()
    }

    /// Returns the number of replaced operators that report metrics: all tasks of a stage report on the same operators.
    pub fn operators(&self) -> usize {
        self.operators
    }
}

/// Returns the properties of a plan that nothing inspects.
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
    operator!("TaskPlan", leaf);

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
    operator!("PrunedExec", leaf);

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("partition {partition} belongs to another task")
    }
}
