//! Demands of the running stages of graphs, as plain facts: the work that each stage has left.

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use ballista_core::execution_plans::stats_for_partitions;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage, TaskInfo};
use datafusion::common::stats::Precision;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use volley_engine::{PreparedExec, TrainExec};
use volley_proto::TrainId;
use volley_proto::spec::{Start, TrainSpec};

use super::losses::written;
use crate::control::{DeviceRequest, Gang, GangStage, Memory, Stage, Work};
use volley_engine::settings::JobSettings;
use volley_engine::stages::{find, task_partitions};

/// Returns the graph's running stages that need a decision, by stage number, in a cluster of so many slots. A gang whose
/// ranks all run is among them only if `regroups` says so.
pub(super) fn demands(
    graph: &ExecutionGraphBox,
    slots: usize,
    regroups: impl Fn(TrainId) -> bool,
) -> Vec<Stage> {
    let running = graph.stages().values().filter_map(|stage| match stage {
        ExecutionStage::Running(stage) => Some(stage),
        _ => None,
    });
    let demand = |stage: &RunningStage| {
        Some(Stage {
            attempt: graph.job_id().to_string(),
            stage: stage.stage_id,
            work: work(graph, stage, slots, &regroups)?,
        })
    };
    let mut demands: Vec<_> = running.filter_map(demand).collect();
    demands.sort_by_key(|demand| demand.stage);
    demands
}

fn work(
    graph: &ExecutionGraphBox,
    stage: &RunningStage,
    slots: usize,
    regroups: impl Fn(TrainId) -> bool,
) -> Option<Work> {
    let pending = !stage.pending.is_empty();
    if let Some(train) = find::<TrainExec>(stage.plan.as_ref()) {
        let spec = train.spec();
        // The exchange's rows are counted only where they matter.
        if !pending && !regroups(spec.train_id) {
            return None;
        }
        let running = stage.task_infos.iter().filter_map(runs_on);
        let is_done = |task: &&TaskInfo| matches!(task.task_status, Status::Successful(_));
        let done = stage.task_infos.iter().filter(is_done).count();
        let rows = rows(stage);
        return Some(Work::Gang(Box::new(GangStage {
            gang: gang(spec),
            memory: Memory {
                of_rank: spec.rank_memory(),
                rows: rows.as_ref().map(|rows| rows.iter().sum()),
                largest_shard: rows.iter().flatten().copied().max().unwrap_or(0),
            },
            shards: rows.unwrap_or_else(|| vec![0; stage.partitions]),
            prepared: train.prepared(),
            pending,
            running: running.map(str::to_owned).collect(),
            done,
            written: (done > 0).then(|| written(graph)).flatten(),
        })));
    }
    if !pending {
        return None;
    }
    if collapses_input(&stage.plan) {
        return Some(Work::Whole);
    }
    Some(Work::Slices {
        pending: slices(stage, slots).len(),
        most: most_partitions(stage),
    })
}

/// Returns the sizes of the slices that a stage's pending partitions make, in their order: each is the work of one slot
/// in a cluster of so many. Small partitions share a slice, unless the session limits the partitions of a task.
pub(super) fn slices(stage: &RunningStage, slots: usize) -> Vec<usize> {
    let settings: Option<&JobSettings> = stage.session_config.options().extensions.get();
    let exchange_bytes = settings.map_or(0, |job| job.single_task_bytes);
    let exchange_bytes = match most_partitions(stage) {
        Some(_) => 0,
        None => exchange_bytes,
    };
    let pending = stage.pending.clone().next_slice(usize::MAX);
    task_partitions(&stage.plan, &pending, exchange_bytes, slots)
}

/// Returns the session's limit on the partitions of a task, if it has one.
fn most_partitions(stage: &RunningStage) -> Option<usize> {
    let options = stage.session_config.options();
    let ballista: Option<&BallistaConfig> = options.extensions.get();
    let most = ballista.map(BallistaConfig::max_partitions_per_task);
    most.filter(|most| *most > 0)
}

/// Returns the gang of a training specification, reduced to what placement needs.
pub(super) fn gang(spec: &TrainSpec) -> Gang {
    Gang {
        train: spec.train_id,
        model: spec.model.clone(),
        store: spec.store.clone(),
        ranks: spec.ranks,
        elastic: spec.elastic.clone(),
        most: spec.most_ranks(),
        device: DeviceRequest {
            device: spec.device,
            shares: spec.device_share,
        },
        resumes: spec.start == Start::Resume,
    }
}

/// Returns the executor that a task runs on.
fn runs_on(task: &TaskInfo) -> Option<&str> {
    match &task.task_status {
        Status::Running(running) => Some(&running.executor_id),
        _ => None,
    }
}

/// Returns the rows of each shard, as they were prepared or as written by the exchange before the stage; `None` unless
/// there is one exchange and it has exact counts.
fn rows(stage: &RunningStage) -> Option<Vec<u64>> {
    if let Some(prepared) = find::<PreparedExec>(stage.plan.as_ref()) {
        return Some(prepared.rows().to_vec());
    }
    let mut inputs = stage.inputs.values();
    let (Some(exchange), None) = (inputs.next(), inputs.next()) else {
        return None;
    };
    let of_shard = |shard: usize| {
        let locations = exchange.partition_locations.get(&shard);
        let written = locations.into_iter().flatten();
        let written = written.map(|location| location.partition_stats);
        match stats_for_partitions(0, written).num_rows {
            Precision::Exact(rows) => Some(rows as u64),
            Precision::Inexact(_) | Precision::Absent => None,
        }
    };
    (0..stage.partitions).map(of_shard).collect()
}

/// Checks whether one task reads all of the stage's input.
fn collapses_input(writer: &Arc<dyn ExecutionPlan>) -> bool {
    let plan = writer.children();
    let partitions = plan
        .first()
        .map(|plan| plan.output_partitioning().partition_count());
    partitions == Some(1)
}
