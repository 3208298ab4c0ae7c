//! Exchanges of batches without columns, by constants, as below `count(*) OVER (PARTITION BY 1 = 1)`.
//!
//! An exchange has to write columns, which these batches lack. Hashed by a constant, all rows are in one partition
//! anyway.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec, can_interleave};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

/// Replaces such exchanges by a single partition.
pub(crate) fn gather_without_columns(
    plan: Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    gathered(plan)
}

fn gathered(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(exchange) = plan.downcast_ref::<RepartitionExec>()
        && matches!(exchange.partitioning(), Partitioning::Hash(..))
        && exchange.schema().fields().is_empty()
    {
        let input = gathered(Arc::clone(exchange.input()))?;
        return Ok(Arc::new(CoalescePartitionsExec::new(input)));
    }
    let inputs = plan.children().into_iter().cloned().map(gathered);
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    if plan.is::<InterleaveExec>() && !can_interleave(inputs.iter()) {
        return UnionExec::try_new(inputs);
    }
    replace_children_if_necessary(plan, inputs)
}
