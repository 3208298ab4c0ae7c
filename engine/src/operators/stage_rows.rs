//! The rows that a stage writes: of the planned schema, with text in buffers of their own.
//!
//! Where a column is constant in a file, a scan's computed expression can have another nullability than the plan states.
//! And a join's rows point into all text of its other side, which would be written with each batch.
//!
//! Not here: the writers of stages, which are Ballista's.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, GenericByteViewArray};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{ByteViewType, DataType, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use crate::{delegate_to, display_as};

/// Size of buffers, in bytes, up to which a column is not compacted, however little of them it uses.
const LITTLE: usize = 16 << 10;

/// Last operator of a task's plan, whose rows the stage writes.
#[derive(Debug)]
pub(crate) struct StageRows {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
}

display_as!(StageRows, plan);

impl ExecutionPlan for StageRows {
    delegate_to!(plan, |_, plan| Ok(Arc::new(Self { plan })));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let schema = self.plan.schema();
        let rows = self.plan.execute(partition, context)?;
        let planned = Arc::clone(&schema);
        let rows = rows.map(move |batch| Ok(with_schema(own_buffers(batch?), &planned)));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
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
