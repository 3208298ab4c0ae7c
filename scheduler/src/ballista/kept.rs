//! Rows that lost attempts of jobs have left on executors, so that the next attempt computes only what was lost.
//!
//! ```text
//!   an executor is lost ─► capture: the tasks that have succeeded elsewhere, by stage
//!   the job runs again  ─► adopt: a stage that begins takes their rows, by a task where they are that computes nothing
//! ```
//!
//! A task's rows may take their place in another attempt if its stage computes the same over the same rows. So each
//! stage of an attempt has a [`Version`]: a number for what it computes, made of its plan and of the rows of the stages
//! that it reads, and one for its rows. Where a task has the same rows each time, both are equal in all attempts, and any
//! task's rows may be taken. Elsewhere the rows are those of one attempt: all of its tasks' rows are taken, or none, and
//! then no later stage that has read them is.
//!
//! Where a job has a shuffle store, executors tell which tasks have copies of their rows there. Those outlive the executors:
//! any executor may take them, by a task that fetches the copies.
//!
//! Not here: which rows repeat ([`StageIdentity`]), what runs again, and whether it does, which the controller decides.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::SystemTime;

use ballista_core::serde::protobuf::SuccessfulTask;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::cluster::BoundTask;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{ExecutionStage, RunningStage};
use parking_lot::Mutex;
use volley_engine::settings::JobSettings;
use volley_engine::stages::{StageIdentity, kept_plan};
use volley_engine::{KeptPiece, KeptRows, TaskPlan};
use volley_proto::tables::millis;

use super::bind::{describe, take};
use super::graphs::{plan_of, tasks_of};
use super::handover::Places;
use super::launch::task_fits;
use crate::control::{Controller, Taken, Task};
use crate::handle::Control;

/// Kept rows of jobs that have not ended; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    jobs: Arc<Mutex<HashMap<String, KeptJob>>>,
}

/// Kept rows of a job.
#[derive(Debug, Default)]
struct KeptJob {
    outputs: Vec<Output>,
    /// Attempt that was captured last.
    captured: String,
    /// Attempt that takes them.
    taker: String,
    /// Its stages that have begun.
    begun: HashMap<usize, Begun>,
    /// True once it has taken any.
    has_taken: bool,
    /// Copies of the rows that its tasks have taken, by stage and number of the task.
    copies: HashMap<(usize, usize), KeptRows>,
    /// Tasks that have copies of their rows in the job's shuffle store, of attempts that are not captured.
    stored: HashSet<Task>,
    /// Number of tasks that were bound to fetch copies.
    fetches: usize,
}

/// Numbers of a stage of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    /// Stands for what it computes, over the rows of the stages that it reads.
    computes: u64,
    /// Stands for its rows.
    rows: u64,
}

/// Stage of an attempt that has begun.
#[derive(Debug, Clone, Copy)]
struct Begun {
    version: Version,
    /// Number of its tasks, if all have taken rows that are not repeatable. A further task is a retry, whose rows differ.
    tasks: Option<usize>,
}

/// Rows of a task.
#[derive(Debug, Clone)]
struct Output {
    stage: usize,
    version: Version,
    attempt: String,
    /// Number of the task in the stage.
    task: usize,
    /// Partitions of the stage that the task computed.
    partitions: Vec<usize>,
    done: SuccessfulTask,
    /// Copies in the job's shuffle store, if there are any.
    copies: Option<KeptRows>,
    /// True if only the copies are left.
    is_lost: bool,
    /// Time at which the scheduler was told, or at which they moved, in milliseconds since 1970.
    finished: u128,
}

impl Kept {
    /// Keeps the rows of an attempt that an executor's loss ends, but for those on that executor. `job` returns the
    /// attempt's job if it has not ended.
    pub(super) fn capture(
        &self,
        job: impl FnOnce() -> Option<String>,
        graph: (&ExecutionGraphBox, &Places),
        lost: &str,
    ) {
        let mut jobs = self.jobs.lock();
        // If the job ends from here on, its release waits for the lock.
        let Some(job) = job() else {
            return;
        };
        let kept = jobs.entry(job).or_default();
        kept.capture(graph);
        kept.loses(lost);
    }

    /// Keeps the rows of an attempt that could not read rows of `executor`, but for those. If it had taken kept rows, these
    /// may be what cannot be read: then nothing is kept.
    pub(super) fn capture_unreadable(
        &self,
        job: impl FnOnce() -> Option<String>,
        (graph, places): (&ExecutionGraphBox, &Places),
        executor: &str,
    ) {
        let mut jobs = self.jobs.lock();
        let Some(job) = job() else {
            return;
        };
        let kept = jobs.entry(job).or_default();
        if kept.has_taken && kept.taker == graph.job_id().as_str() {
            *kept = KeptJob::default();
            return;
        }
        kept.capture((graph, places));
        kept.loses(executor);
    }

