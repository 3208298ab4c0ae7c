//! The number of partitions of a plan's exchanges: enough for each sorted partition to be small.
//!
//! One partition per slot starts the fewest tasks. But windows and merge joins sort a partition in one piece, and the
//! cost per row grows with the piece, because merging its runs depends on caches. So where they sort many rows, the
//! plan has a multiple of the slots.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::SortMergeJoinExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

/// Target number of rows of a sorted partition; more rows get more partitions.
const SORTED: usize = 1 << 19;

/// Maximum number of partitions: an exchange has their square as parts.
const MOST: usize = 512;

/// Returns the number of partitions that the plan should have: at least `slots`, and a multiple of them.
pub(crate) fn wanted(plan: &Arc<dyn ExecutionPlan>, slots: usize) -> usize {
    let slots = slots.max(1);
    let a_slot = sorted(plan, false).div_ceil(SORTED.saturating_mul(slots));
    slots * a_slot.min(MOST / slots).max(1)
}

/// Estimates the rows of the largest sort in a plan, over all of its partitions; `piece` if the operator above needs
/// its partition sorted in one piece.
fn sorted(plan: &Arc<dyn ExecutionPlan>, piece: bool) -> usize {
    let exchanges = plan.is::<RepartitionExec>() || plan.is::<SortPreservingMergeExec>();
    let needs = plan.is::<WindowAggExec>()
        || plan.is::<BoundedWindowAggExec>()
        || plan.is::<SortMergeJoinExec>();
    let below = plan.children().into_iter();
    let below = below.map(|input| sorted(input, needs || piece && !exchanges));
    let here = match plan.downcast_ref::<SortExec>() {
        Some(sort) if piece => rows(sort.input()),
        _ => 0,
    };
    below.max().unwrap_or(0).max(here)
}

fn rows(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    let rows = statistics.map(|statistics| statistics.num_rows.get_value().copied());
    rows.ok().flatten().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::ExecutionPlanProperties;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// Returns the number of partitions of the exchanges in a query of a CSV file of two numbers per row, with two
    /// slots.
    async fn partitions(query: &str, mib: u64) -> usize {
        let config = SessionConfig::new().with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        let dir = tempfile::tempdir().unwrap();
        // The file is planned, not read: it has a size and no contents.
        let file = dir.path().join("numbers.csv");
        File::create(&file).unwrap().set_len(mib << 20).unwrap();
        let create = format!(
            "CREATE EXTERNAL TABLE numbers (a INT, b INT) STORED AS CSV LOCATION '{}'",
            file.display()
        );
        session.sql(&create).await.unwrap();
        let query = session.sql(query).await.unwrap();
        let plan = query.create_physical_plan().await.unwrap();
        exchanges(&plan)
    }

    /// Returns the largest number of partitions of an exchange in the plan.
    fn exchanges(plan: &Arc<dyn ExecutionPlan>) -> usize {
        let below = plan.children().into_iter().map(exchanges).max();
        let here = match plan.is::<RepartitionExec>() {
            true => plan.output_partitioning().partition_count(),
            false => 0,
        };
        below.unwrap_or(0).max(here)
    }

    #[tokio::test]
    async fn there_are_more_partitions_where_more_is_sorted() {
        let ranks = "SELECT a, rank() OVER (PARTITION BY a ORDER BY b) FROM numbers";
        // A row is ten bytes of text: five MiB hold the target number of rows of a partition.
        for (mib, expected) in [(1, 2), (10, 2), (11, 4), (95, 20), (1 << 20, 512)] {
            assert_eq!(partitions(ranks, mib).await, expected, "{mib} MiB");
        }
    }

    #[tokio::test]
    async fn where_no_piece_is_sorted_a_slot_has_a_partition() {
        let sums = "SELECT a, sum(b) FROM numbers GROUP BY a";
        assert_eq!(partitions(sums, 1 << 20).await, 2);
        let ordered = "SELECT a, sum(b) AS s FROM numbers GROUP BY a ORDER BY s";
        assert_eq!(partitions(ordered, 1 << 20).await, 2);
    }
}
