//! `EXPLAIN CREATE MODEL`, which runs nothing, and `EXPLAIN ANALYZE`, which runs the query.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use comfy_table::{CellAlignment, Table, presets};
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::sql::parser::{ExplainStatement, Statement as DfStatement};
use futures::TryStreamExt;
use tokio::time::sleep;
use volley_engine::{optimized, with_rules};
use volley_proto::limits::{grouped, row_count};
use volley_proto::spec::{
    BatchSize, Device, DeviceKind, EmbeddingWidth, FeatureKind, Layer, Linear, Precision,
    RankDevice, RankMemory, Ranks, Refit, Rule, Speed, Split, TrainSpec, VocabularyRule,
};
use volley_proto::tables::{Executor, Stage};

use super::query::QueryExec;
use super::rows::Rows;
use super::settings::JobDescription;
use super::train::plan_of;
use super::{Output, Session};
use crate::Result;
use crate::sql::{CreateModel, needed_columns};
use crate::system_tables::Scope;

/// Number of requests for the stages of a job that has just ended, and the pause between two of them.
const STAGES_ASKED: usize = 40;
const STAGES_PAUSE: Duration = Duration::from_millis(50);

/// Bytes per gradient element.
const NUMBER: u64 = 4;

impl Session {
    /// Returns the needs of a `CREATE MODEL`, and the plan of its rows if `verbose`.
    pub(super) async fn explain_create_model(
        &self,
        create: CreateModel,
        verbose: bool,
    ) -> Result<Output> {
        let (target, rows, options) = self.target(create).await?;
        let (plan, spec) = plan_of(&rows, options, target, &self.context().state())?;
        let estimate = match plan.inputs().first() {
            Some(input) => self.estimate_rows(input).await,
            None => Rows::Unknown,
        };
        // The cluster's size may change before training starts.
        let executors = self.system_tables.rows(Scope::All).await.ok();
        let mut needs = describe(&spec, estimate, executors.as_deref());
        // A TRANSFORM may use columns that are no features.
        if rows.transform.is_none() {
            let columns = rows.plan.schema().fields().iter();
            let columns: Vec<_> = columns.map(|column| column.name().as_str()).collect();
            needs.insert_str(0, &unused(&spec, &columns).unwrap_or_default());
        }
        needs.insert_str(0, &features(&spec));
        for (at, function) in rows.fitted().into_iter().enumerate() {
            let name = if at == 0 { "fitted before" } else { "" };
            write!(needs, "\n{name:<22}{function}").ok();
            if verbose {
                needs.push_str("; the plan has 0 and 1 for it");
            }
        }
        let mut parts = vec![("training", needs)];
        if verbose {
            let optimized = optimized(&plan, &self.context().state())?;
            parts.push(("logical_plan", optimized.display_indent().to_string()));
        }
        explained(&parts)
    }

    /// Estimates the maximum number of rows of a plan.
    async fn estimate_rows(&self, plan: &LogicalPlan) -> Rows {
        let state = with_rules(self.context().state()).build();
        let physical = async {
            let plan = optimized(plan, &state)?;
            let planner = DefaultPhysicalPlanner::default();
            planner.create_physical_plan(&plan, &state).await
        };
        match physical.await {
            Ok(plan) => Rows::of(&plan),
            Err(error) => {
                tracing::debug!(%error, "no estimate of rows");
                Rows::Unknown
            }
        }
    }

    /// Returns the stages of a job that has ended. Its rows may be here before the scheduler has its graph among those of
    /// ended jobs.
    async fn stages_of(&self, job: &str) -> Result<Vec<Stage>> {
        for _ in 0..STAGES_ASKED {
            let stages: Vec<Stage> = self.system_tables.rows(Scope::Job(job)).await?;
            if !stages.is_empty() {
                return Ok(stages);
            }
            sleep(STAGES_PAUSE).await;
        }
        Ok(Vec::new())
    }

    /// Runs a query, and reports on its stages.
    pub(super) async fn explain_analyze(
        &self,
        explain: ExplainStatement,
        text: &str,
    ) -> Result<Output> {
        let plan = self.plan(*explain.statement.clone()).await?;
        // DDL and settings run in this process: DataFusion explains them, so that they do not run twice.
        let physical = match &plan {
            LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => None,
            plan => {
                let mut state = self.context().state();
                JobDescription::of(text).note(state.config_mut());
                let frame = DataFrame::new(state, plan.clone());
                let context = Arc::new(frame.task_ctx());
                Some((frame.create_physical_plan().await?, context))
            }
        };
        let Some((plan, context)) = physical.filter(|(plan, _)| plan.is::<QueryExec>()) else {
            let frame = self.frame(DfStatement::Explain(explain), text).await?;
            return Ok(Output::stream(frame.execute_stream().await?));
        };
        let started = Instant::now();
        let mut output = Output::of_plan(plan, context)?;
        let mut rows = 0;
        while let Some(batch) = output.rows.try_next().await? {
            rows += batch.num_rows();
        }
        let seconds = started.elapsed().as_secs_f64();
        let job = output
            .job()
            .id()
            .ok_or_else(|| DataFusionError::Internal("a job ended without an id".into()))?;
        let mut parts = vec![(
            "query".to_owned(),
            format!("job {job}, {}, {seconds:.3} s", row_count(rows as u64)),
        )];
        let stages = self.stages_of(&job).await?;
        parts.push(("stages".to_owned(), table_of(&stages)));
        for Stage { stage_id, plan, .. } in stages {
            parts.push((format!("stage {stage_id}"), plan.trim_end().to_owned()));
        }
        let parts = parts
            .iter()
            .map(|(name, text)| (name.as_str(), text.clone()));
        explained(&parts.collect::<Vec<_>>())
    }
}

