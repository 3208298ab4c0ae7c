//! Job graphs as rows of a table: the stages of an attempt, and the progress of each.

use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::cluster::JobState;
use ballista_scheduler::display::format_stage_metrics;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{ExecutionStage, TaskInfo};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use volley_engine::TrainExec;
use volley_proto::tables::{Stage, StageKind, StageState};

use super::BallistaScheduler;
use super::job_state::VolleyJobState;
use crate::tables::{AttemptOf, StageRows};
use volley_engine::stages::{find, in_stages};

/// Graphs of attempts, running and ended.
#[derive(Clone)]
pub(crate) struct Graphs {
    ballista: BallistaScheduler,
    ended: Arc<VolleyJobState>,
}

impl Graphs {
    pub(crate) fn new(ballista: BallistaScheduler, ended: Arc<VolleyJobState>) -> Self {
        Self { ballista, ended }
    }

    /// Returns the source of stages for the tables.
    pub(crate) fn into_rows(self) -> StageRows {
        Arc::new(move |of| {
            let graphs = self.clone();
            Box::pin(async move { graphs.stages(of).await })
        })
    }

    /// Returns the stages of a job's attempt, by number; none if the graph is not made yet, or not kept any more.
    pub(super) async fn stages(&self, of: AttemptOf) -> Vec<Stage> {
        let AttemptOf {
            job,
            attempt,
            train,
            cancelled,
        } = of;
        let (job, train_id) = (job.as_str(), train.map(|train| train.to_string()));
        let train_id = train_id.as_deref();
        let attempt = JobId::from(attempt);
        let running = self.ballista.state.task_manager.get_running_job_cache();
        let mut stages = if let Some(info) = running.get(&attempt) {
            rows(job, train_id, &*info.execution_graph.read().await)
        } else {
            match self.ended.get_execution_graph(&attempt).await {
                Ok(Some(graph)) => rows(job, train_id, &graph),
                Ok(None) | Err(_) => Vec::new(),
            }
        };
        stages.sort_by_key(|stage| stage.stage_id);
        // Ballista has one word for all ends.
        let ended = stages.iter_mut().filter(|_| cancelled);
        for stage in ended.filter(|stage| stage.state != StageState::Succeeded) {
            stage.state = StageState::Cancelled;
        }
        stages
    }
}

/// Progress of a stage.
struct Advance<'a> {
    state: StageState,
    partitions: usize,
    done: usize,
    running: usize,
    inputs: Vec<u64>,
    metrics: Option<&'a [MetricsSet]>,
}

fn rows(job: &str, train_id: Option<&str>, graph: &ExecutionGraphBox) -> Vec<Stage> {
    let stages = graph.stages();
    let row = |(id, stage): (&usize, &ExecutionStage)| {
        let planned = plan_of(stage);
        let plan = in_stages(planned);
        let plan = plan.as_ref().unwrap_or(planned).as_ref();
        let Advance {
            state,
            partitions,
            done,
            running,
            inputs,
            metrics,
        } = advance(stage);
        let kind = if find::<TrainExec>(plan).is_some() {
            StageKind::Training
        } else {
            StageKind::Query
        };
        let rows = metrics.and_then(|metrics| metrics.first()?.output_rows());
        let spilled = metrics.unwrap_or_default().iter();
        let spilled: usize = spilled.filter_map(MetricsSet::spilled_bytes).sum();
        let Done {
            tasks,
            bytes,
            seconds,
            median,
            slowest,
        } = Done::of(tasks_of(stage));
        Stage {
            job_id: job.to_owned(),
            train_id: train_id.map(str::to_owned),
            stage_id: *id as u64,
            kind,
            state,
            partitions: partitions as u64,
            partitions_done: done as u64,
            running: running as u64,
            rows: rows.map(|rows| rows as u64),
            bytes,
            spilled_bytes: spilled as u64,
            tasks_done: tasks,
            seconds,
            median_seconds: median,
            slowest_seconds: slowest,
            inputs,
            operator: operator(plan),
            plan: format_stage_metrics(plan, metrics.unwrap_or_default()),
        }
    };
    stages.iter().map(row).collect()
}

pub(super) fn plan_of(stage: &ExecutionStage) -> &Arc<dyn ExecutionPlan> {
    match stage {
        ExecutionStage::UnResolved(stage) => &stage.plan,
        ExecutionStage::Resolved(stage) => &stage.plan,
        ExecutionStage::Running(stage) => &stage.plan,
        ExecutionStage::Successful(stage) => &stage.plan,
        ExecutionStage::Failed(stage) => &stage.plan,
    }
}

