//! Runs tasks, reports them and the rows of small results to the scheduler, tells it what running tasks have read, and
//! sends heartbeats.
//!
//! ```text
//!   task server ──► tasks ──► threads of their own ──► reports ──► scheduler, many at once
//! ```
//!
//! If the scheduler did not accept a report, its job would wait for ever: the executor and the scheduler have then
//! lost each other, and the executor starts over.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::failed_task::FailedReason;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    ExecutorMetric, ExecutorStatus, FailedTask, HeartBeatParams, ShuffleWritePartition,
    SuccessfulTask, TaskStatus, UpdateTaskStatusParams, executor_metric, executor_status,
    task_status,
};
use ballista_core::serde::scheduler::{TaskDefinition, TaskKey};
use ballista_executor::execution_engine::QueryStageExecutor;
use ballista_executor::executor::Executor as BallistaExecutor;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use volley_proto::access::Authorized;
use volley_proto::failure::{DataLost, TaskFailure};
use volley_proto::limits::{MESSAGE_LIMIT, STACK};
use volley_proto::metrics::status_bytes;
use volley_proto::tables::millis;
use volley_proto::traces::{Part, Place, Span, Traces};
use volley_proto::wire::tasks_client::TasksClient;
use volley_proto::wire::{Reading, ReportRequest, Task, TaskRows};

use super::engine::{VolleyEngine, first_attempt};
use super::shuffle_dir;
use super::small_results::SmallResult;
use super::tasks::Tasks;
use crate::counts::Counts;

/// Number of consecutive failed heartbeats after which the executor gives up.
const MISSED: usize = 5;
/// Maximum number of reports in one request.
const AT_ONCE: usize = 256;
/// Bytes of rows in a request above which no other report is added.
const BYTES_AT_ONCE: usize = MESSAGE_LIMIT / 4;
/// Interval at which the scheduler is told what running tasks have read.
const READING: Duration = Duration::from_millis(500);
/// Niceness of task threads, so that they yield to the threads that answer the scheduler.
const NICE: i32 = 10;
/// `PRIO_PROCESS`, used with 0 for the calling thread.
const OF_A_PROCESS: u32 = 0;

/// Authenticated client of the scheduler.
pub(super) type Scheduler = SchedulerGrpcClient<Authorized>;

/// Environment of running tasks.
pub(super) struct Runner {
    pub(super) executor: Arc<BallistaExecutor>,
    pub(super) engine: Arc<VolleyEngine>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) counts: Arc<Counts>,
    /// Handle by which spans of tasks are sent, if jobs are traced.
    pub(super) traces: Option<Traces>,
}

/// Report of a task that has ended.
pub(super) struct Report {
    status: TaskStatus,
    /// Rows that come with it.
    rows: Option<SmallResult>,
    /// True if the task has succeeded, and its rows are in its job's shuffle store as well.
    stored: bool,
}

/// Success of a task.
struct Success {
    task: SuccessfulTask,
    rows: Option<SmallResult>,
    stored: bool,
}

impl Report {
    fn bytes(&self) -> usize {
        let partitions = self.rows.iter().flat_map(|rows| &rows.partitions);
        partitions.map(|partition| partition.rows.len()).sum()
    }
}

/// Threads of tasks. Dropping them drops their tasks at the next point where these wait.
struct Threads(Option<Runtime>);

impl Threads {
    fn start(count: usize) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("task_runner")
            .thread_stack_size(STACK)
            .worker_threads(count.max(1))
            .on_thread_start(yield_to_others)
            .build()?;
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread, on systems where threads have their own: Linux.
fn yield_to_others() {
    // Sound: the call takes only numbers, and rejects invalid ones.
    #[allow(unsafe_code)]
    let set = unsafe { nix::libc::setpriority(OF_A_PROCESS, 0, NICE) };
    if set != 0 {
        tracing::debug!("a thread of tasks keeps its priority");
    }
}

impl Runner {
    /// Runs tasks for as long as this is polled.
    pub(super) async fn run(self, mut tasks: mpsc::Receiver<TaskDefinition>) {
        let threads = match Threads::start(self.executor.vcores) {
            Ok(threads) => threads,
            Err(error) => return tracing::error!(%error, "cannot start threads for tasks"),
        };
        let runner = Arc::new(self);
        while let (Some(task), Some(runtime)) = (tasks.recv().await, &threads.0) {
            let runner = Arc::clone(&runner);
            runtime.spawn(async move {
                let report = runner.run_task(task).await;
                // The receiver is gone once the executor starts over.
                runner.reports.send(report).await.ok();
            });
        }
    }