/// Returns the stages of a query as a table, a line each, of 80 characters unless a stage reads many. The skew is the slowest
/// task's time over the median.
fn table_of(stages: &[Stage]) -> String {
    let seconds = |seconds: Option<f64>| seconds.map(|seconds| format!("{seconds:.3}"));
    // One task has nobody to be slower than.
    let skew = |stage: &Stage| {
        let median = stage.median_seconds.filter(|_| stage.tasks_done > 1)?;
        let skew = stage.slowest_seconds? / median;
        skew.is_finite().then(|| format!("{skew:.1}"))
    };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "stage", "tasks", "rows", "bytes", "seconds", "skew", "spilled", "reads",
    ]);
    for stage in stages {
        let inputs: Vec<_> = stage.inputs.iter().map(u64::to_string).collect();
        table.add_row([
            stage.stage_id.to_string(),
            stage.tasks_done.to_string(),
            stage.rows.map(grouped).unwrap_or_default(),
            bytes(stage.bytes),
            seconds(stage.seconds).unwrap_or_default(),
            skew(stage).unwrap_or_default(),
            match stage.spilled_bytes {
                0 => String::new(),
                spilled => bytes(spilled),
            },
            inputs.join(", "),
        ]);
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if (1..=6).contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Returns the two columns of an EXPLAIN.
fn explained(parts: &[(&str, String)]) -> Result<Output> {
    let names = StringArray::from_iter_values(parts.iter().map(|(name, _)| name));
    let texts = StringArray::from_iter_values(parts.iter().map(|(_, text)| text));
    let columns = [
        ("plan_type", Arc::new(names) as ArrayRef),
        ("plan", Arc::new(texts)),
    ];
    let batch = RecordBatch::try_from_iter(columns).map_err(DataFusionError::from)?;
    Ok(Output::batches(batch.schema(), vec![batch]))
}

/// Maximum number of columns that a line names.
const NAMED: usize = 12;

/// Returns names in a list, the first ones of many.
fn listed(names: &[&str]) -> String {
    match names.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMED].join(", ")),
    }
}

/// Returns a number with its noun.
fn counted(about: &str, number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{about}{} {noun}{plural}", grouped(number))
}

/// Returns the features as a line.
fn features(spec: &TrainSpec) -> String {
    let of = |kind: FeatureKind| {
        let features = spec.features.iter();
        let names = features.filter(|feature| feature.kind == kind);
        let names: Vec<_> = names.map(|feature| feature.column.as_str()).collect();
        let what = match kind {
            FeatureKind::Continuous => "numbers",
            FeatureKind::Categorical => "categories",
        };
        (!names.is_empty()).then(|| format!("{what} {}", listed(&names)))
    };
    let kinds = [FeatureKind::Continuous, FeatureKind::Categorical];
    let kinds: Vec<_> = kinds.into_iter().filter_map(of).collect();
    format!("{:<22}{}\n", "features", kinds.join("; "))
}

/// Returns the query's columns that the training does not read as a line, if there are any.
fn unused(spec: &TrainSpec, columns: &[&str]) -> Option<String> {
    let read = needed_columns(spec);
    let unread = |column: &&&str| {
        !read.contains(column) && !spec.split_key.iter().any(|key| key == **column)
    };
    let unread: Vec<_> = columns.iter().filter(unread).copied().collect();
    let why = "only the columns named in categorical and continuous are features";
    (!unread.is_empty()).then(|| format!("{:<22}{} ({why})\n", "unused columns", listed(&unread)))
}

/// Returns the known executors that run ranks.
fn for_ranks(executors: Option<&[Executor]>) -> impl Iterator<Item = &Executor> + Clone {
    let known = executors.into_iter().flatten();
    known.filter(|executor| executor.role != "query")
}

