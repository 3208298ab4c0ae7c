//! Folders of files, written by every task of a stage, and committed by one.
//!
//! DataFusion writes a folder in one task, file by file, and readers meanwhile see a part of it; a job that is run
//! again would leave some rows there twice. Here the tasks that compute the rows also write them, into a folder inside
//! that no listing reads, and one task moves the files once all are there. Formats, options and names of folders are
//! DataFusion's. So is the writing of single files, which need none of this, and of ordered files, which one task must
//! write.
//!
//! ```text
//! CommitExec                  one task: moves files from FOLDER/.volley-JOB/TASK/… to FOLDER/…, as JOB-…
//!   └ CoalescePartitionsExec  ──exchange── of one row per task: its numbers of rows and files
//!       └ WriteExec           part of the stage that computes the rows
//!           └ input
//! ```
//!
//! In a store where files cannot be moved, tasks start uploads to the final paths, and the commit completes them: see
//! [uploads].
//!
//! JOB stays the same when the job is run again, so the commit also removes the files of superseded task attempts, and
//! can be run again itself: the [moves](moves) are recorded in advance, and another committer finishes them. The files
//! of a failed or cancelled job stay in `.volley-JOB`.

mod arrow;
mod commit;
mod create;
mod csv;
mod dictionaries;
mod exact;
mod exec;
mod moves;
mod split;
mod staged;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upload_tests;
mod uploads;

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use url::Url;
use uuid::Uuid;

use crate::settings::JobSettings;
pub(super) use arrow::{ArrowFiles, ArrowFilesFactory, ArrowSink};
pub(super) use commit::CommitExec;
pub(super) use dictionaries::choose_dictionaries;
pub use exact::exact_writer;
pub(super) use exec::WriteExec;
pub use split::NULL_PARTITION;
pub(super) use target::{EncodedTarget, Target, folder_of_sink};
use volley_proto::object_stores::is_remote;

/// Replaces a writer of a folder by these operators, last, when the rest of the plan is known.
pub(super) fn write_folder(
    node: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(writer) = node.downcast_ref() else {
        return Ok(None);
    };
    let job = config.extensions.get::<JobSettings>();
    let job = job.and_then(|job| job.id.clone());
    // Without one, such as in a plan that is only explained, nothing is run again.
    let job = job.unwrap_or_else(|| Uuid::now_v7().simple().to_string());
    let Some((target, input)) = folder(writer, &job) else {
        return Ok(None);
    };
    let written = Arc::new(WriteExec::new(target.clone(), input));
    // A stage ends here, even with a single partition: the rows may be computed anew until files are moved.
    let gathered = Arc::new(CoalescePartitionsExec::new(written));
    Ok(Some(Arc::new(CommitExec::new(target, gathered))))
}

/// Returns the target of a writer of a folder, and its rows, in as many partitions as they come in. `None` if the order
/// of rows counts, which the stages of a plan keep for DataFusion's writer only.
fn folder(writer: &DataSinkExec, job: &str) -> Option<(Target, Arc<dyn ExecutionPlan>)> {
    let target = Target::of(writer, job)?;
    let input = match writer.input().downcast_ref::<CoalescePartitionsExec>() {
        Some(gathered) if gathered.fetch().is_none() => gathered.input(),
        _ if writer.sort_order().is_some() || is_ordered(writer.input()) => return None,
        _ => writer.input(),
    };
    Some((target, Arc::clone(input)))
}

/// Checks whether rows were sorted for output, an order that need not show in their columns.
fn is_ordered(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>() {
        return true;
    }
    match plan.children()[..] {
        [input] => {
            plan.maintains_input_order() == [true]
                && plan.required_input_ordering() == [None]
                && is_ordered(input)
        }
        _ => false,
    }
}

/// Returns the file on this host that an operator replaces, if it writes a single one.
pub fn replaces_file(operator: &dyn ExecutionPlan) -> Option<PathBuf> {
    let writer = operator.downcast_ref::<DataSinkExec>()?;
    let config = target::config(writer.sink()).filter(|config| target::is_single(config))?;
    let url = config.table_paths[0].get_url();
    // A bucket may be named `localhost`.
    let is_local = !is_remote(url);
    is_local.then(|| url.to_file_path().ok()).flatten()
}

/// Returns the locations that a writer writes, if it writes files.
pub(super) fn sink_places(writer: &DataSinkExec) -> Option<Vec<Url>> {
    let config = target::config(writer.sink())?;
    let places = config.table_paths.iter();
    Some(places.map(|place| place.get_url().clone()).collect())
}

/// Returns the files and folders on this host that an operator writes.
pub fn written_files(operator: &dyn ExecutionPlan) -> Vec<PathBuf> {
    let places = if let Some(writer) = operator.downcast_ref::<DataSinkExec>() {
        sink_places(writer).unwrap_or_default()
    } else if let Some(writer) = operator.downcast_ref::<WriteExec>() {
        vec![writer.target().place()]
    } else if let Some(commit) = operator.downcast_ref::<CommitExec>() {
        vec![commit.target().place()]
    } else {
        vec![]
    };
    let local = places.into_iter().filter(|place| !is_remote(place));
    local
        .filter_map(|place| place.to_file_path().ok())
        .collect()
}

/// Returns the target of an operator that adds files in place, as the user named it: such a write cannot be started
/// again. Not so a single file, which is replaced as a whole, nor a committed folder, whose uncommitted files do not
/// count, and whose commit can be finished.
pub fn adds_files(operator: &dyn ExecutionPlan) -> Option<String> {
    let writer = operator.downcast_ref::<DataSinkExec>()?;
    match target::config(writer.sink()) {
        Some(config) if target::is_single(config) => None,
        Some(config) => Some(target::named(config)),
        None => Some("its output".to_owned()),
    }
}
