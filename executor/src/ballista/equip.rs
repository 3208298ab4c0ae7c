//! The first step of a task's plan: operators receive the parts that they need of the executor and of the task.
//!
//! Not here: the steps that follow, which are [the engine's](volley_engine::task) and [`stop`](super::stop).

use std::path::Path;
use std::sync::Arc;

use ballista_core::client_pool::BallistaClientPool;
use ballista_core::execution_plans::{RangeShuffleReaderExec, ShuffleReaderExec};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use volley_engine::runtime::TaskIdentity;
use volley_engine::{TrainExec, exact_writer};

use super::complete::complete;
use super::fetch::Fetches;
use super::join_filter::stop_in_filter;
use super::tasks::Running;
use crate::files::equipped_scan;

/// Folder of prepared rows, within the work folder.
const PREPARED: &str = "prepared";

/// Parts for the operators of a task.
pub(super) struct Equipment<'a> {
    /// Connections to executors that hold the task's input.
    pub(super) connections: &'a Arc<dyn BallistaClientPool>,
    pub(super) work_dir: &'a str,
    pub(super) identity: &'a TaskIdentity,
    pub(super) running: &'a Running,
}

/// Equips the operators of the plan below a stage's writer.
///
/// # Errors
/// When an operator cannot be rebuilt from its own parts.
pub(super) fn equip(
    plan: Arc<dyn ExecutionPlan>,
    equipment: &Equipment<'_>,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        Ok(match equipment.equipped(&node)? {
            Some(equipped) => Transformed::yes(equipped),
            None => Transformed::no(node),
        })
    })
    .data()
}

impl Equipment<'_> {
    fn equipped(&self, node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(train) = node.downcast_ref::<TrainExec>() {
            let TaskIdentity {
                job_id, stage_id, ..
            } = self.identity;
            let work_dir = Path::new(self.work_dir);
            let folder = match train.prepared() {
                Some(id) => work_dir.join(PREPARED).join(id.to_string()),
                None => work_dir.join(job_id).join(stage_id.to_string()),
            };
            let cancel = self.running.cancel().clone();
            let train = train.in_task(self.identity.clone(), folder, cancel);
            return Ok(Some(Arc::new(train)));
        }
        let work_dir = || self.work_dir.to_owned();
        let pool = || Arc::clone(self.connections);
        if let Some(reader) = node.downcast_ref::<ShuffleReaderExec>() {
            let reader = reader.with_work_dir(work_dir());
            let fetches = Fetches::new(pool(), self.work_dir);
            return Ok(Some(complete(reader.with_client_pool(pool()), fetches)));
        }
        if let Some(reader) = node.downcast_ref::<RangeShuffleReaderExec>() {
            let reader = reader.with_work_dir(work_dir());
            return Ok(Some(Arc::new(reader.with_client_pool(pool()))));
        }
        match equipped_scan(node).or_else(|| exact_writer(node)) {
            Some(equipped) => Ok(Some(equipped)),
            None => stop_in_filter(node, self.running),
        }
    }
}
