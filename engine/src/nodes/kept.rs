//! Place in a task's plan of rows that an earlier attempt of the job has written, on the same executor or to the job's
//! shuffle store.
//!
//! The scheduler puts it below a stage's writer, and the executor takes the files in place of computing: it is never
//! executed. Not here: which rows may be taken, which the scheduler decides.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::operator;

/// Rows that a task of an earlier attempt has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptRows {
    /// Attempt in whose folder they are.
    pub attempt: String,
    /// Pieces, as the task has reported them.
    pub pieces: Vec<KeptPiece>,
    /// Shuffle store that has them, if they are not on the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Url>,
}

/// Rows of one partition of an exchange, in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptPiece {
    /// Partition of the exchange.
    pub partition: u64,
    /// Number of the file.
    pub file: u64,
    /// True if one file has all partitions of its task.
    pub is_sorted: bool,
    /// Counts that the task has reported.
    pub batches: u64,
    /// Number of rows.
    pub rows: u64,
    /// Size, in bytes.
    pub bytes: u64,
}

/// Stands for a plan whose rows are kept.
#[derive(Debug)]
pub struct KeptExec {
    rows: KeptRows,
    properties: Arc<PlanProperties>,
}

impl KeptExec {
    pub(crate) fn new(rows: KeptRows, schema: SchemaRef) -> Self {
        Self {
            rows,
            properties: Arc::new(PlanProperties::new(
                EquivalenceProperties::new(schema),
                Partitioning::UnknownPartitioning(1),
                EmissionType::Incremental,
                Boundedness::Bounded,
            )),
        }
    }

    /// Returns the rows.
    pub fn rows(&self) -> &KeptRows {
        &self.rows
    }
}

impl DisplayAs for KeptExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptExec: attempt={}", self.rows.attempt)
    }
}

impl ExecutionPlan for KeptExec {
    operator!("KeptExec", leaf);

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("the executor takes kept rows in place of computing them")
    }
}
