//! Which joins hash the whole of their left side, and send it to every task.
//!
//! One whose rows are those of the left side cannot: each task would return what *it* found of them.
//! DataFusion, with one process in mind, plans them so where the left side is small. Ballista finds out
//! when the left side is in one piece already, and takes it apart again in a stage of its own. Here
//! they are partitioned before exchanges are planned.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

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
    use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};

    use crate::plan::with_rules;

    #[tokio::test]
    async fn a_left_side_is_collected_where_its_rows_are_not_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let config = SessionConfig::new().with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        for (name, rows) in [("few", 10), ("many", 10_000)] {
            let file = dir.path().join(format!("{name}.csv"));
            let lines: String = (0..rows).map(|row| format!("{row}\n")).collect();
            fs::write(&file, format!("id\n{lines}")).unwrap();
            let file = file.to_str().unwrap();
            let options = CsvReadOptions::new();
            session.register_csv(name, file, options).await.unwrap();
        }
        for (sql, mode) in [
            ("few JOIN many ON few.id = many.id", "CollectLeft"),
            ("few LEFT SEMI JOIN many ON few.id = many.id", "Partitioned"),
            ("few LEFT JOIN many ON few.id = many.id", "Partitioned"),
            (
                "few WHERE id NOT IN (SELECT CASE WHEN id > 3 THEN id END FROM many)",
                "CollectLeft",
            ),
        ] {
            let frame = session.sql(&format!("SELECT few.id FROM {sql}")).await;
            let plan = frame.unwrap().create_physical_plan().await.unwrap();
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            assert!(plan.contains(&format!("mode={mode}")), "{sql}: {plan}");
        }
    }
}
