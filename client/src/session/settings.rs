//! Settings: Volley's own, those of a single job, and those that would break the engine.
//!
//! All of them are stored in DataFusion's configuration. A job takes along the settings that differ from the
//! scheduler's defaults ([`to_send`]), and Volley's own as one message ([`JobSettings`]). So the scheduler's knowledge
//! of a job is written into the copy of the configuration that the job is submitted with ([`JobDescription::note`]),
//! never into the session's.

use std::any::Any;
use std::collections::HashMap;
use std::sync::LazyLock;

use ballista_core::config::{
    BALLISTA_ADAPTIVE_PLANNER_ENABLED, BALLISTA_CLIENT_PULL, BALLISTA_JOB_NAME,
    BALLISTA_SCHEDULER_SHARE_FILE_STATISTICS_CACHE, BallistaConfig,
};
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::KeyValuePair;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::prelude::SessionConfig;
use volley_engine::settings::{
    JOB, JOB_MEANS, JobSettings, PREFIX, PRIORITY, QUEUE, SHUFFLE_STORE, SINGLE_TASK_BYTES,
    STAGE_BYTES, TRACE, priority, session_config, set_defaults, shuffle_store,
};
use volley_proto::object_stores::redacted;
use volley_proto::settings::{ON_CLIENT_LOSS, OnClientLoss, PREDICT_DEVICE};
use volley_proto::{TrainId, did_you_mean};

use crate::{Error, Result};

/// Maximum length of a job's name, in characters; longer names are cut.
const NAME_LENGTH: usize = 200;
/// Maximum length of a job's statement, in characters.
const STATEMENT_LENGTH: usize = 16_384;

/// Setting that makes the engine keep scalar subqueries, which Volley joins itself.
const SCALAR_SUBQUERIES: &str = "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery";

/// Setting that lets a process's threads take files of a scan from each other.
const WORK_STEALING: &str = "datafusion.execution.enable_file_stream_work_stealing";

/// Setting that gives joins by one inequality an operator of their own.
const PIECEWISE_MERGE_JOINS: &str = "datafusion.optimizer.enable_piecewise_merge_join";

/// Setting that gives the first rows of each partition by a rank an operator of their own.
const WINDOW_TOPN: &str = "datafusion.optimizer.enable_window_topn";

/// Settings whose other value breaks jobs: the key, the only value, and the reason.
const FIXED: [(&str, &str, &str); 7] = [
    (
        BALLISTA_ADAPTIVE_PLANNER_ENABLED,
        "false",
        "Ballista 55's adaptive planner repeats branches of a UNION, and hangs where a plan it \
         changed fails a check: it stays off",
    ),
    (
        BALLISTA_CLIENT_PULL,
        "true",
        "without it, a job's id arrives only with its first change of state, and the job cannot be cancelled \
         before: it stays on",
    ),
    (
        BALLISTA_SCHEDULER_SHARE_FILE_STATISTICS_CACHE,
        "true",
        "the scheduler plans in copies of one session, which share file statistics, and reads a changed file \
         again: it stays on",
    ),
    (
        SCALAR_SUBQUERIES,
        "true",
        "the alternative repeats rows when a scalar subquery returns several: it stays on",
    ),
    (
        WORK_STEALING,
        "false",
        "a scan whose threads take files from each other is empty when a join reads it a second time: it \
         stays off",
    ),
    (
        PIECEWISE_MERGE_JOINS,
        "false",
        "DataFusion 55 has no message for that operator, and assumes a wrong order of its rows: it stays off",
    ),
    (
        WINDOW_TOPN,
        "false",
        "DataFusion 55 has no message for that operator: it stays off",
    ),
];

/// Setting of the number of partitions of a query.
const TARGET_PARTITIONS: &str = "datafusion.execution.target_partitions";

/// Settings whose default is a machine's number of cores, the client's or the scheduler's.
const OF_THE_MACHINE: [&str; 2] = [
    TARGET_PARTITIONS,
    "datafusion.execution.planning_concurrency",
];

