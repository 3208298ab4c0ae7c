//! Mark on the plan of a query's last stage, whose rows are the query's result.
//!
//! The scheduler adds it to a task's plan, and the executor takes it off: it is never executed. Not here: how small
//! results travel, which the executor decides.

use std::fmt;
use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::operator;

/// Plan of a task of a query's last stage.
#[derive(Debug)]
pub struct ResultExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    small: usize,
}

impl ResultExec {
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, small: usize) -> Self {
        Self {
            properties: Arc::clone(input.properties()),
            input,
            small,
        }
    }

    /// Returns the marked plan.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Returns the bytes up to which the task's rows come with its report.
    pub fn small(&self) -> usize {
        self.small
    }
}

impl DisplayAs for ResultExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResultExec: small={}", self.small)
    }
}

impl ExecutionPlan for ResultExec {
    operator!("ResultExec", input, |mark, input| {
        Ok(Self::new(input, mark.small))
    });

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("the executor takes the mark of a result off")
    }
}