/// Describes the needs of a training run, one per line; estimates are marked with `~`.
fn describe(spec: &TrainSpec, rows: Rows, executors: Option<&[Executor]>) -> String {
    let able = executors.map(|_| for_ranks(executors).count() as u64);
    let ranks = match spec.ranks {
        Ranks::Exactly(ranks) => Some(ranks as u64),
        Ranks::All => able.filter(|able| *able > 0),
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<22}{value}").ok();
    };
    let asked = match spec.ranks {
        Ranks::Exactly(ranks) => format!("{ranks}"),
        Ranks::All => "every executor".to_owned(),
    };
    line(
        "ranks",
        match able {
            Some(able) => {
                let needed = memory(spec, executors)
                    .map(|memory| memory.of_rank(rows.number(), ranks.unwrap_or(1).max(1)));
                let about = if matches!(rows, Rows::Estimated(_)) {
                    "~"
                } else {
                    ""
                };
                let needed = needed.map(|needed| (needed, about));
                let able = able_now(able, executors.unwrap_or_default(), needed);
                format!("{asked}; {able}")
            }
            None => format!("{asked}; the number of executors is unknown"),
        },
    );
    let by = if spec.shard_by.is_empty() {
        "all columns".to_owned()
    } else {
        spec.shard_by.join(", ")
    };
    line("shards", format!("{} by {by}", spec.shards));
    line(
        "rows",
        match rows {
            Rows::Exact(rows) => format!("{} in all splits", grouped(rows)),
            Rows::Estimated(rows) => format!(
                "~{} in all splits (estimated from file sizes)",
                grouped(rows)
            ),
            Rows::Unknown => "unknown until they are read".to_owned(),
        },
    );
    let categorical = spec.count(FeatureKind::Categorical);
    let of_features = match categorical {
        1 => "categorical feature".to_owned(),
        _ => format!("{categorical} categorical features"),
    };
    // A classifier has at least one.
    let outputs = spec.outputs() as u64;
    let memory = memory(spec, executors);
    let rank_rows = rows
        .number()
        .zip(ranks)
        .map(|(rows, ranks)| rows.div_ceil(ranks));
    line(
        "a rank's rows",
        rank_rows.map_or("not known".to_owned(), |rows| {
            let size = memory.map(|memory| bytes(rows.saturating_mul(memory.of_row())));
            let size = size.map(|size| format!(", ~{size} in memory once they are encoded"));
            format!("~{}{}", grouped(rows), size.unwrap_or_default())
        }),
    );
    let network = &spec.network;
    let widths = spec.embedded_widths();
    let solved = matches!(spec.optimizer.rule, Rule::Lbfgs { .. });
    let dense = spec.parameters(rows.number());
    let beside = u64::from(network.linear != Linear::None) + network.factors as u64;
    let beside = beside * outputs;
    let embeddings = match (&network.embedding_dim, widths.first().unwrap_or(&0)) {
        _ if categorical == 0 => String::new(),
        (EmbeddingWidth::Same(_), width) => {
            let members = network.members(rows.number().unwrap_or(u64::MAX));
            let of_value = width * members as u64 + beside;
            format!(", and {of_value} for each distinct value of the {of_features}")
        }
        _ if !network.is_deep() => {
            format!(", and {beside} for each distinct value of the {of_features}")
        }
        _ => format!(" at least, and more for each distinct value of the {of_features}"),
    };
    // Only executors know the parameters of custom layers.
    let customs = Layer::customs(&network.layers);
    let not_known = || match customs.first() {
        Some(layer) => format!("unknown here: only executors have {layer}"),
        None => "not known".to_owned(),
    };
    let parameters = dense.map(|dense| format!("{}{embeddings}", grouped(dense)));
    line("parameters", parameters.unwrap_or_else(not_known));
    let known_ranks = ranks.unwrap_or(1).max(1);
    // Evaluated rows are not known yet; they are few.
    let by_rows = rows.number();
    let by_rows = by_rows.map(|rows| spec.global_batch(rows, known_ranks as usize));
    let (global_batch, of_rank) = match spec.batch_size {
        Some(BatchSize::OfRank(rows)) => {
            let rows = (rows * spec.accumulate) as u64;
            (ranks.map(|ranks| ranks * rows), Some(rows))
        }
        Some(BatchSize::Global { global }) => {
            let global = global as u64;
            (
                Some(global),
                ranks.map(|ranks| global.div_ceil(ranks.max(1))),
            )
        }
        None if solved => (None, None),
        None => (
            by_rows,
            by_rows
                .zip(ranks)
                .map(|(rows, ranks)| rows.div_ceil(ranks.max(1))),
        ),
    };
    line(
        "global batch",
        match (global_batch, of_rank) {
            (Some(rows), Some(of_rank)) => {
                format!("{} rows, {of_rank} of each rank", grouped(rows))
            }
            (Some(rows), None) => format!("{} rows", grouped(rows)),
            (None, Some(of_rank)) => format!("{of_rank} rows of each rank"),
            (None, None) if solved => "all rows".to_owned(),
            (None, None) => "by the number of rows, 256 at most".to_owned(),
        },
    );
    let steps = rows
        .number()
        .zip(global_batch)
        .map(|(rows, batch)| rows.div_ceil(batch.max(1)));
    let epochs = match (spec.epochs, steps) {
        (Some(epochs), _) => counted("", epochs as u64, "epoch"),
        (None, _) if solved => "1,000 epochs at most".to_owned(),
        (None, Some(steps)) => counted("~", spec.planned_epochs(steps) as u64, "epoch"),
        (None, None) => "epochs by the number of rows".to_owned(),
    };
    line(
        "steps",
        match steps {
            Some(steps) => format!(
                "~{} an epoch if all rows are trained on, {epochs}",
                grouped(steps),
            ),
            None if solved => format!("1 an epoch, {epochs}"),
            None => format!("not known, {epochs}"),
        },
    );
    let cross_validates = |rows| spec.folds(rows).is_some();
    let [few, many] = [0, u64::MAX].map(cross_validates);
    let known = (few == many).then_some(few);
    let cross_validates = known.or(rows.number().map(cross_validates));
    line(
        "evaluation",
        match (&spec.split, cross_validates) {
            (Split::CrossValidation(share), Some(false)) => Split::Random(*share).to_string(),
            (Split::CrossValidation(share), None) => {
                format!(
                    "by the number of rows: cross-validation, or {}",
                    Split::Random(*share)
                )
            }
            (split, _) => split.to_string(),
        },
    );
    let refit = "on all rows, for as many epochs as the best one took";
    match (spec.refit, rows.number()) {
        (Refit::Small, None) => line(
            "refit",
            format!("{refit}, of at most {} rows", grouped(Refit::SMALL)),
        ),
        (Refit::Small, Some(rows)) if rows <= Refit::SMALL => line("refit", refit.to_owned()),
        (Refit::Always, _) => line("refit", refit.to_owned()),
        (Refit::Small | Refit::Never, _) => {}
    }
    line(
        "gradient",
        match (ranks, dense) {
            (Some(1), _) => "stays on its rank".to_owned(),
            (_, Some(dense)) => format!(
                "≥ {} all-reduced a step",
                bytes(dense.saturating_mul(NUMBER))
            ),
            (_, None) => "all-reduced a step".to_owned(),
        },
    );
    let memory = memory.map(|memory| {
        let of_values = match spec.vocabulary {
            VocabularyRule::Values { .. } if categorical > 0 => format!(
                "; each parameter of a distinct value adds {} bytes",
                memory.of_parameter()
            ),
            _ => String::new(),
        };
        let with_rows = rows.number().zip(ranks).map(|(rows, ranks)| {
            let in_memory = memory.in_memory(rows, ranks);
            let in_files = memory.in_files(rows, ranks);
            let in_files = in_files.filter(|in_files| *in_files < in_memory);
            let in_files = in_files.map(|least| {
                format!(
                    ", ~{} up to --rank-memory with rows in files",
                    bytes(least)
                )
            });
            let in_memory = bytes(in_memory);
            format!(
                ", ~{in_memory} with its rows{}",
                in_files.unwrap_or_default()
            )
        });
        format!(
            "≥ {} for weights, gradient, optimizer, best weights, a step and a checkpoint{}{of_values}",
            bytes(memory.without_rows(rank_rows, ranks.unwrap_or(1))),
            with_rows.unwrap_or_default()
        )
    });
    line("a rank's memory", memory.unwrap_or_else(not_known));
    let able: Vec<_> = for_ranks(executors).collect();
    let step = rows.number().zip(of_rank.or(global_batch));
    let times = step.map(|(rows, of_rank)| Times::of(spec, (rows, of_rank), &able));
    let times = times.unwrap_or_default();
    line("device", device(spec, executors, &times));
    line("threads", threads(spec.threads, ranks, executors));
    let asked = spec.precision;
    let kinds = device_kinds(spec.device, executors).into_iter();
    let ranks: Vec<_> = kinds.map(|kind| RankDevice::new(kind, asked)).collect();
    line("precision", RankDevice::reasons(&ranks, asked));
    if solved {
        line("training", "not estimated for L-BFGS".to_owned());
    } else if let Some((steps, seconds)) = steps.zip(times.of_device(spec.device)) {
        let epochs = spec.planned_epochs(steps);
        let all = seconds * steps as f64 * epochs as f64;
        let beside = match known_ranks {
            1 => "",
            _ => ", without all-reduce",
        };
        line(
            "a step",
            format!("~{}{beside}; measured once it trains", told(seconds)),
        );
        line(
            "training",
            format!(
                "at least ~{} if all epochs run, plus {}reading and evaluation{}",
                told(all),
                match known_ranks {
                    1 => "",
                    _ => "all-reduce, ",
                },
                match spec.refit {
                    Refit::Never => "",
                    Refit::Small | Refit::Always => "; a refit takes as long again",
                }
            ),
        );
    }
    text.truncate(text.trim_end().len());
    text
}

