//! Job graphs as rows of a table: the stages of an attempt, and the progress of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ballista_core::JobId;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::cluster::JobState;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{ExecutionStage, TaskInfo};
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use volley_engine::TrainExec;
use volley_proto::limits::grouped;
use volley_proto::tables::{Operator, Stage, StageExecutor, StageKind, StageState};

use super::BallistaScheduler;
use super::job_state::VolleyJobState;
use super::reading::{Reading, TaskOf};
use crate::tables::{AttemptOf, StageRows};
use volley_engine::stages::{Description, find, in_stages, is_writer};

/// Graphs of attempts, running and ended.
#[derive(Clone)]
pub(crate) struct Graphs {
    ballista: BallistaScheduler,
    ended: Arc<VolleyJobState>,
    reading: Reading,
}

impl Graphs {
    pub(super) fn new(
        ballista: BallistaScheduler,
        ended: Arc<VolleyJobState>,
        reading: Reading,
    ) -> Self {
        Self {
            ballista,
            ended,
            reading,
        }
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
        let reading = self.reading.of(&attempt, Instant::now());
        let attempt = JobId::from(attempt);
        let running = self.ballista.state.task_manager.get_running_job_cache();
        let mut stages = if let Some(info) = running.get(&attempt) {
            rows(&*info.execution_graph.read().await, &reading)
        } else {
            match self.ended.get_execution_graph(&attempt).await {
                Ok(Some(graph)) => stages(&graph),
                Ok(None) | Err(_) => self.ended.stages_of(&attempt).unwrap_or_default(),
            }
        };
        for stage in &mut stages {
            job.clone_into(&mut stage.job_id);
            stage.train_id = train_id.map(str::to_owned);
        }
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
    attempt: usize,
    partitions: usize,
    done: usize,
    inputs: Vec<u64>,
    metrics: Option<&'a [MetricsSet]>,
}

/// Returns the stages of an ended attempt's graph, of no job.
pub(super) fn stages(graph: &ExecutionGraphBox) -> Vec<Stage> {
    rows(graph, &HashMap::new())
}

/// Returns the stages of a graph, of no job; `reading` has the rows that tasks have read, as their executors have told.
fn rows(graph: &ExecutionGraphBox, reading: &HashMap<TaskOf, u64>) -> Vec<Stage> {
    let mut stages: Vec<_> = graph.stages().iter().collect();
    // A stage has a higher number than those that it reads.
    stages.sort_by_key(|(id, _)| **id);
    let mut described = BTreeMap::new();
    let mut written = BTreeMap::new();
    let mut rows = Vec::with_capacity(stages.len());
    for (id, stage) in stages {
        let planned = plan_of(stage);
        let description = Description::of(planned.as_ref(), &described);
        let plan = in_stages(planned);
        let plan = plan.as_ref().unwrap_or(planned).as_ref();
        let Advance {
            state,
            attempt,
            partitions,
            done,
            inputs,
            metrics,
        } = advance(stage);
        let kind = match find::<TrainExec>(plan) {
            Some(_) => StageKind::Training,
            None => StageKind::Query,
        };
        let metrics = metrics.unwrap_or_default();
        let spilled: usize = metrics.iter().filter_map(MetricsSet::spilled_bytes).sum();
        let tasks = Tasks::of(tasks_of(stage));
        let operators = Operators::of(plan, metrics, tasks.seconds.len() as u64);
        let of_stages = inputs.iter().filter_map(|input| written.get(input));
        let of_stages: u64 = of_stages.sum();
        let bytes_read = operators
            .bytes_scanned
            .map_or(of_stages, |of_files| of_files + of_stages);
        written.insert(*id as u64, tasks.bytes);
        let mut rows_read = operators.rows_read.unwrap_or(0);
        let rows_to_read = match state {
            StageState::Succeeded => Some(rows_read),
            // Text files do not say how many rows they have: the tasks that are done tell.
            _ => to_read(plan).or_else(|| {
                let of_done = rows_read.checked_mul(partitions as u64)?;
                of_done.checked_div(done as u64)
            }),
        };
        if state == StageState::Running {
            rows_read += read_by_running(*id as u64, tasks_of(stage), reading);
        }
        let has_ended = matches!(state, StageState::Succeeded | StageState::Failed);
        rows.push(Stage {
            job_id: String::new(),
            train_id: None,
            stage_id: *id as u64,
            kind,
            state,
            partitions: partitions as u64,
            partitions_done: done as u64,
            running: tasks.running,
            attempts: attempt as u64 + 1,
            tasks_failed: tasks.failed,
            started: tasks.started,
            ended: tasks.finished.filter(|_| has_ended),
            rows_read,
            rows_to_read,
            bytes_read: (bytes_read > 0).then_some(bytes_read),
            rows: metrics
                .first()
                .and_then(|writer| Some(writer.output_rows()? as u64)),
            rows_written: operators.rows_written,
            bytes: tasks.bytes,
            spilled_bytes: spilled as u64,
            tasks_done: tasks.seconds.len() as u64,
            seconds: tasks.span(),
            fastest_seconds: tasks.seconds.first().copied(),
            median_seconds: tasks.seconds.get(tasks.seconds.len() / 2).copied(),
            slowest_seconds: tasks.seconds.last().copied(),
            task_histogram: histogram(&tasks.seconds),
            executors: tasks.executors.into_values().collect(),
            inputs,
            description: description.text(),
            operator: operator(plan),
            plan: operators.text(),
            operators: operators.all,
        });
        described.insert(*id, description);
    }
    rows
}

/// Returns the rows that the running tasks of a stage have read. What its other tasks have read is among its metrics, even
/// where an executor's last report still has them.
fn read_by_running(stage: u64, tasks: &[TaskInfo], reading: &HashMap<TaskOf, u64>) -> u64 {
    let running = tasks.iter().filter_map(|task| match &task.task_status {
        Status::Running(running) => Some(TaskOf {
            executor: running.executor_id.clone(),
            stage,
            number: task.task_id as u64,
        }),
        Status::Successful(_) | Status::Failed(_) => None,
    });
    running.filter_map(|of| reading.get(&of)).sum()
}

/// Returns the rows that a plan reads, by the statistics of files and of stages that are done. `None` if one has none, or if
/// each task reads a whole side of a join.
fn to_read(plan: &dyn ExecutionPlan) -> Option<u64> {
    let inputs = plan.children();
    if collects_first(plan) {
        return None;
    }
    match inputs.is_empty() {
        true => {
            let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
            let rows = statistics.ok()?.num_rows.get_value().copied();
            rows.map(|rows| rows as u64)
        }
        false => inputs.iter().map(|input| to_read(input.as_ref())).sum(),
    }
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

pub(super) fn tasks_of(stage: &ExecutionStage) -> &[TaskInfo] {
    match stage {
        ExecutionStage::UnResolved(_) | ExecutionStage::Resolved(_) => &[],
        ExecutionStage::Running(stage) => &stage.task_infos,
        ExecutionStage::Successful(stage) => &stage.task_infos,
        ExecutionStage::Failed(stage) => &stage.task_infos,
    }
}

/// Figures of a stage's tasks.
#[derive(Debug, Default)]
struct Tasks {
    running: u64,
    failed: u64,
    /// Bytes that those that are done have written.
    bytes: u64,
    /// Times in milliseconds since 1970 at which the first was launched, and at which the last that is done was done: by
    /// the scheduler's clock.
    started: Option<u64>,
    finished: Option<u64>,
    /// Seconds of each that is done, in ascending order, by the executors' clocks.
    seconds: Vec<f64>,
    executors: BTreeMap<String, StageExecutor>,
}

impl Tasks {
    fn of(tasks: &[TaskInfo]) -> Self {
        let mut all = Self::default();
        for task in tasks {
            let launched = task.launch_time as u64;
            match &task.task_status {
                Status::Successful(successful) => {
                    let written = successful.partitions.iter().map(|to| to.num_bytes);
                    all.bytes += written.sum::<u64>();
                    let (began, ended) = (task.start_exec_time, task.end_exec_time);
                    let seconds = ended.saturating_sub(began) as f64 / 1e3;
                    all.seconds.push(seconds);
                    let finished = Some(task.finish_time as u64);
                    all.finished = all.finished.max(finished);
                    let share = all.share(&successful.executor_id, launched);
                    share.tasks += 1;
                    share.seconds += seconds;
                    share.ended = share.ended.max(finished);
                }
                Status::Running(running) => {
                    all.running += 1;
                    all.share(&running.executor_id, launched).running += 1;
                }
                // A failed task does not say where it ran.
                Status::Failed(_) => all.failed += 1,
            }
            let first = all.started.map_or(launched, |first| first.min(launched));
            all.started = Some(first);
        }
        all.seconds.sort_by(f64::total_cmp);
        all
    }

    /// Returns the share of the executor of a task that was launched at this time.
    fn share(&mut self, executor: &str, launched: u64) -> &mut StageExecutor {
        if !self.executors.contains_key(executor) {
            let share = StageExecutor {
                executor_id: executor.to_owned(),
                tasks: 0,
                running: 0,
                started: launched,
                ended: None,
                seconds: 0.0,
            };
            self.executors.insert(executor.to_owned(), share);
        }
        let share = self.executors.get_mut(executor).expect("inserted above");
        share.started = share.started.min(launched);
        share
    }

    /// Returns the seconds from the first launch to the last end.
    fn span(&self) -> Option<f64> {
        let (started, finished) = (self.started?, self.finished?);
        Some(finished.saturating_sub(started) as f64 / 1e3)
    }
}

/// Ranges of a histogram.
const RANGES: usize = 20;

/// Counts numbers in ascending order, in equal ranges from the first to the last; nothing where these are the same.
fn histogram(sorted: &[f64]) -> Vec<u64> {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return Vec::new();
    };
    let width = (last - first) / RANGES as f64;
    if width <= 0.0 {
        return Vec::new();
    }
    let mut counts = vec![0; RANGES];
    for number in sorted {
        let range = ((number - first) / width) as usize;
        counts[range.min(RANGES - 1)] += 1;
    }
    counts
}

/// Operators of a stage's plan, with their metrics.
#[derive(Debug, Default)]
struct Operators {
    all: Vec<Operator>,
    has_metrics: bool,
    /// Number of tasks that have ended.
    tasks: u64,
    /// For each operator, whether each task reads all of its rows.
    in_each_task: Vec<bool>,
    /// Rows of files and of exchanges.
    rows_read: Option<u64>,
    /// Bytes that readers of files have counted.
    bytes_scanned: Option<u64>,
    rows_written: Option<u64>,
}

impl Operators {
    /// Reads a plan and the metrics of those of its operators that have some, in the order of the plan. Metrics of another
    /// number of operators are of another plan, and left out.
    fn of(plan: &dyn ExecutionPlan, metrics: &[MetricsSet], tasks: u64) -> Self {
        let has_metrics = !metrics.is_empty() && reporting(plan) == metrics.len();
        let mut operators = Self {
            has_metrics,
            tasks,
            ..Self::default()
        };
        let mut metrics = metrics.iter().filter(|_| has_metrics);
        operators.add(plan, (0, false), &mut metrics);
        operators
    }

