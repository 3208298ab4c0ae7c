//! The engine wrapper around every task: identity, a cancel token, and error classes.
//!
//! ```text
//! a task's plan ─► equip ─► filter ─► rewrite ─► stop ─► below the stage's writer
//! ```
//!
//! - The operator of a barrier stage receives the identity of its task.
//! - Where the job has a shuffle store, the task copies its files there before it succeeds.
//! - Dropping the task's future cancels its token, and the token stops the plan; so do the scheduler's request to
//!   end the task and the end of the executor's registration.
//! - An error that DataFusion has wrapped keeps its class: a cancellation stays a cancellation. Data that an
//!   executor no longer serves is marked as lost, so that the job runs again instead of being repaired by Ballista.
//!   An error about a file names the file, and one of a disk the disk. Every other error is marked, so that the client
//!   can show its cause to the user.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::client_pool::BallistaClientPool;
use ballista_core::error::BallistaError;
use ballista_core::execution_plans::sort_shuffle::SortShuffleWriterExec;
use ballista_core::execution_plans::{
    RangeShuffleReaderExec, RangeShuffleWriterExec, ShuffleReaderExec, ShuffleWriterExec,
};
use ballista_core::serde::protobuf::{
    RuntimeStatsReport, ShuffleWritePartition, WindowStateReport,
};
use ballista_executor::execution_engine::{
    DefaultQueryStageExec, ExecutionEngine, QueryStageExecutor, ShuffleWriterVariant,
};
use datafusion::arrow::error::ArrowError;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;
use tracing::{Instrument, Span};
use volley_engine::error::External;
use volley_engine::object_stores::{ShuffleStore, Stores};
use volley_engine::runtime::TaskIdentity;
use volley_engine::settings::JobSettings;
use volley_engine::task::{filter, rewrite};
use volley_engine::{
    KeptExec, PrunedExec, ResultExec, TrainExec, places_of_task, replaces_file, written_files,
};
use volley_proto::access::{AllowedPaths, Denied};
use volley_proto::failure::{DataLost, TaskFailure, chain};
use volley_proto::wire::PartitionRows;

use super::complete::RowsMissing;
use super::disks::Disks;
use super::equip::{Equipment, equip};
use super::kept::KeptFiles;
use super::local_files::can_be_made;
use super::small_results::{ReadAhead, SmallResult};
use super::stop::stop;
use super::stored::{Copies, TaskStore, Transfers};
use super::tasks::{Running, Tasks};

/// Engine that creates stages of Ballista's with a stop.
pub(super) struct VolleyEngine {
    /// Connections to executors that hold the tasks' input.
    connections: Arc<dyn BallistaClientPool>,
    tasks: Tasks,
    /// Paths where tasks may read and write.
    paths: AllowedPaths,
    /// Id of the executor.
    executor: String,
    /// Transfers of tasks to and from shuffle stores.
    transfers: Arc<Transfers>,
}

impl VolleyEngine {
    pub(super) fn new(
        executor: &str,
        connections: Arc<dyn BallistaClientPool>,
        tasks: Tasks,
        paths: AllowedPaths,
    ) -> Self {
        Self {
            connections,
            tasks,
            paths,
            executor: executor.to_owned(),
            transfers: Arc::default(),
        }
    }

    /// Checks the paths of a task.
    ///
    /// # Errors
    /// When the task reads or writes where it may not.
    fn check_places(&self, plan: &dyn ExecutionPlan) -> Result<()> {
        if !self.paths.is_restricted() {
            return Ok(());
        }
        for place in places_of_task(plan)? {
            let allowed = self.paths.check(&place);
            allowed.map_err(|denied| refused(place.path(), &denied))?;
        }
        Ok(())
    }

    /// Opens the shuffle store of a task's job.
    ///
    /// # Errors
    /// When the task may not write there.
    fn task_store(&self, store: ShuffleStore, running: &Running) -> Result<TaskStore> {
        let allowed = self.paths.check(store.url());
        allowed.map_err(|denied| refused(store.url().path(), &denied))?;
        Ok(TaskStore {
            store,
            transfers: Arc::clone(&self.transfers),
            running: running.clone(),
        })
    }
}

/// Returns the error of a task that reads or writes where it may not.
fn refused(object: &str, denied: &Denied) -> DataFusionError {
    let reason = denied.to_string();
    tracing::warn!(target: "volley::audit", who = "scheduler", role = "-", peer = "-", action = "run", object, outcome = "refused", reason);
    DataFusionError::Plan(reason)
}