    /// Forgets the rows that an executor held.
    pub(super) fn loses(&self, executor: &str) {
        let mut jobs = self.jobs.lock();
        jobs.values_mut().for_each(|kept| kept.loses(executor));
    }

    /// Records that a task of an attempt, which has succeeded, has copies of its rows in its job's shuffle store. `job` returns
    /// the job if it has not ended.
    pub(super) fn stored(&self, job: impl FnOnce() -> Option<String>, task: Task) {
        let mut jobs = self.jobs.lock();
        if let Some(job) = job() {
            jobs.entry(job).or_default().stored.insert(task);
        }
    }

    /// Forgets the rows of a job that has ended.
    pub(super) fn release(&self, job: &str) {
        self.jobs.lock().remove(job);
    }

    /// Binds tasks that take kept rows to the stages of an attempt that have begun since the last call. `since` returns
    /// since when an executor is there, if it takes tasks: what it has told before is lost. Copies of rows are fetched by
    /// `takers` in turn.
    pub(super) fn adopt(
        &self,
        job: &str,
        graph: &mut ExecutionGraphBox,
        since: impl Fn(&str) -> Option<SystemTime>,
        takers: &[String],
    ) -> (Vec<BoundTask>, Vec<Taken>) {
        let mut jobs = self.jobs.lock();
        match jobs.get_mut(job) {
            Some(kept) => kept.adopt(graph, since, takers),
            None => (Vec::new(), Vec::new()),
        }
    }
}

impl KeptJob {
    fn loses(&mut self, executor: &str) {
        for output in &mut self.outputs {
            output.is_lost |= output.done.executor_id == executor;
        }
        self.outputs
            .retain(|output| !output.is_lost || output.copies.is_some());
    }

    /// Finds the copies of the outputs of a captured attempt: of those that its tasks have computed, and of those that they
    /// have taken.
    fn find_copies(&mut self, graph: &ExecutionGraphBox, outputs: &mut [Output]) {
        let attempt = graph.job_id().as_str();
        let stored = std::mem::take(&mut self.stored);
        let taken = match self.taker == attempt {
            true => std::mem::take(&mut self.copies),
            false => HashMap::new(),
        };
        let config = graph.session_config();
        let settings: Option<&JobSettings> = config.options().extensions.get();
        let Some(store) = settings.and_then(|job| job.shuffle_store.clone()) else {
            return;
        };
        for output in outputs {
            let task = Task {
                attempt: attempt.to_owned(),
                stage: output.stage,
                number: output.task,
            };
            output.copies = match stored.contains(&task) {
                true => Some(KeptRows {
                    store: Some(store.clone()),
                    ..output.rows()
                }),
                false => taken.get(&(output.stage, output.task)).cloned(),
            };
        }
    }

    /// Returns an output with the executor whose task takes its rows: the one that has them, or else the next of `takers`,
    /// which fetches the copies.
    fn placed(
        output: &Output,
        since: &impl Fn(&str) -> Option<SystemTime>,
        (takers, fetches): (&[String], &mut usize),
    ) -> Option<Output> {
        let is_there = |since: SystemTime| output.finished >= u128::from(millis(since));
        if !output.is_lost && since(&output.done.executor_id).is_some_and(is_there) {
            return Some(output.clone());
        }
        output.copies.as_ref()?;
        let taker = takers.get(*fetches % takers.len().max(1))?;
        *fetches += 1;
        let mut fetched = output.clone();
        fetched.is_lost = true;
        fetched.done.executor_id.clone_from(taker);
        Some(fetched)
    }

