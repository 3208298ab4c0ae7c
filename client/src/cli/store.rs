//! `volley store`: check a model store, remove what nobody needs, copy its versions.
//!
//! ```text
//! check    ──> one row for each version, run and remains; damage: exit code 1
//! gc       ──> those that are to go ──> removed
//! backup   ──> versions that the other store lacks, a line each
//! restore  ──> the same, the other way
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use arrow::error::ArrowError;
use bytesize::ByteSize;
use volley::{Executors, Scope, SystemTables};
use volley_proto::store::{Comparison, Holding, HoldingKind, ModelStore, VersionCopy};
use volley_proto::tables::{Job, JobState, Run};
use volley_proto::{ModelName, TrainId};

use super::Ended;
use super::config::{Remote, Store as Config, StoreAction};
use super::execute::{print_batch, write};
use super::format::{age, texts, times};
use super::signals::Interrupts;

/// Runs the action on the store.
///
/// # Errors
/// When a store cannot be read or written.
pub(super) async fn run(config: &Config) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    let work = async {
        let store = ModelStore::open(&config.store)?;
        let model = config.model.as_ref();
        if !matches!(config.action, StoreAction::Restore { .. }) {
            store.check_exists(model).await?;
        }
        match &config.action {
            StoreAction::Check => check(&store, config).await,
            StoreAction::Collect {
                older_than,
                keep_versions,
                dry_run,
                cluster,
            } => {
                // Runs that begin after this have no checkpoint in the list yet.
                let mut holdings = store.examine(model, false).await?;
                let runs = match cluster {
                    Some(cluster) => Runs::of(cluster).await?,
                    None => Runs::default(),
                };
                let age = (*older_than, SystemTime::now());
                retain_unneeded(&mut holdings, age, *keep_versions, &runs);
                collect(&store, &holdings, config, *dry_run).await
            }
            StoreAction::Backup { to } => {
                let to = ModelStore::open(to)?;
                copy(&store, &to, Comparison::Lengths, config).await
            }
            StoreAction::Restore { from } => {
                let from = ModelStore::open(from)?;
                from.check_exists(model).await?;
                copy(&from, &store, Comparison::Contents, config).await
            }
        }
    };
    match interrupts.stop(work).await {
        ControlFlow::Continue(done) => done,
        ControlFlow::Break(code) => Ok(Ended::Interrupted(code)),
    }
}

async fn check(store: &ModelStore, config: &Config) -> anyhow::Result<Ended> {
    let holdings = store.examine(config.model.as_ref(), true).await?;
    print(&holdings, config).await?;
    if holdings.is_empty() {
        eprintln!("the store {} has no models", config.store);
    }
    let damaged = holdings.iter().filter(|holding| holding.damage.is_some());
    match damaged.count() {
        0 => Ok(Ended::Done),
        1 => {
            eprintln!("one of them is damaged");
            Ok(Ended::Failed)
        }
        damaged => {
            eprintln!("{damaged} of them are damaged");
            Ok(Ended::Failed)
        }
    }
}

/// Training runs that a cluster knows.
#[derive(Debug, Default)]
struct Runs {
    /// Runs whose jobs have not ended.
    active: BTreeSet<TrainId>,
    /// Models that these train: one of them may continue the run that was cancelled.
    models: BTreeSet<String>,
    /// Runs whose jobs were cancelled.
    cancelled: BTreeSet<TrainId>,
}

impl Runs {
    /// Asks a cluster.
    ///
    /// # Errors
    /// When its scheduler does not answer, or refuses.
    async fn of(cluster: &Remote) -> anyhow::Result<Self> {
        let executors = Executors::connect(cluster.open()?, cluster.timeout).await?;
        let tables = SystemTables::of(executors.scheduler());
        let mut runs = Self::default();
        for job in tables.rows::<Job>(Scope::All).await? {
            let Some(run) = job.train_id.and_then(|run| run.parse().ok()) else {
                continue;
            };
            match job.state {
                JobState::Running | JobState::Rerunning => runs.active.insert(run),
                JobState::Cancelled => runs.cancelled.insert(run),
                JobState::Succeeded | JobState::Failed => false,
            };
        }
        let mut named = 0;
        for run in tables.rows::<Run>(Scope::All).await? {
            let id = run.train_id.parse::<TrainId>();
            if !run.model.is_empty() && id.is_ok_and(|id| runs.active.contains(&id)) {
                named += 1;
                runs.models.insert(run.model);
            }
        }
        if named < runs.active.len() {
            // One that is still planned may continue any run.
            runs.cancelled.clear();
        }
        Ok(runs)
    }

    /// Checks whether a run was cancelled, and no other one continues it.
    fn was_cancelled(&self, model: &ModelName, run: TrainId) -> bool {
        self.cancelled.contains(&run) && !self.models.contains(model.as_str())
    }
}

/// Retains what nobody needs: checkpoints of runs that have published or were cancelled, what a run left that has not, if it
/// is old, and all but the newest versions.
fn retain_unneeded(
    holdings: &mut Vec<Holding>,
    (older_than, now): (Duration, SystemTime),
    keep_versions: Option<usize>,
    runs: &Runs,
) {
    let mut newer = BTreeMap::<ModelName, Vec<u32>>::new();
    for holding in &*holdings {
        if let HoldingKind::Version { version, .. } = holding.kind {
            newer
                .entry(holding.model.clone())
                .or_default()
                .push(version);
        }
    }
    holdings.retain(|holding| {
        if holding.maybe_needed {
            return false;
        }
        let age = now.duration_since(holding.written).unwrap_or_default();
        match holding.kind {
            HoldingKind::Version { version, .. } => keep_versions.is_some_and(|keep| {
                let versions = newer.get(&holding.model).into_iter().flatten();
                versions.filter(|other| **other > version).count() >= keep
            }),
            HoldingKind::Finished(_) => true,
            HoldingKind::Unfinished(run) if runs.active.contains(&run) => false,
            HoldingKind::Unfinished(run) if runs.was_cancelled(&holding.model, run) => true,
            HoldingKind::Unfinished(_) | HoldingKind::Unpublished | HoldingKind::Incomplete(_) => {
                age >= older_than
            }
        }
    });
}