impl VolleyEngine {
    /// Creates the execution of a task, below its executor's folder.
    ///
    /// # Errors
    /// When the plan is not a stage's, or may not run here.
    pub(super) fn stage(
        &self,
        (job_id, stage_id, task_id): (JobId, usize, usize),
        partitions: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        session: &SessionConfig,
    ) -> Result<VolleyStage> {
        let identity = TaskIdentity {
            job_id: job_id.to_string(),
            first_attempt: first_attempt(session, &job_id),
            stage_id,
            task_id,
            partitions: partitions.clone(),
        };
        let running = self.tasks.begin(&identity);
        // Everything logged in the span belongs to the job.
        let (job, attempt) = (identity.first_attempt.as_str(), &identity.job_id);
        let span = tracing::error_span!("task", job, %attempt, stage = stage_id, partitions = ?identity.partitions);
        let mut disks = Disks {
            executor: self.executor.clone(),
            work_dir: work_dir.into(),
            targets: vec![],
        };
        if let [input] = plan.children()[..]
            && let Some(kept) = input.downcast_ref::<KeptExec>()
        {
            let store = kept.rows().store.as_ref();
            let store = store.map(|url| {
                let stores = Stores::of(session).external()?;
                let store = ShuffleStore::new(&stores, url, &identity.first_attempt);
                self.task_store(store, &running)
            });
            let files = KeptFiles {
                rows: kept.rows().clone(),
                store: store.transpose()?,
                attempt: job_id,
                stage: stage_id,
                work_dir: work_dir.into(),
                executor: self.executor.clone(),
            };
            return Ok(VolleyStage {
                stage: Arc::new(files),
                below: Arc::clone(input),
                result: None,
                copies: None,
                are_stored: AtomicBool::new(false),
                running,
                file: None,
                disks,
                span,
            });
        }
        let store = shuffle_store(session, &identity.first_attempt);
        let store = store.map(|store| self.task_store(store, &running));
        let copies = store.transpose()?.map(|to| Copies {
            to,
            attempt: job_id.clone(),
            stage: stage_id,
            work_dir: work_dir.into(),
            executor: self.executor.clone(),
        });
        let mut file = None;
        plan.apply(|node| {
            file = file.take().or_else(|| replaces_file(node.as_ref()));
            disks.targets.extend(written_files(node.as_ref()));
            Ok(TreeNodeRecursion::Continue)
        })?;
        // The root is the stage's writer; its input is the part that can be stopped.
        let writer = plan;
        let [input] = writer.children()[..] else {
            return internal_err!("a stage is written by an operator with one input");
        };
        let result = input.downcast_ref::<ResultExec>();
        let input = result.map_or(input, ResultExec::input);
        self.check_places(input.as_ref())?;
        let has_files = input.exists(|node| Ok(uses_files(node.as_ref())))?;
        let equipment = Equipment {
            connections: &self.connections,
            work_dir,
            identity: &identity,
            running: &running,
        };
        let input = equip(Arc::clone(input), &equipment)?;
        let input = filter(input, session.options())?;
        let input = rewrite(input, session.options())?;
        let input = stop(input, &running)?;
        running.runs(&input);
        let below = Arc::clone(&input);
        let result = result.map(|result| TaskResult {
            plan: Arc::new(ReadAhead::new(Arc::clone(&input))),
            small: result.small(),
            partitions: partitions.clone(),
            has_files,
            metrics: ExecutionPlanMetricsSet::new(),
            rows: Mutex::default(),
        });
        let input = match &result {
            Some(result) => Arc::clone(&result.plan) as Arc<dyn ExecutionPlan>,
            None => input,
        };
        let folder = work_dir.to_owned();
        let writer = if writer.is::<ShuffleWriterExec>() {
            let writer = ShuffleWriterExec::try_new(job_id, stage_id, input, folder)?;
            ShuffleWriterVariant::Passthrough(
                writer
                    .with_task_id(task_id)
                    .with_global_output_partition_ids(partitions),
            )
        } else if let Some(planned) = writer.downcast_ref::<SortShuffleWriterExec>() {
            let partitioning = planned.shuffle_output_partitioning().clone();
            let config = planned.config().clone();
            let writer = SortShuffleWriterExec::try_new(
                job_id,
                stage_id,
                input,
                folder,
                partitioning,
                config,
            )?;
            ShuffleWriterVariant::Sort(
                writer
                    .with_task_id(task_id)
                    .with_global_output_partition_ids(partitions),
            )
        } else if writer.is::<RangeShuffleWriterExec>() {
            let writer = RangeShuffleWriterExec::try_new(job_id, stage_id, input, folder)?;
            ShuffleWriterVariant::Range(writer.with_task_id(task_id))
        } else {
            return internal_err!("{} does not write a stage", writer.name());
        };
        let stage = Arc::new(DefaultQueryStageExec::new(writer));
        Ok(VolleyStage {
            stage,
            below,
            result,
            copies,
            are_stored: AtomicBool::new(false),
            running,
            file,
            disks,
            span,
        })
    }
}

