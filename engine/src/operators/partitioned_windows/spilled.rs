//! The open partition of windows in a file, where it does not fit into memory.
//!
//! A window over a whole partition has one value for all of its rows, which is known when the last one is read: the rows
//! are aggregated as they come, written to a file, and emitted from there with the values.
//!
//! Not here: windows whose values differ within a partition, which need all of its rows in memory.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{Accumulator, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, WindowExpr};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::super::grace_aggregate::keeps_values;
use super::super::spilled::Writing;

type Windows = [Arc<dyn WindowExpr>];

/// Returns the aggregate of a window over whole partitions, and `None` for other windows, for those whose value has all
/// values of the partition, and for those with a `FILTER`: in the plan of a task, that is an argument of the aggregate.
fn whole(window: &Arc<dyn WindowExpr>) -> Option<&PlainAggregateWindowExpr> {
    let frame = window.get_window_frame();
    // Without an order, all rows of the partition are peers of the current one.
    let has_peers = frame.units == WindowFrameUnits::Range && window.order_by().is_empty();
    let is_end = |bound: &WindowFrameBound| {
        bound.is_unbounded() || has_peers && matches!(bound, WindowFrameBound::CurrentRow)
    };
    let is_whole = is_end(&frame.start_bound) && is_end(&frame.end_bound);
    let aggregate: Option<&PlainAggregateWindowExpr> = window.as_any().downcast_ref();
    aggregate.filter(|window| {
        // The condition itself is not public.
        let is_filtered = !format!("{window:?}").ends_with("filter: None }");
        is_whole && !is_filtered && !keeps_values(window.get_aggregate_expr())
    })
}

/// Checks whether all windows are over whole partitions.
pub(super) fn can_spill(windows: &Windows) -> bool {
    windows.iter().all(|window| whole(window).is_some())
}

/// Rows of one partition that are written, and the values of its windows so far.
pub(super) struct Partition {
    file: Writing,
    values: Vec<Box<dyn Accumulator>>,
    /// The row that was written last.
    pub(super) last: RecordBatch,
}

impl Partition {
    /// Begins with the first rows of the partition; there is at least one.
    pub(super) fn begin(
        windows: &Windows,
        rows: &[RecordBatch],
        manager: &SpillManager,
        batch_size: usize,
    ) -> Result<Self> {
        let aggregates = windows.iter().filter_map(whole);
        let values = aggregates.map(|window| window.get_aggregate_expr().create_accumulator());
        let mut partition = Self {
            file: Writing::new(manager, batch_size)?,
            values: values.collect::<Result<_>>()?,
            last: RecordBatch::new_empty(Arc::clone(manager.schema())),
        };
        for rows in rows {
            partition.push(windows, rows)?;
        }
        Ok(partition)
    }

    /// Adds rows.
    pub(super) fn push(&mut self, windows: &Windows, rows: &RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        for (window, value) in windows.iter().zip(&mut self.values) {
            value.update_batch(&window.evaluate_args(rows)?)?;
        }
        self.last = rows.slice(rows.num_rows() - 1, 1);
        self.file.append(rows.clone())
    }

    /// Returns the memory of the values, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.values.iter().map(|value| value.size()).sum()
    }

    /// Returns the rows with the values of the windows, whose columns are the last of the schema.
    pub(super) fn finish(mut self, schema: SchemaRef) -> Result<SendableRecordBatchStream> {
        let values = self.values.iter_mut().map(|value| value.evaluate());
        let values: Vec<ScalarValue> = values.collect::<Result<_>>()?;
        let rows = self.file.finish()?.read()?;
        let rows = rows.map({
            let schema = Arc::clone(&schema);
            move |rows| {
                let rows = rows?;
                let mut columns = rows.columns().to_vec();
                for value in &values {
                    columns.push(value.to_array_of_size(rows.num_rows())?);
                }
                Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}
