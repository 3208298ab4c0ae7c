//! Build sides of joins that each task reads for itself, instead of having another stage broadcast them.
//!
//! A broadcast is a stage with more tasks, and a wait. Reading is cheaper up to a size, and the rows must be the same
//! in each task. Not here: the choice of the build side (`joins`), and the cut into stages.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::nodes::one_task::OneTaskExec;
use crate::operators::fence::FenceExec;
use crate::operators::grace_join::is_of_the_right;
use crate::planning::joins::{are_exact, broadcast_limit};
use crate::planning::size::{row_bytes, size};

/// Cost of another stage, in bytes that are read in the same time.
pub(crate) const REREAD_BYTES: u64 = 2 << 20;
/// Cost of opening a file, in bytes that are read in the same time.
const FILE_BYTES: u64 = 32 << 10;

/// Checks whether each task may make these rows for itself: they are cheap, and the same each time.
///
/// # Errors
/// When an operator cannot show its expressions.
pub(crate) fn is_reread(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<bool> {
    let limit = broadcast_limit(config).min(REREAD_BYTES);
    Ok(reread_bytes(plan)?.is_some_and(|bytes| bytes <= limit))
}

/// Checks whether an operator has a volatile function, so that its rows differ each time.
///
/// # Errors
/// When the operator cannot show its expressions.
pub(crate) fn is_volatile_operator(node: &dyn ExecutionPlan) -> Result<bool> {
    let mut volatile = false;
    node.apply_expressions(&mut |expr| {
        volatile |= is_volatile(expr);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(volatile)
}

/// Checks whether a plan returns the same rows each time that it runs, however many.
///
/// # Errors
/// When an operator cannot show its expressions.
pub(crate) fn is_repeatable(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    // The first rows of several partitions may differ each time, and so may sums of floats.
    let distinct = plan.downcast_ref::<AggregateExec>();
    let is_distinct = distinct.is_some_and(|aggregate| {
        aggregate.aggr_expr().is_empty()
            && aggregate.limit_options().is_none()
            && are_exact(&plan.schema())
    });
    let repeats = is_distinct
        || plan.is::<EmptyExec>()
        || plan.is::<PlaceholderRowExec>()
        || plan.is::<DataSourceExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<FenceExec>()
        || plan.is::<OneTaskExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>();
    if !repeats || plan.fetch().is_some() || is_volatile_operator(plan.as_ref())? {
        return Ok(false);
    }
    for input in plan.children() {
        if !is_repeatable(input)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Estimates the bytes that a task reads to make all rows of a plan; `None` if it may not.
fn reread_bytes(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<u64>> {
    // The first rows of several partitions may differ each time.
    if plan.fetch().is_some() || is_volatile_operator(plan.as_ref())? {
        return Ok(None);
    }
    if plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>() {
        return Ok(Some(0));
    }
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        return Ok(scanned_bytes(plan, scan));
    }
    let join = plan.downcast_ref::<HashJoinExec>();
    let joins = join.is_some_and(|join| {
        *join.partition_mode() == PartitionMode::CollectLeft
            && is_of_the_right(*join.join_type())
            && !join.null_aware
    });
    let passes = joins
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<FenceExec>()
        || plan.is::<CoalescePartitionsExec>()
        || spreads_over_threads(plan.as_ref());
    if !passes {
        return Ok(None);
    }
    // A join may have more rows than both sides.
    let mut sum = match joins {
        true => size(plan).map(|size| size.bytes),
        false => Some(0),
    };
    for input in plan.children() {
        let bytes = reread_bytes(input)?;
        sum = sum.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
    }
    Ok(sum)
}

/// Estimates the bytes that a scan reads: those of the needed columns in columnar files, else of all of its files.
pub(crate) fn scanned_bytes(plan: &Arc<dyn ExecutionPlan>, scan: &DataSourceExec) -> Option<u64> {
    let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let all = || files.file_groups.iter().flat_map(|group| group.iter());
    let opened = (all().count() as u64).saturating_mul(FILE_BYTES);
    let all: u64 = all().map(|file| file.effective_size()).sum();
    let read = match files.file_source().is::<ParquetSource>() {
        true => column_bytes(plan, files, all).unwrap_or(all),
        false => all,
    };
    Some(read.min(all).saturating_add(opened))
}

/// Estimates how many of `all` bytes are of the columns that a scan reads.
fn column_bytes(plan: &Arc<dyn ExecutionPlan>, files: &FileScanConfig, all: u64) -> Option<u64> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    let rows = statistics.ok()?.num_rows.get_value().copied()?;
    let schema = plan.schema();
    let read = schema.fields().iter();
    // The lengths of text and lists are unknown, so such a column counts as an average column of the files.
    let wide = read.filter(|column| column.data_type().primitive_width().is_none());
    let columns = files.file_schema().fields().len().max(1) as u64;
    let wide = (wide.count() as u64).saturating_mul(all / columns);
    let bytes = rows.saturating_mul(row_bytes(&schema));
    Some(wide.max(u64::try_from(bytes).ok()?))
}

/// Checks whether an exchange only spreads rows over the threads of a process.
#[must_use]
pub(crate) fn spreads_over_threads(plan: &dyn ExecutionPlan) -> bool {
    let exchange = plan.downcast_ref::<RepartitionExec>();
    exchange.is_some_and(|exchange| {
        matches!(
            exchange.partitioning(),
            Partitioning::RoundRobinBatch(_) | Partitioning::UnknownPartitioning(_)
        )
    })
}