    /// Adds an operator at a depth, whose rows each task may read, and those below. Returns the rows of its output.
    fn add<'a>(
        &mut self,
        plan: &dyn ExecutionPlan,
        (depth, in_each_task): (u64, bool),
        metrics: &mut impl Iterator<Item = &'a MetricsSet>,
    ) -> Option<u64> {
        let own = plan.metrics().and_then(|_| metrics.next());
        let rows = own.and_then(|own| Some(own.output_rows()? as u64));
        let shown = own.map(|own| {
            let shown = own.aggregate_by_name().sorted_for_display();
            shown.timestamps_removed().to_string()
        });
        self.in_each_task.push(in_each_task);
        self.all.push(Operator {
            depth,
            text: displayable(plan)
                .one_line()
                .to_string()
                .trim_end()
                .to_owned(),
            rows,
            seconds: own.and_then(seconds),
            metrics: shown.unwrap_or_default(),
        });
        let inputs = plan.children();
        if inputs.is_empty() {
            add(&mut self.rows_read, rows);
            let scanned = own.and_then(|own| own.sum_by_name("bytes_scanned"));
            add(
                &mut self.bytes_scanned,
                scanned.map(|bytes| bytes.as_usize() as u64),
            );
        }
        for (at, input) in inputs.into_iter().enumerate() {
            let in_each_task = in_each_task || at == 0 && collects_first(plan);
            let rows = self.add(input.as_ref(), (depth + 1, in_each_task), metrics);
            if is_writer(plan) {
                add(&mut self.rows_written, rows);
            }
        }
        rows
    }

