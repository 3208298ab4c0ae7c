//! The tables about the cluster's work, read from their source: SQL, the command line and the web page show the same
//! rows.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::time::timeout;
use url::Url;
use volley_proto::store::ModelStore;
use volley_proto::tables::{Executor, Job, JobState, Model, Run, Stage, Table};
use volley_proto::traces::Traces;
use volley_proto::{ModelName, TrainId};

use crate::control::{Controller, JobsFilter};
pub(crate) use crate::control::{Totals, Unmet};
use crate::handle::Control;
use crate::listing::{Listed, Listing};
pub(crate) use crate::record::WriterFigures;

/// Timeout of one model store, when a page or table is read.
const STORE: Duration = Duration::from_secs(10);

/// Source of the stages of a job's attempt: the adapter that has the execution graphs.
pub(crate) type StageRows =
    Arc<dyn Fn(AttemptOf) -> BoxFuture<'static, Vec<Stage>> + Send + Sync + 'static>;

/// An attempt with its job and its training run.
#[derive(Debug, Clone)]
pub(crate) struct AttemptOf {
    pub(crate) job: String,
    pub(crate) attempt: String,
    pub(crate) train: Option<TrainId>,
    /// True if the job was cancelled.
    pub(crate) cancelled: bool,
}

/// Tables about the cluster's work; cheap to clone.
#[derive(Clone)]
pub(crate) struct Tables {
    control: Control,
    stages: StageRows,
    listing: Listing,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

/// Filter on the rows of a table; absent fields do not filter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Only {
    pub(crate) job: Option<String>,
    pub(crate) train: Option<TrainId>,
    /// Executor whose rows and lines are wanted.
    pub(crate) executor: Option<String>,
    /// Time in milliseconds since 1970 after which points of a curve, or vital signs, are wanted. A step would not do:
    /// after a loss of ranks, steps are counted again from the checkpoint.
    pub(crate) after: Option<u64>,
    /// Principal whose rows are wanted, together with rows that have no owner.
    pub(crate) owner: Option<String>,
}

/// Figures of the cluster at one moment.
pub(crate) struct Figures {
    pub(crate) totals: Totals,
    /// Executors that have left unplanned.
    pub(crate) lost_executors: u64,
    /// Work that waits for slots.
    pub(crate) unmet: Unmet,
    pub(crate) jobs: Vec<Job>,
    pub(crate) executors: Vec<Executor>,
    pub(crate) runs: Vec<Run>,
    /// Writer of the record of jobs; `None` where jobs are not recorded.
    pub(crate) record: Option<WriterFigures>,
    /// Spans of jobs; `None` where jobs are not traced.
    pub(crate) traces: Option<Traces>,
}

impl Figures {
    fn of(control: &Controller, (record, traces): (Option<WriterFigures>, Option<Traces>)) -> Self {
        let active = JobsFilter::default();
        let jobs = control.jobs().wanted(&active);
        let jobs = jobs.filter(|job| !job.state.has_ended());
        Self {
            totals: control.jobs().totals(),
            lost_executors: control.lost_executors(),
            unmet: control.unmet(),
            jobs: control.rows(jobs, None, SystemTime::now()),
            executors: control.executor_rows(None),
            runs: control.runs().run_rows(None),
            record,
            traces,
        }
    }
}

impl Tables {
    pub(crate) fn new(control: Control, stages: StageRows) -> Self {
        let listing = Listing::default();
        Self {
            control,
            stages,
            listing,
        }
    }

