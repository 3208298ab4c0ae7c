//! From running stages to demands, and from tasks placed to tasks bound.

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use ballista_core::execution_plans::{RangeShuffleReaderExec, ShuffleReaderExec};
use ballista_core::serde::protobuf::task_status::Status;
use ballista_core::serde::scheduler::TaskKey;
use ballista_scheduler::cluster::BoundTask;
use ballista_scheduler::state::execution_graph::{
    ExecutionGraphBox, TaskDescription, create_task_info,
};
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use volley_proto::plan::TrainExec;

use crate::placement::{Demand, Kind, Task};

/// Slots that the graph's running tasks hold, by executor.
pub(super) fn held_slots(graph: &ExecutionGraphBox) -> impl Iterator<Item = (&str, usize)> {
    let running = graph.stages().values().filter_map(|stage| match stage {
        ExecutionStage::Running(running) => Some(running),
        _ => None,
    });
    running
        .flat_map(|stage| &stage.task_infos)
        .filter_map(|task| match &task.task_status {
            Status::Running(running) => {
                Some((running.executor_id.as_str(), task.vcores_consumed as usize))
            }
            _ => None,
        })
}

/// Whether a task of the stage ran or runs on the executor.
pub(super) fn ran_on(stage: &ExecutionStage, executor: &str) -> bool {
    let tasks = match stage {
        ExecutionStage::Running(stage) => &stage.task_infos,
        ExecutionStage::Successful(stage) => &stage.task_infos,
        ExecutionStage::Failed(stage) => &stage.task_infos,
        ExecutionStage::UnResolved(_) | ExecutionStage::Resolved(_) => return false,
    };
    tasks.iter().any(|task| match &task.task_status {
        Status::Running(running) => running.executor_id == executor,
        Status::Successful(successful) => successful.executor_id == executor,
        Status::Failed(_) => false,
    })
}

/// What the graph's running stages ask for, in the order of their ids.
pub(super) fn demands(graph: &ExecutionGraphBox) -> Vec<Demand> {
    let mut demands: Vec<_> = graph
        .stages()
        .values()
        .filter_map(|stage| match stage {
            ExecutionStage::Running(stage) if !stage.pending.is_empty() => Some(Demand {
                job: graph.job_id().to_string(),
                stage: stage.stage_id,
                kind: kind(stage),
            }),
            _ => None,
        })
        .collect();
    demands.sort_by_key(|demand| demand.stage);
    demands
}

fn kind(stage: &RunningStage) -> Kind {
    if let Some(train) = find_train(&stage.plan) {
        let (ranks, shards) = (train.spec().ranks, stage.partitions);
        return Kind::Gang {
            ranks,
            shards,
            started: stage.task_infos.len(),
        };
    }
    if collapses_input(&stage.plan) {
        return Kind::Whole;
    }
    let options = stage.session_config.options();
    let most = options
        .extensions
        .get::<BallistaConfig>()
        .map(BallistaConfig::max_partitions_per_task)
        .filter(|most| *most > 0);
    Kind::Slices {
        pending: stage.pending.remaining(),
        most,
    }
}

/// The stage's training node, if it is a barrier stage.
pub(super) fn find_train(plan: &Arc<dyn ExecutionPlan>) -> Option<&TrainExec> {
    plan.downcast_ref::<TrainExec>()
        .or_else(|| plan.children().into_iter().find_map(find_train))
}

/// Whether an operator between the stage's root and its input has a single partition, so that the
/// stage's input must come together in one task.
fn collapses_input(root: &Arc<dyn ExecutionPlan>) -> bool {
    let mut node = root;
    while let [child] = node.children()[..] {
        if child.is::<ShuffleReaderExec>() || child.is::<RangeShuffleReaderExec>() {
            return false;
        }
        if child.output_partitioning().partition_count() == 1 {
            return true;
        }
        node = child;
    }
    false
}

/// Takes the task's partitions off the stage and describes it for launch.
pub(super) fn bind(
    stage: &mut RunningStage,
    session_id: &str,
    job_id: &ballista_core::JobId,
    task: &Task,
) -> Option<BoundTask> {
    let partitions = stage.pending.next_slice(task.partitions);
    if partitions.is_empty() {
        return None;
    }
    let task_id = stage.task_infos.len();
    let attempts = partitions
        .iter()
        .map(|partition| stage.task_failure_numbers[*partition]);
    let task_attempt = attempts.max().unwrap_or(0);
    let vcores_consumed = u32::try_from(task.slots).unwrap_or(u32::MAX);
    let mut info = create_task_info(task.executor.clone(), task_id);
    info.global_input_partition_ids.clone_from(&partitions);
    info.vcores_consumed = vcores_consumed;
    stage.task_infos.push(info);
    let description = TaskDescription {
        session_id: session_id.to_owned(),
        key: TaskKey {
            job_id: job_id.clone(),
            stage_id: stage.stage_id,
            task_id,
        },
        stage_attempt_num: stage.stage_attempt_num,
        task_attempt,
        global_input_partition_ids: partitions,
        vcores_consumed,
        plan: Arc::clone(&stage.plan),
        session_config: Arc::clone(&stage.session_config),
    };
    Some((task.executor.clone(), description))
}
