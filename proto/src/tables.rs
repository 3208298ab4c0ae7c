//! Tables in which Volley reports its work: their names, columns and rows.
//!
//! A row is a struct here, JSON on the wire and in the browser, and a row of an Arrow batch in SQL. The scheduler fills
//! the tables; clients show them.

mod models;
mod parts;
mod states;
mod vitals;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::json::ReaderBuilder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::{EpochRecord, LabelRecord};
use crate::{Error, Result};

pub use parts::{ExecutorTasks, Operator, StageExecutor};
pub use states::{JobState, RunState, StageKind, StageState};

/// Table about the cluster's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// [`Job`]s, newest first.
    Jobs,
    /// The [`Stage`]s of each job's current attempt.
    Stages,
    /// The [`Executor`]s of the cluster.
    Executors,
    /// [`Vitals`] of each executor in the last minutes, the oldest first.
    ExecutorVitals,
    /// Training [`Run`]s, newest first.
    TrainingRuns,
    /// The [`Rank`]s of each run's current generation.
    TrainingRanks,
    /// The [`Epoch`]s that runs have done.
    TrainingEpochs,
    /// Training progress between epochs: a [`Point`] every half second, fewer for long runs.
    TrainingSteps,
    /// Events, as [`Line`]s in the order of time.
    Log,
    /// [`Usage`] of each user.
    Usage,
    /// [`PreparedRows`] that executors keep, the last used first.
    Prepared,
    /// Versions of the [`Model`]s in a store, the oldest first.
    Models,
}

/// Row of a table.
pub trait Row: Serialize + DeserializeOwned {
    /// Table that the row belongs to.
    const TABLE: Table;
}

/// Defines the row types, with the SQL types of their columns. A column without one is in JSON only.
macro_rules! rows {
    ($($(#[$about:meta])* $row:ident of $table:ident {
        $($(#[$doc:meta])* $column:ident: $type:ty $(= $arrow:expr)?,)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            pub struct $row {
                $($(#[$doc])* pub $column: $type,)*
            }

            impl Row for $row {
                const TABLE: Table = Table::$table;
            }
        )*

        impl Table {
            /// Returns the names and types of the columns, all of which are nullable.
            pub fn schema(self) -> SchemaRef {
                let columns: Vec<(&str, DataType)> = match self {
                    $(Self::$table => vec![$($((stringify!($column), $arrow),)?)*],)*
                };
                let fields = columns.into_iter().map(|(name, kind)| Field::new(name, kind, true));
                Arc::new(Schema::new(fields.collect::<Vec<_>>()))
            }
        }
    };
}

/// Returns milliseconds since 1970, the unit of times in tables.
pub fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the type of a time in milliseconds since 1970.
fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("+00:00".into()))
}

fn numbers() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::UInt64, true)))
}

fn texts() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(Utf8, true)))
}

use DataType::{Boolean, Float64, Int64, UInt64, Utf8};

