//! Outer, semi and anti nested-loop joins without spilling, because spilling loses rows.
//!
//! DataFusion 55 spills a left side that does not fit into memory, and joins it chunk by chunk. When memory runs out
//! at its last batch, the next chunk is empty, and the join ends without emitting unmatched right rows; and each
//! partition emits unmatched left rows based on its own matches alone. So these joins run with temporary files
//! disabled, and fail with "Resources exhausted". Inner joins, and operators below any join, still spill.
//!
//! To be removed once a DataFusion release emits unmatched rows after an empty last chunk.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use volley_engine::runtime::context_with;

/// Runtime environment of the task, for operators below a join that has another.
struct OfTask(Arc<RuntimeEnv>);

/// Returns the context to execute an operator with, given its parent's context.
///
/// # Errors
/// When no runtime environment can be built.
pub(super) fn context_of(
    plan: &dyn ExecutionPlan,
    context: Arc<TaskContext>,
) -> Result<Arc<TaskContext>> {
    let join = plan.downcast_ref::<NestedLoopJoinExec>();
    let stays_in_memory = join.is_some_and(|join| *join.join_type() != JoinType::Inner);
    let config = context.session_config();
    let (given, kept) = (context.runtime_env(), config.get_extension::<OfTask>());
    let of_task = kept.map_or_else(|| Arc::clone(&given), |kept| Arc::clone(&kept.0));
    if stays_in_memory {
        let disabled = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::from_runtime_env(&of_task);
        let runtime = runtime.with_disk_manager_builder(disabled).build_arc()?;
        let config = config.clone().with_extension(Arc::new(OfTask(of_task)));
        return Ok(context_with(&context, config, runtime));
    }
    if Arc::ptr_eq(&of_task, &given) {
        return Ok(context);
    }
    let config = config.clone();
    Ok(context_with(&context, config, of_task))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::AsArray;
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::super::cancellable::cancellable;
    use super::super::tasks::running;
    use super::*;

    /// Returns the count that a query computes in a task with this much memory; `None` if memory runs out.
    async fn counted(query: &str, bytes: usize) -> Option<i64> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(bytes)))
            .build_arc();
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(1);
        let session = SessionContext::new_with_config_rt(config, runtime.unwrap());
        let query = session.sql(query).await.unwrap();
        let plan = query.create_physical_plan().await.unwrap();
        let plan = cancellable(plan, &running()).unwrap();
        match collect(plan, session.task_ctx()).await {
            Ok(batches) => Some(batches[0].column(0).as_primitive::<Int64Type>().value(0)),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("Resources exhausted"), "{said}");
                None
            }
        }
    }

    #[tokio::test]
    async fn joins_have_all_rows_or_too_little_memory() {
        let (a, b) = (
            "(SELECT value AS x FROM range(20))",
            "(SELECT value AS y FROM range(13))",
        );
        for (kind, due) in [("RIGHT", 13), ("FULL", 33), ("LEFT", 20)] {
            let query = format!("SELECT count(*) FROM {a} {kind} JOIN {b} ON x + 100 < y");
            let mut told = 0;
            for bytes in (256..16_384).step_by(128) {
                let Some(count) = counted(&query, bytes).await else {
                    continue;
                };
                assert_eq!(count, due, "{kind}, {bytes} bytes");
                told += 1;
            }
            assert!(told > 0, "{kind}");
        }
    }

    #[tokio::test]
    async fn operators_below_such_a_join_spill() {
        let session = SessionContext::new();
        let context = session.task_ctx();
        let query = "SELECT * FROM (SELECT 1 AS x) a LEFT JOIN (SELECT 2 AS y) b ON x < y";
        let query = session.sql(query).await.unwrap();
        let plan = query.create_physical_plan().await.unwrap();
        let mut join = &plan;
        while !join.is::<NestedLoopJoinExec>() {
            join = join.children()[0];
        }
        let spills = |context: &TaskContext| context.runtime_env().disk_manager.tmp_files_enabled();
        let of_join = context_of(join.as_ref(), Arc::clone(&context)).unwrap();
        assert!(spills(&context) && !spills(&of_join));
        let below = context_of(join.children()[0].as_ref(), Arc::clone(&of_join)).unwrap();
        assert!(Arc::ptr_eq(&below.runtime_env(), &context.runtime_env()));
        let again = context_of(join.as_ref(), below).unwrap();
        assert!(!spills(&again));
    }
}