/// Adds Volley's settings to the configuration, and sets the fixed ones to their value.
pub(super) fn with_defaults(config: SessionConfig) -> SessionConfig {
    let mut config = config.with_option_extension(VolleySettings::default());
    set_defaults(config.options_mut());
    FIXED
        .iter()
        .fold(config, |config, (key, value, _)| config.set_str(key, value))
}

/// Sets a setting as SQL's `SET` does.
///
/// # Errors
/// Names the setting, the value and the reason.
pub(super) fn set(config: &mut SessionConfig, key: &str, value: &str) -> Result<()> {
    check(key, value)?;
    let set = config.options_mut().set(key, value);
    set.map_err(|error| not_taken(config, key.to_owned(), value.to_owned(), error))
}

/// Prefix of the settings of a process's runtime.
const RUNTIME: &str = "datafusion.runtime.";

/// Refuses a plan that is a `SET` of a fixed setting to another value.
///
/// # Errors
/// Gives the reason why it is fixed.
pub(super) fn check_plan(plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => check(&set.variable, &set.value),
        _ => Ok(()),
    }
}

/// Returns the setting and value of a plan that is a `SET`.
pub(super) fn set_by(plan: &LogicalPlan) -> Option<(String, String)> {
    match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => {
            Some((set.variable.clone(), set.value.clone()))
        }
        _ => None,
    }
}

/// Returns the error of a refused value: Volley's reason for its own settings, and for the engine's the present value
/// as an example, or a setting of a similar name.
pub(super) fn not_taken(
    config: &SessionConfig,
    key: String,
    value: String,
    error: DataFusionError,
) -> Error {
    let entries = config.options().entries();
    let known = entries.iter().find(|entry| entry.key == key);
    // Settings of the process's runtime are not listed.
    let is_listed = !key.starts_with(RUNTIME);
    let reason = match (Error::from(error), known.map(|known| &known.value)) {
        (setting @ Error::Setting { .. }, _) => return setting,
        (_, Some(Some(present))) => format!("expected a value like the present one, {present}"),
        (_, None) if is_listed => {
            let names = entries.iter().map(|entry| entry.key.as_str());
            format!("there is no such setting{}", did_you_mean(&key, names))
        }
        (Error::Engine { cause, .. }, _) => cause,
        (other, _) => other.to_string(),
    };
    Error::Setting { key, value, reason }
}

/// Returns the settings that a job sends: the engine's that differ from the scheduler's defaults, and the job's.
pub(super) fn to_send(config: &SessionConfig, job: &JobSettings) -> Vec<KeyValuePair> {
    static KNOWN: LazyLock<HashMap<String, Option<String>>> = LazyLock::new(|| {
        let entries = session_config().options().entries().into_iter();
        let here = |entry: &ConfigEntry| OF_THE_MACHINE.contains(&entry.key.as_str());
        let entries = entries.filter(|entry| !here(entry));
        entries.map(|entry| (entry.key, entry.value)).collect()
    });
    let entries = config.options().entries().into_iter();
    // A setting without a value cannot be sent.
    let entries = entries.filter(|entry| entry.value.is_some());
    let own = |entry: &ConfigEntry| entry.key.split('.').next() == Some(PREFIX);
    let entries =
        entries.filter(|entry| !own(entry) && KNOWN.get(&entry.key) != Some(&entry.value));
    let engine = entries.map(|ConfigEntry { key, value, .. }| KeyValuePair { key, value });
    let job = KeyValuePair {
        key: JOB.to_owned(),
        value: Some(job.text()),
    };
    engine.chain([job]).collect()
}

/// Returns the job settings of a configuration.
pub(super) fn job(config: &SessionConfig) -> JobSettings {
    let volley = config.options().extensions.get::<VolleySettings>();
    volley.map_or_else(JobSettings::default, |volley| volley.job.clone())
}

/// Checks whether training leaves a trace if its options do not say.
pub(super) fn trace(config: &SessionConfig) -> bool {
    let volley = config.options().extensions.get::<VolleySettings>();
    volley.is_some_and(|volley| volley.trace)
}

