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
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage, TaskInfo};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use volley_proto::plan::TrainExec;
use volley_proto::spec::TrainSpec;

use crate::placement::{Demand, Kind, Task, Wish};

/// What the graph's running stages ask for, in the order of their ids.
pub(super) fn demands(graph: &ExecutionGraphBox, wish: impl Fn(&TrainSpec) -> Wish) -> Vec<Demand> {
    let mut demands: Vec<_> = graph
        .stages()
        .values()
        .filter_map(|stage| match stage {
            ExecutionStage::Running(stage) if !stage.pending.is_empty() => Some(Demand {
                job: graph.job_id().to_string(),
                stage: stage.stage_id,
                kind: kind(stage, &wish),
            }),
            _ => None,
        })
        .collect();
    demands.sort_by_key(|demand| demand.stage);
    demands
}

fn kind(stage: &RunningStage, wish: impl Fn(&TrainSpec) -> Wish) -> Kind {
    if let Some(train) = find_train(stage.plan.as_ref()) {
        let count = |of: fn(&Status) -> bool| {
            let tasks = stage.task_infos.iter();
            tasks.filter(|task| of(&task.task_status)).count()
        };
        return Kind::Gang {
            wish: wish(train.spec()),
            shards: stage.partitions,
            running: count(|status| matches!(status, Status::Running(_))),
            done: count(|status| matches!(status, Status::Successful(_))),
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

/// A gang that runs whole: what it trains, and the executors of its ranks.
pub(super) fn running_gang(graph: &ExecutionGraphBox) -> Option<(&TrainSpec, Vec<String>)> {
    graph.stages().values().find_map(|stage| match stage {
        ExecutionStage::Running(stage) if stage.pending.is_empty() => {
            let train = find_train(stage.plan.as_ref())?;
            let executor = |task: &TaskInfo| match &task.task_status {
                Status::Running(running) => Some(running.executor_id.clone()),
                _ => None,
            };
            let executors = stage.task_infos.iter().filter_map(executor).collect();
            Some((train.spec().as_ref(), executors))
        }
        _ => None,
    })
}

/// The stage's training node, if it is a barrier stage.
pub(super) fn find_train(plan: &dyn ExecutionPlan) -> Option<&TrainExec> {
    plan.downcast_ref::<TrainExec>().or_else(|| {
        let mut inputs = plan.children().into_iter();
        inputs.find_map(|input| find_train(input.as_ref()))
    })
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
