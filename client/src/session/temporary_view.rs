//! Temporary views: names for plans of rows, for as long as queries over them are planned.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::datasource::ViewTable;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use uuid::Uuid;

use super::Session;
use crate::Result;

/// View of rows, registered until it is dropped.
pub(super) struct TemporaryView<'a> {
    session: &'a Session,
    pub(super) name: String,
}

impl Drop for TemporaryView<'_> {
    fn drop(&mut self) {
        self.session
            .context()
            .deregister_table(self.name.as_str())
            .ok();
    }
}

impl<'a> TemporaryView<'a> {
    pub(super) fn of(session: &'a Session, plan: LogicalPlan) -> Result<Self> {
        let name = format!("__volley_rows_{}", Uuid::new_v4().simple());
        let view = Arc::new(ViewTable::new(plan, None));
        session.context().register_table(name.as_str(), view)?;
        Ok(Self { session, name })
    }

    /// Returns the rows of a query, which runs as a job of this name.
    pub(super) async fn ask(&self, text: &str, job: &str) -> Result<Vec<RecordBatch>> {
        let frame = self.session.frame(parsed(text)?, job).await?;
        Ok(frame.collect().await?)
    }
}

/// Parses a query that Volley has written, whatever the session's dialect is.
pub(super) fn parsed(text: &str) -> Result<DfStatement> {
    let query = Parser::new(&GenericDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_query());
    let query = query.map_err(|error| DataFusionError::Internal(error.to_string()))?;
    Ok(DfStatement::Statement(Box::new(SqlStatement::Query(query))))
}
