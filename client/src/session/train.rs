//! Training, from a plan of rows and options to a published model.

use std::sync::Arc;

use arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use ballista_core::extension::SessionConfigExt;
use datafusion::common::Column;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use url::Url;
use volley_engine::{TrainNode, row_hash, train_schema};
use volley_proto::settings::OnClientLoss;
use volley_proto::spec::{IfExists, Ranks, Split, Start, TrainSpec, split};
use volley_proto::store::TRACE_FILE;
use volley_proto::tables::Executor;
use volley_proto::{ModelName, ModelRef, TrainId};

use super::query::QueryExec;
use super::settings::{self, JobDescription};
use super::transform::{Rows, own_column};
use super::{Output, Session};
use crate::sql::{CreateModel, Target, TrainOptions, WarmStart, needed_columns};
use crate::system_tables::Scope;
use crate::{Error, Result};
use summary::{Asked, disagreement, judged, refit, took};

/// Result of a training.
#[derive(Debug)]
pub(crate) struct TrainingResult {
    /// One row per rank, ordered by rank; empty if the rows were lost.
    pub(crate) ranks: RecordBatch,
    /// Published version.
    pub(crate) version: Option<u32>,
    /// Error that lost the ranks' rows.
    lost: Option<Error>,
}

impl Session {
    pub(super) async fn create_model(&self, create: CreateModel, text: &str) -> Result<Output> {
        if let Some(message) = self.exists_already(&create).await? {
            return Ok(Output::message(message));
        }
        let (target, rows, options) = self.target(create).await?;
        let name = target.model.clone();
        let traced = self.is_traced(&options);
        let normalizes = !options.linear && options.network.normalizes();
        let asked = Asked::of(&options, &rows);
        let trained = self.train(rows, options, target, text).await?;
        let trace = match trained.version.filter(|_| traced) {
            Some(version) => self.trace_of(&name, version).await,
            None => String::new(),
        };
        let message = trained.version.map(|version| {
            let lost = trained.lost.as_ref();
            let lost = lost.map(|error| format!("; the ranks' rows are missing: {error}"));
            let lost = lost.unwrap_or_default();
            let mut judged = judged(&trained.ranks, &asked).unwrap_or_default();
            judged.extend(refit(&trained.ranks));
            judged.extend(normalizes.then(|| disagreement(&trained.ranks)).flatten());
            judged.extend(took(&trained.ranks));
            format!("model {name} published as version {version}{judged}{lost}{trace}")
        });
        Ok(Output {
            message,
            ..Output::batches(train_schema(), vec![trained.ranks])
        })
    }

    /// Returns a message with the place of a version's trace; empty if the version is already gone.
    async fn trace_of(&self, name: &ModelName, version: u32) -> String {
        let manifest = self.store().manifest(name, Some(version)).await;
        let url = manifest.map(|manifest| self.store().file_url(name, &manifest, TRACE_FILE));
        let said = url.map(|url| format!("; for ui.perfetto.dev: {}", typed(&url)));
        said.unwrap_or_default()
    }

    pub(super) async fn submit_model(
        &self,
        create: CreateModel,
        text: &str,
    ) -> Result<Option<String>> {
        if self.exists_already(&create).await?.is_some() {
            return Ok(None);
        }
        let (mut target, mut rows, options) = self.target(create).await?;
        let job = JobDescription {
            train_id: Some(target.train_id),
            on_client_loss: Some(OnClientLoss::Keep),
            ..JobDescription::of(text)
        };
        self.check_target(&mut target).await?;
        self.fit(&mut rows, &options, &target).await?;
        let frame = self.training(&rows, options, target, &job)?;
        let context = frame.task_ctx();
        let plan = frame.create_physical_plan().await?;
        let query = plan.downcast_ref::<QueryExec>().ok_or_else(|| {
            DataFusionError::Internal("training is planned to run here".to_owned())
        })?;
        Ok(Some(query.submit(context.session_config()).await?))
    }

