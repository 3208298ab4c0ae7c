//! Conversion of placed tasks to bound tasks: partitions leave their stage and become a message to an executor.

use std::sync::Arc;

use ballista_core::serde::scheduler::{PartitionLocation, TaskKey};
use ballista_scheduler::cluster::BoundTask;
use ballista_scheduler::state::execution_graph::{
    ExecutionGraphBox, TaskDescription, create_task_info,
};
use ballista_scheduler::state::execution_stage::{PendingPartitions, RunningStage};
use datafusion::physical_plan::replace_children_if_necessary;
use datafusion::prelude::SessionConfig;
use volley_engine::TaskPlan;
use volley_engine::object_stores::Stores;

use super::demands::slices;
use super::handover::Places;
use super::launch::task_fits;
use crate::control::{self, Binding, Event, PlacedTask};
use crate::handle::Control;
use volley_engine::settings::JobSettings;
use volley_engine::stages::task_plan;
use volley_proto::limits::SMALL_RESULT;

/// Carries out a binding on its attempt's graph, whose rows are at these places, in a cluster of so many slots, and tells the
/// controller.
pub(super) fn carry_out(
    binding: Binding,
    (graph, places): (&mut ExecutionGraphBox, &Places),
    (control, slots): (&Control, usize),
) -> Vec<BoundTask> {
    let (job_id, session_id) = (graph.job_id().clone(), graph.session_id().to_owned());
    let running = graph.running_stages();
    let others: Vec<_> = running
        .into_iter()
        .filter(|id| *id != binding.stage)
        .collect();
    let Some(stage) = graph.fetch_running_stage(&others) else {
        return Vec::new();
    };
    let (mut bound, mut tasks) = (Vec::new(), Vec::new());
    let mut slices = match binding.gang {
        Some(_) => vec![],
        None => slices(stage, slots),
    };
    for (at, task) in binding.tasks.iter().enumerate() {
        let taken = match &binding.gang {
            Some(gang) => take(&mut stage.pending, &gang.shards[at]),
            None => {
                let sizes: Vec<_> = slices.drain(..task.partitions.min(slices.len())).collect();
                Ok((stage.pending.next_slice(sizes.iter().sum()), sizes))
            }
        };
        let of = (session_id.as_str(), &job_id);
        let described = taken.and_then(|taken| bind(stage, places, of, (task, taken)));
        match described {
            Ok(Some((executor, description))) => {
                tasks.push(control::BoundTask {
                    executor: executor.clone(),
                    number: description.key.task_id,
                    slots: task.slots,
                    gpu: task.gpu.clone(),
                });
                bound.push((executor, description));
            }
            Ok(None) => {}
            Err(reason) => {
                // Checked before launch: Ballista treats an executor as lost if its message cannot be sent.
                let attempt = binding.attempt;
                control.on(Event::AttemptFails { attempt, reason });
                return Vec::new();
            }
        }
    }
    if !tasks.is_empty() {
        control.on(Event::TasksBound { binding, tasks });
    }
    bound
}

/// Describes the task of partitions that are taken off the stage, for launch. Returns `None` if there are none.
///
/// # Errors
/// When the task cannot run or cannot be sent, with the reason.
fn bind(
    stage: &mut RunningStage,
    places: &Places,
    of: (&str, &ballista_core::JobId),
    (task, (mut partitions, sizes)): (&PlacedTask, Taken),
) -> Result<Option<BoundTask>, String> {
    if partitions.is_empty() {
        return Ok(None);
    }
    partitions.sort_unstable();
    let stores = Stores::of(&stage.session_config).ok();
    let small_result = small_result(stage, partitions.len());
    let slice = (&partitions[..], &sizes[..]);
    let relocate = |location: &mut PartitionLocation| places.relocate(location);
    let stores = stores.as_deref();
    let plan = task_plan(&stage.plan, slice, &relocate, stores, small_result)
        .map_err(|error| format!("stage {} cannot run: {error}", stage.stage_id))?;
    task_fits(stage.stage_id, plan.message_bytes())?;
    let executor = (task.executor.clone(), task.slots);
    describe(stage, of, executor, partitions, plan).map(Some)
}

/// Describes the task of partitions that are taken off the stage, in so many slots of an executor, for launch.
///
/// # Errors
/// When the stage's writer cannot have the plan, with the reason.
pub(super) fn describe(
    stage: &mut RunningStage,
    (session_id, job_id): (&str, &ballista_core::JobId),
    (executor, slots): (String, usize),
    partitions: Vec<usize>,
    plan: TaskPlan,
) -> Result<BoundTask, String> {
    let plan = replace_children_if_necessary(Arc::clone(&stage.plan), vec![Arc::new(plan)])
        .map_err(|error| error.to_string())?;
    let task_id = stage.task_infos.len();
    let attempts = partitions
        .iter()
        .map(|partition| stage.task_failure_numbers[*partition]);
    let task_attempt = attempts.max().unwrap_or(0);
    let vcores_consumed = u32::try_from(slots).unwrap_or(u32::MAX);
    let mut info = create_task_info(executor.clone(), task_id);
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
        session_config: config_of_tasks(stage),
    };
    Ok((executor, description))
}

/// Returns the settings of a stage's tasks. No attempt takes rows of the last stage, so its tasks put none into a store.
fn config_of_tasks(stage: &RunningStage) -> Arc<SessionConfig> {
    let settings: Option<&JobSettings> = stage.session_config.options().extensions.get();
    let has_store = settings.is_some_and(|job| job.shuffle_store.is_some());
    if !has_store || !stage.output_links.is_empty() {
        return Arc::clone(&stage.session_config);
    }
    let mut config = stage.session_config.as_ref().clone();
    let settings: Option<&mut JobSettings> = config.options_mut().extensions.get_mut();
    if let Some(settings) = settings {
        settings.shuffle_store = None;
    }
    Arc::new(config)
}

/// Returns a task's share of the bytes of a small result, if the stage is the last one of a query whose client takes
/// its rows with the outcome.
fn small_result(stage: &RunningStage, partitions: usize) -> Option<usize> {
    let settings = stage.session_config.options().extensions.get();
    let wanted = settings.is_some_and(|job: &JobSettings| job.small_results);
    let share = || SMALL_RESULT * partitions / stage.partitions.max(1);
    (wanted && stage.output_links.is_empty()).then(share)
}

/// Partitions of a task, and how many of them are put together at a time.
pub(super) type Taken = (Vec<usize>, Vec<usize>);

/// Takes the wanted partitions off the pending ones, each for itself.
///
/// # Errors
/// When one is not pending; names it.
pub(super) fn take(pending: &mut PendingPartitions, wanted: &[usize]) -> Result<Taken, String> {
    let all = pending.next_slice(usize::MAX);
    if let Some(missing) = wanted.iter().find(|shard| !all.contains(shard)) {
        pending.reschedule(all);
        return Err(format!("shard {missing} is to be bound and is taken"));
    }
    pending.reschedule(all.into_iter().filter(|shard| !wanted.contains(shard)));
    Ok((wanted.to_vec(), vec![1; wanted.len()]))
}
