//! A plan whose streams end when its task is to stop.
//!
//! Ballista cancels a task by dropping the future that waits for it. The plan goes on in spawned tasks, and some of
//! them compute for minutes before they release their thread: an aggregate over a cross join polls batch after
//! batch. So every operator below the stage's writer is decorated: once the task is to stop, polling its stream
//! returns an error, and the operator above gives up. The operator directly below the writer also wakes up for the
//! stop, and drops everything below it.
//!
//! A join may compare pairs of rows for a long time between two batches. Its filter, evaluated for one batch of
//! pairs at a time, is therefore decorated too.
//!
//! The operator below the writer also gives its rows the schema that the stage is written with: where a column is
//! constant in a file, a scan's computed expression can have another nullability than the plan states. And it copies
//! text views into buffers of their own: a join's rows point into all text of its other side, which would be written
//! with each batch.
//!
//! A decorator takes the operator's place in every other respect, so that metrics and downcasts see no difference.
//! Not covered: long computations within one batch by a function, a sort or one partition of a window.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::arrow::array::{ArrayRef, AsArray, GenericByteViewArray};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{ByteViewType, DataType, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, replace_children_if_necessary,
};
use futures::{FutureExt, Stream, StreamExt};
use tokio_util::sync::WaitForCancellationFutureOwned;
use volley_engine::{delegate_to, emit_partitions, grace_join, keep_in_memory, normalize_keys};

use super::join_filter::stop_in_filter;
use super::tasks::Running;

/// Size of buffers, in bytes, up to which a column is not compacted, however little of them it uses.
const LITTLE: usize = 16 << 10;

/// Decorates the plan below a stage's writer so that it stops with its task.
///
/// # Errors
/// When an operator does not accept its inputs again.
pub(super) fn stop(plan: Arc<dyn ExecutionPlan>, task: &Running) -> Result<Arc<dyn ExecutionPlan>> {
    let inner = |node: Arc<dyn ExecutionPlan>| {
        let node = emit_partitions(stop_in_filter(node, task)?);
        let node = keep_in_memory(grace_join(normalize_keys(node)?)?)?;
        let decorated = Stops {
            plan: node,
            task: task.clone(),
            wakes: false,
        };
        Ok(Transformed::yes(
            Arc::new(decorated) as Arc<dyn ExecutionPlan>
        ))
    };
    Ok(Arc::new(Stops {
        plan: plan.transform_up(inner)?.data,
        task: task.clone(),
        wakes: true,
    }))
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

impl DisplayAs for Stops {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt_as(form, f)
    }
}

impl ExecutionPlan for Stops {
    delegate_to!(plan);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = replace_children_if_necessary(Arc::clone(&self.plan), children)?;
        Ok(Arc::new(self.decorating(plan)))
    }

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
            schema: match self.wakes {
                true => self.plan.schema(),
                false => rows.schema(),
            },
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
        match next {
            Poll::Ready(Some(Ok(batch))) if self.wakes.is_some() => {
                Poll::Ready(Some(Ok(with_schema(own_buffers(batch), &self.schema))))
            }
            next => next,
        }
    }
}

/// Returns the batch with views of text or bytes compacted where their buffers hold much more than they use.
fn own_buffers(batch: RecordBatch) -> RecordBatch {
    let owned: Vec<_> = batch.columns().iter().map(own_buffer).collect();
    if owned.iter().all(Option::is_none) {
        return batch;
    }
    let columns = batch.columns().iter().zip(owned);
    let columns = columns.map(|(column, owned)| owned.unwrap_or_else(|| Arc::clone(column)));
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns.collect(), &rows).unwrap_or(batch)
}

/// Returns the views with compacted buffers, if the old buffers hold much more than the views use.
fn own_buffer(column: &ArrayRef) -> Option<ArrayRef> {
    fn compact<T: ByteViewType>(views: &GenericByteViewArray<T>) -> Option<ArrayRef> {
        let held: usize = views.data_buffers().iter().map(Buffer::len).sum();
        let much = held > LITTLE && held / 2 > views.total_buffer_bytes_used();
        much.then(|| Arc::new(views.gc()) as ArrayRef)
    }
    match column.data_type() {
        DataType::Utf8View => compact(column.as_string_view()),
        DataType::BinaryView => compact(column.as_binary_view()),
        _ => None,
    }
}

/// Returns the batch with this schema, or unchanged if its columns do not fit it.
fn with_schema(batch: RecordBatch, schema: &SchemaRef) -> RecordBatch {
    if batch.schema_ref() == schema {
        return batch;
    }
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = batch.columns().to_vec();
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows).unwrap_or(batch)
}

impl RecordBatchStream for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::StringViewArray;

    use super::*;

    #[test]
    fn views_of_a_little_of_much_text_get_buffers_of_their_own() {
        let text = |at: usize| format!("{at:0100}");
        let all = StringViewArray::from_iter_values((0..1000).map(text));
        let held = |batch: &RecordBatch| {
            let views = batch.column(0).as_string_view();
            views.data_buffers().iter().map(Buffer::len).sum::<usize>()
        };
        let batch = |views: StringViewArray| {
            let views: ArrayRef = Arc::new(views);
            RecordBatch::try_from_iter([("text", views)]).unwrap()
        };
        let few = own_buffers(batch(all.slice(500, 10)));
        assert_eq!(held(&few), 1000);
        let read: Vec<_> = few.column(0).as_string_view().iter().flatten().collect();
        assert_eq!(read, (500..510).map(text).collect::<Vec<_>>());
        // Views that use all of their buffers stay unchanged.
        assert_eq!(held(&own_buffers(batch(all))), 100_000);
    }
}