    /// Returns the message of `IF NOT EXISTS` if the model exists.
    async fn exists_already(&self, create: &CreateModel) -> Result<Option<String>> {
        let CreateModel { name, .. } = create;
        if !create.if_not_exists {
            return Ok(None);
        }
        let version = self.store().versions(name).await?.last().copied();
        Ok(version.map(|version| format!("model {name} exists already (version {version})")))
    }

    pub(super) async fn target(&self, create: CreateModel) -> Result<(Target, Rows, TrainOptions)> {
        let CreateModel {
            train_id,
            name: model,
            or_replace,
            transform,
            mut options,
            query,
            ..
        } = create;
        let if_exists = if or_replace {
            IfExists::Replace
        } else {
            IfExists::Fail
        };
        let target = Target {
            train_id,
            start: self.start(&mut options, &model).await?,
            model,
            if_exists,
            store: self.store().url().clone(),
            newest_version: None,
        };
        let query = DfStatement::Statement(Box::new(SqlStatement::Query(query)));
        let plan = self.plan(query).await?;
        let rows = Rows::of(plan, transform.as_ref(), &self.context().state())?;
        Ok((target, rows, options))
    }

    /// Returns the start of training, with the version that a warm start uses. Options that are not set are taken from
    /// the start: embedding widths and ensemble size from that version, the number of shards from a checkpoint.
    /// Otherwise, the number of shards is the default for this cluster.
    ///
    /// # Errors
    /// Names the missing model or version.
    pub(crate) async fn start(
        &self,
        options: &mut TrainOptions,
        model: &ModelName,
    ) -> Result<Start> {
        let refuse = |from: &WarmStart, expected: String| {
            volley_proto::Error::option("warm_start", from.to_string(), expected).into()
        };
        if options.shards.is_none() {
            options.shards = Some(self.shards(options, model).await?);
        }
        let from = match &options.warm_start {
            None if options.resume => return Ok(Start::Resume),
            None => return Ok(Start::Fresh),
            Some(from) if options.resume => {
                let expected = "not with resume = true, which starts from a checkpoint's weights";
                return Err(refuse(from, expected.to_owned()));
            }
            Some(from) => from,
        };
        let (name, version) = match from {
            WarmStart::SameModel if self.store().versions(model).await?.is_empty() => {
                let expected = format!("model {model} has no version yet to start from");
                return Err(refuse(from, expected));
            }
            WarmStart::SameModel => (model, None),
            WarmStart::Model { name, version } => (name, *version),
        };
        let manifest = self.store().manifest(name, version).await?;
        let from = ModelRef {
            store: self.store().url().clone(),
            name: name.clone(),
            version: manifest.version,
        };
        let widths = &mut options.network.embedding_dim;
        if widths.is_none() && !options.linear {
            *widths = Some(manifest.embedding_dim());
        }
        let members = &mut options.network.ensemble_size;
        if members.is_none() && !options.linear {
            *members = manifest.spec.network.ensemble_size.given();
        }
        Ok(Start::Warm(from))
    }

    /// Returns the number of shards of a training whose options do not set it.
    async fn shards(&self, options: &TrainOptions, model: &ModelName) -> Result<usize> {
        if options.resume {
            let newest = self.store().newest_checkpoint(model, None).await?;
            let shards = newest.checkpoint.and_then(|(info, _)| info.kept.shards);
            if let Some(shards) = shards {
                return Ok(shards);
            }
        }
        let executors = match options.ranks {
            Ranks::Exactly(_) => 0,
            Ranks::All => {
                let executors = self.system_tables.rows(Scope::All).await;
                let executors: Vec<Executor> = executors.unwrap_or_default();
                let able = executors.iter().filter(|executor| executor.role != "query");
                able.count()
            }
        };
        Ok(options.default_shards(executors))
    }

