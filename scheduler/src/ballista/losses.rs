//! The effect of an executor's loss on an attempt, read from its graph before Ballista repairs it.
//!
//! ```text
//!   nothing of the job was there ─────────────────────────────► untouched
//!   only ranks of its barrier stage ran there ────────────────► they meet again: new generation
//!   a stage that is not done reads data from there, or had
//!   tasks of its own there ───────────────────────────────────► the attempt ends, the job is rerun
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{
    ExecutionStage, RunningStage, StageOutput, TaskInfo,
};
use datafusion::physical_plan::ExecutionPlan;
use volley_engine::{TrainExec, adds_files};
use volley_proto::TrainId;
use volley_proto::failure::DataLost;

use super::graphs::plan_of;
use crate::control::{DataLoss, LossEffect};
use volley_engine::stages::{find, in_stages};

/// Returns the effect of an executor's loss on a graph's attempt; `None` if nothing of the attempt was there.
pub(super) fn effect(graph: &ExecutionGraphBox, executor: &str) -> Option<LossEffect> {
    let rank_of = ranks_on(graph, executor);
    let is_tainted = is_tainted(graph, executor);
    (rank_of.is_some() || is_tainted).then(|| LossEffect {
        attempt: graph.job_id().to_string(),
        rank_of,
        data: is_tainted.then(|| data_loss(graph, executor, "it is gone")),
    })
}

/// Checks whether a draining executor has to stay for an attempt: it holds data of the attempt's query, or a rank that is
/// done, which cannot be replaced. What ranks have streamed is not waited for: training takes long.
pub(super) fn needs(graph: &ExecutionGraphBox, executor: &str) -> bool {
    let mut stages = graph.stages().values();
    stages.any(|stage| match find::<TrainExec>(plan_of(stage).as_ref()) {
        Some(_) => ran(stage, executor),
        None => taints(stage, executor),
    })
}

/// Describes the loss of an attempt's data that an executor held.
pub(super) fn data_loss(graph: &ExecutionGraphBox, executor: &str, reason: &str) -> DataLoss {
    DataLoss {
        loss: DataLost {
            executor: executor.to_owned(),
            reason: reason.to_owned(),
        },
        written: written(graph),
        planned: false,
    }
}

/// Checks whether the job needs data that was on the executor, or had tasks other than ranks there.
fn is_tainted(graph: &ExecutionGraphBox, executor: &str) -> bool {
    let mut stages = graph.stages().values();
    stages.any(|stage| taints(stage, executor))
}

/// Checks whether a stage needs data that was on the executor, or had tasks other than ranks there.
fn taints(stage: &ExecutionStage, executor: &str) -> bool {
    match stage {
        ExecutionStage::UnResolved(stage) => reads_from(&stage.inputs, executor),
        ExecutionStage::Resolved(stage) => reads_from(&stage.inputs, executor),
        ExecutionStage::Running(running) => {
            reads_from(&running.inputs, executor) || ran(stage, executor)
        }
        ExecutionStage::Successful(_) | ExecutionStage::Failed(_) => false,
    }
}

/// Checks whether a stage that runs had tasks on the executor, other than ranks that have not ended: only these can be
/// replaced.
fn ran(stage: &ExecutionStage, executor: &str) -> bool {
    let ExecutionStage::Running(stage) = stage else {
        return false;
    };
    let ranks = find::<TrainExec>(stage.plan.as_ref()).is_some();
    let counts = |task: &TaskInfo| match where_of(task) {
        Some((on, running)) => on == executor && !(ranks && running),
        None => false,
    };
    stage.task_infos.iter().any(counts)
}

/// Returns the training run that has a running rank on the executor.
fn ranks_on(graph: &ExecutionGraphBox, executor: &str) -> Option<TrainId> {
    graph.stages().values().find_map(|stage| match stage {
        ExecutionStage::Running(stage) => {
            let train = find::<TrainExec>(stage.plan.as_ref())?.spec().train_id;
            let on = |task: &TaskInfo| where_of(task) == Some((executor, true));
            stage.task_infos.iter().any(on).then_some(train)
        }
        _ => None,
    })
}

/// Returns the executor that a task runs or ran on, and whether it still runs.
fn where_of(task: &TaskInfo) -> Option<(&str, bool)> {
    match &task.task_status {
        Status::Running(running) => Some((&running.executor_id, true)),
        Status::Successful(successful) => Some((&successful.executor_id, false)),
        Status::Failed(_) => None,
    }
}

fn reads_from(inputs: &HashMap<usize, StageOutput>, executor: &str) -> bool {
    let mut locations = inputs
        .values()
        .flat_map(|output| output.partition_locations.values().flatten());
    locations.any(|location| location.executor_meta.id == executor)
}

/// Returns the target that a rerun of the job would write twice, if there is one: its writer adds files in place.
pub(super) fn written(graph: &ExecutionGraphBox) -> Option<String> {
    let begun = |stage: &RunningStage| !stage.task_infos.is_empty();
    graph.stages().values().find_map(|stage| {
        let plan = match stage {
            ExecutionStage::Running(stage) if begun(stage) => &stage.plan,
            ExecutionStage::Successful(stage) => &stage.plan,
            ExecutionStage::Failed(stage) => &stage.plan,
            _ => return None,
        };
        find_in(&in_stages(plan).ok()?, &adds_files)
    })
}

/// Returns the first result of `look` among the operators of a plan.
fn find_in<T>(
    plan: &Arc<dyn ExecutionPlan>,
    look: &impl Fn(&dyn ExecutionPlan) -> Option<T>,
) -> Option<T> {
    look(plan.as_ref()).or_else(|| {
        let mut inputs = plan.children().into_iter();
        inputs.find_map(|input| find_in(input, look))
    })
}
