//! Optimized logical plans, kept for equal queries: optimization takes longer than anything else in planning a small one.
//!
//! ```text
//! gateway ─ key ─► session ─┬ unknown: all rules ──────────────► physical plan ─► the optimized plan is kept
//!                           └ known: the kept plan, no rules ──► physical plan
//! ```
//!
//! The key is a hash of the plan as it was sent and of its settings. A client plans each statement anew, so what it knows
//! of its tables, views, models and variables is in these bytes. The rules read nothing else, unless the query calls a
//! function that reads a clock, or has a table of a kind that is not known here: such plans are not kept
//! ([`optimizes_alike`]). Files are listed, and their statistics read, when a physical plan is made, each time. No physical
//! plan is kept.

use std::any::Any;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ballista_core::serde::protobuf::ExecuteQueryParams;
use ballista_core::serde::protobuf::execute_query_params::Query;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{config_datafusion_err, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionConfig;
use indexmap::IndexMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use volley_engine::settings::{JOB, JobSettings};
use volley_engine::{constants_size, optimizes_alike};

/// Namespace of the setting that has a query's key. Only the gateway sets it: who could choose a key could run another's
/// plan.
pub(super) const NAMESPACE: &str = "volley_plan";
/// Setting that has a query's key.
pub(super) const KEY: &str = "volley_plan.key";

/// Maximum number of kept plans.
const PLANS: usize = 256;
/// Maximum size of all kept plans in bytes, as they were sent, with the constants that were computed.
const BYTES: usize = 4 << 20;
/// Maximum size of a kept plan in bytes, likewise.
const LARGEST: usize = 64 << 10;

/// Returns the key of a query: its size, and a hash of its plan and settings without those that name the job. Returns
/// `None` if its plan is too large to be kept.
pub(super) fn key(submission: &ExecuteQueryParams, job: &JobSettings) -> Option<String> {
    let Some(Query::LogicalPlan(plan)) = &submission.query else {
        return None;
    };
    if plan.len() > LARGEST {
        return None;
    }
    let job = JobSettings {
        name: String::new(),
        statement: String::new(),
        stores: Vec::new(),
        id: None,
        first_attempt: None,
        restored: false,
        ..job.clone()
    };
    let own = job.text();
    // A setting without a value is not set.
    let settings = submission.settings.iter();
    let settings =
        settings.filter_map(|setting| Some((setting.key.as_str(), setting.value.as_deref()?)));
    let mut settings = Vec::from_iter(settings.chain([(JOB, own.as_str())]));
    // Of DataFusion's, a later one may set an earlier one. Clients send Ballista's in any order.
    settings.sort_by_key(|(key, _)| match key.starts_with("ballista.") {
        true => *key,
        false => "",
    });
    let mut hash = Sha256::new();
    for part in settings.iter().flat_map(|(key, value)| [*key, *value]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(plan);
    let hash: [u8; 32] = hash.finalize().into();
    let mut key = format!("{}-", plan.len());
    for byte in hash {
        // Writing to a string does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    Some(key)
}

/// Key of a session's query, among its settings.
#[derive(Debug, Clone, Default)]
pub(super) struct PlanKey {
    /// Empty if the optimized plan is not to be kept.
    key: String,
    /// Size of the plan as it was sent, in bytes.
    size: usize,
    /// True once the plan as it was sent is known to be optimized alike each time. Copies of the settings share it.
    is_alike: Arc<AtomicBool>,
    kept: Option<Arc<LogicalPlan>>,
}

impl ConfigExtension for PlanKey {
    const PREFIX: &'static str = NAMESPACE;
}

impl ExtensionOptions for PlanKey {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, _: &str, value: &str) -> Result<()> {
        let size = value
            .split_once('-')
            .and_then(|(size, _)| size.parse().ok());
        *self = Self {
            key: value.to_owned(),
            size: size.ok_or_else(|| config_datafusion_err!("{value} is not a plan's key"))?,
            ..Self::default()
        };
        Ok(())
    }

    /// Returns nothing: tasks need no key.
    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

/// Optimized plans by key; cheap to clone. If there are too many, the least recently used are dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct OptimizedPlans(Arc<Mutex<Plans>>);

#[derive(Debug, Default)]
struct Plans {
    /// The least recently used first.
    kept: IndexMap<String, Kept>,
    /// Size of all.
    size: usize,
}

#[derive(Debug)]
struct Kept {
    plan: Arc<LogicalPlan>,
    size: usize,
}

impl OptimizedPlans {
    /// Looks for the plan of the query whose settings these are, and puts it into them. Returns true if there is one: then
    /// the query's session has no rules but [`TakeKept`].
    pub(super) fn find(&self, config: &mut SessionConfig) -> bool {
        let key = config.options().extensions.get::<PlanKey>();
        let Some(plan) = key.and_then(|key| self.0.lock().take(&key.key)) else {
            return false;
        };
        let extensions = &mut config.options_mut().extensions;
        let Some(key) = extensions.get_mut::<PlanKey>() else {
            return false;
        };
        tracing::debug!(key = key.key, "taking a kept plan");
        key.kept = Some(plan);
        true
    }

    /// Keeps the optimized plan of the query with these settings, if equal queries have the same.
    pub(super) fn keep(&self, options: &ConfigOptions, optimized: &LogicalPlan) {
        let Some(key) = options.extensions.get::<PlanKey>() else {
            return;
        };
        // The rules see the query that is explained, not that it is.
        let is_explained = matches!(optimized, LogicalPlan::Explain(_));
        if key.kept.is_some() || is_explained || !key.is_alike.load(Ordering::Relaxed) {
            return;
        }
        let constants = constants_size(optimized).unwrap_or(LARGEST);
        let size = key.size.saturating_add(constants);
        if size <= LARGEST {
            let plan = Arc::new(optimized.clone());
            self.0.lock().keep(key.key.clone(), Kept { plan, size });
        }
    }
}

impl Plans {
    fn take(&mut self, key: &str) -> Option<Arc<LogicalPlan>> {
        let (key, kept) = self.kept.shift_remove_entry(key)?;
        let plan = Arc::clone(&kept.plan);
        self.kept.insert(key, kept);
        Some(plan)
    }

    fn keep(&mut self, key: String, plan: Kept) {
        self.size += plan.size;
        if let Some(before) = self.kept.insert(key, plan) {
            self.size -= before.size;
        }
        while (self.kept.len() > PLANS || self.size > BYTES)
            && let Some((_, oldest)) = self.kept.shift_remove_index(0)
        {
            self.size -= oldest.size;
        }
    }
}

/// Analyzer rule that notes whether the plan, as it was sent, is optimized alike each time. It must come before all rules
/// that change the plan.
#[derive(Debug)]
pub(super) struct NoteAlike;

impl AnalyzerRule for NoteAlike {
    fn name(&self) -> &str {
        "note_alike"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if let Some(key) = config.extensions.get::<PlanKey>()
            && !key.key.is_empty()
        {
            let is_alike = optimizes_alike(&plan).unwrap_or(false);
            key.is_alike.store(is_alike, Ordering::Relaxed);
        }
        Ok(plan)
    }
}

/// Analyzer rule that replaces the plan, as it was sent, by the kept one. It is the only rule of its session.
#[derive(Debug)]
pub(super) struct TakeKept;

impl AnalyzerRule for TakeKept {
    fn name(&self) -> &str {
        "take_kept"
    }

    fn analyze(&self, _: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let key = config.extensions.get::<PlanKey>();
        let kept = key.and_then(|key| key.kept.as_deref());
        kept.cloned()
            .ok_or_else(|| internal_datafusion_err!("a session of a kept plan has none"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ballista_core::serde::protobuf::KeyValuePair;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    use super::super::gateway::put_settings;
    use super::*;

    fn submission(plan: &[u8], settings: &[(&str, &str)]) -> ExecuteQueryParams {
        let settings = settings.iter().map(|(key, value)| KeyValuePair {
            key: (*key).to_owned(),
            value: Some((*value).to_owned()),
        });
        ExecuteQueryParams {
            query: Some(Query::LogicalPlan(plan.to_vec())),
            settings: settings.collect(),
            ..Default::default()
        }
    }

    fn select(number: i32) -> LogicalPlan {
        let plan = LogicalPlanBuilder::empty(true).project([lit(number).alias("n")]);
        plan.unwrap().build().unwrap()
    }

    fn kept(size: usize) -> Kept {
        let plan = Arc::new(select(1));
        Kept { plan, size }
    }

    #[test]
    fn keys_differ_with_the_plan_and_the_settings_alone() {
        const BATCH: (&str, &str) = ("datafusion.execution.batch_size", "7");
        let of = |plan: &[u8], settings: &[(&str, &str)], job: &JobSettings| {
            key(&submission(plan, settings), job).unwrap()
        };
        let job = JobSettings::default();
        let first = of(b"plan", &[BATCH], &job);
        let named = JobSettings {
            name: "SELECT 1".to_owned(),
            statement: "SELECT 1".to_owned(),
            id: Some("j".to_owned()),
            first_attempt: Some("i".to_owned()),
            restored: true,
            ..JobSettings::default()
        };
        assert_eq!(of(b"plan", &[BATCH], &named), first);
        let tasks = JobSettings {
            single_task_bytes: 0,
            ..JobSettings::default()
        };
        let (a, b) = (("ballista.a", "1"), ("ballista.b", "1"));
        let (one, two) = (("datafusion.a", "1"), ("datafusion.b", "1"));
        let others = [
            of(b"plam", &[BATCH], &job),
            of(b"plan", &[], &job),
            of(b"plan", &[(BATCH.0, "8")], &job),
            of(b"plan", &[BATCH], &tasks),
            of(b"plan", &[BATCH, a, b], &job),
            of(b"plan", &[one, two], &job),
            // The later one may set the earlier.
            of(b"plan", &[two, one], &job),
        ];
        let all: BTreeSet<_> = others.iter().chain([&first]).collect();
        assert_eq!(all.len(), others.len() + 1);
        assert_eq!(of(b"plan", &[b, BATCH, a], &job), others[4]);
        let large = submission(&vec![0; LARGEST + 1], &[]);
        assert_eq!(key(&large, &job), None);
        assert_eq!(key(&ExecuteQueryParams::default(), &job), None);
    }

    #[test]
    fn clients_choose_no_key() {
        let of_other = key(&submission(b"other", &[]), &JobSettings::default()).unwrap();
        let mut forged = submission(b"plan", &[(KEY, of_other.as_str()), (KEY, "9-x")]);
        put_settings(&mut forged, &JobSettings::default());
        let keys = forged.settings.iter().filter(|setting| setting.key == KEY);
        let keys: Vec<_> = keys.filter_map(|setting| setting.value.clone()).collect();
        let own = key(&submission(b"plan", &[]), &JobSettings::default());
        assert_eq!(keys, Vec::from_iter(own));
        // Another attempt at the job has the same.
        put_settings(&mut forged, &JobSettings::default());
        let again = forged.settings.iter().filter(|setting| setting.key == KEY);
        assert!(again.filter_map(|setting| setting.value.as_ref()).eq(&keys));
    }

    #[test]
    fn no_more_plans_are_kept_than_is_allowed() {
        let mut plans = Plans::default();
        for number in 0..PLANS {
            plans.keep(number.to_string(), kept(1));
        }
        assert!(plans.take("0").is_some());
        plans.keep("one more".to_owned(), kept(1));
        assert_eq!((plans.kept.len(), plans.size), (PLANS, PLANS));
        // It was used more recently than the second.
        assert!(plans.take("0").is_some() && plans.take("1").is_none());
        plans.keep("0".to_owned(), kept(2));
        assert_eq!((plans.kept.len(), plans.size), (PLANS, PLANS + 1));

        for number in 0..2 * BYTES / LARGEST {
            plans.keep(format!("large {number}"), kept(LARGEST));
            assert!(plans.size <= BYTES, "{}", plans.size);
        }
        assert_eq!(plans.kept.len(), BYTES / LARGEST);
    }

    #[test]
    fn only_plans_that_are_optimized_alike_are_kept() {
        let plans = OptimizedPlans::default();
        let config = || {
            let config = SessionConfig::new().with_option_extension(PlanKey::default());
            config.set_str(KEY, "4-ab")
        };
        assert!(!plans.find(&mut config()));
        // Nobody has noted what it is.
        plans.keep(config().options(), &select(1));
        assert!(!plans.find(&mut config()));
        let noted = config();
        NoteAlike.analyze(select(1), noted.options()).unwrap();
        let large = LogicalPlanBuilder::empty(true)
            .project([lit("x".repeat(LARGEST)).alias("x")])
            .unwrap();
        plans.keep(noted.options(), &large.build().unwrap());
        assert!(!plans.find(&mut config()));
        plans.keep(noted.options(), &select(1));
        let mut found = config();
        assert!(plans.find(&mut found));
        let taken = TakeKept.analyze(select(2), found.options()).unwrap();
        assert_eq!(taken, select(1));
        // Another query's settings, and settings without a key, do not find it.
        let other = SessionConfig::new().with_option_extension(PlanKey::default());
        assert!(!plans.find(&mut other.clone()));
        assert!(!plans.find(&mut other.set_str(KEY, "4-cd")));
        assert!(!plans.find(&mut SessionConfig::new()));
    }
}