    /// Returns a table's rows as a JSON array.
    ///
    /// # Errors
    /// When a row has no JSON form.
    pub(crate) async fn read(&self, table: Table, only: &Only) -> serde_json::Result<Vec<u8>> {
        match table {
            Table::Stages => return json(&self.stages(only).await),
            Table::Models => return json(&self.models().await),
            _ => {}
        }
        // Rows are converted to JSON after the controller's lock is released.
        macro_rules! rows {
            ($look:expr) => {{
                let rows = self.control.look($look);
                json(&rows)
            }};
        }
        let train = |control: &Controller| only_train(control, only);
        match table {
            Table::Jobs => rows!(|control| {
                let (now, filter) = (SystemTime::now(), filter(only));
                let jobs = control.jobs().wanted(&filter);
                let mut rows = control.rows(jobs, only.owner.as_deref(), now);
                // Statements of all jobs would be too much for a page that reads them each second.
                let is_one = only.job.is_some() || only.train.is_some();
                for row in rows.iter_mut().filter(|_| is_one) {
                    let job = control.job(&row.job_id);
                    let statement = job.map(|job| job.statement.clone());
                    row.statement = statement.filter(|statement| !statement.is_empty());
                }
                rows
            }),
            Table::Executors => rows!(|control| {
                let mut rows = control.executor_rows(only.owner.as_deref());
                if let Some(wanted) = &only.executor {
                    rows.retain(|row| row.executor_id == *wanted);
                    for row in &mut rows {
                        row.running = control.running_on(wanted, only.owner.as_deref());
                    }
                }
                rows
            }),
            Table::ExecutorVitals => rows!(|control| {
                let rows = control.vitals_rows(only.executor.as_deref());
                kept(rows, |row| only.after.is_none_or(|after| row.at > after))
            }),
            Table::TrainingRuns => rows!(|control| {
                let (runs, own) = (control.runs().run_rows(train(control)), own(control, only));
                kept(runs, |run| own.has(&run.train_id))
            }),
            Table::TrainingRanks => rows!(|control| {
                let (ranks, own) = (control.runs().rank_rows(train(control)), own(control, only));
                kept(ranks, |rank| own.has(&rank.train_id))
            }),
            Table::TrainingEpochs => rows!(|control| {
                let (epochs, own) = (
                    control.runs().epoch_rows(train(control)),
                    own(control, only),
                );
                kept(epochs, |epoch| own.has(&epoch.train_id))
            }),
            Table::TrainingSteps => rows!(|control| {
                let (points, own) = (
                    control.runs().point_rows(train(control)),
                    own(control, only),
                );
                kept(points, |point| {
                    only.after.is_none_or(|after| point.at > after) && own.has(&point.train_id)
                })
            }),
            Table::Log => rows!(|control| {
                let (filter, own) = (filter(only), own(control, only));
                let jobs = control.jobs().wanted(&filter);
                let mut lines: Vec<_> = jobs.flat_map(|job| job.lines()).collect();
                lines.extend(kept(control.runs().lines(train(control)), |line| {
                    line.train_id.as_deref().is_none_or(|train| own.has(train))
                }));
                lines.extend(control.notices(|line| {
                    let job = line.job_id.as_deref();
                    let train = line.train_id.as_ref().and_then(|id| id.parse().ok());
                    let owner = match job {
                        Some(job) => control.owner_of(job),
                        // Events of an executor are for everybody.
                        None => only.owner.as_deref(),
                    };
                    let owner = owner.unwrap_or_default();
                    filter.takes(job.unwrap_or_default(), train, owner)
                }));
                if let Some(wanted) = &only.executor {
                    lines.retain(|line| line.executor_id.as_ref() == Some(wanted));
                }
                lines.sort_by_key(|line| line.at);
                lines
            }),
            Table::Usage => {
                let owner = only.owner.as_deref();
                let rows = self
                    .control
                    .ask(|control, now| control.usage_rows(owner, now));
                json(&rows)
            }
            Table::Prepared => rows!(|control| control.prepared_rows(only.owner.as_deref())),
            Table::Stages | Table::Models => json::<()>(&[]),
        }
    }

    /// Returns the owner of a job, if it is known.
    pub(crate) fn owner_of(&self, job: &str) -> Option<String> {
        self.control
            .look(|control| control.job(job).map(|job| job.owner.clone()))
    }

    /// Cancels a job, if it is known and has not ended.
    pub(crate) fn cancel(&self, job: &str) {
        self.control.ask(|control, now| control.cancel(job, now));
    }

    /// Returns the figures of the cluster.
    pub(crate) fn figures(&self) -> Figures {
        let record = self.control.record_figures();
        let beside = (record, self.control.traces().cloned());
        self.control.look(|control| Figures::of(control, beside))
    }