/// Estimated seconds of a step on the slowest executor, on the CPU and on a GPU, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    cpu: Option<f64>,
    gpu: Option<f64>,
    /// True if each executor has a GPU.
    all_gpus: bool,
}

impl Times {
    /// Estimates a step of `of_rank` rows in a training on `rows` rows.
    fn of(spec: &TrainSpec, (rows, of_rank): (u64, u64), executors: &[&Executor]) -> Self {
        let precision = Precision::on(DeviceKind::Cuda, spec.precision);
        let most = spec.threads.map_or(usize::MAX, usize::from);
        let slowest = |speed: &dyn Fn(&Executor) -> Option<Speed>| {
            let seconds =
                |executor: &&Executor| spec.step_seconds(of_rank, rows, &speed(executor)?);
            let all: Option<Vec<f64>> = executors.iter().map(seconds).collect();
            all?.into_iter().reduce(f64::max)
        };
        Self {
            cpu: slowest(&|executor| {
                let threads = most.min(executor.slots as usize);
                let products = executor.thread_product_rate?;
                Some(Speed::of_threads(
                    threads,
                    products,
                    executor.thread_memory_rate?,
                ))
            }),
            gpu: slowest(&|executor| {
                let products = match precision {
                    Precision::F32 => executor.gpu_f32_rate?,
                    Precision::Tf32 => executor.gpu_tf32_rate?,
                    Precision::Bf16 => 2.0 * executor.gpu_tf32_rate?,
                };
                Some(Speed::of_gpu(products, executor.gpu_memory_rate?))
            }),
            all_gpus: executors.iter().all(|executor| !executor.gpus.is_empty()),
        }
    }

