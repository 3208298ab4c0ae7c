//! A stage's plan for the partitions of one task.
//!
//! An operator's output partition is made of the same partition of its inputs, with these exceptions: a
//! union's partitions are those of its inputs, one after the other; and an input that an operator needs
//! whole is whole in every task. What a task has no partition of is not in its plan.

use std::sync::Arc;

use crate::codec::task::{PrunedExec, TaskPlan};
use crate::object_stores::Stores;
use crate::{KeptRows, PreparedExec};
use datafusion::common::{internal_err, not_impl_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::physical_expr::Distribution;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use super::check::check;
use super::enforce::without_useless_limit;
use super::merge::merge;
use super::stage::{Relocate, StageExec, StageInput, partitions};

/// Returns the plan of the task of these partitions, below its writer: put together, `sizes` of them at a time. It reads
/// rows where `relocate` says that they are. If its rows are the query's result, up to `small_result` bytes of them come
/// with its report.
///
/// # Errors
/// When an exchange is not resolved, or the plan must not run, or cannot be sent.
pub fn task_plan(
    writer: &Arc<dyn ExecutionPlan>,
    (slice, sizes): (&[usize], &[usize]),
    relocate: &Relocate<'_>,
    stores: Option<&Stores>,
    small_result: Option<usize>,
) -> Result<TaskPlan> {
    let [plan] = writer.children()[..] else {
        return internal_err!("a stage is written by an operator with one input");
    };
    let Some(stage) = plan.downcast_ref::<StageExec>() else {
        // The rows of an explanation, which Ballista makes: one partition.
        return TaskPlan::try_new(plan, stores, small_result);
    };
    let plan = restrict(Arc::clone(stage.plan()), slice)?;
    let plan = merge(plan, sizes)?;
    check(&plan)?;
    TaskPlan::try_new(&stage.resolve(plan, relocate)?, stores, small_result)
}

/// Returns the plan of a task that takes rows which an earlier attempt has written, below its writer.
///
/// # Errors
/// When it cannot be sent.
pub fn kept_plan(writer: &Arc<dyn ExecutionPlan>, rows: KeptRows) -> Result<TaskPlan> {
    let [plan] = writer.children()[..] else {
        return internal_err!("a stage is written by an operator with one input");
    };
    TaskPlan::keeping(rows, plan.schema())
}

pub(super) fn restrict(
    plan: Arc<dyn ExecutionPlan>,
    slice: &[usize],
) -> Result<Arc<dyn ExecutionPlan>> {
    let count = partitions(&plan);
    if slice.iter().copied().eq(0..count) {
        return Ok(plan);
    }
    if let Some(partition) = slice.iter().find(|partition| **partition >= count) {
        return internal_err!("partition {partition} of {count} in {}", plan.name());
    }
    if plan.children().is_empty() {
        return leaf(&plan, slice);
    }
    if plan.is::<UnionExec>() {
        return union(plan, slice);
    }
    if plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>() {
        return internal_err!("{} has one partition, not {slice:?}", plan.name());
    }
    let inputs = inputs(&plan).map(|(input, is_whole)| match is_whole {
        true => Ok(Arc::clone(input)),
        false if partitions(input) != count => internal_err!(
            "{} makes {count} partitions of {}",
            plan.name(),
            partitions(input)
        ),
        false => restrict(Arc::clone(input), slice),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    // A file group of one file may have the declared order that larger groups lack.
    replace_children_if_necessary(plan, inputs).map(without_useless_limit)
}

/// Returns the inputs of an operator, and whether each is whole in every task.
pub(super) fn inputs(
    plan: &Arc<dyn ExecutionPlan>,
) -> impl Iterator<Item = (&Arc<dyn ExecutionPlan>, bool)> {
    let needed = plan.input_distribution_requirements();
    let whole: Vec<_> = needed
        .per_child_distributions()
        .map(|needed| matches!(needed, Distribution::SinglePartition))
        .collect();
    plan.children().into_iter().zip(whole)
}

fn union(plan: Arc<dyn ExecutionPlan>, slice: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
    let mut first = 0;
    let mut inputs: Vec<Arc<dyn ExecutionPlan>> = Vec::new();
    let orders = plan.equivalence_properties().oeq_class();
    let constants = PrunedExec::constants_of(plan.equivalence_properties());
    for input in plan.children() {
        let end = first + partitions(input);
        let own = slice
            .iter()
            .filter(|partition| (first..end).contains(*partition));
        let own: Vec<_> = own.map(|partition| partition - first).collect();
        inputs.push(match own.is_empty() {
            true => {
                let orders = orders.iter().cloned().collect();
                let operators = operators(input);
                Arc::new(PrunedExec::try_new(
                    input.schema(),
                    orders,
                    &constants,
                    operators,
                )?)
            }
            false => restrict(Arc::clone(input), &own)?,
        });
        first = end;
    }
    // A task's partitions are in ascending order, and so are those of its union.
    if !slice.is_sorted() {
        return internal_err!("partitions out of order: {slice:?}");
    }
    replace_children_if_necessary(plan, inputs)
}

fn leaf(plan: &Arc<dyn ExecutionPlan>, slice: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(input) = plan.downcast_ref::<StageInput>() {
        return Ok(Arc::new(input.slice(slice)));
    }
    if let Some(rows) = plan.downcast_ref::<PreparedExec>() {
        return Ok(Arc::new(rows.slice(slice)));
    }
    if plan.is::<EmptyExec>() {
        return Ok(Arc::new(
            EmptyExec::new(plan.schema()).with_partitions(slice.len()),
        ));
    }
    if plan.is::<PlaceholderRowExec>() {
        return Ok(Arc::new(
            PlaceholderRowExec::new(plan.schema()).with_partitions(slice.len()),
        ));
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    if let Some(files) = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>()) {
        let groups = slice.iter().map(|group| files.file_groups[*group].clone());
        let files = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups.collect());
        return Ok(DataSourceExec::from_data_source(files.build()));
    }
    if let Some(rows) =
        scan.and_then(|scan| scan.data_source().downcast_ref::<MemorySourceConfig>())
    {
        let kept: Vec<_> = slice
            .iter()
            .map(|partition| rows.partitions()[*partition].clone())
            .collect();
        let limit = DataSource::fetch(rows);
        let rows =
            MemorySourceConfig::try_new(&kept, rows.original_schema(), rows.projection().clone())?;
        let rows = rows.with_limit(limit);
        return Ok(DataSourceExec::from_data_source(rows));
    }
    not_impl_err!("{} of {} partitions", plan.name(), partitions(plan))
}

/// Counts the operators of a stage that report metrics, including its writer; `None` for a plan that is not a stage.
pub fn reporting_operators(writer: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let [plan] = writer.children()[..] else {
        return None;
    };
    let stage = plan.downcast_ref::<StageExec>()?;
    Some(1 + operators(stage.plan()))
}

/// Counts the operators of a plan that report metrics once its inputs are readers.
fn operators(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let reports = plan.is::<StageInput>() || plan.metrics().is_some();
    let below = plan.children().into_iter().map(operators);
    usize::from(reports) + below.sum::<usize>()
}