    /// Trains on the rows and publishes the model. `statement` is the name of the job.
    pub(crate) async fn train(
        &self,
        mut rows: Rows,
        options: TrainOptions,
        mut target: Target,
        statement: &str,
    ) -> Result<TrainingResult> {
        let job = JobDescription {
            train_id: Some(target.train_id),
            ..JobDescription::of(statement)
        };
        let (model, train_id) = (target.model.clone(), target.train_id);
        let newest = self.check_target(&mut target).await?;
        self.fit(&mut rows, &options, &target).await?;
        let training = self.training(&rows, options, target, &job)?;
        let error = match training.collect().await {
            Ok(batches) => {
                let ranks = by_rank(&batches).map_err(DataFusionError::from)?;
                self.drop_checkpoints(&model, train_id).await;
                return Ok(TrainingResult {
                    version: published_version(&ranks),
                    ranks,
                    lost: None,
                });
            }
            Err(error) => Error::from(error),
        };
        // The model may be published nevertheless: its manifest is written before the job ends.
        match self.published_by(&model, train_id, newest).await {
            Ok(Some(version)) => {
                self.drop_checkpoints(&model, train_id).await;
                Ok(TrainingResult {
                    ranks: RecordBatch::new_empty(train_schema()),
                    version: Some(version),
                    lost: Some(error),
                })
            }
            Ok(None) | Err(_) => Err(error),
        }
    }

    /// Drops the checkpoints of a complete run, which no rank needs any more.
    async fn drop_checkpoints(&self, model: &ModelName, train_id: TrainId) {
        if let Err(error) = self.store().drop_checkpoints(model, train_id).await {
            tracing::warn!(%error, "the checkpoints of a complete run cannot be removed from the store");
        }
    }

    /// Checks that the model can be published, and notes its newest version. Returns that version.
    async fn check_target(&self, target: &mut Target) -> Result<Option<u32>> {
        let newest = self.store().versions(&target.model).await?.last().copied();
        target.newest_version = Some(self.store().newest_number(&target.model).await?);
        if let (IfExists::Fail, Some(version)) = (target.if_exists, newest) {
            return Err(Error::ModelExists {
                name: target.model.to_string(),
                version,
            });
        }
        self.store().check_writable().await?;
        Ok(newest)
    }

    /// Builds the training, which runs as this job.
    fn training(
        &self,
        rows: &Rows,
        mut options: TrainOptions,
        target: Target,
        job: &JobDescription,
    ) -> Result<DataFrame> {
        options.trace = Some(self.is_traced(&options));
        let (plan, _) = plan_of(rows, options, target, &self.context().state())?;
        // Coalescing would leave fewer partitions than the shards that the ranks share. The setting is changed in
        // place: a state rebuilt from this one would hide the session's tables behind an empty catalog.
        let mut state = self.context().state();
        let config = state.config_mut();
        *config = config.clone().with_ballista_coalesce_enabled(false);
        job.note(config);
        Ok(DataFrame::new(state, plan))
    }

    /// Checks whether ranks record a timeline, as set by the options or else the session.
    fn is_traced(&self, options: &TrainOptions) -> bool {
        let of_session = || settings::trace(self.context().state_ref().read().config());
        options.trace.unwrap_or_else(of_session)
    }

