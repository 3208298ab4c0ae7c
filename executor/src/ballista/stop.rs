//! A plan whose streams end when its task is to stop.
//!
//! Ballista cancels a task by dropping the future that waits for it. The plan goes on in spawned tasks, and some of
//! them compute for minutes before they release their thread: an aggregate over a cross join polls batch after
//! batch. So every operator below the stage's writer is decorated: once the task is to stop, polling its stream
//! returns an error, and the operator above gives up. The operator directly below the writer also wakes up for the
//! stop, and drops everything below it.
//!
//! A join may compare pairs of rows for a long time between two batches: its [filter](super::join_filter) stops.
//!
//! A decorator takes the operator's place in every other respect, so that metrics and downcasts see no difference.
//! Not covered: long computations within one batch by a function, a sort or one partition of a window.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use futures::{FutureExt, Stream, StreamExt};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::tasks::Running;

use volley_engine::{delegate_to, display_as};

/// Decorates the plan below a stage's writer so that it stops with its task.
///
/// # Errors
/// When an operator does not accept its inputs again.
pub(super) fn stop(plan: Arc<dyn ExecutionPlan>, task: &Running) -> Result<Arc<dyn ExecutionPlan>> {
    let stops = |plan, wakes| {
        let task = task.clone();
        Arc::new(Stops { plan, task, wakes }) as Arc<dyn ExecutionPlan>
    };
    let plan = plan.transform_up(|node| Ok(Transformed::yes(stops(node, false))))?;
    Ok(stops(plan.data, true))
}

#[derive(Debug)]
struct Stops {
    plan: Arc<dyn ExecutionPlan>,
    task: Running,
    /// True if its streams wake up when the task is to stop.
    wakes: bool,
}

impl Stops {
    fn decorating(&self, plan: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            plan,
            task: self.task.clone(),
            wakes: self.wakes,
        }
    }
}

display_as!(Stops, plan);

impl ExecutionPlan for Stops {
    delegate_to!(plan, |stops, plan| Ok(Arc::new(stops.decorating(plan))));

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = Arc::clone(&self.plan).reset_state()?;
        Ok(Arc::new(self.decorating(plan)))
    }

    fn with_new_state(&self, state: Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn ExecutionPlan>> {
        let plan = self.plan.with_new_state(state)?;
        Some(Arc::new(self.decorating(plan)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        // A stream does not begin once the task is to stop.
        self.task.check()?;
        let rows = self.plan.execute(partition, context)?;
        let wakes = self.wakes.then(|| {
            let cancel = self.task.cancel().clone();
            Box::pin(cancel.cancelled_owned())
        });
        Ok(Box::pin(Rows {
            schema: rows.schema(),
            rows: Some(rows),
            task: self.task.clone(),
            wakes,
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}

/// Rows that end with an error when the task is to stop.
struct Rows {
    schema: SchemaRef,
    /// Dropped when the error is returned.
    rows: Option<SendableRecordBatchStream>,
    task: Running,
    wakes: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rows) = &mut self.rows else {
            return Poll::Ready(None);
        };
        let next = rows.poll_next_unpin(cx);
        // The task may have been cancelled while the operator computed.
        let mut stops = self.task.check().is_err();
        if let (Poll::Pending, Some(wakes)) = (&next, &mut self.wakes) {
            stops |= wakes.poll_unpin(cx).is_ready();
        }
        if stops {
            self.rows = None;
            return Poll::Ready(Some(Err(self.task.stopped())));
        }
        next
    }
}

impl RecordBatchStream for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::super::tasks::running;
    use super::*;

    #[tokio::test]
    async fn a_plan_stops_with_its_task() {
        let session = SessionContext::new();
        let query = "SELECT count(*) OVER (PARTITION BY value % 3) FROM range(10)";
        for cancelled in [false, true] {
            let plan = session.sql(query).await.unwrap();
            let plan = plan.create_physical_plan().await.unwrap();
            let task = running();
            let plan = stop(plan, &task).unwrap();
            if cancelled {
                task.cancel().cancel();
            }
            match collect(plan, session.task_ctx()).await {
                Ok(rows) => {
                    let rows = rows.iter().map(RecordBatch::num_rows).sum::<usize>();
                    assert!(rows == 10 && !cancelled);
                }
                Err(stopped) => {
                    assert!(
                        cancelled && stopped.to_string().contains("cancelled"),
                        "{stopped}"
                    );
                }
            }
        }
    }
}