    fn capture(&mut self, (graph, places): (&ExecutionGraphBox, &Places)) {
        let attempt = graph.job_id().as_str();
        if self.captured == attempt {
            return;
        }
        let begun = match self.taker == attempt {
            true => std::mem::take(&mut self.begun),
            false => HashMap::new(),
        };
        let mut versions = HashMap::new();
        let mut stages: Vec<_> = graph.stages().iter().collect();
        // A stage has a higher number than those that it reads.
        stages.sort_by_key(|(id, _)| **id);
        let mut outputs = Vec::new();
        for (id, stage) in stages {
            let known = begun.get(id).and_then(|begun| begun.version_in(stage));
            let version = known.or_else(|| {
                let identity = StageIdentity::of(plan_of(stage))?;
                Version::of(&identity, &versions, attempt)
            });
            let Some(version) = version else {
                continue;
            };
            versions.insert(*id, version);
            // The last stage's rows are the query's.
            if stage.output_links().is_empty() {
                continue;
            }
            for task in tasks_of(stage) {
                let Status::Successful(done) = &task.task_status else {
                    continue;
                };
                // What the next stage adds up would be missing.
                let is_all = done.window_state.is_empty() && done.runtime_stats.is_empty();
                if is_all && done.partitions.iter().all(|piece| piece.file_id.is_some()) {
                    let mut output = Output {
                        stage: *id,
                        version,
                        attempt: attempt.to_owned(),
                        task: task.task_id,
                        partitions: task.global_input_partition_ids.clone(),
                        done: done.clone(),
                        copies: None,
                        is_lost: false,
                        finished: task.finish_time,
                    };
                    if let Some((heir, since)) = places.heir((*id, task.task_id)) {
                        heir.clone_into(&mut output.done.executor_id);
                        output.finished = since;
                    }
                    outputs.push(output);
                }
            }
        }
        self.find_copies(graph, &mut outputs);
        let newer: HashSet<_> = outputs.iter().flat_map(Output::computed).collect();
        let is_newer =
            |output: &Output| output.computed().any(|computed| newer.contains(&computed));
        self.outputs.retain(|output| !is_newer(output));
        self.outputs.extend(outputs);
        attempt.clone_into(&mut self.captured);
    }

    fn adopt(
        &mut self,
        graph: &mut ExecutionGraphBox,
        since: impl Fn(&str) -> Option<SystemTime>,
        takers: &[String],
    ) -> (Vec<BoundTask>, Vec<Taken>) {
        let attempt = graph.job_id().to_string();
        if self.taker != attempt {
            (self.has_taken, self.taker) = (false, attempt.clone());
            self.begun.clear();
            self.copies.clear();
        }
        let (mut bound, mut taken) = (Vec::new(), Vec::new());
        let mut running = graph.running_stages();
        running.sort_unstable();
        for id in running {
            let Some(ExecutionStage::Running(stage)) = graph.stages().get(&id) else {
                continue;
            };
            if self.begun.contains_key(&id) {
                continue;
            }
            let identity = StageIdentity::of(&stage.plan);
            let versions = identity.and_then(|identity| {
                let inputs = identity.reads.iter().filter_map(|id| {
                    let begun = self.begun.get(id)?.version_in(graph.stages().get(id)?)?;
                    Some((*id, begun))
                });
                let version = Version::of(&identity, &inputs.collect(), &attempt)?;
                Some((identity, version))
            });
            let Some((identity, version)) = versions else {
                continue;
            };
            let same = self
                .outputs
                .iter()
                .filter(|output| output.stage == id && output.version.computes == version.computes);
            let fetches = &mut self.fetches;
            let there = same.filter_map(|output| {
                let takers = (takers, &mut *fetches);
                Self::placed(output, &since, takers)
            });
            let there: Vec<_> = there.collect();
            let chosen: Vec<_> = match identity.repeats {
                true => {
                    let there = there.iter();
                    there.filter_map(|output| planned(stage, output)).collect()
                }
                false => whole(there.iter(), stage),
            };
            let of_chosen = chosen.first().map(|(output, _)| output.version);
            let copies = chosen.iter().filter_map(|(output, _)| {
                let copies = output.copies.clone()?;
                Some((output.partitions.clone(), copies))
            });
            let mut copies: HashMap<_, _> = copies.collect();
            let (all, count) = (stage.partitions, chosen.len());
            let (tasks, partitions) = bind(graph, id, chosen);
            for (_, task) in &tasks {
                if let Some(copies) = copies.remove(&task.global_input_partition_ids) {
                    self.copies.insert((id, task.key.task_id), copies);
                }
            }
            let begun = match of_chosen {
                Some(of_chosen) if !identity.repeats && tasks.len() == count => Begun {
                    version: of_chosen,
                    tasks: Some(count),
                },
                _ => Begun {
                    version,
                    tasks: None,
                },
            };
            self.begun.insert(id, begun);
            if tasks.is_empty() {
                continue;
            }
            self.has_taken = true;
            taken.push(Taken {
                stage: id,
                partitions,
                all,
            });
            bound.extend(tasks);
        }
        (bound, taken)
    }
}

impl Version {
    /// Returns the version of a stage of an attempt that computes it; `None` if it reads a stage without one.
    fn of(
        identity: &StageIdentity,
        versions: &HashMap<usize, Self>,
        attempt: &str,
    ) -> Option<Self> {
        let inputs = identity.reads.iter();
        let inputs = inputs.map(|stage| Some(versions.get(stage)?.rows));
        let computes = identity.over(&inputs.collect::<Option<Vec<_>>>()?);
        let rows = match identity.repeats {
            true => computes,
            false => {
                let mut hasher = DefaultHasher::new();
                (computes, attempt).hash(&mut hasher);
                hasher.finish()
            }
        };
        Some(Self { computes, rows })
    }
}