rows! {
    /// Job of any client.
    Job of Jobs {
        /// Id that its client was given; it stays when the job is run again.
        job_id: String = Utf8,
        /// Submitted statement, shortened.
        name: String = Utf8,
        /// Submitted statement, where one job or training run is asked for.
        statement: Option<String>,
        /// Token name of the submitter.
        owner: String = Utf8,
        /// `running`, `rerunning`, `succeeded`, `failed` or `cancelled`.
        state: JobState = Utf8,
        /// Number of times it has been run.
        attempts: u64 = UInt64,
        /// The engine's job ids, one for each attempt, the current one last.
        attempt_ids: Vec<String>,
        /// Time at which it was submitted.
        submitted: u64 = time(),
        /// Time at which it ended.
        ended: Option<u64> = time(),
        /// Seconds that it has run, or ran.
        seconds: f64 = Float64,
        /// Training run, if it is one.
        train_id: Option<String> = Utf8,
        /// Queue whose slots its tasks hold.
        queue: String = Utf8,
        /// Priority among its owner's queries in the queue; the highest comes first.
        priority: i64 = Int64,
        /// Reason why none of its tasks runs: its queue's turn, or the holder of the slots.
        waits: Option<String> = Utf8,
        /// Error by which it failed.
        error: Option<String> = Utf8,
    }

    /// Stage of a job: the work between two exchanges.
    Stage of Stages {
        /// Job of the stage.
        job_id: String = Utf8,
        /// Training run, if the job is one.
        train_id: Option<String> = Utf8,
        /// Its number in the job.
        stage_id: u64 = UInt64,
        /// `query`, or `training` for a barrier stage.
        kind: StageKind = Utf8,
        /// `waiting` for its inputs, `ready`, `running`, `succeeded`, `failed` or `cancelled`.
        state: StageState = Utf8,
        /// Partitions of its input; a task takes one or several.
        partitions: u64 = UInt64,
        /// Partitions that are done.
        partitions_done: u64 = UInt64,
        /// Tasks that run now.
        running: u64 = UInt64,
        /// Number of times that it has been started: lost rows are computed again.
        attempts: u64 = UInt64,
        /// Tasks that have failed, in the current attempt.
        tasks_failed: u64 = UInt64,
        /// Time at which its first task was launched.
        started: Option<u64> = time(),
        /// Time at which its last task was done, once it has ended.
        ended: Option<u64> = time(),
        /// Rows that its tasks have read so far, of files and of other stages.
        rows_read: u64 = UInt64,
        /// Rows that they read in all, estimated before the last one has ended; `None` if nothing tells.
        rows_to_read: Option<u64> = UInt64,
        /// Bytes of input so far: read from files, as far as their readers count them, and written by the stages that it
        /// reads.
        bytes_read: Option<u64> = UInt64,
        /// Rows of output so far.
        rows: Option<u64> = UInt64,
        /// Rows that it has written to files of a table or of `COPY`, if it writes any.
        rows_written: Option<u64> = UInt64,
        /// Bytes of output of the tasks that are done.
        bytes: u64 = UInt64,
        /// Bytes that operators of these tasks have written to disk because they did not fit into memory.
        spilled_bytes: u64 = UInt64,
        /// Number of tasks that are done.
        tasks_done: u64 = UInt64,
        /// Seconds from the first task's launch to the last one's end.
        seconds: Option<f64> = Float64,
        /// Seconds that the fastest task took.
        fastest_seconds: Option<f64> = Float64,
        /// Median of the seconds that a task took.
        median_seconds: Option<f64> = Float64,
        /// Seconds that the slowest task took.
        slowest_seconds: Option<f64> = Float64,
        /// Numbers of tasks whose seconds are in each of twenty equal ranges, from the fastest task to the slowest; empty
        /// where they all took the same.
        task_histogram: Vec<u64> = numbers(),
        /// Executors that have run its tasks, or do.
        executors: Vec<StageExecutor> = StageExecutor::list(&time()),
        /// Stages that it reads from.
        inputs: Vec<u64> = numbers(),
        /// Description for people: `join sales with stores on store`.
        description: String = Utf8,
        /// Root operator, in a line.
        operator: String = Utf8,
        /// Plan, an operator a line, with the metrics of each so far.
        plan: String = Utf8,
        /// The same operator by operator, from the top down, where one job is asked for.
        operators: Vec<Operator>,
    }

    /// Process that runs tasks and ranks.
    Executor of Executors {
        /// Id, unique in the cluster.
        executor_id: String = Utf8,
        /// Host at which its peers reach it.
        host: String = Utf8,
        /// Port of its shuffle data.
        port: u64 = UInt64,
        /// `any`, `query` or `train`.
        role: String = Utf8,
        /// Number of tasks that it runs at once.
        slots: u64 = UInt64,
        /// Slots that no task holds.
        free_slots: u64 = UInt64,
        /// Tasks that it runs, those of ranks included.
        tasks: Option<u64> = UInt64,
        /// Ranks that it runs.
        ranks: u64 = UInt64,
        /// Default device of its ranks: `cpu`, `cuda` for one of its GPUs, `cuda:N`, `wgpu` or `wgpu:N`.
        device: String = Utf8,
        /// Its GPUs by ordinal, a line each: name, memory, compute capability, UUID, and the trainings that hold it.
        gpus: Vec<String> = texts(),
        /// Free GPUs among these: no rank of any executor on the host holds them.
        free_gpus: u64 = UInt64,
        /// Memory for its queries; queries that need more spill to its disk.
        memory_bytes: u64 = UInt64,
        /// Memory that its running tasks have reserved.
        reserved_bytes: Option<u64> = UInt64,
        /// Memory that its ranks need at least, computed from their specs and rows.
        rank_bytes: Option<u64> = UInt64,
        /// Resident memory of its process.
        process_bytes: Option<u64> = UInt64,
        /// Memory that its process cannot exceed: that of its container or host.
        machine_bytes: Option<u64> = UInt64,
        /// CPU cores that its process has used in the last seconds.
        cpu_cores: Option<f64> = Float64,
        /// Free space on the disk of its work folder.
        disk_free_bytes: Option<u64> = UInt64,
        /// Memory limit of each of its ranks: training whose ranks need more is refused.
        rank_memory_bytes: u64 = UInt64,
        /// FLOP/s of matrix products in `f32` of one thread, measured at its start.
        thread_product_rate: Option<f64> = Float64,
        /// Bytes per second that one thread moves in memory, measured at its start.
        thread_memory_rate: Option<f64> = Float64,
        /// Peak FLOP/s in `f32` of its slowest GPU, from its clocks.
        gpu_f32_rate: Option<f64> = Float64,
        /// Peak FLOP/s in TF32 of its slowest GPU, from its clocks.
        gpu_tf32_rate: Option<f64> = Float64,
        /// Peak bytes per second of its slowest GPU's memory, from its clocks.
        gpu_memory_rate: Option<f64> = Float64,
        /// Its version.
        version: String = Utf8,
        /// Time at which it registered.
        since: u64 = time(),
        /// True once it is to leave: it takes no new tasks.
        draining: bool = Boolean,
        /// Tasks that run there, where one executor is asked for.
        running: Vec<ExecutorTasks>,
    }

    /// Vital signs of an executor at a time. Rates are means since the sample before; what the system does not report is
    /// NULL.
    #[derive(Default)]
    Vitals of ExecutorVitals {
        /// The executor.
        executor_id: String = Utf8,
        /// Time at which the scheduler got them; 0 until then.
        at: u64 = time(),
        /// Tasks that ran, those of ranks included.
        tasks: u64 = UInt64,
        /// Ranks that ran.
        ranks: u64 = UInt64,
        /// Memory that running tasks had reserved.
        reserved_bytes: u64 = UInt64,
        /// Memory that its ranks needed at least, computed from their specs and rows; `None` if one has a custom layer, whose
        /// memory is not known.
        rank_bytes: Option<u64> = UInt64,
        /// Resident memory of the process.
        process_bytes: Option<u64> = UInt64,
        /// Memory that the process cannot exceed: that of its container or host.
        machine_bytes: Option<u64> = UInt64,
        /// CPU cores that the process used.
        cpu_cores: Option<f64> = Float64,
        /// Bytes per second that the process read from disks.
        disk_read_rate: Option<f64> = Float64,
        /// Bytes per second that the process wrote to disks.
        disk_write_rate: Option<f64> = Float64,
        /// Bytes per second that the host received, or the container in a network of its own; not from itself.
        network_in_rate: Option<f64> = Float64,
        /// Bytes per second that it sent.
        network_out_rate: Option<f64> = Float64,
        /// Bytes per second of rows that the executor sent to others.
        served_rate: Option<f64> = Float64,
        /// Free space on the disk of the work folder.
        disk_free_bytes: Option<u64> = UInt64,
    }

    /// A training run.
    Run of TrainingRuns {
        /// Its id.
        train_id: String = Utf8,
        /// The model that it trains.
        model: String = Utf8,
        /// `waiting`, `loading`, `training`, `regrouping`, `finished`, `ended` or `failed`.
        state: RunState = Utf8,
        /// Number of the set of ranks, from 1.
        generation: u64 = UInt64,
        /// Number of ranks.
        ranks: u64 = UInt64,
        /// The epoch under way, from 1.
        epoch: u64 = UInt64,
        /// Maximum number of epochs to train, including those of a refit that follows.
        epochs: u64 = UInt64,
        /// Steps done in the epoch.
        step: u64 = UInt64,
        /// Steps of an epoch.
        steps_per_epoch: u64 = UInt64,
        /// Steps done since training began.
        steps: u64 = UInt64,
        /// Mean training loss of the last steps.
        loss: Option<f64> = Float64,
        /// Mean loss of the last epoch's evaluation.
        eval_loss: Option<f64> = Float64,
        /// Rows per second over all ranks.
        rows_per_second: Option<f64> = Float64,
        /// Estimated seconds left.
        eta_seconds: Option<f64> = Float64,
        /// Time at which it first had ranks.
        started: Option<u64> = time(),
        /// Reason why it waits or failed.
        reason: Option<String> = Utf8,
    }

    /// A rank of a run's current generation.
    Rank of TrainingRanks {
        /// The run.
        train_id: String = Utf8,
        /// The generation.
        generation: u64 = UInt64,
        /// The rank, from 0.
        rank: u64 = UInt64,
        /// Executor that it runs on.
        executor_id: String = Utf8,
        /// Rows of its shards, once they are loaded.
        rows: Option<u64> = UInt64,
        /// Seconds in which it waited for rows and encoded them.
        load_seconds: Option<f64> = Float64,
        /// Seconds of computing since then.
        compute_seconds: f64 = Float64,
        /// Seconds in collectives, waiting for slower ranks included.
        reduce_seconds: f64 = Float64,
        /// Seconds from the generation's start to the newest report of its ranks. What is not in the other times, the rank
        /// waited, evaluated or wrote checkpoints.
        seconds: f64 = Float64,
    }

    /// Finished epoch of a run.
    Epoch of TrainingEpochs {
        /// The run.
        train_id: String = Utf8,
        /// The model that it trains.
        model: String = Utf8,
        /// The epoch, from 1.
        epoch: u64 = UInt64,
        /// Mean training loss.
        loss: f64 = Float64,
        /// Mean evaluation loss.
        eval_loss: Option<f64> = Float64,
        /// Mean absolute error of evaluation, in the label's own scale.
        eval_mae: Option<f64> = Float64,
        /// Root of the mean squared error of evaluation, in the label's own scale.
        eval_rmse: Option<f64> = Float64,
        /// Share of the evaluated labels' variance that is explained (R²), in the label's own scale.
        eval_r2: Option<f64> = Float64,
        /// Share of the evaluated rows whose class was the likeliest.
        eval_accuracy: Option<f64> = Float64,
        /// Root of the mean squared relative error of evaluation, in the label's own scale.
        eval_rmspe: Option<f64> = Float64,
        /// With several quantiles, the share of evaluated labels between the outermost quantiles.
        eval_interval_coverage: Option<f64> = Float64,
        /// Metrics of each of several labels; in SQL, rows of `ML.TRAINING_INFO`.
        labels: Vec<LabelRecord>,
        /// Seconds it took, evaluation included.
        seconds: f64 = Float64,
        /// Seconds of computing, the mean of ranks.
        compute_seconds: f64 = Float64,
        /// Seconds in collectives, the mean of ranks.
        reduce_seconds: f64 = Float64,
        /// Rows trained on.
        rows: u64 = UInt64,
        /// Steps since training began.
        steps: u64 = UInt64,
    }

    /// Point of a run's training curve: the result of its last steps.
    Point of TrainingSteps {
        /// The run.
        train_id: String = Utf8,
        /// The model that it trains.
        model: String = Utf8,
        /// The generation.
        generation: u64 = UInt64,
        /// The epoch, from 1.
        epoch: u64 = UInt64,
        /// Steps done since training began.
        steps: u64 = UInt64,
        /// Mean training loss of the rows since the previous point.
        loss: f64 = Float64,
        /// Rows per second over all ranks.
        rows_per_second: f64 = Float64,
        /// Time of the point.
        at: u64 = time(),
    }

    /// Event of a job or a training run.
    Line of Log {
        /// Time of the event.
        at: u64 = time(),
        /// The job.
        job_id: Option<String> = Utf8,
        /// The training run.
        train_id: Option<String> = Utf8,
        /// Executor that sent the warning.
        executor_id: Option<String> = Utf8,
        /// Rank that reports it.
        rank: Option<u64> = UInt64,
        /// True if something went wrong.
        failure: bool = Boolean,
        /// Text of the event.
        text: String = Utf8,
    }

    /// Usage of the cluster by a user, and the limits of the user's newest job; absent limits do not limit.
    #[derive(Default)]
    Usage of Usage {
        /// Token name of the user.
        owner: String = Utf8,
        /// Jobs submitted.
        jobs: u64 = UInt64,
        /// Jobs that have not ended.
        running: u64 = UInt64,
        /// Jobs that have succeeded.
        succeeded: u64 = UInt64,
        /// Jobs that have failed.
        failed: u64 = UInt64,
        /// Jobs that were cancelled.
        cancelled: u64 = UInt64,
        /// Slots of queries, times the seconds for which tasks held them.
        slot_seconds: f64 = Float64,
        /// Slots of ranks, times the seconds for which they held them.
        rank_seconds: f64 = Float64,
        /// GPUs, times the seconds for which ranks held them.
        gpu_seconds: f64 = Float64,
        /// Time since which all of these count.
        since: Option<u64> = time(),
        /// Limit `jobs`: most jobs that have not ended.
        jobs_limit: Option<u64> = UInt64,
        /// Memory that running tasks of its queries may hold.
        memory_bytes: Option<u64> = UInt64,
        /// Limit `memory` on that.
        memory_limit_bytes: Option<u64> = UInt64,
        /// GPU hours in the window of the limit `gpu_hours`, if there is one.
        gpu_hours: Option<f64> = Float64,
        /// Limit `gpu_hours` on these.
        gpu_hours_limit: Option<f64> = Float64,
        /// Days of the window, of which the current one (UTC) is the last.
        gpu_hours_days: Option<u64> = UInt64,
    }

    /// Encoded rows of a training's query, which executors keep for the next training on the same rows.
    PreparedRows of Prepared {
        /// Id, by which `DROP PREPARED` drops them.
        prepared_id: String = Utf8,
        /// Model that they were prepared for.
        model: String = Utf8,
        /// Token name of the user who trained it.
        owner: String = Utf8,
        /// Number of rows.
        rows: u64 = UInt64,
        /// Number of shards.
        shards: u64 = UInt64,
        /// Executors that keep them.
        executors: Vec<String> = texts(),
        /// Bytes of their files.
        bytes: u64 = UInt64,
        /// Time at which they were prepared.
        prepared: u64 = time(),
        /// Time at which a training last used them.
        used: u64 = time(),
        /// Number of trainings that have used them since they were prepared.
        uses: u64 = UInt64,
    }

    /// A version of a model.
    Model of Models {
        /// The model.
        model: String = Utf8,
        /// The version, from 1.
        version: u64 = UInt64,
        /// True for the newest version.
        current: bool = Boolean,
        /// Time at which it was published.
        published: u64 = time(),
        /// Column that it predicts.
        label: String = Utf8,
        /// Trainable parameters.
        parameters: u64 = UInt64,
        /// Rows it was trained on in each epoch.
        train_rows: u64 = UInt64,
        /// Ranks that trained it.
        ranks: u64 = UInt64,
        /// Number of epochs.
        epochs: u64 = UInt64,
        /// Epoch whose weights it has.
        kept_epoch: u64 = UInt64,
        /// Mean training loss of that epoch.
        loss: Option<f64> = Float64,
        /// Mean evaluation loss of that epoch.
        eval_loss: Option<f64> = Float64,
        /// Share of the evaluated labels' variance that is explained after that epoch (R²).
        eval_r2: Option<f64> = Float64,
        /// Share of the evaluated rows whose class was the likeliest after that epoch.
        eval_accuracy: Option<f64> = Float64,
        /// Root of the mean squared relative error of that epoch's evaluation, in the label's scale.
        eval_rmspe: Option<f64> = Float64,
        /// The run that trained it.
        train_id: String = Utf8,
        /// True if a report is kept beside it.
        report: bool = Boolean,
    }
}

