//! Settings of Volley's: their keys, as users set them, and the one message that a job's travel in.
//!
//! Among the engine's own settings the message is one more, [`JOB`]; a scheduler of the engine's that does not know it
//! ignores it.

use std::any::Any;
use std::fmt;

use ballista_core::config::{BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE, BallistaConfig};
use ballista_core::extension::SessionConfigExt;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionConfig;
use serde::{Deserialize, Serialize};

use volley_proto::limits::MESSAGE_LIMIT;
use volley_proto::settings::{OnClientLoss, QUEUE_DEFAULT};
use volley_proto::{Error, Result, TrainId};

use crate::error::External;
use crate::object_stores::Declared;

/// The prefix of Volley's own settings.
pub const PREFIX: &str = "volley";
/// Whether ranks note what they do when, where a model's options do not say; the client reads it.
pub const TRACE: &str = "volley.trace";
/// What another stage of a query is taken to cost, in bytes that are read: see [`STAGE_BYTES_DEFAULT`].
pub const STAGE_BYTES: &str = "volley.stage_bytes";
/// What each exchange of a query is taken to cost, where one task could answer it: see [`SINGLE_TASK_BYTES_DEFAULT`].
pub const SINGLE_TASK_BYTES: &str = "volley.single_task_bytes";
/// The queue whose slots a job's tasks hold: see [`QUEUE_DEFAULT`].
pub const QUEUE: &str = "volley.queue";
/// Which of a user's queries comes first: see [`priority`].
pub const PRIORITY: &str = "volley.priority";
/// The setting whose value is a job's [`JobSettings`], as JSON.
pub const JOB: &str = "volley.job";

/// Another stage takes about as long as reading and hashing so many bytes.
pub const STAGE_BYTES_DEFAULT: u64 = 8 << 20;

/// To read so much takes no longer than an exchange between stages of several tasks, with the tasks that it takes more.
pub const SINGLE_TASK_BYTES_DEFAULT: u64 = 16 << 20;

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
    // A day and its nanoseconds reach further than 64 bits of nanoseconds, which wrap around after 2262. Spark writes
    // microseconds; of finer ones digits are cut off.
    config.execution.parquet.coerce_int96 = Some("us".to_owned());
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
pub const SINGLE_TASK_BYTES_MEANS: &str = "What each exchange of a query is taken to cost, in bytes that are read (of text \
     four times as many): where all of them cost more than they take off the first task, one task answers without; 0 where all queries have stages";
/// What [`QUEUE`] says, for lists of settings.
pub const QUEUE_MEANS: &str = "The queue of the scheduler's whose slots a job's tasks hold";
/// What [`PRIORITY`] says, for lists of settings.
pub const PRIORITY_MEANS: &str =
    "Which of a user's queries in a queue comes first: the one of the highest priority";
/// What [`JOB`] says, for lists of settings.
pub const JOB_MEANS: &str =
    "A job's settings as they are sent with it, from those above: not to be set";
/// What a number of bytes is to be.
pub const BYTES_EXPECTED: &str = "expected a whole number of bytes";

/// What the scheduler is told of a job besides its plan and the engine's settings, and what planning there knows of it: one
/// message, as [`JOB`].
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSettings {
    /// What it is called in lists; `ballista.job.name` where it is empty.
    pub name: String,
    /// The training run that it is, if it is one.
    pub train_id: Option<TrainId>,
    /// What becomes of it when its client is gone.
    pub on_client_loss: OnClientLoss,
    /// See [`QUEUE`].
    pub queue: String,
    /// See [`PRIORITY`].
    #[serde(deserialize_with = "checked_priority")]
    pub priority: i32,
    /// See [`STAGE_BYTES`].
    pub stage_bytes: u64,
    /// See [`SINGLE_TASK_BYTES`].
    pub single_task_bytes: u64,
    /// What the names of options in the URLs of its tables stand for: see [`Stores`](crate::object_stores::Stores). The
    /// scheduler takes it away before anybody is shown any settings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Declared>,
    /// An id of its own, which the scheduler sets: the same when it is run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How much memory its tasks may hold, which the scheduler sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLimit>,
}

/// The limit `query_memory` of a role, as it applies to one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimit {
    /// The role of the job's owner.
    pub role: String,
    /// Bytes that its tasks may hold together.
    pub bytes: u64,
    /// Bytes that a task may hold for each of its slots: a share of as many as the cluster had when the job was submitted.
    pub per_slot: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            train_id: None,
            on_client_loss: OnClientLoss::Auto,
            queue: QUEUE_DEFAULT.to_owned(),
            priority: 0,
            stage_bytes: STAGE_BYTES_DEFAULT,
            single_task_bytes: SINGLE_TASK_BYTES_DEFAULT,
            stores: Vec::new(),
            id: None,
            memory: None,
        }
    }
}

/// Without the options of stores, which have secrets.
impl fmt::Debug for JobSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSettings")
            .field("name", &self.name)
            .field("train_id", &self.train_id)
            .field("on_client_loss", &self.on_client_loss)
            .field("queue", &self.queue)
            .field("priority", &self.priority)
            .field("stage_bytes", &self.stage_bytes)
            .field("single_task_bytes", &self.single_task_bytes)
            .field("id", &self.id)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl JobSettings {
    /// Reads what [`JOB`] says.
    ///
    /// # Errors
    /// When it is none, or a value is none that users may set.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Error::malformed(JOB, error))
    }

    /// What [`JOB`] says.
    pub fn text(&self) -> String {
        // All keys are text, and nothing in it fails.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn checked_priority<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<i32, D::Error> {
    let given = i32::deserialize(deserializer)?;
    priority(&given.to_string()).map_err(serde::de::Error::custom)
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

    fn set(&mut self, key: &str, value: &str) -> datafusion::error::Result<()> {
        let full = format!("{PREFIX}.{key}");
        if full != JOB {
            let reason = format!("{full} is set by clients: a job's settings are {JOB}");
            return Err(DataFusionError::Configuration(reason));
        }
        *self = Self::parse(value).external()?;
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: JOB.to_owned(),
            value: Some(self.text()),
            description: JOB_MEANS,
        }]
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