async fn collect(
    store: &ModelStore,
    unneeded: &[Holding],
    config: &Config,
    dry_run: bool,
) -> anyhow::Result<Ended> {
    if !dry_run {
        for holding in unneeded {
            store.remove(holding).await?;
        }
    }
    print(unneeded, config).await?;
    let bytes = unneeded.iter().map(|holding| holding.bytes).sum();
    let bytes = ByteSize(bytes).display().iec();
    match dry_run {
        true => eprintln!("{bytes} would be freed"),
        false => eprintln!("{bytes} freed"),
    }
    Ok(Ended::Done)
}

async fn copy(
    from: &ModelStore,
    to: &ModelStore,
    comparison: Comparison,
    config: &Config,
) -> anyhow::Result<Ended> {
    let tells = |model: &ModelName, version: u32, done: VersionCopy| match done {
        VersionCopy::New => eprintln!("{model} version {version} copied"),
        VersionCopy::Repaired => {
            eprintln!("{model} version {version} was there with other files: replaced them");
        }
        VersionCopy::Present => {}
    };
    let model = config.model.as_ref();
    let copied = from.copy_to(to, model, comparison, tells).await?;
    let found = copied.versions + copied.repaired + copied.present + copied.failures.len();
    anyhow::ensure!(
        found > 0,
        "the store {} has no versions to copy",
        from.url()
    );
    let versions = |count: usize| match count {
        1 => "1 version".to_owned(),
        count => format!("{count} versions"),
    };
    let repaired = match copied.repaired {
        0 => String::new(),
        repaired => format!("{} repaired, ", versions(repaired)),
    };
    let line = format!(
        "{} copied ({}), {repaired}{} there already\n",
        versions(copied.versions),
        ByteSize(copied.bytes).display().iec(),
        versions(copied.present),
    );
    write(line.as_bytes()).await?;
    for failure in &copied.failures {
        eprintln!("not copied: {failure}");
    }
    match copied.failures.is_empty() {
        true => Ok(Ended::Done),
        false => Ok(Ended::Failed),
    }
}

async fn print(holdings: &[Holding], config: &Config) -> anyhow::Result<()> {
    let is_for_people = config.format.is_for_people();
    let mut rows = table(holdings, SystemTime::now(), is_for_people)?;
    if is_for_people {
        rows = for_people(holdings, &rows)?;
    }
    print_batch(config.format, &rows).await?;
    for holding in holdings.iter().filter(|_| is_for_people) {
        if let Some(damage) = &holding.damage {
            let (model, kind) = (&holding.model, describe(holding.kind));
            write(format!("{model}, {kind}: {damage}\n").as_bytes()).await?;
        }
    }
    Ok(())
}

/// Returns a table with a row for each holding. For people, damage is a word: its description would make a table that is
/// wider than a terminal.
fn table(
    holdings: &[Holding],
    now: SystemTime,
    is_for_people: bool,
) -> Result<RecordBatch, ArrowError> {
    let damage = |holding: &Holding| match &holding.damage {
        Some(_) if is_for_people => Some("damaged".to_owned()),
        damage => damage.clone(),
    };
    let bytes = holdings.iter().map(|holding| Some(holding.bytes));
    RecordBatch::try_from_iter([
        (
            "model",
            texts(holdings, |holding| holding.model.to_string()),
        ),
        ("holds", texts(holdings, |holding| describe(holding.kind))),
        ("bytes", Arc::new(bytes.collect::<UInt64Array>())),
        ("written", times(holdings, |holding| holding.written)),
        ("age", texts(holdings, |holding| age(holding.written, now))),
        ("damage", texts(holdings, damage)),
    ])
}

/// Leaves out fractions of seconds, and damage where there is none: a table of a store is as wide as a terminal.
fn for_people(holdings: &[Holding], rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let is_damaged = holdings.iter().any(|holding| holding.damage.is_some());
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns());
    let columns = columns.filter(|(field, _)| field.name() != "damage" || is_damaged);
    let columns = columns.map(|(field, column)| {
        let column = match column.data_type() {
            DataType::Timestamp(_, zone) => {
                cast(column, &DataType::Timestamp(TimeUnit::Second, zone.clone()))?
            }
            _ => Arc::clone(column),
        };
        Ok((field.name(), column))
    });
    RecordBatch::try_from_iter(columns.collect::<Result<Vec<_>, ArrowError>>()?)
}

fn describe(kind: HoldingKind) -> String {
    match kind {
        HoldingKind::Version {
            version,
            current: true,
        } => format!("version {version}, current"),
        HoldingKind::Version { version, .. } => format!("version {version}"),
        HoldingKind::Unfinished(run) => format!("checkpoints of run {run}, unfinished"),
        HoldingKind::Finished(run) => format!("checkpoints of run {run}, published"),
        HoldingKind::Unpublished => "files that were not published".to_owned(),
        HoldingKind::Incomplete(version) => format!("version {version} without a manifest"),
    }
}
