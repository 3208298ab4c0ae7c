//! Settings of a session that the scheduler reads with each job, by their keys.
//!
//! They travel among the engine's own settings; a scheduler of the engine's that does not know
//! them ignores them.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use ballista_core::config::{BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE, BallistaConfig};
use ballista_core::extension::SessionConfigExt;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::prelude::SessionConfig;

use crate::limits::MESSAGE_LIMIT;
use crate::{Error, Result};

/// The prefix of Volley's own settings.
pub const PREFIX: &str = "volley";
/// What becomes of a job whose client is gone: see [`OnClientLoss`].
pub const ON_CLIENT_LOSS: &str = "volley.on_client_loss";
/// Whether ranks note what they do when, where a model's options do not say; the client reads it.
pub const TRACE: &str = "volley.trace";
/// What another stage of a query is taken to cost, in bytes that are read: see [`STAGE_BYTES_DEFAULT`].
pub const STAGE_BYTES: &str = "volley.stage_bytes";
/// The most bytes that a query reads which one task answers: see [`SINGLE_TASK_BYTES_DEFAULT`].
pub const SINGLE_TASK_BYTES: &str = "volley.single_task_bytes";
/// The queue whose slots a job's tasks hold: see [`QUEUE_DEFAULT`].
pub const QUEUE: &str = "volley.queue";
/// Which of a user's queries comes first: see [`priority`].
pub const PRIORITY: &str = "volley.priority";
/// The training run that a job is, set by the client with the job.
pub const TRAIN_ID: &str = "volley.train_id";
/// An id of the job's own, set by the scheduler: the same when the job is run again.
pub const JOB_ID: &str = "volley.job_id";

/// What the names of options in the URLs of a job's tables stand for, as JSON: see
/// [`Stores`](crate::object_stores::Stores). It is no setting of a plan: the scheduler takes it away before anybody is
/// shown any.
pub const STORES: &str = "volley.stores";

/// Another stage takes about as long as reading and hashing so many bytes.
pub const STAGE_BYTES_DEFAULT: u64 = 8 << 20;

/// To read and compute so much in one task takes no longer than the stages that would share it.
pub const SINGLE_TASK_BYTES_DEFAULT: u64 = 8 << 20;

/// The queue that every scheduler has, and that of a job that names none.
pub const QUEUE_DEFAULT: &str = "default";

/// Priorities are this far from 0 at most.
const PRIORITY_MOST: i32 = 100;

/// Sets the engine's settings that Volley has other defaults for. Clients and the scheduler both begin
/// so: what has no value cannot be sent, and what is as the scheduler begins need not be.
pub fn set_defaults(config: &mut ConfigOptions) {
    // Ballista prefers to merge sorted sides, which sorts and exchanges the large one too.
    config.optimizer.prefer_hash_join = true;
    // Clients join what stands for a value themselves.
    config
        .optimizer
        .enable_physical_uncorrelated_scalar_subquery = true;
    // A nested loop join without memory reads its left side again, which finds the files taken.
    config.execution.enable_file_stream_work_stealing = false;
    // Ballista turns dynamic filters off, for they cannot be sent: tasks make their own.
    config.optimizer.enable_dynamic_filter_pushdown = true;
    config.optimizer.enable_topk_dynamic_filter_pushdown = true;
    config.optimizer.enable_join_dynamic_filter_pushdown = true;
    config.optimizer.enable_aggregate_dynamic_filter_pushdown = true;
    // DataFusion 55 takes parts of structs to where they are stored, and mistakes columns of joins and unions there.
    config.optimizer.enable_leaf_expression_pushdown = false;
    // Its planner and its expressions do not agree on whether `x IS NOT TRUE` can be NULL.
    config.execution.skip_physical_aggregate_schema_check = true;
    // Which columns have one is decided by their types, where the user says nothing.
    config.execution.parquet.dictionary_enabled = None;
    // Level 3 makes files 3 % smaller, and the way from CSV to Parquet an eighth longer.
    config.execution.parquet.compression = Some("zstd(1)".to_owned());
    if let Some(ballista) = config.extensions.get_mut::<BallistaConfig>() {
        let key = BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE.trim_start_matches("ballista.");
        let set = ballista.set(key, &MESSAGE_LIMIT.to_string());
        debug_assert!(set.is_ok(), "a number of bytes: {set:?}");
    }
}

