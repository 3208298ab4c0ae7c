//! Outer, semi and anti nested-loop joins without spilling, because spilling loses rows.
//!
//! DataFusion 55 spills a left side that does not fit into memory, and joins it chunk by chunk. When memory runs out
//! at its last batch, the next chunk is empty, and the join ends without emitting unmatched right rows; and each
//! partition emits unmatched left rows based on its own matches alone. So these joins run with temporary files
//! disabled, and fail with "Resources exhausted". Inner joins, and operators below any join, still spill.
//!
//! Remove when a release emits unmatched rows after an empty last chunk.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::physical::{Rewrite, rule};
use crate::runtime::context_with;
use crate::{delegate_to, display_as};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "unspilled_joins",
    wrong: "outer nested-loop joins that spill lose rows without a match, or repeat them",
    upstream: Upstream::Thread("apache/datafusion#24745"),
    query: include_str!("query.sql"),
    acts: &[Act::Task(|| {
        rule("keep_joins_in_memory", Rewrite::Each(keep_in_memory))
    })],
};

/// Runs such a join without temporary files, and its inputs with them.
///
/// # Errors
/// When the join does not accept its inputs again.
fn keep_in_memory(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let join = node.downcast_ref::<NestedLoopJoinExec>();
    if join.is_none_or(|join| *join.join_type() == JoinType::Inner) {
        return Ok(None);
    }
    let run = |plan, spills| Arc::new(Run { plan, spills }) as Arc<dyn ExecutionPlan>;
    let inputs = node.children().into_iter();
    let inputs = inputs.map(|input| run(Arc::clone(input), true)).collect();
    let join = replace_children_if_necessary(Arc::clone(node), inputs)?;
    Ok(Some(run(join, false)))
}

/// Operator that runs with the temporary files of its task, or without.
#[derive(Debug)]
struct Run {
    plan: Arc<dyn ExecutionPlan>,
    spills: bool,
}

/// Runtime environment of the task, for operators below one that has another.
struct OfTask(Arc<RuntimeEnv>);

impl Run {
    fn of(&self, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let spills = self.spills;
        Arc::new(Self { plan, spills })
    }

    /// Returns the context to execute the operator with, given that of the operator above.
    fn context(&self, above: Arc<TaskContext>) -> Result<Arc<TaskContext>> {
        let config = above.session_config();
        let of_task = match config.get_extension::<OfTask>() {
            Some(kept) => Arc::clone(&kept.0),
            None => above.runtime_env(),
        };
        if self.spills {
            return Ok(context_with(&above, config.clone(), of_task));
        }
        let disabled = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::from_runtime_env(&of_task);
        let runtime = runtime.with_disk_manager_builder(disabled).build_arc()?;
        let config = config.clone().with_extension(Arc::new(OfTask(of_task)));
        Ok(context_with(&above, config, runtime))
    }
}

display_as!(Run, plan);

impl ExecutionPlan for Run {
    delegate_to!(plan, |run, plan| Ok(run.of(plan)));

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(Arc::clone(&self.plan).reset_state()?))
    }

    fn with_new_state(&self, state: Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(self.of(self.plan.with_new_state(state)?))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, self.context(context)?)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::AsArray;
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

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
        let plan = in_memory(plan);
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
        let query = "SELECT * FROM (SELECT 1 AS x) a LEFT JOIN (SELECT 2 AS y) b ON x < y";
        let query = session.sql(query).await.unwrap();
        let plan = in_memory(query.create_physical_plan().await.unwrap());
        let mut join = &plan;
        while !join.is::<NestedLoopJoinExec>() {
            join = join.children()[0];
        }
        let spills = |context: &TaskContext| context.runtime_env().disk_manager.tmp_files_enabled();
        let of_task = session.task_ctx();
        let run = |spills| Run {
            plan: Arc::clone(join),
            spills,
        };
        let of_join = run(false).context(Arc::clone(&of_task)).unwrap();
        assert!(spills(&of_task) && !spills(&of_join));
        let below = run(true).context(of_join).unwrap();
        assert!(Arc::ptr_eq(&below.runtime_env(), &of_task.runtime_env()));
        let again = run(false).context(below).unwrap();
        assert!(!spills(&again));
    }

    fn in_memory(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let keep = rule("keep", Rewrite::Each(keep_in_memory));
        keep.optimize(plan, &ConfigOptions::new()).unwrap()
    }
}
