//! The two sides: a cluster of Volley's, and DataFusion alone in this process.
//!
//! Both are asked the same text. DataFusion alone has none of Volley's mends: a difference shows which side is wrong, not
//! that both are mended alike. Each answer has a deadline; every result of a question, even a panic, is an outcome.

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig as DfConfig, SessionContext};
use tokio::runtime::Handle;
use volley::{Session, SessionConfig};
use volley_proto::failure::chain;
use volley_proto::store::ModelStore;
use volley_tests::Cluster;

use crate::compare::{Rows, check_types};
use crate::settings::{PARTITIONS, Setting};

/// Script to ask: settings, then statements, the last of which returns the answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    pub(crate) settings: Vec<Setting>,
    pub(crate) statements: Vec<String>,
    pub(crate) rules: Rules,
}

/// Optimizer rules that DataFusion alone uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Rules {
    /// All rules, unchanged.
    #[default]
    Default,
    /// Without rules that simplify expressions: even values that no row depends on are computed.
    Unsimplified,
}

/// Outcome of a question.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Rows(Rows),
    Error(String),
    /// No answer by the deadline.
    Hang,
}

/// Memory limit in bytes for one question's operators in DataFusion alone.
const MEMORY: usize = 3 << 30;

/// DataFusion's optional optimizations. DataFusion alone runs without them, or both sides would share their
/// mistakes. Pushing expressions down to scans stays on, because only scans know the names of files.
const OPTIMIZATIONS: [&str; 9] = [
    "datafusion.optimizer.enable_window_limits",
    "datafusion.optimizer.enable_topk_repartition",
    "datafusion.optimizer.enable_topk_aggregation",
    "datafusion.optimizer.enable_distinct_aggregation_soft_limit",
    "datafusion.optimizer.enable_sort_pushdown",
    "datafusion.optimizer.enable_dynamic_filter_pushdown",
    "datafusion.optimizer.filter_null_join_keys",
    "datafusion.execution.parquet.pruning",
    "datafusion.execution.parquet.bloom_filter_on_read",
];

/// Asks DataFusion alone, with as many partitions as there are slots unless the settings give another number.
pub(crate) fn ask_reference(
    runtime: &Handle,
    script: &Script,
    slots: usize,
    deadline: Duration,
) -> Outcome {
    let script = script.clone();
    let partitions = script
        .settings
        .iter()
        .any(|setting| setting.key == PARTITIONS);
    let asking = async move {
        let mut config = DfConfig::new();
        if !partitions {
            config = config.with_target_partitions(slots);
        }
        for key in OPTIMIZATIONS {
            config.options_mut().set(key, "false")?;
        }
        let context = match script.rules {
            Rules::Default => SessionContext::new_with_state(alone(config)?.build()),
            Rules::Unsimplified => unsimplified(config)?,
        };
        let is_asked = |setting: &&Setting| {
            setting.is_of_datafusion() && !OPTIMIZATIONS.contains(&setting.key.as_str())
        };
        for setting in script.settings.iter().filter(is_asked) {
            context.sql(&setting.statement()).await?.collect().await?;
        }
        let mut answer = Rows::default();
        for statement in &script.statements {
            let frame = context.sql(statement).await?;
            let schema = frame.schema().inner().clone();
            answer = Rows::of(&schema, &frame.collect().await?)?;
        }
        Ok(answer)
    };
    await_outcome(runtime, deadline, asking)
}

/// Returns DataFusion alone, with the memory that one question may take in this process.
fn alone(config: DfConfig) -> Result<SessionStateBuilder> {
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(MEMORY, 1.0);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_runtime_env(runtime.build_arc()?);
    Ok(state)
}

/// Returns DataFusion alone without the rules that evaluate an expression or a relation at planning time.
fn unsimplified(config: DfConfig) -> Result<SessionContext> {
    let state = alone(config)?.build();
    let mut rules = state.optimizers().to_vec();
    let without = [
        "simplify_expressions",
        "eliminate_limit",
        "propagate_empty_relation",
    ];
    rules.retain(|rule| !without.contains(&rule.name()));
    let state = SessionStateBuilder::new_from_existing(state).with_optimizer_rules(rules);
    Ok(SessionContext::new_with_state(state.build()))
}

/// Asks a cluster.
pub(crate) fn ask_volley(
    runtime: &Handle,
    script: &Script,
    cluster: &Cluster,
    deadline: Duration,
) -> Outcome {
    let script = script.clone();
    let (address, store) = (cluster.address().to_owned(), cluster.store());
    let asking = async move {
        let mut config = SessionConfig::new(address, ModelStore::directory_url(&store)?);
        config.connect_timeout = Duration::from_secs(20);
        let settings = script.settings.iter();
        config.settings = settings
            .map(|set| (set.key.clone(), set.value.clone()))
            .collect();
        let session = Session::connect(config).await?;
        let mut answer = Rows::default();
        for text in &script.statements {
            for statement in session.parse(text)? {
                let output = session.run(statement).await?;
                let schema = output.schema.clone();
                let batches = output.collect().await?;
                check_types(&schema, &batches)?;
                answer = Rows::of(&schema, &batches)?;
            }
        }
        // Unfinished work of an earlier statement would affect the next question.
        session.settle(Duration::from_secs(5)).await;
        Ok(answer)
    };
    await_outcome(runtime, deadline, asking)
}

/// Waits for an answer on one of the runtime's threads, which have deep stacks.
pub(crate) fn await_outcome(
    runtime: &Handle,
    deadline: Duration,
    asking: impl Future<Output = Result<Rows>> + Send + 'static,
) -> Outcome {
    let mut task = runtime.spawn(asking);
    let ended = runtime.block_on(async { tokio::time::timeout(deadline, &mut task).await });
    match ended {
        Err(_) => {
            // Cancels the running question.
            task.abort();
            Outcome::Hang
        }
        Ok(Ok(Ok(rows))) => Outcome::Rows(rows),
        Ok(Ok(Err(error))) => Outcome::Error(chain(error.as_ref())),
        Ok(Err(panic)) => match panic.try_into_panic() {
            Ok(panic) => Outcome::Error(format!("panicked: {}", message(panic.as_ref()))),
            Err(_) => Outcome::Error("the task was cancelled".to_owned()),
        },
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Returns a runtime whose threads have deep stacks, because plans recurse deeply in debug builds.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .thread_stack_size(32 << 20)
        .enable_all()
        .build()
        .context("a runtime")
}
