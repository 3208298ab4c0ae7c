//! Optimization fences: operators that pass rows on and have no properties, where DataFusion would draw wrong
//! conclusions.
//!
//! A fence travels with the plan, because operators above derive their properties wherever they are decoded. Not here:
//! the wrong conclusions, which the mends know.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::projection::{ProjectionExec, make_with_child};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use crate::nodes::train::only;
use crate::operator;

type Plan = Arc<dyn ExecutionPlan>;

/// Operator whose rows have no known constants, keys or orderings. No ordering is lost that an operator above would
/// keep: a sort-merge join adds a sort above it, even by a constant; no other join keeps the ordering of a side that it
/// supplies NULLs for, grouping sets keep none, and groups are sorted above.
#[derive(Debug)]
pub(crate) struct FenceExec {
    input: Plan,
    properties: Arc<PlanProperties>,
}

impl FenceExec {
    /// Wraps an input.
    pub(crate) fn new(input: Plan) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            input.output_partitioning().clone(),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self {
            input,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for FenceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FenceExec")
    }
}

impl ExecutionPlan for FenceExec {
    operator!("FenceExec", input, |_, input| Ok(Self::new(input)));

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        only(inputs.to_vec())
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Plan>> {
        // A projection with a column twice stays above: operators there may know the partitioning by either copy.
        let columns = projection.expr().iter();
        let columns = columns.map(|projected| projected.expr.downcast_ref::<Column>());
        let columns: Option<HashSet<_>> = columns.collect();
        if columns.is_none_or(|columns| columns.len() < projection.expr().len()) {
            return Ok(None);
        }
        let projected = make_with_child(projection, &self.input)?;
        Ok(Some(Arc::new(Self::new(projected))))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
