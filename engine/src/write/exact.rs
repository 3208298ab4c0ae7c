//! Writers of single files and of partitioned folders, where DataFusion's would change values.

use std::sync::Arc;

use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::physical_plan::FileSink;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::physical_plan::ExecutionPlan;

use super::csv::CsvTextSink;
use super::split::SplitSink;
use super::target;

/// Returns the operator with our splitter of folders or our writer of CSV in the place of DataFusion's, if it has one.
/// The order of rows is kept.
pub fn exact_writer(operator: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let writer = operator.downcast_ref::<DataSinkExec>()?;
    let config = target::config(writer.sink())?.clone();
    let is_split = !config.table_partition_cols.is_empty();
    if !is_split && !writer.sink().is::<CsvSink>() {
        return None;
    }
    let sink = exact_sink(target::sink_like(writer.sink(), config)?);
    let sink: Arc<dyn DataSink> = match is_split {
        true => Arc::new(SplitSink(sink)),
        false => sink,
    };
    let (input, order) = (Arc::clone(writer.input()), writer.sort_order().clone());
    Some(Arc::new(DataSinkExec::new(input, sink, order)))
}

/// Returns our writer of CSV for DataFusion's, and other writers as they are.
pub(super) fn exact_sink(sink: Arc<dyn FileSink>) -> Arc<dyn FileSink> {
    let sink_of_any: &dyn DataSink = sink.as_ref();
    match sink_of_any.downcast_ref::<CsvSink>() {
        Some(csv) => Arc::new(CsvTextSink::like(csv)),
        None => sink,
    }
}
