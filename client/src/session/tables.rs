//! Schema `volley`: the cluster's system tables, and the models of the session's store.
//!
//! The tables are read in the client when a query runs: a query about nothing else is answered here and waits for no
//! slot. In a query that reads other tables too, their current rows go to the cluster with the plan.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session, TableProvider};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::scalar::ScalarValue;
use volley_proto::store::ModelStore;
use volley_proto::tables::Table;

use crate::sql::{Known, values};
use crate::system_tables::{Scope, SystemTables};

/// Name of the schema.
pub(super) const SCHEMA: &str = "volley";

/// Schema `volley`.
#[derive(Debug)]
pub(super) struct SystemSchema {
    pub(super) system_tables: Arc<SystemTables>,
    pub(super) store: ModelStore,
}

#[async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        Table::ALL.map(|table| table.name().to_owned()).to_vec()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Ok(table) = name.parse() else {
            return Ok(None);
        };
        Ok(Some(Arc::new(SystemTable {
            table,
            system_tables: Arc::clone(&self.system_tables),
            store: self.store.clone(),
        })))
    }

    fn table_exist(&self, name: &str) -> bool {
        name.parse::<Table>().is_ok()
    }
}

/// Table of the schema.
#[derive(Debug)]
struct SystemTable {
    table: Table,
    system_tables: Arc<SystemTables>,
    store: ModelStore,
}

#[async_trait]
impl TableProvider for SystemTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = Known::new(self.read().await?);
        rows.scan(session, projection, filters, limit).await
    }
}

impl SystemTable {
    async fn read(&self) -> Result<RecordBatch> {
        let json = match self.table {
            // Models of the session's store; the scheduler only knows those of its own runs.
            Table::Models => {
                let models = self.store.rows().await.map_err(crate::Error::from)?;
                serde_json::to_vec(&models)
                    .map_err(|error| DataFusionError::External(error.into()))?
            }
            table => self.system_tables.read(table, Scope::All).await?,
        };
        Ok(self.table.batch(&json).map_err(crate::Error::from)?)
    }
}

/// Checks whether a plan scans tables of this schema or known rows, and whether it needs the cluster for other tables.
pub(super) fn scans(plan: &LogicalPlan) -> Result<(bool, bool)> {
    let (mut ours, mut others) = (false, false);
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::TableScan(scan) if is_ours(scan) => ours = true,
            // Predictions and training need the cluster, whatever their rows.
            LogicalPlan::TableScan(_) | LogicalPlan::Extension(_) => others = true,
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok((ours, others))
}

/// Replaces the scans of this schema's tables by their rows.
pub(super) async fn inlined(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let mut scanned = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && is_ours(scan)
        {
            scanned.push(scan.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut rows = Vec::new();
    for scan in scanned {
        let provider = source_as_provider(&scan.source)?;
        let batch = match (
            provider.downcast_ref::<SystemTable>(),
            provider.downcast_ref::<Known>(),
        ) {
            (Some(table), _) => table.read().await?,
            (None, Some(known)) => known.rows().clone(),
            (None, None) => continue,
        };
        let inline = inline(&scan, &batch)?;
        rows.push((scan, inline));
    }
    let replaced = plan.clone().transform_down_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else {
            return Ok(Transformed::no(node));
        };
        // Two equal scans may read different rows.
        let is_same = |found: &TableScan| Arc::ptr_eq(&found.source, &scan.source) && found == scan;
        match rows.iter().find(|(found, _)| is_same(found)) {
            Some((_, rows)) => Ok(Transformed::yes(rows.clone())),
            None => Ok(Transformed::no(node)),
        }
    });
    Ok(replaced?.data)
}

fn is_ours(scan: &TableScan) -> bool {
    source_as_provider(&scan.source)
        .is_ok_and(|table| table.is::<SystemTable>() || table.is::<Known>())
}

/// Returns a scan's rows as VALUES, under the scan's names.
fn inline(scan: &TableScan, batch: &RecordBatch) -> Result<LogicalPlan> {
    let row = |row: usize| {
        let columns = batch.columns().iter();
        columns
            .map(|column| ScalarValue::try_from_array(column, row))
            .collect::<Result<Vec<_>>>()
    };
    let rows: Vec<_> = (0..batch.num_rows()).map(row).collect::<Result<_>>()?;
    let schema = batch.schema();
    let mut plan = LogicalPlanBuilder::from(values(&schema, rows)?);
    if let Some(projection) = &scan.projection {
        let name = |at: &usize| Expr::Column(Column::from_name(schema.field(*at).name()));
        plan = plan.project(projection.iter().map(name))?;
    }
    plan.alias(scan.table_name.clone())?.build()
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;

    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn models_are_a_table_without_a_cluster() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let newer = crate::testing::manifest("known");
            session.store().publish(1, newer, Vec::new()).await.unwrap();
            let sql = "SELECT model, version, label FROM volley.models WHERE current";
            let rows = session.sql(sql).await.unwrap().collect().await.unwrap();
            let shown = pretty_format_batches(&rows).unwrap().to_string();
            assert!(shown.contains("known | 2       | Sales"), "{shown}");
        });
    }

    #[test]
    fn rows_go_with_a_plan_that_needs_the_cluster() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let sql = "SELECT m.model, s.\"Id\" FROM volley.models m JOIN sales s \
                       ON m.version = s.\"Id\" WHERE m.model IN (SELECT model FROM volley.models)";
            let plan = session
                .sql(sql)
                .await
                .unwrap()
                .into_optimized_plan()
                .unwrap();
            assert_eq!(scans(&plan).unwrap(), (true, true));
            let plan = inlined(&plan).await.unwrap();
            assert_eq!(scans(&plan).unwrap(), (false, true));
            let shown = plan.display_indent().to_string();
            assert!(shown.contains("Utf8(\"known\")"), "{shown}");
        });
    }

    #[test]
    fn a_table_that_nobody_answers_for_says_so() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            async fn shown(session: &crate::Session, sql: &str) -> String {
                let names = session.sql(sql).await.unwrap().collect().await;
                pretty_format_batches(&names.unwrap()).unwrap().to_string()
            }
            let all = shown(&session, "SELECT table_name FROM information_schema.tables").await;
            assert!(all.contains("training_steps"), "{all}");
            let own = shown(&session, "SHOW TABLES").await;
            assert!(own.contains("sales"), "{own}");
            assert!(
                !own.contains("training_steps") && !own.contains("df_settings"),
                "{own}"
            );
            let frame = session.sql("SELECT * FROM volley.jobs").await.unwrap();
            let error = frame.collect().await.unwrap_err().to_string();
            assert!(error.contains("read its system tables"), "{error}");
            let error = session.sql("SELECT * FROM volley.job").await.unwrap_err();
            assert!(error.to_string().contains("job"), "{error}");
        });
    }
}
