//! What a statement gives back.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;

use crate::Result;

/// What a statement gives back: rows as they arrive, or a message.
pub struct Output {
    /// The rows' schema; empty for a statement without rows.
    pub schema: SchemaRef,
    /// The rows. Dropping them before their end cancels the query.
    pub rows: SendableRecordBatchStream,
    /// What a statement did that has more to say than rows.
    pub message: Option<String>,
}

impl Output {
    /// Waits for all rows.
    ///
    /// # Errors
    /// Whatever goes wrong while the query runs.
    pub async fn collect(self) -> Result<Vec<RecordBatch>> {
        Ok(self.rows.try_collect().await?)
    }

    pub(super) fn stream(rows: SendableRecordBatchStream) -> Self {
        Self {
            schema: rows.schema(),
            rows,
            message: None,
        }
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