impl Begun {
    /// Returns the version of the stage, as it is now; `None` if it is not known any more.
    fn version_in(&self, stage: &ExecutionStage) -> Option<Version> {
        let is_as_taken = |count| tasks_of(stage).len() == count;
        self.tasks.is_none_or(is_as_taken).then_some(self.version)
    }
}

impl Output {
    /// Returns the partitions of the job's stages that it has.
    fn computed(&self) -> impl Iterator<Item = (usize, usize)> {
        self.partitions
            .iter()
            .map(|partition| (self.stage, *partition))
    }

    fn rows(&self) -> KeptRows {
        if let Some(copies) = self.copies.as_ref().filter(|_| self.is_lost) {
            return copies.clone();
        }
        let pieces = self.done.partitions.iter().map(|written| KeptPiece {
            partition: written.partition_id,
            file: written.file_id.unwrap_or_default(),
            is_sorted: written.is_sort_shuffle,
            batches: written.num_batches,
            rows: written.num_rows,
            bytes: written.num_bytes,
        });
        KeptRows {
            attempt: self.attempt.clone(),
            pieces: pieces.collect(),
            store: None,
        }
    }
}

/// Returns the job of a graph that is not its first attempt.
pub(super) fn job_that_runs_again(graph: &ExecutionGraphBox) -> Option<String> {
    let config = graph.session_config();
    let settings: Option<&JobSettings> = config.options().extensions.get();
    settings.and_then(|job| job.first_attempt.clone())
}

/// Returns a graph's job, if it has not ended. The controller may not know yet that the attempt is the job's.
pub(super) fn running_job(control: &Control, graph: &ExecutionGraphBox) -> Option<String> {
    let job = job_that_runs_again(graph).unwrap_or_else(|| graph.job_id().to_string());
    let runs = |control: &Controller| control.job(&job).is_some_and(|job| !job.has_ended());
    control.look(runs).then_some(job)
}

/// Returns rows with the plan of the task that takes them; `None` if it cannot be sent.
fn planned(stage: &RunningStage, output: &Output) -> Option<(Output, TaskPlan)> {
    let plan = kept_plan(&stage.plan, output.rows()).ok()?;
    task_fits(stage.stage_id, plan.message_bytes()).ok()?;
    Some((output.clone(), plan))
}

/// Returns rows of one version that are all of a stage's; none if some are missing.
fn whole<'a>(
    outputs: impl Iterator<Item = &'a Output>,
    stage: &RunningStage,
) -> Vec<(Output, TaskPlan)> {
    let mut versions: HashMap<u64, Vec<&Output>> = HashMap::new();
    for output in outputs {
        let of_version = versions.entry(output.version.rows).or_default();
        of_version.push(output);
    }
    let is_whole = |outputs: &Vec<&Output>| {
        let computed = outputs.iter().flat_map(|output| output.computed());
        computed.collect::<HashSet<_>>().len() == stage.partitions
    };
    let outputs = versions.into_values().find(is_whole).unwrap_or_default();
    let outputs = outputs.into_iter().map(|output| planned(stage, output));
    outputs.collect::<Option<_>>().unwrap_or_default()
}

/// Binds tasks that take these rows to a running stage. Returns them, and the number of their partitions.
fn bind(
    graph: &mut ExecutionGraphBox,
    id: usize,
    outputs: Vec<(Output, TaskPlan)>,
) -> (Vec<BoundTask>, usize) {
    let (job_id, session_id) = (graph.job_id().clone(), graph.session_id().to_owned());
    let running = graph.running_stages().into_iter();
    let others: Vec<_> = running.filter(|other| *other != id).collect();
    let (mut bound, mut count) = (Vec::new(), 0);
    let Some(stage) = graph.fetch_running_stage(&others) else {
        return (bound, count);
    };
    for (output, plan) in outputs {
        // Nothing of the stage is bound yet, and no two tasks have the same partition.
        let Ok((partitions, _)) = take(&mut stage.pending, &output.partitions) else {
            continue;
        };
        let executor = (output.done.executor_id, 1);
        match describe(stage, (&session_id, &job_id), executor, partitions, plan) {
            Ok(task) => bound.push(task),
            Err(error) => {
                tracing::error!(attempt = %job_id, stage = id, error, "kept rows cannot be taken");
                stage.pending.reschedule(output.partitions);
                continue;
            }
        }
        count += output.partitions.len();
    }
    (bound, count)
}

#[cfg(test)]
mod tests;