impl Epoch {
    /// Returns the row of an epoch, from its record.
    pub fn of(train_id: &str, model: &str, record: &EpochRecord) -> Self {
        Self {
            train_id: train_id.to_owned(),
            model: model.to_owned(),
            epoch: record.epoch as u64,
            loss: record.loss,
            eval_loss: record.eval_loss,
            eval_mae: record.eval_mae,
            eval_rmse: record.eval_rmse,
            eval_r2: record.eval_r2,
            eval_accuracy: record.eval_accuracy,
            eval_rmspe: record.eval_rmspe,
            eval_interval_coverage: record.eval_interval_coverage,
            labels: record.labels.clone(),
            seconds: record.seconds,
            compute_seconds: record.compute_seconds,
            reduce_seconds: record.reduce_seconds,
            rows: record.rows,
            steps: record.steps,
        }
    }
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 12] = [
        Self::Jobs,
        Self::Stages,
        Self::Executors,
        Self::ExecutorVitals,
        Self::TrainingRuns,
        Self::TrainingRanks,
        Self::TrainingEpochs,
        Self::TrainingSteps,
        Self::Log,
        Self::Usage,
        Self::Prepared,
        Self::Models,
    ];

    /// Returns its name in SQL, without the schema's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Stages => "stages",
            Self::Executors => "executors",
            Self::ExecutorVitals => "executor_vitals",
            Self::TrainingRuns => "training_runs",
            Self::TrainingRanks => "training_ranks",
            Self::TrainingEpochs => "training_epochs",
            Self::TrainingSteps => "training_steps",
            Self::Log => "log",
            Self::Usage => "usage",
            Self::Prepared => "prepared",
            Self::Models => "models",
        }
    }

    /// Decodes JSON rows into a batch of [`schema`](Self::schema).
    ///
    /// # Errors
    /// When they are not rows of this table.
    pub fn batch(self, json: &[u8]) -> Result<RecordBatch> {
        let malformed =
            |error: &dyn fmt::Display| Error::malformed("table of rows", error.to_string());
        let rows: Vec<serde_json::Value> =
            serde_json::from_slice(json).map_err(|error| malformed(&error))?;
        let decoder = ReaderBuilder::new(self.schema()).with_batch_size(rows.len().max(1));
        let mut decoder = decoder.build_decoder().map_err(|error| malformed(&error))?;
        decoder
            .serialize(&rows)
            .map_err(|error| malformed(&error))?;
        let batch = decoder.flush().map_err(|error| malformed(&error))?;
        Ok(batch.unwrap_or_else(|| RecordBatch::new_empty(self.schema())))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Table {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|table| table.name() == name);
        found.ok_or_else(|| Error::malformed("name of a table", name))
    }
}

