//! The number of partitions of operators without inputs, which their messages leave out.

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use serde::{Deserialize, Serialize};

/// Maximum number of partitions of a leaf: its readers keep state for each.
const MOST: usize = 1 << 20;

/// Number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Partitions(usize);

impl Partitions {
    pub(super) fn of(plan: &dyn ExecutionPlan) -> Option<Self> {
        let leaf = plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>();
        let partitions = plan.properties().output_partitioning().partition_count();
        // Decoded leaves have one partition.
        (leaf && partitions != 1).then_some(Self(partitions))
    }

    pub(super) fn restore(self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if self.0 > MOST {
            return internal_err!("a leaf of {} partitions, expected at most {MOST}", self.0);
        }
        if let Some(empty) = plan.downcast_ref::<EmptyExec>() {
            return Ok(Arc::new(empty.clone().with_partitions(self.0)));
        }
        if let Some(row) = plan.downcast_ref::<PlaceholderRowExec>() {
            return Ok(Arc::new(row.clone().with_partitions(self.0)));
        }
        let found = plan.output_partitioning().partition_count();
        internal_err!("{} of {found} partitions is no leaf", plan.name())
    }
}
