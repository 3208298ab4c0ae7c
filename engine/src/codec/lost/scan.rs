//! Options of scans that their messages leave out.
//!
//! For CSV files the terminator, for text the compression, for Parquet files the number of bytes at their end that are
//! read at once, for all files whether a partition's files are read in order. JSON files that are arrays of objects
//! cannot be recognized here: [`EncodedFormat`](crate::codec::tables::EncodedFormat) refuses such tables.

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{
    CsvSource, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use serde::{Deserialize, Serialize};

/// Options that a scan's message leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScanOptions {
    compression: String,
    preserve_order: bool,
    terminator: Option<u8>,
    metadata_size_hint: Option<usize>,
}

impl ScanOptions {
    /// Returns the options, if they differ from those that a scan is decoded with.
    pub(super) fn of(plan: &dyn ExecutionPlan) -> Option<Self> {
        let scan = config(plan)?;
        let source = scan.file_source();
        let terminator = source.downcast_ref::<CsvSource>();
        let parquet = source.downcast_ref::<ParquetSource>();
        let hint = |source: &ParquetSource| {
            let options = source.table_parquet_options();
            options.global.metadata_size_hint
        };
        let options = Self {
            compression: scan.file_compression_type.get_variant().to_string(),
            preserve_order: scan.preserve_order,
            terminator: terminator.and_then(CsvSource::terminator),
            metadata_size_hint: parquet.and_then(hint),
        };
        let decoded = Self {
            compression: CompressionTypeVariant::UNCOMPRESSED.to_string(),
            preserve_order: !scan.output_ordering.is_empty(),
            terminator: None,
            metadata_size_hint: None,
        };
        (options != decoded).then_some(options)
    }

    pub(super) fn restore(self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(exec), Some(scan)) =
            (plan.downcast_ref::<DataSourceExec>(), config(plan.as_ref()))
        else {
            return internal_err!("{} is no scan of files", plan.name());
        };
        let compression: CompressionTypeVariant = self.compression.parse()?;
        let mut builder = FileScanConfigBuilder::from(scan.clone())
            .with_file_compression_type(FileCompressionType::from(compression));
        if let Some(csv) = scan.file_source().downcast_ref::<CsvSource>() {
            builder = builder.with_source(Arc::new(csv.with_terminator(self.terminator)));
        }
        let parquet = scan.file_source().downcast_ref::<ParquetSource>();
        if let (Some(parquet), Some(hint)) = (parquet, self.metadata_size_hint) {
            let parquet = parquet.clone().with_metadata_size_hint(hint);
            builder = builder.with_source(Arc::new(parquet));
        }
        // The builder would make the scan read ordered files in order, though no operator needs it.
        let mut scan = builder.build();
        scan.preserve_order = self.preserve_order;
        Ok(Arc::new(exec.clone().with_data_source(Arc::new(scan))))
    }
}

fn config(plan: &dyn ExecutionPlan) -> Option<&FileScanConfig> {
    let exec = plan.downcast_ref::<DataSourceExec>()?;
    exec.data_source().downcast_ref::<FileScanConfig>()
}