    async fn run_task(&self, task: TaskDefinition) -> Report {
        let start_exec_time = millis(SystemTime::now());
        let key = TaskKey {
            job_id: task.job_id.clone(),
            stage_id: task.stage_id,
            task_id: task.task_id,
        };
        let mut trace = self.traces.as_ref().map(|traces| TaskTrace {
            traces,
            executor: &self.executor.metadata.id,
            job: first_attempt(&task.session_config, &task.job_id),
            key: key.clone(),
            partitions: task.global_output_partition_ids.len(),
            begun: SystemTime::now(),
            sent: false,
        });
        // Volley's engine and its logs identify tasks in this form.
        let identity = format!(
            "TID {}/{}.{}/{}.{}",
            task.job_id, task.stage_id, task.stage_attempt_num, task.task_id, task.task_attempt_num,
        );
        let mut status = TaskStatus {
            task_id: key.task_id as u32,
            job_id: key.job_id.clone().into(),
            stage_id: key.stage_id as u32,
            stage_attempt_num: task.stage_attempt_num as u32,
            launch_time: task.launch_time,
            start_exec_time,
            ..TaskStatus::default()
        };
        let result = self.execute(task, key, &identity, &mut status).await;
        status.end_exec_time = millis(SystemTime::now());
        let (ended, rows, stored) = match result {
            Ok(Success { task, rows, stored }) => {
                self.counts.tasks_succeeded.add(1);
                (task_status::Status::Successful(task), rows, stored)
            }
            Err(error) => {
                tracing::info!(attempt = status.job_id, task = identity, %error, "task failed");
                let failed = FailedTask::from(error);
                match failed.failed_reason {
                    Some(FailedReason::TaskKilled(_)) => self.counts.tasks_cancelled.add(1),
                    _ => self.counts.tasks_failed.add(1),
                }
                (task_status::Status::Failed(failed), None, false)
            }
        };
        if let Some(trace) = &mut trace {
            trace.ends(&ended);
        }
        status.status = Some(ended);
        Report {
            status,
            rows,
            stored,
        }
    }

    async fn execute(
        &self,
        task: TaskDefinition,
        key: TaskKey,
        identity: &str,
        status: &mut TaskStatus,
    ) -> Result<Success, BallistaError> {
        let (job, stage_id) = (task.job_id.clone(), task.stage_id);
        let stage = Arc::new(self.engine.stage(
            (task.job_id, task.stage_id, task.task_id),
            task.global_output_partition_ids,
            task.plan,
            self.executor.work_dir(),
            &task.session_config,
        )?);
        let runtime = self.executor.produce_runtime_for_session(
            &task.session_id,
            &task.session_config,
            task.vcores_consumed,
        )?;
        let functions = task.function_registry;
        let context = TaskContext::new(
            Some(identity.to_owned()),
            task.session_id,
            task.session_config,
            functions.scalar_functions.clone(),
            functions.higher_order_functions.clone(),
            functions.aggregate_functions.clone(),
            functions.window_functions.clone(),
            runtime,
        );
        stage.logs(|| tracing::info!(task = identity, "task begins"));
        let begun = Instant::now();
        let executed = Arc::clone(&stage) as Arc<dyn QueryStageExecutor>;
        let result = self
            .executor
            .execute_query_stage(key, executed, Arc::new(context));
        let result = result.await;
        stage.logs(|| tracing::info!(task = identity, took = ?begun.elapsed(), "task has ended"));
        let metrics = stage.collect_plan_metrics();
        self.count_spills(&metrics);
        let metrics = metrics.into_iter().map(TryInto::try_into);
        let metrics: Result<Vec<_>, BallistaError> = metrics.collect();
        status.metrics = metrics.unwrap_or_default();
        let (partitions, rows) = (result?, stage.take_rows());
        if rows.is_none() {
            let folder = Path::new(self.executor.work_dir());
            let folder = folder.join(job.as_str()).join(stage_id.to_string());
            let written = shuffle_dir::written(&folder, &partitions);
            self.counts.shuffle_written_bytes.add(written);
        }
        let task = SuccessfulTask {
            partitions,
            executor_id: self.executor.metadata.id.clone(),
            runtime_stats: stage.collect_runtime_stats_reports(),
            task_column_stats: stage.collect_column_stats(),
            // The next stage adds these up: without them, its result would be wrong.
            window_state: stage.collect_window_state_reports()?,
        };
        Ok(Success {
            task,
            rows,
            stored: stage.are_stored(),
        })
    }

