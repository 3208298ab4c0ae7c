//! What a statement gives back.

use std::fmt;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
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
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("schema", &self.schema)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}
