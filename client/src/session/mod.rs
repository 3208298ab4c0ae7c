//! Session: DataFusion's context whose plans run on a cluster, and statements on top of it.
//!
//! ```text
//! Statement ──┬ CREATE MODEL ────── train:   TrainNode over the query ─┐
//!             ├ SHOW/DESCRIBE/DROP  models:  the store, here           ├─> planner ─> scheduler
//!             └ everything else ─── context: DataFusion's own          ┘      ├ rows dropped: cancel
//!                                                                             └ rows lost: rerun
//! ```

mod advice;
mod casts;
#[cfg(feature = "standalone")]
#[cfg(test)]
mod cluster_tests;
mod connect;
mod copy;
mod explain;
mod file_names;
mod files;
mod headings;
mod loss;
mod memory;
mod model_calls;
mod models;
mod names;
mod nesting;
mod output;
mod planner;
mod query;
mod read;
mod rows;
mod settings;
mod tables;
mod temporary_view;
mod train;
mod transform;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::planner::scans_only_information_schema;
use datafusion::config::SqlParserOptions;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{CreateView, DdlStatement, LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use volley_engine::{forget_keys, mend_relations, statement_to_plan};
use volley_proto::ModelName;
use volley_proto::stack::{deep, deeply};
use volley_proto::store::ModelStore;
use volley_proto::tables::{Epoch, Run};
use volley_proto::traces::{Exporter, Service};

pub(crate) use connect::await_scheduler;
pub use output::{Output, QueryJob};
pub use read::FileOptions;
pub(crate) use transform::Rows as TrainingRows;

use self::advice::QuotedNames;
use self::headings::Headings;
use self::planner::ClusterPlanner;
use self::settings::JobDescription;
use crate::cluster::Cluster;
use crate::sql::{self, Dialect, Kind, MlPlanner, NamedModels, Reference, Statement};
use crate::system_tables::{Scope, SystemTables};
use crate::{Error, Result, SchedulerAddress, SessionConfig};

/// Connection to a cluster and a model store.
///
/// It keeps the state of DataFusion's context: tables, views and settings. Its connections belong to the runtime that
/// first runs something in it.
///
/// ```no_run
/// # use volley::store::ModelStore;
/// # use volley::{Error, FileOptions, Session, SessionConfig};
/// # async fn work() -> Result<(), Error> {
/// let models = ModelStore::directory_url("models".as_ref())?;
/// let session = Session::connect(SessionConfig::new("scheduler:50050", models)).await?;
///
/// // One query, or a file, as a DataFrame, which runs on the cluster when its rows are read.
/// session.sql("SELECT count(*) FROM 'sales/*.parquet'").await?.show().await?;
/// let sales = session.read_csv("sales.csv", FileOptions::new()).await?;
/// assert!(sales.count().await? > 0);
///
/// // A script of any statements, those about models included.
/// let script = "CREATE EXTERNAL TABLE sales STORED AS CSV LOCATION 'sales.csv';
///               CREATE MODEL m OPTIONS (input_label_cols = ['amount']) AS SELECT * FROM sales";
/// for statement in session.parse(script)? {
///     let output = session.run(statement).await?;
///     let message = output.message.clone();
///     let rows = output.collect().await?;
///     println!("{}: {} batches of rows", message.unwrap_or_default(), rows.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Session {
    context: SessionContext,
    store: ModelStore,
    system_tables: Arc<SystemTables>,
    cluster: Arc<Cluster>,
}

impl Session {
    /// Connects to the scheduler and opens the store.
    ///
    /// # Errors
    /// When no scheduler answers in time, a setting or the store's URL is not usable, or traces cannot be sent as
    /// configured.
    pub async fn connect(config: SessionConfig) -> Result<Self> {
        // Check the user's own settings first: this needs no scheduler.
        let session = Self::detached(&config, 1)?;
        let scheduler = session.cluster.scheduler_address();
        let slots = connect::await_scheduler(scheduler, config.connect_timeout).await?;
        // The one that has answered is known to lead.
        let session = Self::over(&config, scheduler.clone(), slots)?;
        if let Some(to) = &config.otlp {
            let service = Service {
                name: "volley",
                instance: std::process::id().to_string(),
            };
            session.cluster.export(Exporter::start(to, &service));
        }
        Ok(session)
    }