    fn stores(&self) -> Vec<Url> {
        self.control.look(|control| control.runs().stores())
    }

    /// Returns the models in the stores of all runs, as far as these stores can be read from here; as they were listed
    /// [some seconds ago](Listing).
    async fn models(&self) -> Arc<[Model]> {
        let of = self.control.look(|control| Listed {
            stores: control.runs().stores(),
            over: control.runs().over(),
        });
        let read = listed(of.stores.clone());
        self.listing.models(of, Instant::now(), read).await
    }

    /// Returns the report kept beside a model version that this run trained: several stores may have models of the
    /// same name.
    pub(crate) async fn report(
        &self,
        model: &ModelName,
        version: u32,
        train: TrainId,
    ) -> Option<Bytes> {
        for url in self.stores() {
            let Ok(store) = ModelStore::open(&url) else {
                continue;
            };
            let report = async {
                let manifest = store.manifest(model, Some(version)).await;
                if !manifest.is_ok_and(|manifest| manifest.spec.train_id == train) {
                    return None;
                }
                Some(store.report(model, version).await)
            };
            match timeout(STORE, report).await {
                Ok(None) => {}
                Ok(Some(Ok(report))) => return report,
                Ok(Some(Err(error))) => tracing::debug!(%url, %error, "a report is not shown"),
                Err(_) => tracing::debug!(%url, ?STORE, "a store did not list a report in time"),
            }
        }
        None
    }

    async fn stages(&self, only: &Only) -> Vec<Stage> {
        let filter = filter(only);
        let attempts = self.control.look(|control| {
            let jobs = control.jobs().wanted(&filter).map(|job| AttemptOf {
                job: job.id.clone(),
                attempt: job.attempt().to_owned(),
                train: job.train,
                cancelled: job.state == JobState::Cancelled,
            });
            jobs.collect::<Vec<_>>()
        });
        let mut stages = Vec::new();
        for attempt in attempts {
            stages.extend((self.stages)(attempt).await);
        }
        // Operators of all jobs would be too much for a table that has their plans as text.
        for stage in stages.iter_mut().filter(|_| only.job.is_none()) {
            stage.operators = Vec::new();
        }
        stages
    }
}

/// Lists the models of stores.
async fn listed(stores: Vec<Url>) -> Vec<Model> {
    let mut models = Vec::new();
    for url in &stores {
        let rows = async { ModelStore::open(url)?.rows().await };
        match timeout(STORE, rows).await {
            Ok(Ok(rows)) => models.extend(rows),
            Ok(Err(error)) => tracing::debug!(%url, %error, "cannot list a store's models"),
            Err(_) => tracing::debug!(%url, ?STORE, "a store did not list its models in time"),
        }
    }
    models
}

fn filter(only: &Only) -> JobsFilter {
    JobsFilter {
        job: only.job.clone(),
        train: only.train,
        owner: only.owner.clone(),
    }
}

/// Training runs that may be shown: all, or those of one owner.
struct Own(Option<HashSet<String>>);

impl Own {
    fn has(&self, train: &str) -> bool {
        let Self(own) = self;
        own.as_ref().is_none_or(|own| own.contains(train))
    }
}

/// Returns the training runs that may be shown: those of the owner's jobs, or all if no owner is given.
fn own(control: &Controller, only: &Only) -> Own {
    Own(only.owner.as_ref().map(|_| {
        let filter = filter(only);
        let jobs = control.jobs().wanted(&filter);
        jobs.filter_map(|job| Some(job.train?.to_string()))
            .collect()
    }))
}

fn kept<T>(mut rows: Vec<T>, keep: impl Fn(&T) -> bool) -> Vec<T> {
    rows.retain(keep);
    rows
}

/// Returns the run whose rows are wanted: the run of the job, if one is named.
fn only_train(control: &Controller, only: &Only) -> Option<TrainId> {
    match &only.job {
        None => only.train,
        // A new id matches no run.
        Some(job) => match control.job(job).and_then(|job| job.train) {
            Some(train) => Some(train),
            None => Some(TrainId::generate()),
        },
    }
}

fn json<T: Serialize>(rows: &[T]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(rows)
}