/// Decodes JSON rows.
///
/// # Errors
/// When they are not rows of this type.
pub fn rows<R: Row>(json: &[u8]) -> Result<Vec<R>> {
    serde_json::from_slice(json).map_err(|error| Error::malformed("table of rows", error))
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_become_a_batch() {
        let json = json!([
            { "at": 1_700_000_000_123_u64, "job_id": "j", "train_id": null, "rank": 3,
              "failure": false, "text": "a" },
            { "at": 0, "job_id": null, "train_id": null, "rank": null, "failure": true, "text": "b" },
        ]);
        let json = serde_json::to_vec(&json).unwrap();
        let batch = Table::Log.batch(&json).unwrap();
        let shown = pretty_format_batches(&[batch]).unwrap().to_string();
        assert!(shown.contains("2023-11-14T22:13:20.123Z"), "{shown}");
        assert_eq!(rows::<Line>(&json).unwrap()[0].rank, Some(3));
        assert!(Table::Log.batch(b"[{\"at\": \"x\"}]").is_err());
        for table in Table::ALL {
            assert_eq!(table.batch(b"[]").unwrap().schema(), table.schema());
            assert_eq!(table.name().parse::<Table>().unwrap(), table);
        }
    }

    #[test]
    fn an_executor_has_a_line_for_each_gpu() {
        let executor = Executor {
            executor_id: "e".into(),
            host: "h".into(),
            port: 1,
            role: "any".into(),
            slots: 2,
            free_slots: 1,
            tasks: Some(1),
            ranks: 1,
            device: "cuda".into(),
            gpus: vec!["A100, GPU-0: free".into(), "A100, GPU-1: free".into()],
            free_gpus: 2,
            memory_bytes: 3,
            reserved_bytes: Some(1),
            rank_bytes: Some(6),
            process_bytes: Some(2),
            machine_bytes: None,
            cpu_cores: Some(0.5),
            disk_free_bytes: Some(6),
            rank_memory_bytes: 4,
            thread_product_rate: Some(1e11),
            thread_memory_rate: Some(2e10),
            gpu_f32_rate: None,
            gpu_tf32_rate: None,
            gpu_memory_rate: None,
            version: "0".into(),
            since: 5,
            draining: true,
            running: Vec::new(),
        };
        let json = serde_json::to_vec(&[&executor]).unwrap();
        let shown = pretty_format_batches(&[Table::Executors.batch(&json).unwrap()]).unwrap();
        let gpus = "[A100, GPU-0: free, A100, GPU-1: free]";
        assert!(shown.to_string().contains(gpus), "{shown}");
        assert_eq!(rows::<Executor>(&json).unwrap(), [executor]);
    }

    #[test]
    fn lists_of_stages_are_lists() {
        let stage = Stage {
            job_id: "j".into(),
            train_id: None,
            stage_id: 3,
            kind: StageKind::Query,
            state: StageState::Running,
            partitions: 4,
            partitions_done: 2,
            running: 1,
            attempts: 1,
            tasks_failed: 0,
            started: Some(1_700_000_000_000),
            ended: None,
            rows_read: 9,
            rows_to_read: None,
            bytes_read: None,
            rows: Some(7),
            rows_written: None,
            bytes: 8,
            spilled_bytes: 0,
            tasks_done: 2,
            seconds: Some(0.5),
            fastest_seconds: Some(0.25),
            median_seconds: Some(0.25),
            slowest_seconds: Some(0.5),
            task_histogram: vec![1, 0, 1],
            executors: vec![StageExecutor {
                executor_id: "e".into(),
                tasks: 2,
                running: 1,
                started: 1_700_000_000_000,
                ended: None,
                seconds: 0.75,
            }],
            inputs: vec![1, 2],
            description: "sort by k".into(),
            operator: "SortExec".into(),
            plan: String::new(),
            operators: Vec::new(),
        };
        let json = serde_json::to_vec(&[&stage]).unwrap();
        let shown = pretty_format_batches(&[Table::Stages.batch(&json).unwrap()]).unwrap();
        for part in [
            "[1, 2]",
            "[1, 0, 1]",
            "[{executor_id: e, tasks: 2,",
            "started: 2023-11-14T22:13:20",
        ] {
            assert!(shown.to_string().contains(part), "{part} in {shown}");
        }
        assert_eq!(rows::<Stage>(&json).unwrap(), [stage]);
    }
}