    /// Creates the session without contacting its scheduler.
    pub(crate) fn detached(config: &SessionConfig, slots: usize) -> Result<Self> {
        let scheduler =
            SchedulerAddress::open(&config.scheduler, config.tls.as_ref(), &config.credential)?;
        Self::over(config, scheduler, slots)
    }

    fn over(config: &SessionConfig, scheduler: SchedulerAddress, slots: usize) -> Result<Self> {
        let store = ModelStore::open(&config.store)?;
        let system_tables = Arc::new(SystemTables::of(&scheduler));
        let cluster = Cluster::of(scheduler);
        let planner = ClusterPlanner {
            cluster: Arc::clone(&cluster),
        };
        let context = connect::context(&config.settings, slots, planner)?;
        // Makes the context's own `sql` report that it knows no models.
        context.register_relation_planner(ml_planner(&store, NamedModels::default()))?;
        mend_relations(&context)?;
        let tables = tables::SystemSchema {
            system_tables: Arc::clone(&system_tables),
            store: store.clone(),
        };
        let catalog = context
            .state()
            .config_options()
            .catalog
            .default_catalog
            .clone();
        if let Some(catalog) = context.catalog(&catalog) {
            catalog.register_schema(tables::SCHEMA, Arc::new(tables))?;
        }
        Ok(Self {
            context,
            store,
            system_tables,
            cluster,
        })
    }

    /// Returns DataFusion's own context; its plans run on the cluster.
    ///
    /// Its `sql` knows no models, and treats clauses as DataFusion does: use [`Session::sql`]. Its `read_csv` and the like
    /// read files as DataFusion does: use [`Session::read_csv`].
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Returns the scheduler, for [`Jobs`](crate::Jobs), [`SystemTables`] and other clients of it.
    pub fn scheduler(&self) -> &SchedulerAddress {
        self.cluster.scheduler_address()
    }

    /// Returns the model store.
    pub fn store(&self) -> &ModelStore {
        &self.store
    }

    /// Parses a script into its statements, which `;` separates.
    ///
    /// # Errors
    /// Gives the line and column of the first error.
    pub fn parse(&self, script: &str) -> Result<Vec<Statement>> {
        let dialect = self.dialect()?;
        deep(|| sql::parse(script, &dialect))
    }

    /// Returns the first statement of a script that cannot be parsed, for messages.
    pub fn first_refused(&self, script: &str) -> Option<sql::Excerpt> {
        let dialect = self.dialect().ok()?;
        deep(|| sql::first_refused(script, &dialect))
    }

    /// Parses the list in the parentheses of `TRANSFORM (…)`.
    pub(crate) fn parse_transform(&self, list: &str) -> Result<sql::Clause> {
        sql::parse_transform(list, &self.dialect()?)
    }

    fn dialect(&self) -> Result<Dialect> {
        let options = self.parser_options();
        let grammar = dialect_from_str(options.dialect)
            .ok_or_else(|| Error::not_supported(format!("SQL dialect {}", options.dialect)))?;
        Ok(Dialect { grammar, options })
    }

    fn parser_options(&self) -> SqlParserOptions {
        let state = self.context.state_ref();
        state.read().config().options().sql_parser.clone()
    }

    /// Parses a statement again if an earlier one in its script has changed the dialect.
    fn read_anew(&self, statement: Statement) -> Result<Statement> {
        if statement.read_as == self.parser_options() {
            return Ok(statement);
        }
        let line = statement.line;
        let read = self.parse(&statement.text)?.into_iter().next();
        Ok(read.map_or(statement, |read| Statement { line, ..read }))
    }

