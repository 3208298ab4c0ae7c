//! Writers of Arrow files, for which the engine has no message: they are sent as writers of CSV to the same location.

use std::sync::Arc;

use datafusion::common::file_options::csv_writer::CsvWriterOptions;
use datafusion::common::internal_err;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::write::ArrowSink;

/// Returns the operator that a writer of Arrow files is sent as.
pub(super) fn sent_as(plan: &dyn ExecutionPlan) -> Option<Arc<dyn ExecutionPlan>> {
    let writer = plan.downcast_ref::<DataSinkExec>()?;
    let arrow = writer.sink().downcast_ref::<ArrowSink>()?;
    let plain = CompressionTypeVariant::UNCOMPRESSED;
    let options = CsvWriterOptions::new(Default::default(), plain);
    let csv = CsvSink::new(arrow.config().clone(), options);
    Some(writer_like(writer, Arc::new(csv)))
}

/// Restores the writer from the operator that was sent.
pub(super) fn restore(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let writer = plan.downcast_ref::<DataSinkExec>();
    let csv = writer.and_then(|writer| writer.sink().downcast_ref::<CsvSink>());
    let (Some(writer), Some(csv)) = (writer, csv) else {
        return internal_err!("{} is no writer", plan.name());
    };
    let config: FileSinkConfig = csv.config().clone();
    Ok(writer_like(writer, Arc::new(ArrowSink::new(config))))
}

fn writer_like(writer: &DataSinkExec, sink: Arc<dyn DataSink>) -> Arc<dyn ExecutionPlan> {
    let (input, order) = (Arc::clone(writer.input()), writer.sort_order().clone());
    Arc::new(DataSinkExec::new(input, sink, order))
}