    /// Returns the seconds on the device that is likely to compute.
    fn of_device(&self, device: Device) -> Option<f64> {
        match device.kind() {
            Some(DeviceKind::Cpu) => self.cpu,
            Some(DeviceKind::Cuda) => self.gpu,
            Some(DeviceKind::Wgpu) => None,
            None => match (self.cpu, self.gpu) {
                (Some(cpu), Some(gpu)) if self.all_gpus => Some(cpu.min(gpu)),
                (cpu, _) => cpu,
            },
        }
    }
}

/// Describes the device that ranks compute on, and why.
fn device(spec: &TrainSpec, executors: Option<&[Executor]>, times: &Times) -> String {
    let on_host = computed_by_host(&spec.network.layers);
    match (spec.device, executors) {
        (Device::Auto, Some(executors)) if !executors.is_empty() => {
            let mut devices: Vec<_> = executors.iter().map(|e| e.device.as_str()).collect();
            devices.sort_unstable();
            devices.dedup();
            // A rank compares devices before its first step.
            let is_wgpu = |device: &&str| device.starts_with("wgpu");
            let is_gpu = |device: &&str| device.starts_with("cuda") || is_wgpu(device);
            let either = match devices.iter().any(is_gpu) {
                true if devices.iter().any(is_wgpu) && !on_host.is_empty() => {
                    ", but the CPU instead of wgpu for custom layers".to_owned()
                }
                true => match (times.cpu, times.gpu) {
                    (Some(cpu), Some(gpu)) => format!(
                        ", whichever ranks measure to be faster: a step takes ~{} on the GPU, ~{} on the CPU",
                        told(gpu),
                        told(cpu)
                    ),
                    _ => ", or the CPU where it is faster".to_owned(),
                },
                false => String::new(),
            };
            let has_cuda = devices.iter().any(|device| device.starts_with("cuda"));
            let on_host = if has_cuda { &*on_host } else { "" };
            format!("auto: {}{either}{on_host}", devices.join(", "))
        }
        (device, _) => {
            let shared = if spec.device_share { ", shared" } else { "" };
            let on_host = match device.kind() {
                Some(DeviceKind::Cuda) => &*on_host,
                _ => "",
            };
            format!("{device}{shared}{on_host}")
        }
    }
}

/// Names the layers that the host computes beside an NVIDIA GPU, if there are any.
fn computed_by_host(layers: &[Layer]) -> String {
    let customs: BTreeSet<_> = Layer::customs(layers)
        .iter()
        .map(ToString::to_string)
        .collect();
    match customs.is_empty() {
        true => String::new(),
        false => {
            let all: Vec<_> = customs.into_iter().collect();
            format!("; beside a GPU, the CPU computes {}", all.join(", "))
        }
    }
}