impl ExecutionEngine for VolleyEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        partitions: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        session: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let task = (job_id, stage_id, task_id);
        let stage = self.stage(task, partitions, plan, work_dir, session)?;
        Ok(Arc::new(stage))
    }
}

/// Returns the id of the job of an attempt, as lists and logs have it.
pub(super) fn first_attempt(session: &SessionConfig, attempt: &JobId) -> String {
    let settings = session.options().extensions.get::<JobSettings>();
    let first = settings.and_then(|settings| settings.first_attempt.clone());
    first.unwrap_or_else(|| attempt.to_string())
}

/// Returns the store for copies of a job's shuffle files, if it has one. The last stage's settings have none.
fn shuffle_store(session: &SessionConfig, job: &str) -> Option<ShuffleStore> {
    let settings: &JobSettings = session.options().extensions.get()?;
    let url = settings.shuffle_store.as_ref()?;
    let stores = Stores::of(session).ok()?;
    Some(ShuffleStore::new(&stores, url, job))
}

/// Checks whether an operator reads files of the executors' work folders, or writes any.
fn uses_files(node: &dyn ExecutionPlan) -> bool {
    node.is::<ShuffleReaderExec>() || node.is::<RangeShuffleReaderExec>() || node.is::<TrainExec>()
}

/// Maps a task's metrics to its stage's operators. Every task reports on the same operators, including those whose
/// partitions are pruned in it.
fn for_stage(
    plan: &dyn ExecutionPlan,
    metrics: &mut impl Iterator<Item = MetricsSet>,
    of_stage: &mut Vec<MetricsSet>,
) {
    if let Some(pruned) = plan.downcast_ref::<PrunedExec>() {
        let none = std::iter::repeat_with(MetricsSet::new);
        of_stage.extend(none.take(pruned.operators()));
    } else if plan.metrics().is_some() {
        of_stage.extend(metrics.next());
    }
    for input in plan.children() {
        for_stage(input.as_ref(), metrics, of_stage);
    }
}

/// Part of a query's result that a task computes.
#[derive(Debug)]
struct TaskResult {
    plan: Arc<ReadAhead>,
    /// Bytes up to which the rows come with the task's report.
    small: usize,
    /// Numbers of the task's partitions in the stage.
    partitions: Vec<usize>,
    /// True if the task reads or writes files of a work folder, apart from its rows.
    has_files: bool,
    /// Metrics in the place of the writer's.
    metrics: ExecutionPlanMetricsSet,
    rows: Mutex<Option<SmallResult>>,
}

impl TaskResult {
    /// Reads the rows, if they are few. Otherwise the stage's writer is to write them.
    async fn read(
        &self,
        task_id: usize,
        context: &Arc<TaskContext>,
    ) -> Result<Option<Vec<ShuffleWritePartition>>> {
        // Where partitions were put together, the first numbers stand for all.
        let partitioning = self.plan.properties().output_partitioning();
        if self.partitions.len() < partitioning.partition_count() {
            return Ok(None);
        }
        let Some(read) = self.plan.read(self.small, context).await? else {
            return Ok(None);
        };
        let (mut partitions, mut written) = (Vec::new(), Vec::new());
        for (local, (number, encoded)) in self.partitions.iter().zip(read).enumerate() {
            let counter = |name| MetricBuilder::new(&self.metrics).counter(name, local);
            counter("input_rows").add(encoded.rows);
            let rows = MetricBuilder::new(&self.metrics).output_rows(local);
            rows.add(encoded.rows);
            // A writer leaves out partitions without rows, too.
            if encoded.rows == 0 {
                continue;
            }
            written.push(ShuffleWritePartition {
                partition_id: *number as u64,
                num_batches: encoded.batches as u64,
                num_rows: encoded.rows as u64,
                num_bytes: encoded.bytes.len() as u64,
                file_id: Some(task_id as u64),
                is_sort_shuffle: false,
            });
            partitions.push(PartitionRows {
                partition: *number as u32,
                rows: encoded.bytes,
            });
        }
        *self.rows.lock() = Some(SmallResult {
            partitions,
            has_files: self.has_files,
        });
        Ok(Some(written))
    }
}