/// Refuses a configuration with a fixed setting at another value, however it was set.
///
/// # Errors
/// Gives the reason why it is fixed.
pub(super) fn check_config(config: &SessionConfig) -> Result<()> {
    let ballista = config.ballista_config();
    let settings: &HashMap<_, _> = ballista.settings();
    for (key, value) in settings {
        check(key, value)?;
    }
    let options = config.options();
    let value = options.execution.target_partitions;
    check(TARGET_PARTITIONS, &value.to_string())?;
    let value = options.execution.enable_file_stream_work_stealing;
    check(WORK_STEALING, &value.to_string())?;
    let value = options.optimizer.enable_piecewise_merge_join;
    check(PIECEWISE_MERGE_JOINS, &value.to_string())?;
    let value = options.optimizer.enable_window_topn;
    check(WINDOW_TOPN, &value.to_string())?;
    let value = options
        .optimizer
        .enable_physical_uncorrelated_scalar_subquery;
    check(SCALAR_SUBQUERIES, &value.to_string())
}

/// Maximum number of partitions of a query: each may be a task, and an exchange has as many pieces as their product.
const MOST_PARTITIONS: usize = 10_000;

fn check(key: &str, value: &str) -> Result<()> {
    if key == TARGET_PARTITIONS
        && value
            .parse()
            .is_ok_and(|count: usize| count > MOST_PARTITIONS)
    {
        let reason = format!("a query has {MOST_PARTITIONS} partitions at most");
        return Err(refuse(key, value, reason));
    }
    match FIXED.iter().find(|(fixed, ..)| *fixed == key) {
        Some((_, only, reason)) if value != *only => Err(refuse(key, value, (*reason).to_owned())),
        _ => Ok(()),
    }
}

fn refuse(key: &str, value: &str, reason: String) -> Error {
    Error::Setting {
        key: key.to_owned(),
        value: value.to_owned(),
        reason,
    }
}

/// Returns what the parser of a setting expected.
fn expected(error: volley_proto::Error) -> String {
    match error {
        volley_proto::Error::Option { expected, .. } => expected,
        other => other.to_string(),
    }
}

fn bytes(value: &str) -> Result<u64, String> {
    let expected = |_| "expected a whole number of bytes".to_owned();
    value.parse().map_err(expected)
}

/// Description of one job, for the scheduler.
#[derive(Debug, Clone, Default)]
pub(super) struct JobDescription {
    /// Name in lists of jobs.
    pub(super) name: String,
    /// Statement that the job runs, without credentials.
    pub(super) statement: String,
    /// Training run, if the job is one.
    pub(super) train_id: Option<TrainId>,
    /// Action when the client is lost; default: the session's setting.
    pub(super) on_client_loss: Option<OnClientLoss>,
}

impl JobDescription {
    /// Names a job after the statement that it runs.
    pub(super) fn of(statement: &str) -> Self {
        let statement = redacted(statement);
        let line = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            name: cut(&line, NAME_LENGTH),
            statement: cut(statement.trim(), STATEMENT_LENGTH),
            ..Self::default()
        }
    }

    /// Writes the description into the configuration that the job is submitted with. A name that the user has set
    /// stays.
    pub(super) fn note(&self, config: &mut SessionConfig) {
        let extensions = &mut config.options_mut().extensions;
        let ballista = extensions.get::<BallistaConfig>();
        let given = ballista.and_then(|ballista| ballista.settings().get(BALLISTA_JOB_NAME));
        let name = given.unwrap_or(&self.name).clone();
        if let Some(VolleySettings { job, .. }) = extensions.get_mut::<VolleySettings>() {
            job.name = name;
            job.statement.clone_from(&self.statement);
            job.train_id = self.train_id;
            job.on_client_loss = self.on_client_loss.unwrap_or(job.on_client_loss);
        }
    }
}

