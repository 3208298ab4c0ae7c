//! Which joins hash the whole of their left side, and send it to every task.
//!
//! One whose rows are those of the left side cannot: each task would return what *it* found of them.
//! DataFusion, with one process in mind, plans them so where the left side is small. Ballista finds out
//! when the left side is in one piece already, and takes it apart again in a stage of its own. Here
//! they are partitioned before exchanges are planned.
//!
//! And one that a single task runs need not send it anywhere: [`join_in_place`] keeps a plan of one task
//! in one stage, where Ballista gives the left side of each join that it knows to be small a stage of its
//! own. A stage takes as long as the rest of a small query. Sizes are forgotten of files only: a side that
//! is VALUES or an aggregate without groups is still sent.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Statistics};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// A join that is partitioned; to be made as soon as joins are chosen.
pub(super) fn partition_join(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let join = node.downcast_ref::<HashJoinExec>();
    let Some(join) = join.filter(|join| is_collected(join) && !is_of_the_right(join)) else {
        return Ok(None);
    };
    let join = join
        .builder()
        .with_partition_mode(PartitionMode::Partitioned);
    join.build_exec().map(Some)
}

/// A plan whose joins are done by the task that runs all of it, if it is one stage; to be made when
/// nobody asks any more how many rows there are.
pub(super) fn join_in_place(
    plan: Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let joins = plan.exists(|node| Ok(node.is::<HashJoinExec>()))?;
    if !joins || plan.exists(|node| Ok(ends_stage(node) || partitions(node) != 1))? {
        return Ok(plan);
    }
    let in_place = |node: Arc<dyn ExecutionPlan>| -> Result<_> {
        let rewritten = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            let partitioned = || {
                join.builder()
                    .with_partition_mode(PartitionMode::Partitioned)
            };
            is_collected(join).then(|| partitioned().build_exec())
        } else {
            node.downcast_ref().and_then(of_unknown_size).map(Ok)
        };
        let rewritten = rewritten.transpose()?;
        Ok(rewritten.map_or(Transformed::no(node), Transformed::yes))
    };
    plan.transform_up(in_place).data()
}

/// Whether Ballista ends a stage there, whatever the number of partitions: it plans exchanges of that stage
/// anew, by what is known of sizes and the session's number of partitions.
fn ends_stage(node: &Arc<dyn ExecutionPlan>) -> bool {
    let alone = |join: &HashJoinExec| join.null_aware;
    node.is::<CoalescePartitionsExec>()
        || node.is::<RepartitionExec>()
        || node.is::<SortPreservingMergeExec>()
        || node.downcast_ref().is_some_and(alone)
}

fn partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    plan.output_partitioning().partition_count()
}

/// A scan of files that does not say how large they are: Ballista broadcasts what it knows to be small.
fn of_unknown_size(scan: &DataSourceExec) -> Option<Arc<dyn ExecutionPlan>> {
    let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let unknown = Statistics::new_unknown(files.file_source.table_schema().table_schema());
    let files = FileScanConfigBuilder::from(files.clone()).with_statistics(unknown);
    Some(Arc::new(
        scan.clone().with_data_source(Arc::new(files.build())),
    ))
}

/// Whether the left side is hashed as a whole, and need not be: `NOT IN` is about all its rows.
fn is_collected(join: &HashJoinExec) -> bool {
    *join.partition_mode() == PartitionMode::CollectLeft && !join.null_aware
}

/// Whether every row that comes out is of a row of the right side, or of a pair.
fn is_of_the_right(join: &HashJoinExec) -> bool {
    matches!(
        join.join_type(),
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
    use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};

    use super::*;
    use crate::plan::{VolleyQueryPlanner, with_rules};

    /// The plan of a query over `few`, of ten rows, and `many`, of ten thousand in so many files.
    async fn plan(query: &str, files: usize) -> Arc<dyn ExecutionPlan> {
        let dir = tempfile::tempdir().unwrap();
        // As Ballista's.
        let config = SessionConfig::new().with_round_robin_repartition(false);
        let config = config.with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        for (name, rows, files) in [("few", 10, 1), ("many", 10_000, files)] {
            let table = dir.path().join(name);
            fs::create_dir(&table).unwrap();
            let lines: String = (0..rows / files).map(|row| format!("{row}\n")).collect();
            for file in 0..files {
                fs::write(table.join(format!("{file}.csv")), format!("id\n{lines}")).unwrap();
            }
            let options = CsvReadOptions::new();
            let table = table.to_str().unwrap();
            session.register_csv(name, table, options).await.unwrap();
        }
        let frame = session.sql(&format!("SELECT few.id FROM {query}")).await;
        frame.unwrap().create_physical_plan().await.unwrap()
    }

    #[tokio::test]
    async fn a_left_side_is_collected_where_its_rows_are_not_the_answer() {
        for (query, mode) in [
            ("few JOIN many ON few.id = many.id", "CollectLeft"),
            ("few LEFT SEMI JOIN many ON few.id = many.id", "Partitioned"),
            ("few LEFT JOIN many ON few.id = many.id", "Partitioned"),
            (
                "few WHERE id NOT IN (SELECT CASE WHEN id > 3 THEN id END FROM many)",
                "CollectLeft",
            ),
        ] {
            let plan = plan(query, 2).await;
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            assert!(plan.contains(&format!("mode={mode}")), "{query}: {plan}");
        }
    }

    #[tokio::test]
    async fn one_task_joins_in_place() {
        let query = "few JOIN many ON few.id = many.id JOIN few x ON x.id = few.id";
        let in_place = plan(query, 1).await;
        let sent = plan(query, 2).await;
        for (plan, mode, known) in [
            (in_place, "Partitioned", false),
            (sent, "CollectLeft", true),
        ] {
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(shown.matches(mode).count(), 2, "{shown}");
            // Ballista sends what it knows to be small.
            let rows = |node: &Arc<dyn ExecutionPlan>| {
                let statistics = StatisticsContext::new();
                let statistics = statistics.compute(node.as_ref(), &StatisticsArgs::new());
                Ok(statistics?.num_rows.get_value().is_some())
            };
            assert_eq!(plan.exists(rows).unwrap(), known, "{shown}");
        }
    }
}