    /// Returns the operators as text, each in a line below the one that reads it: its name, its rows, what it does and its
    /// other metrics.
    fn text(&self) -> String {
        let mut text = String::new();
        for (operator, in_each_task) in self.all.iter().zip(&self.in_each_task) {
            let indent = 2 * operator.depth as usize;
            let metrics = match self.has_metrics {
                true => format!(", metrics=[{}]", without_rows(&operator.metrics)),
                false => String::new(),
            };
            let (name, rest) = match operator.text.split_once(": ") {
                Some((name, rest)) => (name, format!(", {rest}")),
                None => (operator.text.as_str(), String::new()),
            };
            let described = match operator.rows {
                Some(rows) => format!("{name}: {}{rest}", self.rows(rows, *in_each_task)),
                None => operator.text.clone(),
            };
            text.push_str(&format!("{:indent$}{described}{metrics}\n", ""));
        }
        text
    }

    /// Describes the rows of an operator's output, which are those of all tasks together.
    fn rows(&self, rows: u64, in_each_task: bool) -> String {
        let tasks = self.tasks;
        match in_each_task && tasks > 1 {
            true if rows.is_multiple_of(tasks) => {
                format!(
                    "rows={} (read by each of {tasks} tasks)",
                    grouped(rows / tasks)
                )
            }
            true => format!(
                "rows={} (in {tasks} tasks, each of which reads all)",
                grouped(rows)
            ),
            false => format!("rows={}", grouped(rows)),
        }
    }
}