    /// Runs a statement. Dropping the future, or the output's rows, cancels what runs.
    ///
    /// Queries return as soon as they are planned, and run while their rows are read; `CREATE
    /// MODEL` returns when the model is published.
    ///
    /// # Errors
    /// Any error in the statement, or while it runs.
    pub async fn run(&self, statement: Statement) -> Result<Output> {
        deeply(self.run_statement(statement)).await
    }

    async fn run_statement(&self, statement: Statement) -> Result<Output> {
        let statement = self.read_anew(statement)?;
        match statement.kind {
            Kind::CreateModel(create) => self.create_model(*create, &statement.text).await,
            Kind::ExplainCreateModel { create, verbose } => {
                self.explain_create_model(*create, verbose).await
            }
            Kind::ShowModels => self.show_models().await,
            Kind::DescribeModel { name, version } => self.describe_model(&name, version).await,
            Kind::DropModel {
                name,
                version,
                if_exists,
            } => self.drop_model(&name, version, if_exists).await,
            Kind::DropPrepared { id } => self.drop_prepared(id).await,
            Kind::Sql(sql) => {
                let sql = match *sql {
                    DfStatement::Explain(explain) if explain.options.analyze => {
                        return self.explain_analyze(explain, &statement.text).await;
                    }
                    sql => sql,
                };
                let headings = Headings::of(&sql);
                let frame = self.frame(sql, &statement.text).await?;
                // The empty result of a statement that has already run here.
                let done = matches!(frame.logical_plan(), LogicalPlan::EmptyRelation(empty)
                    if empty.schema.fields().is_empty());
                if done {
                    return Ok(Output::nothing());
                }
                let context = Arc::new(frame.task_ctx());
                let logical = frame.logical_plan().clone();
                let plan = frame.create_physical_plan().await;
                let plan = plan.map_err(|error| casts::explained(&logical, error.into()))?;
                Ok(Output {
                    headings,
                    ..Output::of_plan(plan, context)?
                })
            }
        }
    }

    /// Submits a `CREATE MODEL` and leaves it to the cluster, where it continues without a client. Returns the job's
    /// id, or `None` if `IF NOT EXISTS` found the model.
    ///
    /// # Errors
    /// When it is another statement, or for any error before it runs.
    pub async fn submit(&self, statement: Statement) -> Result<Option<String>> {
        match statement.kind {
            Kind::CreateModel(create) => deeply(self.submit_model(*create, &statement.text)).await,
            _ => Err(Error::not_supported(
                "leaving a statement to the cluster that is not CREATE MODEL",
            )),
        }
    }

    /// Plans one query, or runs one of DataFusion's statements, like `SessionContext::sql`.
    ///
    /// # Errors
    /// When the text is not exactly one statement, is a statement about models, or cannot be planned.
    pub async fn sql(&self, sql: &str) -> Result<DataFrame> {
        let mut statements = self.parse(sql)?;
        match (statements.pop(), statements.len()) {
            (
                Some(Statement {
                    kind: Kind::Sql(sql),
                    text,
                    ..
                }),
                0,
            ) => deeply(self.frame(*sql, &text)).await,
            (Some(_), 0) => {
                let found = "a statement about models (Session::run runs it)".to_owned();
                Err(Error::OneQuery { found })
            }
            (None, _) => Err(Error::OneQuery {
                found: "none".to_owned(),
            }),
            (Some(_), more) => Err(Error::OneQuery {
                found: (more + 1).to_string(),
            }),
        }
    }

    /// Waits until the cancellations of dropped queries have reached the scheduler, and sends the spans of the session's
    /// jobs, if they are traced.
    ///
    /// Returns true if all cancellations did within `deadline`. Call it before the process ends.
    pub async fn settle(&self, deadline: Duration) -> bool {
        self.cluster.settle(deadline).await
    }

