//! The options of `COPY … TO`, made part of the format.
//!
//! DataFusion's wire form of a plan carries the format of a copy and drops the options beside it, so
//! they would be lost on the way to the scheduler. The format carries its own options over the wire. Those of a store
//! are not part of a plan: its URL has a name for them.

use std::sync::Arc;

use datafusion::common::config::{ConfigFileType, TableOptions};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{
    FileFormatFactory, file_type_to_format, format_as_file_type,
};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::dml::CopyTo;
use volley_proto::object_stores::StoreOptions;

use super::files::located;

/// The plan with the options of its copies inside their formats.
pub(super) fn carry_options(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let carried = plan.transform_down(|node| {
        let LogicalPlan::Copy(copy) = node else {
            return Ok(Transformed::no(node));
        };
        let mut copy = copy;
        let mut of_store = StoreOptions::default();
        for (key, value) in &copy.options {
            if StoreOptions::is_one(key) {
                of_store.set(key, value)?;
            }
        }
        copy.options.retain(|key, _| !StoreOptions::is_one(key));
        let url = located(&copy.output_url, of_store, state)?;
        let format = with_options(&copy, state.default_table_options())?;
        let (file_type, options) = match format {
            Some(format) => (format_as_file_type(format), Default::default()),
            None => (copy.file_type, copy.options),
        };
        Ok(Transformed::yes(LogicalPlan::Copy(CopyTo::new(
            copy.input,
            url.unwrap_or(copy.output_url),
            copy.partition_by,
            file_type,
            options,
        ))))
    })?;
    Ok(carried.data)
}

/// The copy's format with its options, or `None` where the format takes none.
fn with_options(
    copy: &CopyTo,
    mut options: TableOptions,
) -> Result<Option<Arc<dyn FileFormatFactory>>> {
    let format = file_type_to_format(&copy.file_type)?;
    let mut settle = |kind| {
        options.set_config_format(kind);
        options.alter_with_string_hash_map(&copy.options)
    };
    Ok(if format.is::<CsvFormatFactory>() {
        settle(ConfigFileType::CSV)?;
        Some(Arc::new(CsvFormatFactory::new_with_options(options.csv)))
    } else if format.is::<JsonFormatFactory>() {
        settle(ConfigFileType::JSON)?;
        Some(Arc::new(JsonFormatFactory::new_with_options(options.json)))
    } else if format.is::<ParquetFormatFactory>() {
        settle(ConfigFileType::PARQUET)?;
        Some(Arc::new(ParquetFormatFactory::new_with_options(
            options.parquet,
        )))
    } else {
        None
    })
}