/// One task's execution.
#[derive(Debug)]
pub(super) struct VolleyStage {
    stage: Arc<dyn QueryStageExecutor>,
    /// The task's plan below its writer.
    below: Arc<dyn ExecutionPlan>,
    /// The query's result, if the task computes a part of it.
    result: Option<TaskResult>,
    /// Copies of its files in the job's shuffle store, if there is one.
    copies: Option<Copies>,
    /// True once these are made.
    are_stored: AtomicBool,
    running: Running,
    /// File on this host that the task writes, if any.
    file: Option<PathBuf>,
    /// Disks that the task writes.
    disks: Disks,
    span: Span,
}

impl VolleyStage {
    /// Logs lines that belong to the task's job.
    pub(super) fn logs(&self, lines: impl FnOnce()) {
        self.span.in_scope(lines);
    }

    /// Takes the rows that come with the task's report.
    pub(super) fn take_rows(&self) -> Option<SmallResult> {
        self.result.as_ref()?.rows.lock().take()
    }

    /// Checks whether the task has succeeded, and its rows are in the job's shuffle store as well.
    pub(super) fn are_stored(&self) -> bool {
        self.are_stored.load(Ordering::Relaxed)
    }
}

impl fmt::Display for VolleyStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stage.fmt(f)
    }
}

#[async_trait]
impl QueryStageExecutor for VolleyStage {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        // The guard is dropped with this future, however it ends.
        let _stop = self.running.cancel().clone().drop_guard();
        self.running.holds(context.memory_pool());
        let done = async {
            if let Some(file) = &self.file {
                // A text writer would not report the reason of its failure.
                let made = can_be_made(file.clone()).await;
                made.map_err(DataFusionError::Execution)?;
            }
            if let Some(result) = &self.result
                && let Some(written) = result.read(task_id, &context).await?
            {
                return Ok(written);
            }
            let written = self.stage.execute_query_stage(task_id, context).await?;
            if let Some(copies) = &self.copies {
                let made = copies.make(&written).await?;
                self.are_stored.store(made, Ordering::Relaxed);
            }
            Ok(written)
        };
        let done = done.instrument(self.span.clone()).await;
        if done.is_ok() {
            self.running.succeeds();
        }
        done.inspect_err(|error| {
            let cause = unwrap(error);
            if !matches!(cause.downcast_ref(), Some(BallistaError::Cancelled)) {
                let _about = self.span.enter();
                tracing::error!(error = chain(cause), "task failed");
            }
        })
        .map_err(|error| classify(error, &self.disks))
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        let mut of_stage = Vec::new();
        let mut metrics = self.stage.collect_plan_metrics().into_iter();
        let of_writer = metrics.next();
        let of_result = self.result.as_ref().map(|result| &result.metrics);
        let of_result = of_result.map(ExecutionPlanMetricsSet::clone_inner);
        let of_result = of_result.filter(|metrics| metrics.output_rows().is_some());
        of_stage.extend(of_result.or(of_writer));
        for_stage(self.below.as_ref(), &mut metrics, &mut of_stage);
        of_stage
    }

    fn collect_runtime_stats_reports(&self) -> Vec<RuntimeStatsReport> {
        self.stage.collect_runtime_stats_reports()
    }

    fn collect_window_state_reports(&self) -> Result<Vec<WindowStateReport>> {
        self.stage.collect_window_state_reports()
    }

    fn collect_column_stats(&self) -> Vec<ballista_core::serde::protobuf::TaskColumnStats> {
        self.stage.collect_column_stats()
    }
}

/// Gives a task's error the class that Ballista acts on, and the text that the user sees.
fn classify(error: DataFusionError, disks: &Disks) -> DataFusionError {
    if let Some(lost) = data_lost(&error) {
        return DataFusionError::External(Box::new(TaskFailure::new(&lost)));
    }
    let cause = unwrap(&error);
    if let Some(failure) = disks.describe(cause) {
        return DataFusionError::External(Box::new(TaskFailure::new(&failure)));
    }
    match cause.downcast_ref::<BallistaError>() {
        Some(BallistaError::Cancelled) => {
            DataFusionError::External(Box::new(BallistaError::Cancelled))
        }
        _ => DataFusionError::External(Box::new(TaskFailure::new(cause))),
    }
}

/// Returns the loss of shuffle data that an error reports, if it is one.
pub(crate) fn data_lost(error: &DataFusionError) -> Option<DataLost> {
    let cause = unwrap(error);
    if let Some(missing) = cause.downcast_ref::<RowsMissing>() {
        return Some(DataLost {
            executor: "that a task read from".to_owned(),
            reason: missing.to_string(),
        });
    }
    if let Some(ArrowError::IpcError(said)) = cause.downcast_ref()
        && CUT_OFF.iter().any(|cut_off| said.contains(cut_off))
    {
        return Some(DataLost {
            executor: "that a task read from".to_owned(),
            reason: said.clone(),
        });
    }
    match cause.downcast_ref::<BallistaError>() {
        Some(BallistaError::FetchFailed(executor, stage, partition, reason)) => Some(DataLost {
            executor: executor.clone(),
            reason: format!("partition {partition} of stage {stage} cannot be fetched: {reason}"),
        }),
        _ => None,
    }
}