    /// Plans a query, or runs a statement; its text is the name of its job.
    async fn frame(&self, statement: DfStatement, text: &str) -> Result<DataFrame> {
        let not_null = memory::not_null(&statement);
        let plan = self.plan(statement).await?;
        settings::check_plan(&plan)?;
        let plan = match plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                memory::create(&self.context, create, &not_null, text).await?;
                LogicalPlanBuilder::empty(false).build()?
            }
            // Keep the view's text as typed, not as normalized for planning.
            LogicalPlan::Ddl(DdlStatement::CreateView(view)) => {
                let definition = Some(text.to_owned());
                LogicalPlan::Ddl(DdlStatement::CreateView(CreateView { definition, ..view }))
            }
            plan => plan,
        };
        let set = settings::set_by(&plan);
        let frame = match (self.context.execute_logical_plan(plan).await, set) {
            (Ok(frame), _) => frame,
            (Err(error), Some((key, value))) => {
                let state = self.context.state();
                return Err(settings::not_taken(state.config(), key, value, error));
            }
            (Err(error), None) => return Err(error.into()),
        };
        // A query answered here does not become a job, and may be about the settings themselves.
        if scans_only_information_schema(frame.logical_plan()).unwrap_or(true) {
            return Ok(frame);
        }
        let (mut state, plan) = frame.into_parts();
        JobDescription::of(text).note(state.config_mut());
        Ok(DataFrame::new(state, plan))
    }

    /// Plans a statement, with the models it names in their current state in the store.
    async fn plan(&self, statement: DfStatement) -> Result<LogicalPlan> {
        let models = self.named_models(&statement).await?;
        let planner = ml_planner(&self.store, models);
        self.plan_with(statement, planner).await
    }

    /// Plans a statement, with the models that a planner has.
    async fn plan_with(
        &self,
        statement: DfStatement,
        planner: Arc<MlPlanner>,
    ) -> Result<LogicalPlan> {
        let mut state = self.context.state();
        state.register_relation_planner(planner)?;
        let tables = state.resolve_table_references(&statement)?;
        let quoted = QuotedNames::of(&statement);
        let plan = match statement_to_plan(&self.context, &state, statement).await {
            Ok(plan) => plan,
            Err(error) => {
                let missing = names::missing_table(&self.context, tables, &error);
                return Err(missing.unwrap_or_else(|| advice::advised(error, &state, &quoted)));
            }
        };
        names::check_places(&plan)?;
        // For later operations on a data frame of the plan.
        Ok(forget_keys(copy::carry_options(plan, &state)?)?)
    }

    /// Reads the models that a statement names.
    async fn named_models(&self, statement: &DfStatement) -> Result<NamedModels> {
        let normalize = self.parser_options().enable_ident_normalization;
        let mut models = NamedModels::default();
        for Reference { model, history } in sql::named_models(statement, normalize)? {
            let (name, version) = &model;
            if history
                && version.is_none()
                && let Some(epochs) = self.training_now(name).await
            {
                models.under_way(name.clone(), epochs);
                continue;
            }
            let manifest = self.store.manifest(name, *version).await?;
            models.published(model, manifest);
        }
        Ok(models)
    }

    /// Returns the epochs so far of a model that the cluster is training.
    async fn training_now(&self, model: &ModelName) -> Option<Vec<Epoch>> {
        let runs: Vec<Run> = self.system_tables.rows(Scope::All).await.ok()?;
        let now = |run: &&Run| run.model == model.as_str() && !run.state.has_ended();
        let train = runs.iter().find(now)?.train_id.parse().ok()?;
        self.system_tables.rows(Scope::Training(train)).await.ok()
    }
}

