//! Small partitions put together: a task takes several and runs them as one.
//!
//! Every partition of a stage costs a task, and every pair of a task and a partition of the next exchange a piece of a
//! file. With many partitions of little input, these cost more than the rows.
//!
//! Partitions are put together where that changes no row: all of the stage's leaves are hash exchanges or scans of files
//! in no order, and its operators see no difference between one partition and two of the same keys. Not here: stages of
//! one partition, and a gang's shards.

use std::sync::Arc;

use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::scheduler::PartitionLocation;
use datafusion::common::internal_err;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use crate::operators::expand::ExpandExec;
use crate::operators::fence::FenceExec;
use crate::planning::estimates::compression_ratio;
use crate::planning::single_task::{TEXT, is_text};

use super::restrict::inputs;
use super::stage::{StageExec, StageInput, partitions};

type Plan = Arc<dyn ExecutionPlan>;

/// Tasks that each slot should get at least: uneven ones even out, and few bytes may mean much work.
const TASKS_A_SLOT: u64 = 4;
/// Assumed bytes of a piece of an exchange besides its rows: its place in a task's message, whose size they bound together.
const PIECE: u64 = 1 << 12;

/// Returns how many of the pending partitions, in their order, each slot of the next tasks takes: at most
/// `exchange_bytes` of input, or one partition. With 0, partitions stay apart.
pub fn task_partitions(
    writer: &Plan,
    pending: &[usize],
    exchange_bytes: u64,
    slots: usize,
) -> Vec<usize> {
    let stage = writer
        .children()
        .first()
        .and_then(|plan| plan.downcast_ref::<StageExec>());
    let bytes = stage
        .filter(|_| exchange_bytes > 0)
        .and_then(StageExec::bytes);
    match bytes {
        Some(bytes) => sizes(pending, bytes, limit(bytes, exchange_bytes, slots)),
        None => vec![1; pending.len()],
    }
}

/// Returns the input bytes up to which partitions are put together.
fn limit(bytes: &[u64], exchange_bytes: u64, slots: usize) -> u64 {
    let all = bytes
        .iter()
        .fold(0_u64, |all, bytes| all.saturating_add(*bytes));
    let tasks = TASKS_A_SLOT.saturating_mul(slots.max(1) as u64);
    (all / tasks).min(exchange_bytes)
}

/// Cuts a list of partitions into runs of at most `limit` bytes, or of one partition.
fn sizes(pending: &[usize], bytes: &[u64], limit: u64) -> Vec<usize> {
    let mut sizes: Vec<usize> = Vec::new();
    let mut of_last = 0_u64;
    for partition in pending {
        let bytes = bytes.get(*partition).copied().unwrap_or(u64::MAX);
        let with_last = of_last.saturating_add(bytes);
        match sizes.last_mut() {
            Some(last) if with_last <= limit => {
                *last += 1;
                of_last = with_last;
            }
            _ => {
                sizes.push(1);
                of_last = bytes;
            }
        }
    }
    sizes
}

/// Estimates the input bytes of each of a stage's partitions; `None` if they are unknown, or partitions must stay apart.
pub(super) fn input_bytes(stage: &StageExec) -> Option<Vec<u64>> {
    of_plan(stage.plan(), &|input| exchanged(input, stage))
}

/// Estimates the input bytes of each partition of a plan, given those of its exchanges.
pub(super) fn of_plan(
    plan: &Plan,
    exchanged: &dyn Fn(&StageInput) -> Option<Vec<u64>>,
) -> Option<Vec<u64>> {
    let bytes = (partitions(plan) > 1).then(|| of_partitions(plan, exchanged))??;
    (bytes.len() == partitions(plan)).then_some(bytes)
}

fn of_partitions(
    plan: &Plan,
    exchanged: &dyn Fn(&StageInput) -> Option<Vec<u64>>,
) -> Option<Vec<u64>> {
    if let Some(input) = plan.downcast_ref::<StageInput>() {
        let is_hashed = matches!(plan.output_partitioning(), Partitioning::Hash(..));
        return (is_hashed && !input.is_ordered()).then(|| exchanged(input))?;
    }
    if let Some(files) = files(plan) {
        return scanned(plan, files);
    }
    if !is_indifferent(plan.as_ref()) {
        return None;
    }
    let mut all: Option<Vec<u64>> = None;
    for (input, _) in inputs(plan).filter(|(_, is_whole)| !is_whole) {
        let bytes = of_partitions(input, exchanged)?;
        all = Some(match all {
            Some(all) if all.len() == bytes.len() => {
                let sums = all.into_iter().zip(bytes);
                sums.map(|(a, b)| a.saturating_add(b)).collect()
            }
            Some(_) => return None,
            None => bytes,
        });
    }
    all
}

/// Returns true for operators that return the same rows, partition by partition or for partitions put together.
fn is_indifferent(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<AggregateExec>()
        || plan.is::<BoundedWindowAggExec>()
        || plan.is::<ExpandExec>()
        || plan.is::<FenceExec>()
        || plan.is::<FilterExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<InterleaveExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<SortExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<WindowAggExec>()
}