/// What the scheduler begins with, and puts a job's settings into.
pub fn session_config() -> SessionConfig {
    let config = SessionConfig::new_with_ballista();
    let mut config = config.with_option_extension(JobSettings::default());
    set_defaults(config.options_mut());
    config
}

/// What [`STAGE_BYTES`] says, for lists of settings.
pub const STAGE_BYTES_MEANS: &str =
    "What another stage of a query is taken to cost, in bytes that are read and hashed";
/// What [`SINGLE_TASK_BYTES`] says, for lists of settings.
pub const SINGLE_TASK_BYTES_MEANS: &str =
    "The most bytes that a query reads which one task answers, without stages; 0 where none is";
/// What [`QUEUE`] says, for lists of settings.
pub const QUEUE_MEANS: &str = "The queue of the scheduler's whose slots a job's tasks hold";
/// What [`PRIORITY`] says, for lists of settings.
pub const PRIORITY_MEANS: &str =
    "Which of a user's queries in a queue comes first: the one of the highest priority";
/// What a number of bytes is to be.
pub const BYTES_EXPECTED: &str = "expected a whole number of bytes";

/// What planning on the scheduler knows of the job that it plans.
#[derive(Debug, Clone)]
pub struct JobSettings {
    /// See [`JOB_ID`].
    pub id: Option<String>,
    /// See [`STAGE_BYTES`].
    pub stage_bytes: u64,
    /// See [`SINGLE_TASK_BYTES`].
    pub single_task_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            id: None,
            stage_bytes: STAGE_BYTES_DEFAULT,
            single_task_bytes: SINGLE_TASK_BYTES_DEFAULT,
        }
    }
}

impl ConfigExtension for JobSettings {
    const PREFIX: &'static str = PREFIX;
}

impl ExtensionOptions for JobSettings {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    /// The others are read with the job, and no plan depends on them.
    fn set(&mut self, key: &str, value: &str) -> datafusion::error::Result<()> {
        match format!("{PREFIX}.{key}").as_str() {
            JOB_ID => self.id = Some(value.to_owned()),
            STAGE_BYTES => self.stage_bytes = bytes(STAGE_BYTES, value)?,
            SINGLE_TASK_BYTES => self.single_task_bytes = bytes(SINGLE_TASK_BYTES, value)?,
            _ => {}
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![
            ConfigEntry {
                key: JOB_ID.to_owned(),
                value: self.id.clone(),
                description: "The job, the same when it is run again",
            },
            ConfigEntry {
                key: STAGE_BYTES.to_owned(),
                value: Some(self.stage_bytes.to_string()),
                description: STAGE_BYTES_MEANS,
            },
            ConfigEntry {
                key: SINGLE_TASK_BYTES.to_owned(),
                value: Some(self.single_task_bytes.to_string()),
                description: SINGLE_TASK_BYTES_MEANS,
            },
        ]
    }
}

/// The priority of a job, as it is set.
///
/// # Errors
/// When it is no whole number, or too far from 0.
pub fn priority(value: &str) -> Result<i32> {
    let parsed = value.parse::<i32>().ok();
    let parsed = parsed.filter(|priority| (-PRIORITY_MOST..=PRIORITY_MOST).contains(priority));
    parsed.ok_or_else(|| Error::Option {
        option: PRIORITY.into(),
        value: value.into(),
        expected: format!("expected a whole number from -{PRIORITY_MOST} to {PRIORITY_MOST}"),
    })
}

fn bytes(key: &str, value: &str) -> Result<u64> {
    value.parse().map_err(|_| Error::Option {
        option: key.into(),
        value: value.into(),
        expected: BYTES_EXPECTED.into(),
    })
}

/// What becomes of a job whose client has not been heard of for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClientLoss {
    /// Training runs on; queries are cancelled, for nobody would read their rows.
    Auto,
    /// It is cancelled.
    Cancel,
    /// It runs on; `volley jobs attach` finds it again.
    Keep,
}

impl FromStr for OnClientLoss {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "cancel" => Ok(Self::Cancel),
            "keep" => Ok(Self::Keep),
            _ => Err(Error::Option {
                option: ON_CLIENT_LOSS.into(),
                value: text.into(),
                expected: "expected auto, cancel or keep".into(),
            }),
        }
    }
}

impl fmt::Display for OnClientLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cancel => "cancel",
            Self::Keep => "keep",
        })
    }
}