    /// Counts what the operators of an ended task have spilled. The writers of shuffle files are not counted: what they
    /// spill becomes part of these files, and Ballista only estimates its size.
    fn count_spills(&self, metrics: &[MetricsSet]) {
        let sum = |of: fn(&MetricsSet) -> Option<usize>| {
            let each = metrics.iter().filter_map(of);
            each.map(|number| number as u64).sum::<u64>()
        };
        self.counts
            .spilled_bytes
            .add(sum(MetricsSet::spilled_bytes));
        self.counts.spilled_files.add(sum(MetricsSet::spill_count));
    }
}

/// Span of a task that runs.
struct TaskTrace<'a> {
    traces: &'a Traces,
    executor: &'a str,
    /// Id of the job in lists and logs.
    job: String,
    key: TaskKey,
    partitions: usize,
    begun: SystemTime,
    /// True once the span is sent.
    sent: bool,
}

impl TaskTrace<'_> {
    fn send(&mut self, mark: impl FnOnce(Span) -> Span) {
        if std::mem::replace(&mut self.sent, true) {
            return;
        }
        let place = Place {
            job: &self.job,
            part: Part::Task {
                attempt: self.key.job_id.as_str(),
                stage: self.key.stage_id,
                task: self.key.task_id,
            },
        };
        let span = Span::new(&place, self.begun, SystemTime::now())
            .with("volley.executor.id", self.executor)
            .with("volley.partitions", self.partitions);
        self.traces.send(mark(span));
    }

    fn ends(&mut self, ended: &task_status::Status) {
        self.send(|span| match ended {
            task_status::Status::Successful(done) => {
                let sum = |of: fn(&ShuffleWritePartition) -> u64| {
                    done.partitions.iter().map(of).sum::<u64>()
                };
                span.with("volley.rows", sum(|partition| partition.num_rows))
                    .with("volley.bytes", sum(|partition| partition.num_bytes))
                    .succeeded()
            }
            task_status::Status::Failed(failed) => match failed.failed_reason {
                Some(FailedReason::TaskKilled(_)) => span,
                _ => span.failed(cause(&failed.error)),
            },
            task_status::Status::Running(_) => span,
        });
    }
}

/// A task that is dropped while it runs has ended too.
impl Drop for TaskTrace<'_> {
    fn drop(&mut self) {
        self.send(|span| span);
    }
}

/// Returns the text of a task's error that users see.
fn cause(error: &str) -> String {
    match (DataLost::find(error), TaskFailure::find(error)) {
        (Some(lost), _) => format!(
            "data of executor {} is lost: {}",
            lost.executor, lost.reason
        ),
        (None, failure) => failure.unwrap_or(error).to_owned(),
    }
}

