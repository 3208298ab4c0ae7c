//! Volley's settings: their keys, as users set them, and the single message that carries a job's settings.
//!
//! Among the engine's own settings the message is one more, [`JOB`]; a Ballista scheduler that does not know it ignores
//! it.

use std::any::Any;
use std::fmt;

use ballista_core::config::{BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE, BallistaConfig};
use ballista_core::extension::SessionConfigExt;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionConfig;
use serde::{Deserialize, Serialize};
use url::Url;

use volley_proto::limits::MESSAGE_LIMIT;
use volley_proto::object_stores::{is_read_only, is_remote};
use volley_proto::settings::{OnClientLoss, PredictDevice, QUEUE_DEFAULT};
use volley_proto::{Error, Result, TrainId};

use crate::error::External;
use crate::object_stores::Declared;

/// Prefix of Volley's own settings.
pub const PREFIX: &str = "volley";
/// Default of a model's tracing option, which makes ranks record what they do when; the client reads it.
pub const TRACE: &str = "volley.trace";
/// Assumed cost of another stage of a query, in bytes that are read: see [`STAGE_BYTES_DEFAULT`].
pub const STAGE_BYTES: &str = "volley.stage_bytes";
/// Assumed cost of each exchange of a query that one task could answer: see [`SINGLE_TASK_BYTES_DEFAULT`].
pub const SINGLE_TASK_BYTES: &str = "volley.single_task_bytes";
/// Queue whose slots a job's tasks hold: see [`QUEUE_DEFAULT`].
pub const QUEUE: &str = "volley.queue";
/// Priority of a query among a user's queries: see [`priority`].
pub const PRIORITY: &str = "volley.priority";
/// Store that gets copies of a job's shuffle files: see [`shuffle_store`].
pub const SHUFFLE_STORE: &str = "volley.shuffle_store";
/// Setting whose value is a job's [`JobSettings`], as JSON.
pub const JOB: &str = "volley.job";

/// Cost of another stage, in bytes that are read and hashed in the same time.
pub const STAGE_BYTES_DEFAULT: u64 = 8 << 20;

/// Cost of an exchange between stages of several tasks, including the additional tasks, in bytes that are read in the
/// same time.
pub const SINGLE_TASK_BYTES_DEFAULT: u64 = 16 << 20;

/// Largest absolute value of a priority.
const PRIORITY_MOST: i32 = 100;

/// Sets the engine's settings that have other defaults in Volley. Clients and the scheduler both start with these: a
/// setting without a value cannot be sent, and only settings that differ from the scheduler's defaults are.
pub fn set_defaults(config: &mut ConfigOptions) {
    // Ballista prefers merge joins, which sort and exchange the large side too.
    config.optimizer.prefer_hash_join = true;
    // Clients turn scalar subqueries into joins themselves.
    config
        .optimizer
        .enable_physical_uncorrelated_scalar_subquery = true;
    // A nested loop join that is short of memory reads its left side again, and would find the files taken.
    config.execution.enable_file_stream_work_stealing = false;
    // Ballista turns dynamic filters off, because they cannot be sent: tasks make their own.
    config.optimizer.enable_dynamic_filter_pushdown = true;
    config.optimizer.enable_topk_dynamic_filter_pushdown = true;
    config.optimizer.enable_join_dynamic_filter_pushdown = true;
    config.optimizer.enable_aggregate_dynamic_filter_pushdown = true;
    // DataFusion 55 pushes parts of structs down to scans, and confuses columns of joins and unions on the way.
    config.optimizer.enable_leaf_expression_pushdown = false;
    // Its planner and its expressions disagree on whether `x IS NOT TRUE` can be NULL.
    config.execution.skip_physical_aggregate_schema_check = true;
    // Ballista turns views off, with which all text that they point into was written: a stage's rows own theirs.
    config.execution.parquet.schema_force_view_types = true;
    // Unless the user sets it, the type of a column decides whether it has a dictionary.
    config.execution.parquet.dictionary_enabled = None;
    // An INT96 timestamp, a day and its nanoseconds, has a wider range than 64 bits of nanoseconds, which wrap around
    // after 2262. Spark writes microseconds; finer digits are cut off.
    config.execution.parquet.coerce_int96 = Some("us".to_owned());
    // Level 3 makes files 3 % smaller, but the conversion from CSV to Parquet an eighth longer.
    config.execution.parquet.compression = Some("zstd(1)".to_owned());
    if let Some(ballista) = config.extensions.get_mut::<BallistaConfig>() {
        let key = BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE.trim_start_matches("ballista.");
        let set = ballista.set(key, &MESSAGE_LIMIT.to_string());
        debug_assert!(set.is_ok(), "a number of bytes: {set:?}");
    }
}