/// Formats an estimate of a time with two digits: "0.85 ms", "16 ms", "3.1 s", "12 min", "2.5 h".
fn told(seconds: f64) -> String {
    let (number, unit) = match seconds {
        ..1.0 => (1e3 * seconds, "ms"),
        ..120.0 => (seconds, "s"),
        ..7200.0 => (seconds / 60.0, "min"),
        _ => (seconds / 3600.0, "h"),
    };
    let digits = match number {
        ..0.995 => 2,
        ..9.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {unit}")
}

/// Returns a rank's memory, on the executor with the most slots; `None` with a custom layer.
fn memory(spec: &TrainSpec, executors: Option<&[Executor]>) -> Option<RankMemory> {
    let able = executors.into_iter().flatten();
    let able = able.filter(|executor| executor.role != "query");
    let slots = able.map(|executor| executor.slots as usize).max();
    let memory = spec.rank_memory()?;
    Some(match slots {
        Some(slots) => {
            memory.with_threads(spec.threads.map_or(slots, |most| slots.min(most.get())))
        }
        None => memory,
    })
}

/// Describes the number of threads that a rank computes with on the CPU, and the slots that no thread of the training
/// uses.
fn threads(
    most: Option<NonZeroUsize>,
    ranks: Option<u64>,
    executors: Option<&[Executor]>,
) -> String {
    let most = most.map_or(usize::MAX, usize::from);
    let slots = for_ranks(executors).map(|executor| executor.slots as usize);
    let slots: Vec<_> = slots.collect();
    let mut counts: Vec<usize> = slots.iter().map(|slots| most.min(*slots)).collect();
    counts.sort_unstable();
    let text = match (counts.first(), counts.last()) {
        (Some(least), Some(most)) if least == most => format!("{most} per rank"),
        (Some(least), Some(most)) => format!("{least} to {most} per rank"),
        _ if most == usize::MAX => return "as many as the executor has slots".to_owned(),
        _ => return format!("{most} per rank at most"),
    };
    let ranks = ranks.map_or(counts.len(), |ranks| ranks as usize);
    let used: usize = counts.iter().rev().take(ranks).sum();
    let all: usize = slots.iter().sum();
    match all - used {
        0 => text,
        idle => format!("{text}; {idle} of {all} slots stay idle"),
    }
}

/// Returns the kinds of devices that ranks may compute on; both if unknown.
fn device_kinds(device: Device, executors: Option<&[Executor]>) -> Vec<DeviceKind> {
    if let Some(kind) = device.kind() {
        return vec![kind];
    }
    // The name of a device that its executor lacks does not parse.
    let devices =
        for_ranks(executors).filter_map(|executor| executor.device.parse::<Device>().ok());
    let kinds: Vec<_> = devices.filter_map(Device::kind).collect();
    match kinds.is_empty() {
        true => vec![DeviceKind::Cpu, DeviceKind::Cuda],
        false => kinds,
    }
}

/// Says how many of `able` executors can run a rank that needs this memory now, and what is missing where some cannot. The
/// memory comes with the mark of an estimate, if it is one.
fn able_now(able: u64, executors: &[Executor], needed: Option<(u64, &str)>) -> String {
    let offers = for_ranks(Some(executors)).map(|executor| executor.rank_memory_bytes);
    let Some(((needed, about), most)) = needed.zip(offers.clone().max()) else {
        return format!("{able} can run one now");
    };
    match offers.filter(|offer| *offer >= needed).count() as u64 {
        fit if fit == able => format!("{able} can run one now"),
        0 => format!(
            "none can run now: executors offer a rank {} at most, and it needs {about}{}",
            bytes(most),
            bytes(needed)
        ),
        fit => format!(
            "{fit} can run one now: {} of {able} executors offer a rank less than the {about}{} that it needs",
            able - fit,
            bytes(needed)
        ),
    }
}

fn bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;

    use volley_proto::spec::{EnsembleSize, NumericEmbedding};
    use volley_proto::tables::{StageKind, StageState};

    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn says_what_training_takes() {
        let mut spec = crate::testing::manifest("m").spec;
        spec.ranks = Ranks::Exactly(2);
        // 10 + 1 inputs, 8 and 4 units, 1 output; γ and β.
        let dense = (11 * 8 + 8) + (8 * 4 + 4) + (4 + 1) + 2;
        let text = describe(&spec, Rows::Estimated(1_000_000), Some(&[]));
        for line in [
            "ranks                 2; 0 can run one now".to_owned(),
            "rows                  ~1,000,000 in all splits (estimated from file sizes)".to_owned(),
            "a rank's rows         ~500,000, ~9.5 MiB in memory once they are encoded".to_owned(),
            format!(
                "parameters            {dense}, and 10 for each distinct value of the categorical feature\n"
            ),
            "~50,000 an epoch".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} in\n{text}");
        }
        let refit = |refit: Refit, rows: Rows| {
            let mut spec = spec.clone();
            spec.refit = refit;
            let text = describe(&spec, rows, None);
            let line = text.lines().find(|line| line.starts_with("refit"));
            line.map(|line| line["refit".len()..].trim_start().to_owned())
        };
        let due = "on all rows, for as many epochs as the best one took";
        let small = Rows::Exact(Refit::SMALL);
        let large = Rows::Exact(Refit::SMALL + 1);
        let unknown = format!("{due}, of at most 50,000 rows");
        assert_eq!(refit(Refit::Small, small).as_deref(), Some(due));
        assert_eq!(refit(Refit::Small, Rows::Unknown), Some(unknown));
        assert_eq!(refit(Refit::Always, large).as_deref(), Some(due));
        for (never, rows) in [(Refit::Never, small), (Refit::Small, large)] {
            assert_eq!(refit(never, rows), None);
        }
        let evaluation = |size: EnsembleSize, rows: Rows| {
            let mut spec = spec.clone();
            (spec.split, spec.network.ensemble_size) = (Split::CrossValidation(0.2), size);
            let text = describe(&spec, rows, None);
            let line = text.lines().find(|line| line.starts_with("evaluation"));
            line.unwrap()["evaluation".len()..].trim_start().to_owned()
        };
        let few = Rows::Exact(EnsembleSize::SMALL);
        let auto = EnsembleSize::Auto;
        assert!(evaluation(auto, few).starts_with("cross-validation"));
        assert!(evaluation(EnsembleSize::Of(3), large).starts_with("cross-validation"));
        let random = "random, 0.2 evaluated";
        assert_eq!(evaluation(auto, large), random);
        assert_eq!(evaluation(EnsembleSize::ONE, few), random);
        let unknown = format!("by the number of rows: cross-validation, or {random}");
        assert_eq!(evaluation(auto, Rows::Unknown), unknown);
        spec.ranks = Ranks::All;
        let text = describe(&spec, Rows::Unknown, None);
        spec.network.batch_norm = false;
        spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
        // 10 + 16 inputs, 8 and 4 units, 1 output; two terms and 48 bins for each of the 16.
        let dense = (26 * 8 + 8) + (8 * 4 + 4) + (4 + 1) + 50 * 16;
        let binned = describe(&spec, Rows::Unknown, None);
        let due = format!("parameters            {}, and 10", grouped(dense));
        assert!(binned.contains(&due), "{due} in\n{binned}");
        assert!(text.contains("unknown until they are read"), "{text}");
        spec.network.layers.push(Layer::Custom {
            name: "rbf".to_owned(),
            arguments: vec![16.0],
        });
        let text = describe(&spec, Rows::Unknown, None);
        for line in ["parameters            ", "a rank's memory       "] {
            let line = format!("{line}unknown here: only executors have custom('rbf', 16)");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    }

    #[test]
    fn says_which_columns_are_read() {
        let spec = crate::testing::manifest("m").spec;
        assert_eq!(
            features(&spec),
            "features              numbers Distance; categories Store\n"
        );
        let mut columns = needed_columns(&spec);
        assert_eq!(unused(&spec, &columns), None);
        let others: Vec<_> = (0..14).map(|at| format!("c{at}")).collect();
        columns.extend(others.iter().map(String::as_str));
        let text = unused(&spec, &columns).unwrap();
        assert!(
            text.starts_with("unused columns        c0, c1, ")
                && text.contains("c11 and 2 more (only"),
            "{text}"
        );
    }

    fn executor(role: &str, device: &str) -> Executor {
        Executor {
            executor_id: "e".to_owned(),
            host: "h".to_owned(),
            port: 1,
            role: role.to_owned(),
            slots: 1,
            free_slots: 1,
            tasks: None,
            ranks: 0,
            device: device.to_owned(),
            memory_bytes: 1,
            rank_bytes: None,
            reserved_bytes: None,
            process_bytes: None,
            machine_bytes: None,
            cpu_cores: None,
            disk_free_bytes: None,
            rank_memory_bytes: 1,
            thread_product_rate: None,
            thread_memory_rate: None,
            gpu_f32_rate: None,
            gpu_tf32_rate: None,
            gpu_memory_rate: None,
            gpus: vec![],
            free_gpus: 0,
            version: String::new(),
            draining: false,
            since: 0,
            running: vec![],
        }
    }

    #[test]
    fn an_estimated_time_says_what_it_leaves_out() {
        let mut spec = crate::testing::manifest("m").spec;
        let timed = Executor {
            thread_product_rate: Some(1e9),
            thread_memory_rate: Some(1e9),
            ..executor("any", "cpu")
        };
        let executors = [timed.clone(), timed];
        let time = |spec: &TrainSpec| {
            let text = describe(spec, Rows::Exact(1000), Some(&executors));
            let line = text.lines().find(|line| line.starts_with("training"));
            line.unwrap()["training".len()..].trim_start().to_owned()
        };
        spec.ranks = Ranks::Exactly(2);
        let of_two = time(&spec);
        assert!(of_two.starts_with("at least ~"), "{of_two}");
        assert!(
            of_two.contains(", plus all-reduce, reading and evaluation"),
            "{of_two}"
        );
        spec.ranks = Ranks::Exactly(1);
        let of_one = time(&spec);
        assert!(of_one.contains(", plus reading and evaluation"), "{of_one}");
        spec.optimizer.rule = Rule::Lbfgs { memory: 10 };
        assert_eq!(time(&spec), "not estimated for L-BFGS");
    }

    #[test]
    fn executors_that_offer_a_rank_too_little_cannot_run_one() {
        let offers = |offers: &[u64]| -> Vec<Executor> {
            let of = |gib: &u64| Executor {
                rank_memory_bytes: gib << 30,
                ..executor("any", "cpu")
            };
            offers.iter().map(of).collect()
        };
        let needed = Some((3 << 30, ""));
        for (executors, said) in [
            (offers(&[4, 4]), "2 can run one now"),
            (
                offers(&[4, 1]),
                "1 can run one now: 1 of 2 executors offer a rank less than the 3.0 GiB that it needs",
            ),
            (
                offers(&[1, 1]),
                "none can run now: executors offer a rank 1.0 GiB at most, and it needs 3.0 GiB",
            ),
            (offers(&[]), "0 can run one now"),
        ] {
            assert_eq!(able_now(executors.len() as u64, &executors, needed), said);
            let unknown = format!("{} can run one now", executors.len());
            assert_eq!(able_now(executors.len() as u64, &executors, None), unknown);
        }
    }

    #[test]
    fn says_how_many_slots_a_training_leaves_idle() {
        let executors: Vec<Executor> = [2, 4]
            .map(|slots| Executor {
                slots,
                ..executor("any", "cpu")
            })
            .into();
        for (most, ranks, due) in [
            (None, None, "2 to 4 per rank"),
            (None, Some(2), "2 to 4 per rank"),
            (None, Some(1), "2 to 4 per rank; 2 of 6 slots stay idle"),
            (
                NonZeroUsize::new(1),
                None,
                "1 per rank; 4 of 6 slots stay idle",
            ),
        ] {
            assert_eq!(threads(most, ranks, Some(&executors)), due);
        }
        assert_eq!(
            threads(None, None, None),
            "as many as the executor has slots"
        );
    }

    #[test]
    fn says_which_precision_is_computed_in_and_why() {
        let mut spec = crate::testing::manifest("m").spec;
        let mixed = [executor("any", "cpu"), executor("train", "cuda:1")];
        let gpus = [executor("query", "cpu"), executor("any", "cuda:0")];
        let lacking = [executor("any", "cuda:7 (not there)")];
        let tf32 = Some(Precision::Tf32);
        let by_default = "f32 on the CPU, by default; tf32 on a GPU, by default";
        for (device, asked, executors, due) in [
            (Device::Cpu, None, None, "f32 on the CPU, by default"),
            (
                Device::Cpu,
                tf32,
                Some(&gpus[..]),
                "tf32 on the CPU, as asked for",
            ),
            (Device::Cuda(0), tf32, None, "tf32 on a GPU, as asked for"),
            (
                Device::Auto,
                Some(Precision::Bf16),
                Some(&gpus),
                "bf16 on a GPU, as asked for",
            ),
            (Device::Auto, None, None, by_default),
            (Device::Auto, None, Some(&mixed), by_default),
            (Device::Auto, None, Some(&lacking), by_default),
        ] {
            (spec.device, spec.precision) = (device, asked);
            let text = describe(&spec, Rows::Unknown, executors);
            let line = text.lines().find(|line| line.starts_with("precision"));
            assert_eq!(line.unwrap()["precision".len()..].trim_start(), due);
        }
        let auto = |spec: &TrainSpec, executors| {
            let text = describe(spec, Rows::Unknown, Some(executors));
            let line = text.lines().find(|line| line.starts_with("device"));
            line.unwrap()["device".len()..].trim_start().to_owned()
        };
        (spec.device, spec.precision) = (Device::Auto, None);
        let line = |rows: Rows, executors: &[Executor], name: &str| {
            let text = describe(&spec, rows, Some(executors));
            let line = text.lines().find(|line| line.starts_with(name));
            line.map(|line| line[name.len()..].trim_start().to_owned())
        };
        let mut measured = executor("any", "cuda:0");
        measured.gpus = vec!["a GPU".into()];
        (measured.thread_product_rate, measured.thread_memory_rate) = (Some(1e11), Some(3e10));
        let rows = Rows::Exact(1_000_000);
        let on_cpu = line(rows, std::slice::from_ref(&measured), "a step").unwrap();
        assert!(on_cpu.starts_with("~") && on_cpu.contains("ms"), "{on_cpu}");
        assert_eq!(
            line(Rows::Unknown, std::slice::from_ref(&measured), "a step"),
            None
        );
        (measured.gpu_f32_rate, measured.gpu_tf32_rate) = (Some(6e13), Some(5e14));
        measured.gpu_memory_rate = Some(3e12);
        let on_both = line(rows, std::slice::from_ref(&measured), "device").unwrap();
        assert!(on_both.contains(" on the GPU, ~"), "{on_both}");
        // The slowest rank sets the pace, and one without a rate has no estimate.
        let untold = [measured, executor("any", "cpu")];
        assert_eq!(line(rows, &untold, "a step"), None);
        let either = "auto: cpu, cuda:1, or the CPU where it is faster";
        assert_eq!(auto(&spec, &mixed), either);
        assert_eq!(auto(&spec, &mixed[..1]), "auto: cpu");
        spec.network.layers.push(Layer::Custom {
            name: "rbf".to_owned(),
            arguments: vec![],
        });
        let custom = "auto: cpu, cuda:1, or the CPU where it is faster; beside a GPU, the CPU computes custom('rbf')";
        assert_eq!(auto(&spec, &mixed), custom);
        assert_eq!(auto(&spec, &mixed[..1]), "auto: cpu");
        let wgpu = [executor("any", "wgpu:0")];
        let instead = "auto: wgpu:0, but the CPU instead of wgpu for custom layers";
        assert_eq!(auto(&spec, &wgpu), instead);
        for (device, due) in [
            (Device::Cpu, "cpu"),
            (
                Device::Cuda(1),
                "cuda:1; beside a GPU, the CPU computes custom('rbf')",
            ),
        ] {
            spec.device = device;
            assert_eq!(auto(&spec, &mixed), due);
        }
    }

    #[test]
    fn times_are_told_with_two_digits() {
        let all = [0.000_85, 0.0161, 3.12, 100.0, 745.0, 9000.0];
        let due = ["0.85 ms", "16 ms", "3.1 s", "100 s", "12 min", "2.5 h"];
        assert_eq!(all.map(told), due);
    }

    #[test]
    fn the_table_of_stages_fits_a_terminal() {
        let stage = Stage {
            job_id: "j".into(),
            train_id: None,
            stage_id: 12,
            kind: StageKind::Query,
            state: StageState::Succeeded,
            partitions: 1_000,
            partitions_done: 1_000,
            running: 0,
            attempts: 1,
            tasks_failed: 0,
            started: None,
            ended: None,
            rows_read: 0,
            rows_to_read: None,
            bytes_read: None,
            rows: Some(1_234_567_890),
            rows_written: None,
            bytes: 123_456_789_012,
            spilled_bytes: 123_456_789,
            tasks_done: 1_000,
            seconds: Some(1234.567),
            fastest_seconds: Some(0.5),
            median_seconds: Some(1.0),
            slowest_seconds: Some(12.34),
            task_histogram: vec![],
            executors: vec![],
            inputs: vec![10, 11],
            description: String::new(),
            operator: String::new(),
            plan: String::new(),
            operators: vec![],
        };
        let table = table_of(&[stage]);
        assert_eq!(
            table,
            "stage  tasks           rows      bytes   seconds  skew    spilled  reads\n\
             12      1000  1,234,567,890  115.0 GiB  1234.567  12.3  117.7 MiB  10, 11"
        );
    }

    #[test]
    fn explains_without_a_cluster() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let explained = async |explain: &str| {
                let sql = format!(
                    "{explain} CREATE MODEL m OPTIONS (input_label_cols = ['Sales']) AS SELECT * FROM sales"
                );
                let statement = session.parse(&sql).unwrap().remove(0);
                let rows = session.run(statement).await.unwrap();
                let rows = rows.collect().await.unwrap();
                pretty_format_batches(&rows).unwrap().to_string()
            };
            let plan = ["logical_plan", "Train: model=m"];
            let shown = explained("EXPLAIN").await;
            for part in ["training", "a rank's memory"] {
                assert!(shown.contains(part), "{part} in\n{shown}");
            }
            assert!(!plan.iter().any(|part| shown.contains(part)), "{shown}");
            let shown = explained("EXPLAIN VERBOSE").await;
            assert!(plan.iter().all(|part| shown.contains(part)), "{shown}");
        });
    }
}