/// Errors of a reader whose connection ended after its first rows. The reader keeps only the error's text, without
/// the peer's name.
const CUT_OFF: [&str; 2] = ["h2 protocol error", "transport error"];

/// Returns the error inside the layers that DataFusion, Arrow and Ballista add to others' errors.
fn unwrap<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    loop {
        let inner: &'a (dyn Error + 'static) = if let Some(error) = error.downcast_ref() {
            match error {
                DataFusionError::External(inner) => inner.as_ref(),
                DataFusionError::Shared(inner) => inner.as_ref(),
                DataFusionError::Context(_, inner) => inner.as_ref(),
                DataFusionError::ArrowError(inner, _) => inner.as_ref(),
                _ => return error,
            }
        } else if let Some(ArrowError::ExternalError(inner)) = error.downcast_ref() {
            inner.as_ref()
        } else if let Some(error) = error.downcast_ref() {
            match error {
                BallistaError::DataFusionError(inner) => inner.as_ref(),
                BallistaError::ArrowError(inner) => inner.as_ref(),
                _ => return error,
            }
        } else {
            return error;
        };
        error = inner;
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use volley_engine::settings::shuffle_store;
    use volley_proto::access::ClusterSecret;

    use super::super::connections::Connections;
    use super::super::tasks::running;
    use super::*;

    #[test]
    fn copies_go_only_where_plans_may_write() {
        let allowed = AllowedPaths::new(&["s3://bucket/copies".to_owned()]).unwrap();
        let connections = Connections::new(None, ClusterSecret::generate());
        let (tasks, _ended) = Tasks::new(CancellationToken::new());
        let engine = VolleyEngine::new("e-1", Arc::new(connections), tasks, allowed);
        let to = |place: &str| {
            let url = shuffle_store(place).unwrap().unwrap();
            let store = ShuffleStore::new(&Stores::default(), &url, "j");
            engine.task_store(store, &running())
        };
        to("s3://bucket/copies/of-rows").unwrap();
        for place in ["s3://bucket/other", "file:///shared"] {
            let error = to(place).unwrap_err().to_string();
            assert!(error.contains("--allow-path"), "{error}");
        }
    }

    fn wrapped(error: BallistaError) -> DataFusionError {
        let shared = DataFusionError::Shared(Arc::new(DataFusionError::External(Box::new(error))));
        let ballista = BallistaError::DataFusionError(Box::new(shared));
        DataFusionError::External(Box::new(ballista)).context("while writing")
    }

    fn classify(error: DataFusionError) -> DataFusionError {
        let disks = Disks {
            executor: "e-1".into(),
            work_dir: "/".into(),
            targets: vec![],
        };
        super::classify(error, &disks)
    }

    #[test]
    fn a_wrapped_cancellation_stays_one() {
        let error = classify(wrapped(BallistaError::Cancelled));
        assert!(matches!(
            &error,
            DataFusionError::External(e)
                if matches!(e.downcast_ref(), Some(BallistaError::Cancelled))
        ));
    }

    #[test]
    fn data_that_cannot_be_fetched_is_lost() {
        let failed = BallistaError::FetchFailed("e-1".into(), 2, 3, "refused".into());
        let text = format!("{:?}", classify(wrapped(failed)));
        let lost = DataLost::find(&text).unwrap();
        assert_eq!(lost.executor, "e-1");
        assert!(lost.reason.contains("partition 3 of stage 2"), "{lost}");
    }

    #[test]
    fn data_whose_connection_ends_is_lost() {
        let said = "Arrow error: Ipc error: code: 'Unknown error', message: \"h2 protocol error\"";
        let cut_off = ArrowError::IpcError(said.to_owned());
        let text = format!(
            "{:?}",
            classify(wrapped(BallistaError::ArrowError(Box::new(cut_off))))
        );
        assert!(DataLost::find(&text).is_some(), "{text}");
    }

    #[test]
    fn every_other_error_is_marked_with_its_own_words() {
        let error = classify(wrapped(BallistaError::General("label is null".into())));
        let text = format!("{error:?}");
        assert!(TaskFailure::find(&text).is_some_and(|said| said.ends_with("label is null")));
    }
}
