//! The input of a training whose rows were encoded before: executors keep the shards, so nothing below is planned or run.
//!
//! Ranks read each shard from their executor's files. The operator itself has no rows: it is executed only for a shard
//! that is not there any more, which is a loss of data, and the job is run again from the query.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use volley_proto::PreparedId;
use volley_proto::failure::DataLost;

use crate::operator;

/// Source of prepared rows: a partition per shard.
#[derive(Debug, Clone)]
pub struct PreparedExec {
    id: PreparedId,
    /// Rows of each shard.
    rows: Vec<u64>,
    properties: Arc<PlanProperties>,
}

impl PreparedExec {
    /// Creates the source of rows with these columns, given the rows of each shard.
    pub fn new(id: PreparedId, rows: Vec<u64>, schema: SchemaRef) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(rows.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            id,
            rows,
            properties: Arc::new(properties),
        }
    }

    /// Returns the id of the prepared rows.
    pub fn id(&self) -> PreparedId {
        self.id
    }

    /// Returns the rows of each shard.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Returns the source of some of the shards.
    ///
    /// # Panics
    /// If there is no such shard.
    pub(crate) fn slice(&self, shards: &[usize]) -> Self {
        let rows = shards.iter().map(|shard| self.rows[*shard]).collect();
        Self::new(self.id, rows, self.schema())
    }
}

impl DisplayAs for PreparedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.rows.iter().sum();
        write!(f, "PreparedExec: id={}, rows={rows}", self.id)
    }
}

impl ExecutionPlan for PreparedExec {
    operator!("PreparedExec", leaf);

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let lost = DataLost {
            executor: "that kept prepared rows".to_owned(),
            reason: format!(
                "a shard of {} is not there any more; its query runs",
                self.id
            ),
        };
        Err(DataFusionError::External(Box::new(lost)))
    }
}