/// Checks whether each task reads all rows of an operator's first input.
fn collects_first(plan: &dyn ExecutionPlan) -> bool {
    match plan.downcast_ref::<HashJoinExec>() {
        Some(join) => *join.partition_mode() != PartitionMode::Partitioned,
        None => plan.is::<CrossJoinExec>() || plan.is::<NestedLoopJoinExec>(),
    }
}

/// Returns an operator's metrics as text without its rows, which come first.
fn without_rows(metrics: &str) -> String {
    let metrics = metrics.split(", ");
    let others = metrics.filter(|metric| !metric.starts_with("output_rows="));
    others.collect::<Vec<_>>().join(", ")
}

/// Counts the operators of a plan that have metrics.
fn reporting(plan: &dyn ExecutionPlan) -> usize {
    let below = plan
        .children()
        .into_iter()
        .map(|input| reporting(input.as_ref()));
    usize::from(plan.metrics().is_some()) + below.sum::<usize>()
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0) + more);
    }
}

/// Returns the seconds that an operator computed: as it says, or what its scan, its shuffle files or its sink took.
fn seconds(metrics: &MetricsSet) -> Option<f64> {
    let named = |name: &str| Some(metrics.sum_by_name(name)?.as_usize());
    let nanos = match metrics.elapsed_compute() {
        // Scans count only a part of their work under that name.
        Some(computed) => computed.max(named("time_elapsed_processing").unwrap_or(0)),
        None => {
            let parts = ["repart_time", "write_time", "fetch_time", "local_read_time"];
            let parts: Vec<_> = parts.into_iter().filter_map(named).collect();
            (!parts.is_empty()).then(|| parts.iter().sum())?
        }
    };
    Some(nanos as f64 / 1e9)
}

