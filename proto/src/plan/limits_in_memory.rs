//! Limits of rows in memory, made operators.
//!
//! DataFusion puts a limit into the source of rows in memory (VALUES, a table in memory). Ballista 55
//! makes each task's plan from such a source's partitions anew, and forgets the limit (its
//! `task_builder`): `SELECT x FROM (VALUES (1), (2)) v(x) LIMIT 1` gave two rows.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::LocalLimitExec;

/// The rows without their limit, under an operator that has it: one of each partition, as before.
pub(super) fn limit_outside(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(exec) = node.downcast_ref::<DataSourceExec>() else {
        return Ok(None);
    };
    let Some(rows) = exec.data_source().downcast_ref::<MemorySourceConfig>() else {
        return Ok(None);
    };
    let Some(fetch) = exec.fetch() else {
        return Ok(None);
    };
    let rows = DataSourceExec::from_data_source(rows.clone().with_limit(None));
    Ok(Some(Arc::new(LocalLimitExec::new(rows, fetch))))
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;

    use crate::plan::with_rules;

    #[tokio::test]
    async fn a_limit_is_an_operator() {
        let state = SessionStateBuilder::new_with_default_features().build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        let sql = "SELECT x FROM (VALUES (1), (2), (3)) v(x) LIMIT 2";
        let plan = session.sql(sql).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert!(shown.contains("LocalLimitExec: fetch=2"), "{shown}");
        assert!(
            !shown.contains("DataSourceExec: partitions=1, partition_sizes=[1], fetch"),
            "{shown}"
        );
        let rows = datafusion::physical_plan::collect(plan, session.task_ctx());
        let rows: usize = rows
            .await
            .unwrap()
            .iter()
            .map(|batch| batch.num_rows())
            .sum();
        assert_eq!(rows, 2);
    }
}
