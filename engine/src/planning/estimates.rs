//! Row count estimates of text files, whose rows nobody counts before they are read.
//!
//! The optimizer broadcasts the small side of a join, and hashes the smaller of two, where it knows their sizes.
//! Parquet files record their number of rows; of CSV and JSON files only the bytes are known. A wrong estimate makes a
//! plan slower or faster, but never changes its rows.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::mends::float_ranges::FORGET_FLOAT_RANGES;

/// Rules that only estimate numbers of rows; the first rules of a session.
const ESTIMATES: [&str; 3] = [FORGET_FLOAT_RANGES, ESTIMATE_SCANS, ESTIMATE_FILTERS];
pub(crate) const ESTIMATE_SCANS: &str = "estimate_scans";
pub(crate) const ESTIMATE_FILTERS: &str = "estimate_filters";

/// Checks whether a rule of this name only estimates numbers of rows.
pub(crate) fn estimates(rule: &str) -> bool {
    ESTIMATES.contains(&rule)
}

/// Assumed compression ratio.
const COMPRESSED: u64 = 5;

/// Adds a row count estimate to a scan, before joins are chosen.
pub(crate) fn estimate_scan(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(exec) = node.downcast_ref::<DataSourceExec>() else {
        return Ok(None);
    };
    let scan = exec.data_source().downcast_ref::<FileScanConfig>();
    let estimated = scan.and_then(estimated);
    Ok(estimated.map(|scan| Arc::new(exec.clone().with_data_source(Arc::new(scan))) as _))
}

/// Estimates the rows of a scan that has no row count.
fn estimated(scan: &FileScanConfig) -> Option<FileScanConfig> {
    let known = scan.statistics();
    if known.num_rows != Precision::Absent {
        return None;
    }
    let rows = text_bytes(scan).div_ceil(row_bytes(scan.file_schema()));
    let num_rows = Precision::Inexact(usize::try_from(rows).unwrap_or(usize::MAX));
    let statistics = Statistics { num_rows, ..known };
    let builder = FileScanConfigBuilder::from(scan.clone());
    Some(builder.with_statistics(statistics).build())
}

/// Estimates the bytes of a scan's text once it is decompressed.
pub(crate) fn text_bytes(scan: &FileScanConfig) -> u64 {
    let files = scan.file_groups.iter().flat_map(|group| group.iter());
    let bytes: u64 = files.map(|file| file.effective_size()).sum();
    bytes.saturating_mul(compression_ratio(scan))
}

/// Returns the assumed compression ratio of a scan's files.
pub(crate) fn compression_ratio(scan: &FileScanConfig) -> u64 {
    match scan.file_compression_type {
        FileCompressionType::UNCOMPRESSED => 1,
        _ => COMPRESSED,
    }
}

/// Estimates the bytes of a row of text, with a separator after each field.
fn row_bytes(schema: &Schema) -> u64 {
    let field = |data_type: &DataType| match data_type {
        DataType::Boolean | DataType::Int8 | DataType::UInt8 => 3,
        DataType::Date32 | DataType::Date64 => 11,
        DataType::Timestamp(..) => 20,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 8,
        numeric if numeric.is_numeric() => 5,
        _ => 16,
    };
    let fields = schema.fields().iter();
    fields.map(|f| field(f.data_type())).sum::<u64>().max(1)
}