/// Returns a text of at most `length` characters, of which the last tells that others are left out.
fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length - 1) {
        Some((end, _)) if text[end..].chars().nth(1).is_some() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// Values of the settings under `volley.`.
#[derive(Debug, Clone, Default)]
struct VolleySettings {
    trace: bool,
    /// Settings that go along with a job, and its description.
    job: JobSettings,
}

/// Setting under `volley.`.
struct Setting {
    key: &'static str,
    /// Description in lists of settings.
    means: &'static str,
    get: fn(&VolleySettings) -> String,
    /// Sets it, or returns what was expected.
    set: fn(&mut VolleySettings, &str) -> Result<(), String>,
}

const SETTINGS: &[Setting] = &[
    Setting {
        key: ON_CLIENT_LOSS,
        means: "Action when a job's client is gone: auto (training continues, queries are cancelled), cancel or keep",
        get: |of| of.job.on_client_loss.to_string(),
        set: |of, value| put(&mut of.job.on_client_loss, value.parse().map_err(expected)),
    },
    Setting {
        key: PREDICT_DEVICE,
        means: "Device of predictions with models: cpu, cuda (a GPU of the executor where one is free and can compute \
            the model) or auto (such a GPU where it is faster)",
        get: |of| of.job.predict_device.to_string(),
        set: |of, value| put(&mut of.job.predict_device, value.parse().map_err(expected)),
    },
    Setting {
        key: PRIORITY,
        means: "Priority among a user's queries in a queue: the highest comes first",
        get: |of| of.job.priority.to_string(),
        set: |of, value| put(&mut of.job.priority, priority(value).map_err(expected)),
    },
    Setting {
        key: QUEUE,
        means: "The scheduler's queue whose slots a job's tasks hold",
        get: |of| of.job.queue.clone(),
        // Only the scheduler knows the queues; it refuses unknown ones when a job is submitted.
        set: |of, value| match value {
            "" => Err("expected a queue's name".to_owned()),
            queue => put(&mut of.job.queue, Ok(queue.to_owned())),
        },
    },
    Setting {
        key: SHUFFLE_STORE,
        means: "Object store (s3://bucket/prefix) or shared folder (file:///folder) for copies of the rows between stages, \
            which outlive their executors; empty: none",
        get: |of| {
            let store = of.job.shuffle_store.as_ref();
            store.map_or_else(String::new, ToString::to_string)
        },
        set: |of, value| {
            put(
                &mut of.job.shuffle_store,
                shuffle_store(value).map_err(expected),
            )
        },
    },
    Setting {
        key: SINGLE_TASK_BYTES,
        means: "Assumed cost of each exchange of a query, in bytes read (text: four times as many). If all exchanges \
            cost more than they save the first task, the query runs as one task without them. Small partitions share a \
            task up to as many bytes. With 0, all queries have stages, and each partition has a task",
        get: |of| of.job.single_task_bytes.to_string(),
        set: |of, value| put(&mut of.job.single_task_bytes, bytes(value)),
    },
    Setting {
        key: STAGE_BYTES,
        means: "Assumed cost of another stage of a query, in bytes read and hashed",
        get: |of| of.job.stage_bytes.to_string(),
        set: |of, value| put(&mut of.job.stage_bytes, bytes(value)),
    },
    Setting {
        key: TRACE,
        means: "Records a timeline of each rank, unless the model's option trace is given",
        get: |of| of.trace.to_string(),
        set: |of, value| {
            let on = value.parse::<bool>();
            let on = on.map_err(|_| "expected true or false".to_owned());
            put(&mut of.trace, on)
        },
    },
];

fn put<T>(to: &mut T, value: Result<T, String>) -> Result<(), String> {
    *to = value?;
    Ok(())
}

impl ConfigExtension for VolleySettings {
    const PREFIX: &'static str = PREFIX;
}

impl ExtensionOptions for VolleySettings {
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
        let set = match SETTINGS.iter().find(|known| known.key == full) {
            Some(known) => (known.set)(self, value),
            None if full == JOB => Err("it is derived from the other settings".to_owned()),
            None => {
                let hint = did_you_mean(&full, SETTINGS.iter().map(|known| known.key));
                Err(format!("there is no such setting{hint}"))
            }
        };
        set.map_err(|reason| refuse(&full, value, reason).into())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |key: &str, value, description| ConfigEntry {
            key: key.to_owned(),
            value: Some(value),
            description,
        };
        let settings = SETTINGS.iter();
        let settings = settings.map(|of| entry(of.key, (of.get)(self), of.means));
        // Ballista's own clients send the settings that are listed here.
        settings
            .chain([entry(JOB, self.job.text(), JOB_MEANS)])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::settings::{PredictDevice, QUEUE_DEFAULT};

    use super::*;

    fn config() -> SessionConfig {
        with_defaults(SessionConfig::new_with_ballista())
    }

    fn all_sent(config: &SessionConfig) -> Vec<KeyValuePair> {
        to_send(config, &job(config))
    }

    fn sent(config: &SessionConfig, key: &str) -> Option<String> {
        let sent = all_sent(config).into_iter().find(|entry| entry.key == key);
        sent.and_then(|entry| entry.value)
    }

    /// Returns a job's settings as the scheduler reads them.
    fn job_sent(config: &SessionConfig) -> JobSettings {
        JobSettings::parse(&sent(config, JOB).unwrap()).unwrap()
    }

    #[test]
    fn what_the_scheduler_begins_with_is_not_sent() {
        const BATCH: &str = "datafusion.execution.batch_size";
        let mut config = config();
        let engine = |entry: &KeyValuePair| entry.key != JOB;
        let keys = |config: &SessionConfig| -> Vec<String> {
            let sent = all_sent(config).into_iter();
            sent.filter(engine).map(|entry| entry.key).collect()
        };
        // Settings that Volley has set, and those that depend on the scheduler's machine.
        let always = keys(&config);
        for key in OF_THE_MACHINE {
            assert!(always.iter().any(|sent| sent == key), "{key}");
        }
        let fixed = |sent: &str| FIXED.iter().any(|(key, ..)| *key == sent);
        for sent in &always {
            assert!(
                OF_THE_MACHINE.contains(&sent.as_str()) || fixed(sent),
                "{sent}"
            );
        }
        set(&mut config, BATCH, "77").unwrap();
        assert_eq!(sent(&config, BATCH).as_deref(), Some("77"));
        set(&mut config, BATCH, "8192").unwrap();
        assert_eq!(keys(&config), always);
    }

    #[test]
    fn what_becomes_of_a_job_without_its_client_can_be_set() {
        let mut config = config();
        assert_eq!(job_sent(&config).on_client_loss, OnClientLoss::Auto);
        set(&mut config, ON_CLIENT_LOSS, "keep").unwrap();
        assert_eq!(job_sent(&config).on_client_loss, OnClientLoss::Keep);
        for (key, value, message) in [
            (
                ON_CLIENT_LOSS,
                "forever",
                "SET volley.on_client_loss = forever: expected auto, cancel or keep",
            ),
            (
                "volley.on_client_los",
                "keep",
                "SET volley.on_client_los = keep: there is no such setting; did you mean \
                 \"volley.on_client_loss\"?",
            ),
            ("nosuch", "1", "SET nosuch = 1: there is no such setting"),
            (
                "datafusion.execution.batch_sizes",
                "1",
                "SET datafusion.execution.batch_sizes = 1: there is no such setting; did you mean \
                 \"datafusion.execution.batch_size\"?",
            ),
            (
                "datafusion.execution.batch_size",
                "many",
                "SET datafusion.execution.batch_size = many: expected a value like the present one, 8192",
            ),
            (TRACE, "1", "SET volley.trace = 1: expected true or false"),
            (
                TARGET_PARTITIONS,
                "100000",
                "SET datafusion.execution.target_partitions = 100000: a query has 10000 partitions at most",
            ),
            (
                STAGE_BYTES,
                "-1",
                "SET volley.stage_bytes = -1: expected a whole number of bytes",
            ),
            (
                SINGLE_TASK_BYTES,
                "8MiB",
                "SET volley.single_task_bytes = 8MiB: expected a whole number of bytes",
            ),
            (
                PRIORITY,
                "101",
                "SET volley.priority = 101: expected a whole number from -100 to 100",
            ),
            (
                PRIORITY,
                "high",
                "SET volley.priority = high: expected a whole number from -100 to 100",
            ),
            (QUEUE, "", "SET volley.queue = : expected a queue's name"),
            (
                PREDICT_DEVICE,
                "cuda:0",
                "SET volley.predict_device = cuda:0: expected cpu, auto or cuda",
            ),
            (
                JOB,
                "{}",
                "SET volley.job = {}: it is derived from the other settings",
            ),
        ] {
            let error = set(&mut config, key, value).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn a_jobs_queue_and_priority_go_along_with_it() {
        let mut config = config();
        let sent = |config: &SessionConfig| {
            let job = job_sent(config);
            (job.queue, job.priority)
        };
        assert_eq!(sent(&config), (QUEUE_DEFAULT.to_owned(), 0));
        set(&mut config, QUEUE, "etl").unwrap();
        set(&mut config, PRIORITY, "-7").unwrap();
        assert_eq!(sent(&config), ("etl".to_owned(), -7));
        assert!(JobSettings::parse(r#"{"priority": 101}"#).is_err());
        assert!(JobSettings::parse(r#"{"queu": "etl"}"#).is_err());
    }

    #[test]
    fn the_device_of_predictions_goes_along_with_a_job() {
        let mut config = config();
        assert_eq!(job_sent(&config).predict_device, PredictDevice::Cpu);
        for device in [PredictDevice::Auto, PredictDevice::Cuda] {
            set(&mut config, PREDICT_DEVICE, &device.to_string()).unwrap();
            assert_eq!(job_sent(&config).predict_device, device);
        }
        // Schedulers that do not know the setting take jobs without it.
        set(&mut config, PREDICT_DEVICE, "cpu").unwrap();
        assert!(!sent(&config, JOB).unwrap().contains("predict_device"));
    }

    #[test]
    fn the_store_of_shuffle_files_goes_along_with_a_job() {
        let mut config = config();
        let store = |config: &SessionConfig| job_sent(config).shuffle_store.map(String::from);
        assert_eq!(store(&config), None);
        set(&mut config, SHUFFLE_STORE, "s3://bucket/prefix").unwrap();
        assert_eq!(store(&config).as_deref(), Some("s3://bucket/prefix"));
        let error = set(&mut config, SHUFFLE_STORE, "/shared").unwrap_err();
        assert!(error.to_string().contains("file:///"), "{error}");
        set(&mut config, SHUFFLE_STORE, "").unwrap();
        assert_eq!(store(&config), None);
    }

    #[test]
    fn what_makes_the_engine_go_wrong_is_refused() {
        for (key, only, _) in FIXED {
            let mut config = config();
            set(&mut config, key, only).unwrap();
            check_config(&config).unwrap();
            let other = if only == "true" { "false" } else { "true" };
            for value in [other, "TRUE", "1"] {
                let error = set(&mut config, key, value).unwrap_err();
                assert!(matches!(error, Error::Setting { .. }), "{error}");
            }
            let around = config.set_str(key, other);
            assert!(check_config(&around).is_err());
        }
    }

    #[test]
    fn a_job_is_noted_in_its_own_configuration() {
        let mut config = config();
        let train_id = TrainId::generate();
        let job = JobDescription {
            train_id: Some(train_id),
            ..JobDescription::of("CREATE\n  MODEL m …")
        };
        job.note(&mut config);
        let noted = job_sent(&config);
        assert_eq!(noted.name, "CREATE MODEL m …");
        assert_eq!(noted.train_id, Some(train_id));
        assert_eq!(noted.on_client_loss, OnClientLoss::Auto);
        let kept = JobDescription {
            on_client_loss: Some(OnClientLoss::Keep),
            ..JobDescription::of("other")
        };
        set(&mut config, BALLISTA_JOB_NAME, "mine").unwrap();
        kept.note(&mut config);
        let noted = job_sent(&config);
        assert_eq!((noted.name.as_str(), noted.train_id), ("mine", None));
        assert_eq!(noted.on_client_loss, OnClientLoss::Keep);
    }

    #[test]
    fn names_are_cut() {
        let exact = "é".repeat(NAME_LENGTH);
        assert_eq!(JobDescription::of(&exact).name, exact);
        let long = JobDescription::of(&"é".repeat(NAME_LENGTH + 1)).name;
        assert_eq!(long.chars().count(), NAME_LENGTH);
        assert!(long.ends_with('…'));
        let written = JobDescription::of(&format!("SELECT 1\n  -- {exact} é\n"));
        assert_eq!(written.statement, format!("SELECT 1\n  -- {exact} é"));
        assert!(written.name.starts_with("SELECT 1 -- é") && written.name.ends_with('…'));
    }
}
