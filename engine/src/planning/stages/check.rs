//! Checks that a stage's plan may run.
//!
//! The orders and distributions that operators require must hold, by DataFusion's own rules. Operators
//! whose partitions share state must have all of them in one task, because a stage's tasks share nothing.

use std::sync::Arc;

use crate::codec::verify_sent;
use crate::operators::grace_join::is_of_the_right;
use ballista_core::execution_plans::ShuffleReaderExec;
use datafusion::common::config::ConfigOptions;
use datafusion::common::not_impl_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, PartitionMode, PiecewiseMergeJoinExec, SymmetricHashJoinExec,
};
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;

use super::stage::{StageInput, partitions};

/// Refuses a stage's plan that must not run.
///
/// # Errors
/// Names the operator, and what does not hold.
pub(super) fn check(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    SanityCheckPlan::new().optimize(Arc::clone(plan), &ConfigOptions::default())?;
    shared_state(plan)
}

/// Operators whose partitions share state, in more than one partition.
fn shared_state(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    if let Some(query) = plan.downcast_ref::<RecursiveQueryExec>() {
        // One task runs all of the recursive term.
        return shared_state(query.static_term());
    }
    if plan.is::<RepartitionExec>() {
        return not_impl_err!("{} inside of a stage: its tasks share nothing", plan.name());
    }
    for input in plan.children() {
        shared_state(input)?;
    }
    if partitions(plan) <= 1 {
        return Ok(());
    }
    let shares = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        *join.partition_mode() == PartitionMode::CollectLeft
            && (join.null_aware || !is_of_the_right(*join.join_type()))
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        !is_of_the_right(*join.join_type())
    } else {
        plan.is::<PiecewiseMergeJoinExec>() || plan.is::<SymmetricHashJoinExec>()
    };
    match shares {
        true => not_impl_err!(
            "{} over {} partitions, which share state",
            plan.name(),
            partitions(plan)
        ),
        false => Ok(()),
    }
}

/// Refuses a stage's plan that would reach an executor as another one. Returns the message that it is sent as, but for
/// what it reads.
///
/// # Errors
/// Names the operator that cannot be sent, or what of it would be lost.
pub(super) fn check_wire(plan: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Vec<u8>> {
    let with_readers = Arc::clone(plan).transform_up(|node| {
        let Some(input) = node.downcast_ref::<StageInput>() else {
            return Ok(Transformed::no(node));
        };
        let partitioning = input.properties().output_partitioning().clone();
        let locations = vec![Vec::new(); partitioning.partition_count()];
        let (index, schema) = (input.index(), input.schema());
        let reader = ShuffleReaderExec::try_new(index, locations, schema, partitioning)?;
        Ok(Transformed::yes(Arc::new(reader) as Arc<dyn ExecutionPlan>))
    });
    verify_sent(&with_readers.data()?, context)
}
