//! The effect of an executor's loss on an attempt, read from its graph and the places of its rows before Ballista repairs
//! the graph.
//!
//! ```text
//!   nothing of the job was there ─────────────────────────────► untouched
//!   only ranks of its barrier stage ran there ────────────────► they meet again: new generation
//!   a stage that is not done reads data from there, or had
//!   tasks of its own there ───────────────────────────────────► the attempt ends, the job is rerun
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ballista_core::serde::protobuf::task_status::Status;
use ballista_core::serde::scheduler::PartitionLocation;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{
    ExecutionStage, RunningStage, StageOutput, TaskInfo,
};
use datafusion::physical_plan::ExecutionPlan;
use volley_engine::{TrainExec, adds_files};
use volley_proto::TrainId;
use volley_proto::failure::DataLost;

use super::graphs::plan_of;
use super::handover::{Places, row};
use crate::control::{DataLoss, LossEffect};
use volley_engine::stages::{find, in_stages};

/// Returns the effect of an executor's loss on a graph's attempt; `None` if nothing of the attempt was there.
pub(super) fn effect(
    graph: &ExecutionGraphBox,
    executor: &str,
    places: &Places,
) -> Option<LossEffect> {
    let rank_of = ranks_on(graph, executor);
    let mut stages = graph.stages().values();
    // Ranks are replaced in the graph, with all that it places on the executor.
    let is_tainted = stages.any(|stage| taints(stage, executor, places))
        || rank_of.is_some() && places.have_left(executor);
    (rank_of.is_some() || is_tainted).then(|| LossEffect {
        attempt: graph.job_id().to_string(),
        rank_of,
        data: is_tainted.then(|| data_loss(graph, executor, "it is gone")),
    })
}

/// Checks whether a draining executor has to stay for an attempt: it holds data of the attempt's query, or a rank that is
/// done, which cannot be replaced, or a task reads rows there that have moved since it began. What ranks have streamed is
/// not waited for: training takes long.
pub(super) fn needs(graph: &ExecutionGraphBox, executor: &str, places: &Places) -> bool {
    let mut stages = graph.stages().values();
    let reads = |(stage, task): &(usize, usize)| {
        let task = graph.stages().get(stage)?.task_infos()?.get(*task)?;
        Some(matches!(task.task_status, Status::Running(_)))
    };
    places.readers(executor).any(|of| reads(of) == Some(true))
        || stages.any(|stage| match is_training(stage) {
            true => ran(stage, executor, places),
            false => taints(stage, executor, places),
        })
}

/// Returns the rows on an executor that stages of an attempt read or will read, each with the executor that the graph
/// names. Those of the last stage are the query's result, and do not move.
pub(super) fn rows_on(
    graph: &ExecutionGraphBox,
    executor: &str,
    places: &Places,
) -> HashMap<(usize, usize), String> {
    let read = graph.stages().values().flat_map(inputs).flat_map(locations);
    let read = read.filter_map(|location| Some((row(location)?, &location.executor_meta.id)));
    let written = graph.stages().values().filter_map(|stage| match stage {
        ExecutionStage::Running(stage) if !stage.output_links.is_empty() => Some(stage),
        _ => None,
    });
    let written = written.flat_map(|stage| {
        let done = stage.task_infos.iter().filter_map(where_of);
        let done = done.filter(|task| !task.is_running);
        done.map(move |task| ((stage.stage_id, task.number), task.on))
    });
    let all = read.chain(written);
    let on = all.filter(|(row, named)| places.are_on(executor, *row, named));
    on.map(|(row, named)| (row, named.clone())).collect()
}

/// Returns the tasks that run and read rows on an executor: stage and number. Ranks are not among them.
pub(super) fn readers(
    graph: &ExecutionGraphBox,
    executor: &str,
    places: &Places,
) -> HashSet<(usize, usize)> {
    let reads = graph.stages().values().filter_map(|stage| match stage {
        ExecutionStage::Running(running) if !is_training(stage) => Some(running),
        _ => None,
    });
    let reads = reads.filter(|stage| reads_from(&stage.inputs, executor, places));
    let tasks = reads.flat_map(|stage| {
        let running = stage.task_infos.iter().filter_map(where_of);
        let running = running.filter(|task| task.is_running);
        running.map(move |task| (stage.stage_id, task.number))
    });
    tasks.collect()
}

fn is_training(stage: &ExecutionStage) -> bool {
    find::<TrainExec>(plan_of(stage).as_ref()).is_some()
}

/// Returns the rows that a stage reads while it is not done; none of a stage that has ended.
fn inputs(stage: &ExecutionStage) -> Option<&HashMap<usize, StageOutput>> {
    match stage {
        ExecutionStage::UnResolved(stage) => Some(&stage.inputs),
        ExecutionStage::Resolved(stage) => Some(&stage.inputs),
        ExecutionStage::Running(stage) => Some(&stage.inputs),
        ExecutionStage::Successful(_) | ExecutionStage::Failed(_) => None,
    }
}

fn locations(inputs: &HashMap<usize, StageOutput>) -> impl Iterator<Item = &PartitionLocation> {
    let outputs = inputs.values();
    outputs.flat_map(|output| output.partition_locations.values().flatten())
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

/// Checks whether a stage needs data that was on the executor, or had tasks other than ranks there.
fn taints(stage: &ExecutionStage, executor: &str, places: &Places) -> bool {
    inputs(stage).is_some_and(|inputs| reads_from(inputs, executor, places))
        || ran(stage, executor, places)
}

/// Checks whether a stage that runs had tasks on the executor whose rows are there, other than ranks that have not ended:
/// only these can be replaced.
fn ran(stage: &ExecutionStage, executor: &str, places: &Places) -> bool {
    let ExecutionStage::Running(running) = stage else {
        return false;
    };
    let ranks = is_training(stage);
    let mut tasks = running.task_infos.iter().filter_map(where_of);
    tasks.any(|task| match task.is_running {
        true => task.on == executor && !ranks,
        false => places.are_on(executor, (running.stage_id, task.number), task.on),
    })
}

/// Returns the training run that has a running rank on the executor.
fn ranks_on(graph: &ExecutionGraphBox, executor: &str) -> Option<TrainId> {
    graph.stages().values().find_map(|stage| match stage {
        ExecutionStage::Running(stage) => {
            let train = find::<TrainExec>(stage.plan.as_ref())?.spec().train_id;
            let mut tasks = stage.task_infos.iter().filter_map(where_of);
            let on = |task: Whereabouts<'_>| task.is_running && task.on == executor;
            tasks.any(on).then_some(train)
        }
        _ => None,
    })
}

/// Executor that a task runs or ran on.
struct Whereabouts<'a> {
    number: usize,
    on: &'a String,
    is_running: bool,
}

/// Returns where a task runs or ran; `None` if it has failed.
fn where_of(task: &TaskInfo) -> Option<Whereabouts<'_>> {
    let (on, is_running) = match &task.task_status {
        Status::Running(running) => (&running.executor_id, true),
        Status::Successful(successful) => (&successful.executor_id, false),
        Status::Failed(_) => return None,
    };
    Some(Whereabouts {
        number: task.task_id,
        on,
        is_running,
    })
}

fn reads_from(inputs: &HashMap<usize, StageOutput>, executor: &str, places: &Places) -> bool {
    let is_there = |location: &PartitionLocation| {
        let named = &location.executor_meta.id;
        match row(location) {
            Some(row) => places.are_on(executor, row, named),
            None => named == executor,
        }
    };
    locations(inputs).any(is_there)
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
