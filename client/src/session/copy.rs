//! Options of `COPY … TO`, moved into the format.
//!
//! DataFusion's wire form of a plan carries the format of a copy and drops the options beside it, so they would not
//! reach the scheduler. The format carries its own options over the wire. Options of a store are not part of a plan:
//! its URL has a name for them. A session setting among the options is set for the job.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::Session;
use datafusion::common::config::{ConfigFileType, TableOptions};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{
    FileFormatFactory, file_type_to_format, format_as_file_type,
};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::FileOutputMode;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::dml::CopyTo;
use futures::TryStreamExt;
use object_store::path::Path;
use tokio::time::timeout;
use volley_engine::error::External;
use volley_engine::object_stores::shown;
use volley_proto::object_stores::StoreOptions;

use super::files::located;
use crate::Error;

/// Time limit for looking into a copy's target: executors may reach it although this process does not.
const LOOKING: Duration = Duration::from_secs(10);
/// Prefix of session settings among a copy's options.
const SETTINGS: &str = "execution.";
/// Only session setting that a copy may override.
const KEEP_PARTITION_COLUMNS: &str = "execution.keep_partition_by_columns";

/// Removes the options of a store from those of a statement.
///
/// # Errors
/// When a store has no such option.
pub(super) fn take_store_options(options: &mut HashMap<String, String>) -> Result<StoreOptions> {
    let mut of_store = StoreOptions::default();
    for (key, value) in options.extract_if(|key, _| StoreOptions::is_one(key)) {
        of_store.set(&key, value).external()?;
    }
    Ok(of_store)
}

/// Moves the options of a plan's copies into their formats.
pub(super) fn carry_options(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let carried = plan.transform_down(|node| {
        let LogicalPlan::Copy(copy) = node else {
            return Ok(Transformed::no(node));
        };
        let mut copy = copy;
        let of_store = take_store_options(&mut copy.options)?;
        refuse_settings(&copy.options)?;
        let url = located(&copy.output_url, of_store, state)?;
        let format = with_options(&copy, state.default_table_options())?;
        let (file_type, mut options) = match format {
            Some(format) => (format_as_file_type(format), Default::default()),
            None => (copy.file_type, copy.options.clone()),
        };
        // For the job's settings.
        let of_job = copy.options.get_key_value(KEEP_PARTITION_COLUMNS);
        options.extend(of_job.map(|(key, value)| (key.clone(), value.clone())));
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

/// Sets a copy's setting for its job.
///
/// # Errors
/// When the value is not a Boolean.
pub(super) fn settle(plan: &LogicalPlan, config: &mut ConfigOptions) -> Result<()> {
    plan.apply(|node| {
        let LogicalPlan::Copy(copy) = node else {
            return Ok(TreeNodeRecursion::Continue);
        };
        if let Some(value) = copy.options.get(KEEP_PARTITION_COLUMNS) {
            let keeps = value.trim().parse().map_err(|_| {
                DataFusionError::Configuration(format!(
                    "OPTIONS ({KEEP_PARTITION_COLUMNS} '{value}'): expected true or false"
                ))
            });
            config.execution.keep_partition_by_columns = keeps?;
        }
        Ok(TreeNodeRecursion::Stop)
    })?;
    Ok(())
}

/// Refuses a copy to a folder that has files already: its own would be added to them, and a copy that is repeated would
/// double the rows. A single file is replaced.
///
/// The job's tasks do not check it again: they may find files that an earlier attempt of theirs has committed.
///
/// # Errors
/// [`Error::FolderNotEmpty`].
pub(super) async fn refuse_to_add(plan: &LogicalPlan, session: &dyn Session) -> Result<()> {
    let LogicalPlan::Copy(copy) = plan else {
        return Ok(());
    };
    let target = ListingTableUrl::parse(&copy.output_url)?;
    // The scheduler decides by the name alone.
    let is_file = FileOutputMode::Automatic.single_file_output(&target);
    if copy.partition_by.is_empty() && is_file {
        return Ok(());
    }
    let store = session.runtime_env().object_store(&target)?;
    let mut files = store.list(Some(target.prefix()));
    loop {
        let next = timeout(LOOKING, files.try_next());
        let next = next.await.unwrap_or_else(|_| {
            let source = "it does not answer".into();
            Err(object_store::Error::Generic {
                store: "copy",
                source,
            })
        });
        match next {
            Ok(Some(file)) if is_data(&file.location, target.prefix()) => {
                let folder = shown(&copy.output_url);
                return Err(Error::FolderNotEmpty { folder }.into());
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) => {
                // Executors may reach it, and say so if they do not.
                tracing::debug!(%error, "the target of a copy cannot be listed");
                return Ok(());
            }
        }
    }
}

/// Checks whether a file in a folder is one that readers of the folder read: not one that is hidden, or in a hidden
/// folder, as the files of a failed job are.
fn is_data(file: &Path, folder: &Path) -> bool {
    let is_hidden = |name: &str| {
        // The folder of a partition column may begin with an underscore.
        name.starts_with('.') || name.starts_with('_') && !name.contains('=')
    };
    match file.prefix_match(folder) {
        Some(mut parts) => !parts.any(|part| is_hidden(part.as_ref())),
        None => false,
    }
}

/// Refuses session settings as options of a copy, which would ignore them.
fn refuse_settings(options: &HashMap<String, String>) -> Result<()> {
    let of_session = options.keys().find(|key| {
        let is_setting = key.starts_with(SETTINGS) || key.starts_with("datafusion.");
        is_setting && *key != KEEP_PARTITION_COLUMNS
    });
    match of_session {
        Some(key) => {
            let setting = key.strip_prefix("datafusion.").unwrap_or(key);
            let said = format!(
                "OPTIONS ({key} …) is a setting of the session: SET datafusion.{setting} = … before COPY"
            );
            Err(DataFusionError::Configuration(said))
        }
        None => Ok(()),
    }
}

/// Returns the copy's format with its options, or `None` if the format takes none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_files_are_no_data() {
        let folder = Path::from("a/out");
        for (file, data) in [
            ("a/out/x.csv", true),
            ("a/out/k=1/x.csv", true),
            ("a/out/_k=1/x.csv", true),
            ("a/out/_SUCCESS", false),
            ("a/out/.volley-7/t/x.csv.uncommitted", false),
            ("a/out/k=1/.x.csv.crc", false),
            ("a/outside/x.csv", false),
        ] {
            assert_eq!(is_data(&Path::from(file), &folder), data, "{file}");
        }
    }
}