fn advance(stage: &ExecutionStage) -> Advance<'_> {
    let of_plan = |plan: &Arc<dyn ExecutionPlan>| {
        use datafusion::physical_plan::ExecutionPlanProperties;
        let inputs = plan.children();
        let first = inputs.first().copied().unwrap_or(plan);
        first.output_partitioning().partition_count()
    };
    let done = |tasks: &[TaskInfo]| -> usize {
        let is_done = |task: &&TaskInfo| matches!(task.task_status, Status::Successful(_));
        let done = tasks.iter().filter(is_done);
        done.map(|task| task.global_input_partition_ids.len()).sum()
    };
    let ids = |inputs: &mut dyn Iterator<Item = &usize>| {
        let mut ids: Vec<u64> = inputs.map(|id| *id as u64).collect();
        ids.sort_unstable();
        ids
    };
    match stage {
        ExecutionStage::UnResolved(stage) => Advance {
            state: StageState::Waiting,
            attempt: stage.stage_attempt_num,
            partitions: of_plan(&stage.plan),
            done: 0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: None,
        },
        ExecutionStage::Resolved(stage) => Advance {
            state: StageState::Ready,
            attempt: stage.stage_attempt_num,
            partitions: stage.partitions,
            done: 0,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: None,
        },
        ExecutionStage::Running(stage) => Advance {
            state: StageState::Running,
            attempt: stage.stage_attempt_num,
            partitions: stage.partitions,
            done: done(&stage.task_infos),
            inputs: ids(&mut stage.inputs.keys()),
            metrics: stage.stage_metrics.as_deref(),
        },
        ExecutionStage::Successful(stage) => Advance {
            state: StageState::Succeeded,
            attempt: stage.stage_attempt_num,
            partitions: stage.partitions,
            done: stage.partitions,
            inputs: ids(&mut stage.inputs.keys()),
            metrics: Some(&stage.stage_metrics),
        },
        ExecutionStage::Failed(stage) => Advance {
            state: StageState::Failed,
            attempt: stage.stage_attempt_num,
            partitions: stage.partitions,
            done: done(&stage.task_infos),
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

#[cfg(test)]
mod tests {
    use ballista_core::serde::protobuf::{RunningTask, SuccessfulTask};

    use super::*;

    #[test]
    fn rows_of_a_task_are_counted_once() {
        let task = |task_id, task_status| TaskInfo {
            task_id,
            scheduled_time: 0,
            launch_time: 0,
            start_exec_time: 0,
            end_exec_time: 0,
            finish_time: 0,
            task_status,
            global_input_partition_ids: vec![task_id],
            vcores_consumed: 1,
        };
        let running = |executor: &str| {
            Status::Running(RunningTask {
                executor_id: executor.to_owned(),
            })
        };
        let reading = [
            ("a", 1, 0, 10),
            ("a", 1, 1, 20),
            ("lost", 1, 2, 40),
            ("b", 1, 2, 80),
        ];
        let reading = reading.map(|(executor, stage, number, rows)| {
            let executor = executor.to_owned();
            let of = TaskOf {
                executor,
                stage,
                number,
            };
            (of, rows)
        });
        let reading = HashMap::from(reading);
        // Task 0 has ended, and task 2 runs again on another executor.
        let tasks = [
            task(0, Status::Successful(SuccessfulTask::default())),
            task(1, running("a")),
            task(2, running("b")),
        ];
        assert_eq!(read_by_running(1, &tasks, &reading), 100);
        assert_eq!(read_by_running(2, &tasks, &reading), 0);
        assert_eq!(read_by_running(1, &[], &reading), 0);
    }

    #[test]
    fn tasks_are_counted_in_equal_ranges() {
        assert_eq!(histogram(&[]), Vec::<u64>::new());
        assert_eq!(histogram(&[2.0, 2.0]), Vec::<u64>::new());
        let mut due = vec![0; RANGES];
        (due[0], due[1], due[RANGES - 1]) = (2, 1, 1);
        assert_eq!(histogram(&[0.0, 0.9, 1.5, 20.0]), due);
        let many: Vec<f64> = (0..100_000).map(f64::from).collect();
        let counts = histogram(&many);
        assert_eq!((counts.len(), counts.iter().sum()), (RANGES, 100_000_u64));
    }

    #[test]
    fn rows_that_each_task_reads_are_those_of_one() {
        let operator = |depth: u64, text: &str, rows: u64, metrics: &str| Operator {
            depth,
            text: text.to_owned(),
            rows: Some(rows),
            seconds: None,
            metrics: metrics.to_owned(),
        };
        let operators = Operators {
            all: vec![
                operator(
                    0,
                    "HashJoinExec: mode=CollectLeft",
                    40_000,
                    "output_rows=40.00 K, join_time=1ms",
                ),
                operator(1, "DataSourceExec: file_type=csv", 14, "output_rows=14"),
                operator(
                    1,
                    "UnionExec",
                    40_000,
                    "output_rows=40.00 K, output_bytes=1 B",
                ),
            ],
            has_metrics: true,
            tasks: 2,
            in_each_task: vec![false, true, false],
            ..Operators::default()
        };
        assert_eq!(
            operators.text(),
            "HashJoinExec: rows=40,000, mode=CollectLeft, metrics=[join_time=1ms]\n\
             \u{20} DataSourceExec: rows=7 (read by each of 2 tasks), file_type=csv, metrics=[]\n\
             \u{20} UnionExec: rows=40,000, metrics=[output_bytes=1 B]\n"
        );
        assert_eq!(
            operators.rows(15, true),
            "rows=15 (in 2 tasks, each of which reads all)"
        );
    }
}