    /// Returns the version above `newest` that a training run has published, if there is one.
    async fn published_by(
        &self,
        model: &ModelName,
        train_id: TrainId,
        newest: Option<u32>,
    ) -> Result<Option<u32>> {
        let versions = self.store().versions(model).await?;
        for version in versions.into_iter().rev() {
            if newest.is_some_and(|newest| version <= newest) {
                break;
            }
            let manifest = self.store().manifest(model, Some(version)).await?;
            if manifest.spec.train_id == train_id {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }
}

/// Builds the training plan and its spec: a training node over the needed columns of the rows or their TRANSFORM.
pub(super) fn plan_of(
    rows: &Rows,
    options: TrainOptions,
    target: Target,
    state: &SessionState,
) -> Result<(LogicalPlan, Arc<TrainSpec>)> {
    let Rows { plan, transform } = rows;
    let computed = rows.computed(state)?;
    let mut spec = if transform.is_none() {
        let schema = plan.schema().as_arrow();
        options.spec(target, schema, schema)?
    } else {
        // A column with a role need not be computed by the TRANSFORM.
        let mut roles = Vec::new();
        for role in options.roles() {
            let is_computed = computed.iter().any(|(name, _)| name == role);
            if let Ok(column) = own_column(plan, role)
                && !(is_computed || roles.contains(&column))
            {
                roles.push(column);
            }
        }
        let named = computed.iter();
        let named = named.map(|(name, expr)| expr.clone().alias(name.clone()));
        let seen = LogicalPlanBuilder::from(plan.clone()).project(named.chain(roles))?;
        let seen = seen.build()?;
        let (seen, own) = (seen.schema().as_arrow(), plan.schema().as_arrow());
        let spec = options.spec(target, seen, own);
        spec.map_err(|error| not_computed(error, own))?
    };
    spec.transform = rows.kept(&spec)?;
    let column = |name: &str| match computed.iter().find(|(computed, _)| computed == name) {
        Some((_, expr)) => Ok(expr.clone().alias(name)),
        None => own_column(plan, name),
    };
    let columns = needed_columns(&spec)
        .into_iter()
        .map(column)
        .collect::<Result<Vec<_>>>()?;
    let hash = match spec.split {
        Split::Random(_) | Split::CrossValidation(_) => {
            Some(hash_of(plan, &spec.split_key).alias(split::HASH))
        }
        Split::None | Split::Column(_) | Split::Sequential { .. } => None,
    };
    let input = LogicalPlanBuilder::from(plan.clone())
        .project(columns.into_iter().chain(hash))?
        .build()?;
    let spec = Arc::new(spec);
    let node = Arc::new(TrainNode::try_new(Arc::clone(&spec), input)?);
    Ok((LogicalPlan::Extension(Extension { node }), spec))
}

/// Improves the error of an unknown column that the query has and its TRANSFORM leaves out.
fn not_computed(error: Error, rows: &Schema) -> Error {
    use volley_proto::Error::UnknownColumn;
    match error {
        Error::Proto(UnknownColumn { column, role, .. })
            if rows.field_with_name(&column).is_ok() =>
        {
            let hint = "; the query has it, and TRANSFORM (…) leaves it out".to_owned();
            Error::Proto(UnknownColumn { column, role, hint })
        }
        error => error,
    }
}

/// Returns the hash of the columns with these names, or of all columns of the input rows if there are no names.
pub(super) fn hash_of(rows: &LogicalPlan, names: &[String]) -> Expr {
    let all = rows.schema().iter();
    let all =
        all.map(|(qualifier, field)| (field.name().clone(), Column::from((qualifier, field))));
    let named = all.filter(|(name, _)| names.is_empty() || names.contains(name));
    let columns = named.map(|(name, column)| (name, Expr::Column(column)));
    row_hash(columns)
}

/// Returns a place in the store as a user would type it: a path for a file.
fn typed(url: &Url) -> String {
    match url.to_file_path() {
        Ok(path) => path.display().to_string(),
        Err(()) => url.to_string(),
    }
}

fn by_rank(batches: &[RecordBatch]) -> arrow::error::Result<RecordBatch> {
    let rows = concat_batches(&train_schema(), batches)?;
    let ranks = rows.column(rows.schema().index_of("rank")?);
    take_record_batch(&rows, &sort_to_indices(ranks, None, None)?)
}

/// Returns the version from the ranks' rows.
fn published_version(rows: &RecordBatch) -> Option<u32> {
    use arrow::array::AsArray;
    use arrow::datatypes::UInt32Type;
    let versions = rows
        .column_by_name("version")?
        .as_primitive_opt::<UInt32Type>()?;
    (!versions.is_empty()).then(|| versions.value(0))
}

mod summary;
#[cfg(test)]
mod tests;