/// Reports ended tasks to the scheduler, many at once, and what running ones have read. Returns when the scheduler does not
/// accept that tasks have ended.
pub(super) async fn report(
    channel: Authorized,
    executor_id: String,
    tasks: Tasks,
    mut reports: mpsc::Receiver<Report>,
) {
    let mut scheduler = TasksClient::new(channel)
        .max_encoding_message_size(MESSAGE_LIMIT)
        .max_decoding_message_size(MESSAGE_LIMIT);
    let mut reading = interval(READING);
    reading.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_told = true;
    loop {
        let first = tokio::select! {
            biased;
            first = reports.recv() => first,
            _ = reading.tick() => {
                let running = tasks.reading();
                // That nothing runs any more is told once.
                if !running.is_empty() || !is_told {
                    is_told = running.is_empty();
                    let reading = Reading {
                        executor_id: executor_id.clone(),
                        tasks: running,
                    };
                    let request = ReportRequest {
                        reading: Some(reading),
                        ..ReportRequest::default()
                    };
                    if let Err(status) = scheduler.report(request).await {
                        let reason = status.message();
                        tracing::debug!(reason, "the scheduler was not told what tasks have read");
                    }
                }
                continue;
            }
        };
        let Some(first) = first else { break };
        let mut bytes = first.bytes();
        let mut ended = vec![first];
        while ended.len() < AT_ONCE
            && bytes < BYTES_AT_ONCE
            && let Ok(next) = reports.try_recv()
        {
            bytes += next.bytes();
            ended.push(next);
        }
        let rows_of = |report: &mut Report| {
            let SmallResult {
                partitions,
                has_files,
            } = report.rows.take()?;
            Some(TaskRows {
                job_id: report.status.job_id.clone(),
                task_id: u64::from(report.status.task_id),
                partitions,
                has_files,
            })
        };
        let rows = ended.iter_mut().filter_map(rows_of).collect();
        let stored = ended.iter().filter(|report| report.stored);
        let stored = stored.map(|report| Task {
            job_id: report.status.job_id.clone(),
            stage_id: u64::from(report.status.stage_id),
            task_id: u64::from(report.status.task_id),
        });
        let stored = stored.collect();
        let statuses = UpdateTaskStatusParams {
            executor_id: executor_id.clone(),
            task_status: ended.into_iter().map(|report| report.status).collect(),
        };
        let request = ReportRequest {
            statuses: statuses.encode_to_vec(),
            rows,
            reading: None,
            stored,
        };
        if let Err(status) = scheduler.report(request).await {
            let reason = status.message();
            return tracing::error!(reason, "the scheduler rejected the reports of ended tasks");
        }
    }
    // The runner holds the sender for as long as the process exists.
    std::future::pending().await
}

/// Sends heartbeats to the scheduler. Returns when several in a row have failed.
pub(super) async fn heartbeats(
    mut scheduler: Scheduler,
    executor: Arc<BallistaExecutor>,
    interval: Duration,
) {
    let mut missed = 0;
    while missed < MISSED {
        let status = executor_status::Status::Active(String::new());
        let heartbeat = HeartBeatParams {
            executor_id: executor.metadata.id.clone(),
            metrics: memory(),
            status: Some(ExecutorStatus {
                status: Some(status),
            }),
            metadata: Some(executor.metadata.clone()),
        };
        match scheduler.heart_beat_from_executor(heartbeat).await {
            Ok(_) => missed = 0,
            Err(status) => {
                missed += 1;
                let reason = status.message();
                tracing::warn!(missed, reason, "the scheduler did not accept a heartbeat");
            }
        }
        sleep(interval).await;
    }
}

/// Returns the memory of this process, where the system reports it.
fn memory() -> Vec<ExecutorMetric> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let metric = |metric| ExecutorMetric {
        metric: Some(metric),
    };
    let physical = status_bytes(&status, "VmRSS:").map(executor_metric::Metric::ProcPhysicalMemory);
    let virtual_ = status_bytes(&status, "VmSize:").map(executor_metric::Metric::ProcVirtualMemory);
    physical.into_iter().chain(virtual_).map(metric).collect()
}