/// Sums the bytes of the pieces of each partition of an exchange.
fn exchanged(input: &StageInput, stage: &StageExec) -> Option<Vec<u64>> {
    let exchange = stage.inputs().get(input.index())?;
    let reader = exchange.downcast_ref::<ShuffleReaderExec>()?;
    let of_one = |places: &Vec<PartitionLocation>| {
        let written = places.iter().map(|place| {
            let rows = place.partition_stats.num_bytes();
            rows.map(|rows| rows.saturating_add(PIECE))
        });
        written.sum()
    };
    reader.partition.iter().map(of_one).collect()
}

fn files(plan: &Plan) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    scan.data_source().downcast_ref()
}

/// Estimates the cost of reading each partition of a scan.
fn scanned(plan: &Plan, files: &FileScanConfig) -> Option<Vec<u64>> {
    let is_spread = matches!(
        plan.output_partitioning(),
        Partitioning::UnknownPartitioning(_)
    );
    let has_order = files.preserve_order || plan.output_ordering().is_some();
    if !is_spread || has_order || !files.output_ordering.is_empty() {
        return None;
    }
    let of_byte = match is_text(files) {
        true => TEXT.saturating_mul(compression_ratio(files)),
        false => 1,
    };
    let of_group = |group: &FileGroup| {
        let bytes: u64 = group.iter().map(PartitionedFile::effective_size).sum();
        bytes.saturating_mul(of_byte)
    };
    Some(files.file_groups.iter().map(of_group).collect())
}

/// Returns a task's plan with partitions put together, `sizes` of them at a time.
///
/// # Errors
/// When they must stay apart.
pub(super) fn merge(plan: Plan, sizes: &[usize]) -> Result<Plan> {
    if sizes.iter().all(|size| *size == 1) {
        return Ok(plan);
    }
    let (count, all) = (partitions(&plan), sizes.iter().sum::<usize>());
    if count != all {
        return internal_err!("{all} partitions of {count} in {}", plan.name());
    }
    if let Some(input) = plan.downcast_ref::<StageInput>() {
        return Ok(Arc::new(input.merge(sizes)));
    }
    if let Some(scan) = files(&plan) {
        let mut groups = scan.file_groups.iter();
        let merged = sizes.iter().map(|size| {
            let files = groups.by_ref().take(*size).flat_map(FileGroup::iter);
            files_in_a_row(files)
        });
        let scan = FileScanConfigBuilder::from(scan.clone()).with_file_groups(merged.collect());
        return Ok(DataSourceExec::from_data_source(scan.build()));
    }
    if !is_indifferent(plan.as_ref()) {
        return internal_err!("partitions of {} are put together", plan.name());
    }
    let inputs = inputs(&plan).map(|(input, is_whole)| match is_whole {
        true => Ok(Arc::clone(input)),
        false => merge(Arc::clone(input), sizes),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(plan, inputs)
}

/// Returns a group of files that are read one after the other, with neighbouring parts of a file as one part.
fn files_in_a_row<'a>(files: impl Iterator<Item = &'a PartitionedFile>) -> FileGroup {
    let mut row: Vec<PartitionedFile> = Vec::new();
    for file in files {
        match row.last_mut().and_then(|last| end_before(last, file)) {
            Some(end) => *end = file.range.as_ref().map_or(*end, |range| range.end),
            None => row.push(file.clone()),
        }
    }
    row.into()
}

/// Returns the end of a part of a file, if the next one begins there.
fn end_before<'a>(last: &'a mut PartitionedFile, next: &PartitionedFile) -> Option<&'a mut i64> {
    let is_same = last.object_meta == next.object_meta
        && last.partition_values == next.partition_values
        && last.extensions.is_empty()
        && next.extensions.is_empty();
    let end = &mut last.range.as_mut()?.end;
    (is_same && *end == next.range.as_ref()?.start).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_share_a_task_up_to_its_bytes() {
        let bytes = [3, 3, 3, 9, 0, 0, 1, 20, 0, 5];
        let all: Vec<_> = (0..bytes.len()).collect();
        assert_eq!(sizes(&all, &bytes, 9), [3, 3, 1, 1, 2]);
        assert_eq!(sizes(&all, &bytes, 0), [1, 1, 1, 1, 2, 1, 1, 1, 1]);
        assert_eq!(sizes(&[7, 4, 5, 9], &bytes, 9), [1, 3]);
        assert_eq!(sizes(&[], &bytes, 9), [0_usize; 0]);
    }

    #[test]
    fn slots_have_several_tasks_each() {
        const MIB: u64 = 1 << 20;
        let limit = |all: u64, slots| limit(&[all / 2, all / 2], 16 * MIB, slots);
        assert_eq!(limit(1000 * MIB, 2), 16 * MIB);
        assert_eq!(limit(64 * MIB, 4), 4 * MIB);
        assert_eq!(limit(64, 4), 4);
        assert_eq!(limit(0, 0), 0);
    }
}
