//! Which columns of Parquet files have dictionaries, where the user says nothing: those of text.
//!
//! A dictionary costs a lookup a value. Text is repaid by bytes; numbers lie as compactly without, once
//! they are compressed, and are read faster.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::{ConfigOptions, TableParquetOptions};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::physical_plan::FileSink;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// The rule that decides it.
#[derive(Debug)]
pub(in crate::plan) struct Dictionaries;

impl PhysicalOptimizerRule for Dictionaries {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(decided) = node.downcast_ref().and_then(decided) else {
                return Ok(Transformed::no(node));
            };
            Ok(Transformed::yes(Arc::new(decided) as Arc<dyn ExecutionPlan>))
        })
        .data()
    }

    fn name(&self) -> &str {
        "parquet_dictionaries"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The writer with a decision, where one is open. A sink does not tell the order that it notes in its
/// files, so one of ordered files stays as it is.
fn decided(writer: &DataSinkExec) -> Option<DataSinkExec> {
    let sink = writer.sink().downcast_ref::<ParquetSink>()?;
    let options = sink.parquet_options();
    if options.global.dictionary_enabled.is_some() || writer.sort_order().is_some() {
        return None;
    }
    let config = sink.config().clone();
    let options = plain_numbers(config.output_schema(), options.clone());
    let sink = Arc::new(ParquetSink::new(config, options));
    Some(DataSinkExec::new(Arc::clone(writer.input()), sink, None))
}

fn plain_numbers(schema: &Schema, mut options: TableParquetOptions) -> TableParquetOptions {
    let fields = schema.fields().iter();
    for number in fields.filter(|field| field.data_type().is_primitive()) {
        let column = options.column_specific_options.entry(number.name().clone());
        let column = column.or_default();
        column.dictionary_enabled = column.dictionary_enabled.or(Some(false));
    }
    options
}
