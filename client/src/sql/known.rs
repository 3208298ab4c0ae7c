//! Rows that are known when a statement is planned, as a table.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use std::sync::Arc;

/// Table of known rows. The session runs a query over such tables alone itself, and sends the rows with any other
/// query.
#[derive(Debug)]
pub(crate) struct Known {
    rows: RecordBatch,
}

impl Known {
    pub(crate) fn new(rows: RecordBatch) -> Self {
        Self { rows }
    }

    /// Returns a plan that yields the rows.
    pub(super) fn plan(name: &str, rows: RecordBatch) -> Result<LogicalPlan> {
        let source = provider_as_source(Arc::new(Self::new(rows)));
        LogicalPlanBuilder::scan(name, source, None)?.build()
    }

    pub(crate) fn rows(&self) -> &RecordBatch {
        &self.rows
    }
}

#[async_trait]
impl TableProvider for Known {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
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
        let rows = MemTable::try_new(self.schema(), vec![vec![self.rows.clone()]])?;
        rows.scan(session, projection, filters, limit).await
    }
}
