//! Result of a statement.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::TryStreamExt;

use super::headings::Headings;
use super::query::QueryExec;
use crate::Result;

/// Result of a statement: rows as they arrive, or a message.
pub struct Output {
    /// Schema of the rows; empty for a statement without rows.
    pub schema: SchemaRef,
    /// Rows of the result. Dropping them before their end cancels the query.
    pub rows: SendableRecordBatchStream,
    /// Message about the effect of a statement without rows.
    pub message: Option<String>,
    pub(super) job: QueryJob,
    /// Expressions of the query as they were typed.
    pub(super) headings: Headings,
}

/// Job of a query, once it exists: a query is submitted when its rows are first read.
#[derive(Clone, Default)]
pub struct QueryJob(Option<Arc<dyn ExecutionPlan>>);

impl QueryJob {
    pub(super) fn of(plan: Arc<dyn ExecutionPlan>) -> Self {
        Self(Some(plan))
    }

    /// Returns the job's id, once the scheduler has assigned one. A query that runs again because its rows were lost
    /// becomes another job.
    pub fn id(&self) -> Option<String> {
        self.0.as_ref()?.downcast_ref::<QueryExec>()?.job_id()
    }
}

impl fmt::Debug for QueryJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueryJob").field(&self.id()).finish()
    }
}

impl Output {
    /// Waits for all rows.
    ///
    /// # Errors
    /// Any error that occurs while the query runs.
    pub async fn collect(self) -> Result<Vec<RecordBatch>> {
        Ok(self.rows.try_collect().await?)
    }

    /// Names columns without an alias as they were typed, for display: `1 + 1` instead of `Int64(1) + Int64(1)`.
    #[must_use]
    pub fn with_typed_headings(mut self) -> Self {
        std::mem::take(&mut self.headings).name(self)
    }

    /// Returns the job of the query.
    pub fn job(&self) -> QueryJob {
        self.job.clone()
    }

    pub(super) fn stream(rows: SendableRecordBatchStream) -> Self {
        Self {
            schema: rows.schema(),
            rows,
            message: None,
            job: QueryJob::default(),
            headings: Headings::default(),
        }
    }

    /// Returns the rows of a plan, which runs as they are read.
    pub(super) fn of_plan(
        plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> datafusion::error::Result<Self> {
        let rows = execute_stream(Arc::clone(&plan), context)?;
        Ok(Self {
            job: QueryJob::of(plan),
            ..Self::stream(rows)
        })
    }

    pub(super) fn batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        let stream = futures::stream::iter(batches.into_iter().map(Ok));
        Self::stream(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }

    pub(super) fn nothing() -> Self {
        Self::batches(Arc::new(Schema::empty()), Vec::new())
    }

    pub(super) fn message(message: String) -> Self {
        Self {
            message: Some(message),
            ..Self::nothing()
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("schema", &self.schema)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}
