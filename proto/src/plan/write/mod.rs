//! Folders of files: written by every task of a stage, and seen whole or not at all.
//!
//! DataFusion writes a folder in one task, file by file, and whoever looks meanwhile sees a part of
//! it; a job that was run again would leave some rows there twice. Here the tasks that compute the
//! rows write them too, under names that no reader of the format looks at, and one task renames
//! the files once all are there. Formats, options and partition columns are DataFusion's, and so is a
//! single file, which needs none of this.
//!
//! ```text
//! CommitExec                  one task: NAME.csv.volley-STATEMENT-TASK becomes NAME.csv
//!   └ CoalescePartitionsExec  ──exchange── of a row a task: how many rows and files it wrote
//!       └ WriteExec           part of the stage that computes the rows
//!           └ input
//! ```
//!
//! STATEMENT is the job's, also when it is run again: what was written by tasks that count for nothing
//! is removed. What a job that failed or was cancelled had written stays under its uncommitted name.

mod commit;
mod exec;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;

use uuid::Uuid;

use crate::settings::JobSettings;
pub use commit::CommitExec;
pub use exec::WriteExec;
pub(super) use target::{EncodedTarget, Target};

/// The rule that has folders written this way; to be run after all others.
#[derive(Debug)]
pub(super) struct WriteFolders;

impl PhysicalOptimizerRule for WriteFolders {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let job = config.extensions.get::<JobSettings>();
        let statement = job.and_then(|job| job.statement.clone());
        let statement = statement.unwrap_or_else(|| Uuid::now_v7().simple().to_string());
        plan.transform_up(|node| {
            let folder = |writer| folder(writer, &statement);
            let Some((target, input)) = node.downcast_ref().and_then(folder) else {
                return Ok(Transformed::no(node));
            };
            let written = Arc::new(WriteExec::new(target.clone(), input));
            // A stage ends here, also where there is one partition: the rows may be computed anew
            // until files have their names.
            let gathered = Arc::new(CoalescePartitionsExec::new(written));
            let committed = Arc::new(CommitExec::new(target, gathered));
            Ok(Transformed::yes(committed as Arc<dyn ExecutionPlan>))
        })
        .data()
    }

    fn name(&self) -> &str {
        "write_folders"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Where a writer of a folder writes, and its rows, in as many partitions as they come in.
fn folder(writer: &DataSinkExec, statement: &str) -> Option<(Target, Arc<dyn ExecutionPlan>)> {
    let target = Target::of(writer, statement)?;
    let gathered = writer.input().downcast_ref::<CoalescePartitionsExec>();
    let input = match gathered {
        Some(gathered) if gathered.fetch().is_none() => gathered.input(),
        _ => writer.input(),
    };
    Some((target, Arc::clone(input)))
}
