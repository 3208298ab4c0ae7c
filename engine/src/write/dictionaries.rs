//! The choice of Parquet columns with dictionaries, unless the user makes it: those of text.
//!
//! A dictionary costs a lookup per value. For text it saves bytes; numbers are as compact without one, once they are
//! compressed.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::{ConfigOptions, TableParquetOptions};
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::physical_plan::FileSink;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;

/// Sets the dictionaries of a writer that has no setting. A sink does not expose the ordering that it records in its
/// files, so a writer of ordered files stays as it is.
pub(crate) fn choose_dictionaries(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let writer = node.downcast_ref::<DataSinkExec>();
    let Some(writer) = writer.filter(|writer| writer.sort_order().is_none()) else {
        return Ok(None);
    };
    let sink = writer.sink().downcast_ref::<ParquetSink>();
    let undecided =
        |sink: &&ParquetSink| sink.parquet_options().global.dictionary_enabled.is_none();
    let Some(sink) = sink.filter(undecided) else {
        return Ok(None);
    };
    let config = sink.config().clone();
    let options = plain_numbers(config.output_schema(), sink.parquet_options().clone());
    let sink = Arc::new(ParquetSink::new(config, options));
    let input = Arc::clone(writer.input());
    Ok(Some(Arc::new(DataSinkExec::new(input, sink, None))))
}

/// Turns dictionaries off for numbers, dates and times, except for columns with a setting.
fn plain_numbers(schema: &Schema, mut options: TableParquetOptions) -> TableParquetOptions {
    let fields = schema.fields().iter();
    for number in fields.filter(|field| field.data_type().is_primitive()) {
        let column = options.column_specific_options.entry(number.name().clone());
        let column = column.or_default();
        column.dictionary_enabled = column.dictionary_enabled.or(Some(false));
    }
    options
}