fn ml_planner(store: &ModelStore, models: NamedModels) -> Arc<MlPlanner> {
    let store = store.url().clone();
    Arc::new(MlPlanner { store, models })
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use arrow::array::AsArray;
    use arrow::util::pretty::pretty_format_batches;

    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    async fn run(session: &Session, sql: &str) -> Result<Output> {
        session.run(session.parse(sql)?.remove(0)).await
    }

    async fn text(session: &Session, sql: &str) -> String {
        let batches = run(session, sql).await.unwrap().collect().await.unwrap();
        pretty_format_batches(&batches).unwrap().to_string()
    }

    #[test]
    fn answers_about_models_without_a_cluster() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let models = run(&session, "SHOW MODELS")
                .await
                .unwrap()
                .collect()
                .await
                .unwrap();
            assert_eq!(models[0].column(0).as_string::<i32>().value(0), "known");
            assert!(
                text(&session, "DESCRIBE MODEL known")
                    .await
                    .contains("predicted_Sales")
            );
            let dropped = run(&session, "DROP MODEL known").await.unwrap();
            assert!(dropped.schema.fields().is_empty() && dropped.message.is_some());
            assert!(run(&session, "DROP MODEL known").await.is_err());
            assert!(run(&session, "DROP MODEL IF EXISTS known").await.is_ok());
        });
    }

    #[test]
    fn answers_about_itself_without_a_cluster() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            assert!(text(&session, "SHOW TABLES").await.contains("sales"));
            assert!(text(&session, "DESCRIBE sales").await.contains("Distance"));
            run(&session, "SET ballista.planner.coalesce.enabled = true")
                .await
                .unwrap();
            let shown = text(&session, "SHOW ballista.planner.coalesce.enabled").await;
            assert!(shown.contains("true"), "{shown}");
            let shown = text(&session, "SHOW datafusion.execution.parquet.compression").await;
            assert!(shown.contains("zstd(1)"), "{shown}");
            run(&session, "SET datafusion.execution.batch_size = 7")
                .await
                .unwrap();
            assert_eq!(session.context().state().config().batch_size(), 7);
            let error = run(&session, "SET datafusion.no.such = 1")
                .await
                .unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{error}");
            // As typed.
            let view =
                "CREATE VIEW v AS SELECT k FROM (SELECT 1 AS k) a JOIN (SELECT 1 AS k) b USING (k)";
            run(&session, view).await.unwrap();
            let shown = text(&session, "SHOW CREATE TABLE v").await;
            assert!(shown.contains(view), "{shown}");
        });
    }

    #[test]
    fn sql_takes_one_query() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            assert!(session.sql("SELECT 1").await.is_ok());
            for sql in ["", "SELECT 1; SELECT 2", "SHOW MODELS"] {
                let error = session.sql(sql).await.unwrap_err();
                assert!(matches!(error, Error::OneQuery { .. }), "{sql}: {error}");
            }
        });
    }

    #[test]
    fn settings_are_checked() {
        let url = ModelStore::directory_url(std::path::Path::new("/tmp/x")).unwrap();
        let with = |key: &str, value: &str| {
            let mut config = SessionConfig::new("127.0.0.1:1", url.clone());
            config.settings = vec![(key.to_owned(), value.to_owned())];
            Session::detached(&config, 4)
        };
        let session = with("datafusion.execution.target_partitions", "5").unwrap();
        assert_eq!(session.context().state().config().target_partitions(), 5);
        assert!(with("ballista.job.name", "x").is_ok());
        for (key, value) in [("datafusion.execution.batch_size", "x"), ("nonsense", "1")] {
            let error = with(key, value).unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{error}");
        }
    }

    #[test]
    fn nobody_at_the_address_is_said_in_time() {
        on_a_deep_stack(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            drop(listener);
            let url = ModelStore::directory_url(std::path::Path::new("/tmp/x")).unwrap();
            let mut config = SessionConfig::new(&address, url);
            config.connect_timeout = Duration::from_millis(300);
            let before = Instant::now();
            let error = Session::connect(config).await.unwrap_err();
            assert!(matches!(&error, Error::Connect { address: named, .. } if *named == address));
            assert!(before.elapsed() < Duration::from_secs(5));
        });
    }
}
