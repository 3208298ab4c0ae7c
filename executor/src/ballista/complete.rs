//! A reader of other stages' output that detects missing rows.
//!
//! A file or a stream that is cut off between two batches looks like the end of the rows. The writer has reported
//! its number of rows: a reader that ends with another number has lost some.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ballista_core::execution_plans::{ShuffleReaderExec, stats_for_partitions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::stats::Precision;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use futures::{Stream, StreamExt};

use volley_engine::{delegate_to, display_as};

use super::fetch::Fetches;

/// Wraps the reader so that it fails when rows are missing.
pub(super) fn complete(reader: ShuffleReaderExec, fetches: Fetches) -> Arc<dyn ExecutionPlan> {
    let count = reader.schema().fields().len();
    let due = reader.partition.iter().map(|places| {
        let written = places.iter().map(|place| place.partition_stats);
        match stats_for_partitions(count, written).num_rows {
            Precision::Exact(rows) => Some(rows),
            Precision::Inexact(_) | Precision::Absent => None,
        }
    });
    Arc::new(Complete {
        due: due.collect(),
        reader: Arc::new(reader),
        fetches,
    })
}

#[derive(Debug)]
struct Complete {
    reader: Arc<ShuffleReaderExec>,
    fetches: Fetches,
    /// Number of rows in each partition, where the writers have reported it.
    due: Vec<Option<usize>>,
}

/// Error: fewer rows, or more, than were written.
#[derive(Debug)]
pub(super) struct RowsMissing {
    due: usize,
    came: usize,
}

impl fmt::Display for RowsMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { due, came } = self;
        write!(f, "{came} rows came of the {due} that were written")
    }
}

impl std::error::Error for RowsMissing {}

display_as!(Complete, reader);

impl ExecutionPlan for Complete {
    delegate_to!(reader);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.fetches.execute(&self.reader, partition, &context)?;
        Ok(match self.due.get(partition).copied().flatten() {
            Some(due) => Box::pin(Rows { rows, due, came: 0 }),
            None => rows,
        })
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.reader.metrics()?;
        for metric in self.fetches.metrics().iter() {
            metrics.push(Arc::clone(metric));
        }
        Some(metrics)
    }
}

/// Stream that counts its rows.
struct Rows {
    rows: SendableRecordBatchStream,
    due: usize,
    came: usize,
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.rows.poll_next_unpin(cx);
        match &next {
            Poll::Ready(Some(Ok(batch))) => self.came += batch.num_rows(),
            Poll::Ready(None) if self.came != self.due => {
                let missing = RowsMissing {
                    due: self.due,
                    came: self.came,
                };
                // The error is returned only once.
                self.came = self.due;
                return Poll::Ready(Some(Err(DataFusionError::External(Box::new(missing)))));
            }
            _ => {}
        }
        next
    }
}

impl RecordBatchStream for Rows {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::TryStreamExt;

    use super::*;

    async fn read(due: usize, batches: &[i64]) -> Result<usize> {
        let batch = |rows: &i64| {
            let column = Arc::new(Int64Array::from_iter_values(0..*rows)) as ArrayRef;
            RecordBatch::try_from_iter([("x", column)]).unwrap()
        };
        let schema = batch(&0).schema();
        let batches: Vec<_> = batches.iter().map(|rows| Ok(batch(rows))).collect();
        let rows = RecordBatchStreamAdapter::new(schema, futures::stream::iter(batches));
        let rows = Rows {
            rows: Box::pin(rows),
            due,
            came: 0,
        };
        let read: Vec<_> = rows.try_collect().await?;
        Ok(read.iter().map(RecordBatch::num_rows).sum())
    }

    #[tokio::test]
    async fn rows_that_are_missing_are_an_error() {
        assert_eq!(read(5, &[2, 3]).await.unwrap(), 5);
        assert_eq!(read(0, &[]).await.unwrap(), 0);
        let error = read(5, &[2]).await.unwrap_err().to_string();
        assert!(error.contains("2 rows came of the 5"), "{error}");
        assert!(read(5, &[]).await.is_err());
        assert!(read(5, &[5, 1]).await.is_err());
    }
}