/// Returns the configuration that the scheduler starts with, and puts a job's settings into.
pub fn session_config() -> SessionConfig {
    let config = SessionConfig::new_with_ballista();
    let mut config = config.with_option_extension(JobSettings::default());
    set_defaults(config.options_mut());
    config
}

/// Description of [`JOB`] in lists of settings.
pub const JOB_MEANS: &str =
    "A job's settings as sent with it, derived from those above: not to be set";

/// Settings of a job besides its plan and the engine's settings, also known to planning on the scheduler: one message,
/// as [`JOB`].
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSettings {
    /// Name in lists of jobs; if empty, `ballista.job.name`.
    pub name: String,
    /// Statement that the job runs, which the scheduler keeps to itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub statement: String,
    /// Id of the training run, if the job is one.
    pub train_id: Option<TrainId>,
    /// Action when the job's client is gone.
    pub on_client_loss: OnClientLoss,
    /// Queue: see [`QUEUE`].
    pub queue: String,
    /// Priority: see [`PRIORITY`].
    #[serde(deserialize_with = "checked_priority")]
    pub priority: i32,
    /// Assumed cost of a stage: see [`STAGE_BYTES`].
    pub stage_bytes: u64,
    /// Assumed cost of an exchange: see [`SINGLE_TASK_BYTES`].
    pub single_task_bytes: u64,
    /// Device of predictions.
    #[serde(skip_serializing_if = "is_default")]
    pub predict_device: PredictDevice,
    /// Store for copies of shuffle files: see [`SHUFFLE_STORE`].
    #[serde(
        deserialize_with = "checked_shuffle_store",
        skip_serializing_if = "Option::is_none"
    )]
    pub shuffle_store: Option<Url>,
    /// True if the client takes rows of small results with the outcome, which the scheduler sets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub small_results: bool,
    /// Store options that the URLs of its tables refer to by name: see [`Stores`](crate::object_stores::Stores). The
    /// scheduler removes them before it shows settings to anyone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Declared>,
    /// Id of the job itself, which the scheduler sets, and which stays the same when the job is run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Id of the job in lists and logs, if this is not its first attempt, whose id it is; the scheduler sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_attempt: Option<String>,
    /// True if an earlier scheduler may have run the job, and what it has written is not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Memory limit of its tasks, which the scheduler sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLimit>,
}

/// The limit `query_memory` or `memory` of a role, as it applies to one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLimit {
    /// Role of the job's owner.
    pub role: String,
    /// Bytes that its tasks may hold together.
    pub bytes: u64,
    /// Bytes that a task may hold per slot: the limit `query_memory` divided by the slots that the cluster had when the job
    /// was submitted, or the limit `memory`.
    pub per_slot: u64,
    /// True for the limit `memory`, on all queries of the job's owner together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_owner: bool,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            statement: String::new(),
            train_id: None,
            on_client_loss: OnClientLoss::Auto,
            queue: QUEUE_DEFAULT.to_owned(),
            priority: 0,
            stage_bytes: STAGE_BYTES_DEFAULT,
            single_task_bytes: SINGLE_TASK_BYTES_DEFAULT,
            predict_device: PredictDevice::default(),
            shuffle_store: None,
            small_results: false,
            stores: Vec::new(),
            id: None,
            first_attempt: None,
            restored: false,
            memory: None,
        }
    }
}

