//! From running stages to demands, and from tasks placed to tasks bound.

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use ballista_core::execution_plans::stats_for_partitions;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_core::serde::scheduler::TaskKey;
use ballista_scheduler::cluster::BoundTask;
use ballista_scheduler::state::execution_graph::{
    ExecutionGraphBox, TaskDescription, create_task_info,
};
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage, TaskInfo};
use datafusion::common::stats::Precision;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use volley_proto::object_stores::Stores;
use volley_proto::plan::TrainExec;
use volley_proto::spec::TrainSpec;

use super::launch::task_fits;
use crate::placement::{Demand, Kind, Memory, Task, Wish};
use crate::planning::{find, task_plan};

/// What the graph's running stages ask for, in the order of their ids.
pub(super) fn demands(
    graph: &ExecutionGraphBox,
    wish: impl Fn(&TrainSpec) -> Wish,
    meets_again: impl Fn(&TrainSpec) -> bool,
) -> Vec<Demand> {
    // A rank that ends frees its slot before its partitions are pending.
    let ends = |stage: &RunningStage| {
        find::<TrainExec>(stage.plan.as_ref()).is_some_and(|train| meets_again(train.spec()))
            && tasks(stage, |status| matches!(status, Status::Running(_))) > 0
    };
    let mut demands: Vec<_> = graph
        .stages()
        .values()
        .filter_map(|stage| match stage {
            ExecutionStage::Running(stage) if !stage.pending.is_empty() || ends(stage) => {
                Some(Demand {
                    job: graph.job_id().to_string(),
                    stage: stage.stage_id,
                    kind: kind(stage, &wish),
                })
            }
            _ => None,
        })
        .collect();
    demands.sort_by_key(|demand| demand.stage);
    demands
}

fn kind(stage: &RunningStage, wish: impl Fn(&TrainSpec) -> Wish) -> Kind {
    if let Some(train) = find::<TrainExec>(stage.plan.as_ref()) {
        return Kind::Gang {
            wish: wish(train.spec()),
            shards: stage.partitions,
            memory: memory(stage, train.spec()),
            running: tasks(stage, |status| matches!(status, Status::Running(_))),
            done: tasks(stage, |status| matches!(status, Status::Successful(_))),
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

/// How many of a stage's tasks have such a status.
fn tasks(stage: &RunningStage, of: fn(&Status) -> bool) -> usize {
    let tasks = stage.task_infos.iter();
    tasks.filter(|task| of(&task.task_status)).count()
}

/// What the ranks of a stage take, with the rows that its exchange has written.
pub(super) fn memory(stage: &RunningStage, spec: &TrainSpec) -> Memory {
    let mut inputs = stage.inputs.values();
    let rows = match (inputs.next(), inputs.next()) {
        (Some(exchange), None) => {
            let locations = exchange.partition_locations.values().flatten();
            let written = locations.map(|location| location.partition_stats);
            match stats_for_partitions(0, written).num_rows {
                Precision::Exact(rows) => Some(rows as u64),
                Precision::Inexact(_) | Precision::Absent => None,
            }
        }
        _ => None,
    };
    Memory {
        of_rank: spec.rank_memory(),
        rows,
    }
}

/// A gang that runs whole: its stage, what it trains, and the executors of its ranks.
pub(super) fn running_gang(
    graph: &ExecutionGraphBox,
) -> Option<(&RunningStage, &TrainSpec, Vec<String>)> {
    graph.stages().values().find_map(|stage| match stage {
        ExecutionStage::Running(stage) if stage.pending.is_empty() => {
            let train = find::<TrainExec>(stage.plan.as_ref())?;
            let executor = |task: &TaskInfo| match &task.task_status {
                Status::Running(running) => Some(running.executor_id.clone()),
                _ => None,
            };
            let executors = stage.task_infos.iter().filter_map(executor).collect();
            Some((stage, train.spec().as_ref(), executors))
        }
        _ => None,
    })
}

/// Whether all of the stage's input comes together in one task.
fn collapses_input(writer: &Arc<dyn ExecutionPlan>) -> bool {
    let plan = writer.children();
    let partitions = plan
        .first()
        .map(|plan| plan.output_partitioning().partition_count());
    partitions == Some(1)
}

/// Takes the task's partitions off the stage and describes it for launch; `None` where there are none.
///
/// # Errors
/// Why the task cannot run, or cannot be sent.
pub(super) fn bind(
    stage: &mut RunningStage,
    session_id: &str,
    job_id: &ballista_core::JobId,
    task: &Task,
) -> Result<Option<BoundTask>, String> {
    let mut partitions = stage.pending.next_slice(task.partitions);
    if partitions.is_empty() {
        return Ok(None);
    }
    partitions.sort_unstable();
    let stores = Stores::of(&stage.session_config).ok();
    let plan = task_plan(&stage.plan, &partitions, stores.as_deref())
        .map_err(|error| format!("stage {} cannot run: {error}", stage.stage_id))?;
    task_fits(stage.stage_id, plan.message_bytes())?;
    let plan = replace_children_if_necessary(Arc::clone(&stage.plan), vec![Arc::new(plan)])
        .map_err(|error| error.to_string())?;
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
        plan,
        session_config: Arc::clone(&stage.session_config),
    };
    Ok(Some((task.executor.clone(), description)))
}