fn tasks_of(stage: &ExecutionStage) -> &[TaskInfo] {
    match stage {
        ExecutionStage::UnResolved(_) | ExecutionStage::Resolved(_) => &[],
        ExecutionStage::Running(stage) => &stage.task_infos,
        ExecutionStage::Successful(stage) => &stage.task_infos,
        ExecutionStage::Failed(stage) => &stage.task_infos,
    }
}

/// Figures of tasks that are done.
#[derive(Debug, Default)]
struct Done {
    tasks: u64,
    /// Bytes that they have written.
    bytes: u64,
    /// Time from the first one's launch to the last one's end, by the scheduler's clock.
    seconds: Option<f64>,
    /// Median and maximum of their times, by the executors' clocks.
    median: Option<f64>,
    slowest: Option<f64>,
}

impl Done {
    fn of(tasks: &[TaskInfo]) -> Self {
        let seconds = |from: u128, to: u128| to.saturating_sub(from) as f64 / 1e3;
        let mut done = Self::default();
        let (mut launched, mut finished) = (u128::MAX, 0);
        let mut times = Vec::new();
        for task in tasks {
            let Status::Successful(successful) = &task.task_status else {
                continue;
            };
            done.tasks += 1;
            done.bytes += successful
                .partitions
                .iter()
                .map(|to| to.num_bytes)
                .sum::<u64>();
            launched = launched.min(task.launch_time);
            finished = finished.max(task.finish_time);
            times.push(seconds(task.start_exec_time, task.end_exec_time));
        }
        times.sort_by(f64::total_cmp);
        done.seconds = (done.tasks > 0).then(|| seconds(launched, finished));
        done.median = times.get(times.len() / 2).copied();
        done.slowest = times.last().copied();
        done
    }
}

fn advance(stage: &ExecutionStage) -> Advance<'_> {
    let of_plan = |plan: &Arc<dyn ExecutionPlan>| {
        use datafusion::physical_plan::ExecutionPlanProperties;
        let inputs = plan.children();
        let first = inputs.first().copied().unwrap_or(plan);
        first.output_partitioning().partition_count()
    };
    let count = |tasks: &[TaskInfo], of: fn(&Status) -> bool| -> (usize, usize) {
        let tasks = tasks.iter().filter(|task| of(&task.task_status));
        tasks.fold((0, 0), |(tasks, partitions), task| {
            (
                tasks + 1,
                partitions + task.global_input_partition_ids.len(),
            )
        })
    };
    let done = |tasks| count(tasks, |status| matches!(status, Status::Successful(_))).1;
    let ids = |inputs: &mut dyn Iterator<Item = &usize>| {
        let mut ids: Vec<u64> = inputs.map(|id| *id as u64).collect();
        ids.sort_unstable();
        ids
    };
    match stage {
        ExecutionStage::UnResolved(stage) => Advance {
            state: StageState::Waiting,
            partitions: of_plan(&stage.plan),
            done: 0,
            running: 0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: None,
        },
        ExecutionStage::Resolved(stage) => Advance {
            state: StageState::Ready,
            partitions: stage.partitions,
            done: 0,
            running: 0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: None,
        },
        ExecutionStage::Running(stage) => Advance {
            state: StageState::Running,
            partitions: stage.partitions,
            done: done(&stage.task_infos),
            running: count(&stage.task_infos, |status| {
                matches!(status, Status::Running(_))
            })
            .0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: stage.stage_metrics.as_deref(),
        },
        ExecutionStage::Successful(stage) => Advance {
            state: StageState::Succeeded,
            partitions: stage.partitions,
            done: stage.partitions,
            running: 0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: Some(&stage.stage_metrics),
        },
        ExecutionStage::Failed(stage) => Advance {
            state: StageState::Failed,
            partitions: stage.partitions,
            done: done(&stage.task_infos),
            running: 0,
            inputs: Vec::new(),
            metrics: None,
        },
    }
}

/// Describes the stage in a line: the operator below the one that writes its shuffle files.
fn operator(plan: &dyn ExecutionPlan) -> String {
    let inputs = plan.children();
    let below = inputs.first().map_or(plan, |input| input.as_ref());
    displayable(below).one_line().to_string().trim().to_owned()
}