/// Omits the options of stores, which contain secrets.
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
            .field("predict_device", &self.predict_device)
            .field(
                "shuffle_store",
                &self.shuffle_store.as_ref().map(Url::as_str),
            )
            .field("small_results", &self.small_results)
            .field("id", &self.id)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl JobSettings {
    /// Parses the value of [`JOB`].
    ///
    /// # Errors
    /// When the text is not a job's settings, or has a value that users may not set.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Error::malformed(JOB, error))
    }

    /// Returns the value of [`JOB`].
    pub fn text(&self) -> String {
        // All keys are text, so serialization does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn checked_priority<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<i32, D::Error> {
    let given = i32::deserialize(deserializer)?;
    priority(&given.to_string()).map_err(serde::de::Error::custom)
}

fn checked_shuffle_store<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Url>, D::Error> {
    let given = String::deserialize(deserializer)?;
    shuffle_store(&given).map_err(serde::de::Error::custom)
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

/// Parses a job's priority.
///
/// # Errors
/// When it is not a whole number, or too far from 0.
pub fn priority(value: &str) -> Result<i32> {
    let parsed = value.parse::<i32>().ok();
    let parsed = parsed.filter(|priority| (-PRIORITY_MOST..=PRIORITY_MOST).contains(priority));
    parsed.ok_or_else(|| {
        let expected = format!("expected a whole number from -{PRIORITY_MOST} to {PRIORITY_MOST}");
        Error::option(PRIORITY, value, expected)
    })
}

/// Parses the store for copies of a job's shuffle files; `None` if the text is empty.
///
/// # Errors
/// When it is neither an absolute folder's URL nor that of a store that can be written, or has parts that say more than the
/// place.
pub fn shuffle_store(value: &str) -> Result<Option<Url>> {
    if value.is_empty() {
        return Ok(None);
    }
    let is_place = |url: &Url| {
        let is_written = match url.scheme() {
            "file" => url.to_file_path().is_ok(),
            scheme => {
                let has_host = url.host_str().is_some_and(|host| !host.is_empty());
                is_remote(url) && !is_read_only(scheme) && has_host
            }
        };
        // Credentials are those of the processes.
        let only_place = url.password().is_none() && url.query().is_none();
        is_written && only_place && url.fragment().is_none()
    };
    match Url::parse(value).ok().filter(is_place) {
        Some(url) => Ok(Some(url)),
        None => Err(Error::option(
            SHUFFLE_STORE,
            value,
            "expected a store that can be written, as s3://bucket/prefix without a password, a shared folder, as \
             file:///folder, or nothing",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_rows_go_to_a_place_that_can_be_written() {
        assert_eq!(shuffle_store("").unwrap(), None);
        for place in [
            "s3://bucket/prefix",
            "gs://bucket",
            "abfss://container@account.dfs.core.windows.net/a",
            "file:///shared/folder",
        ] {
            let url = shuffle_store(place).unwrap().unwrap();
            assert_eq!(url.as_str().trim_end_matches('/'), place);
            let job = JobSettings {
                shuffle_store: Some(url),
                ..JobSettings::default()
            };
            let sent = JobSettings::parse(&job.text()).unwrap();
            assert_eq!(sent.shuffle_store, job.shuffle_store);
        }
        for refused in [
            "bucket/prefix",
            "/shared/folder",
            "file://host/folder",
            "s3:///prefix",
            "s3://key:secret@bucket/prefix",
            "s3://bucket/prefix?region=x",
            "https://host/folder",
            "ftp://host/folder",
        ] {
            let error = shuffle_store(refused).unwrap_err().to_string();
            assert!(error.contains("s3://bucket/prefix"), "{error}");
            let sent = format!(r#"{{"shuffle_store": "{refused}"}}"#);
            assert!(JobSettings::parse(&sent).is_err(), "{refused}");
        }
        // Schedulers that do not know the setting take jobs without it.
        assert!(!JobSettings::default().text().contains("shuffle_store"));
    }
}
