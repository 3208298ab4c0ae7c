//! The scheduler's sessions: Ballista's sessions that plan Volley's nodes and refuse queries that can never run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::config::BALLISTA_ADAPTIVE_PLANNER_ENABLED;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::scheduler_server::SessionBuilder;
use datafusion::catalog::Session;
use datafusion::common::config::TableOptions;
use datafusion::common::plan_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::registry::FunctionRegistry;
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::prelude::SessionConfig;
use volley_engine::object_stores::Stores;
use volley_engine::settings::{JobSettings, session_config};
use volley_engine::{TrainNode, VolleyQueryPlanner, adds_files, around, with_rules};

use super::demands::gang;
use super::nesting::BoundNesting;
use super::optimized::{NoteAlike, OptimizedPlans, TakeKept};
use super::panics::{Caught, caught, caught_rule};
use super::prepared::with_prepared_rows;
use crate::handle::Control;
use volley_engine::stages::{order_to_keep, reuse_exchanges, stages};

/// Returns a builder of sessions that plan Volley's nodes for this cluster: each query gets a copy of one session,
/// with its own settings. A query whose optimized plan is kept gets a copy of one without rules for logical plans.
///
/// The sessions share cached file metadata, which is checked against a file's size and modification time. Each query
/// lists folders itself, because nothing would show that a cached list is old.
///
/// # Errors
/// When the original session cannot be made.
pub(crate) fn session_builder(control: Control, stores: &Stores) -> Result<SessionBuilder> {
    let caches = CacheManagerConfig::default().with_list_files_cache_limit(0);
    let runtime = RuntimeEnvBuilder::new()
        .with_cache_manager(caches)
        .with_object_store_registry(Arc::new(stores.clone()));
    let session = with_rules(default_session_builder(session_config())?).build();
    let analyzers = session.analyzer().rules.iter().cloned();
    let analyzers =
        analyzers.map(|rule| Arc::new(Caught(rule)) as Arc<dyn AnalyzerRule + Send + Sync>);
    let first: [Arc<dyn AnalyzerRule + Send + Sync>; 2] =
        [Arc::new(BoundNesting), Arc::new(NoteAlike)];
    let analyzers = first.into_iter().chain(analyzers).collect();
    let optimizers = session.optimizers().iter().cloned();
    let optimizers = optimizers.map(|rule| around(rule, caught_rule)).collect();
    let plans = OptimizedPlans::default();
    let planner = AdmittingPlanner {
        control,
        plans: plans.clone(),
    };
    let session = SessionStateBuilder::new_from_existing(session)
        .with_analyzer_rules(analyzers)
        .with_optimizer_rules(optimizers)
        .with_runtime_env(runtime.build_arc()?)
        .with_query_planner(Arc::new(planner))
        .build();
    let dependent = dependent_functions(&session);
    let optimized = SessionStateBuilder::new_from_existing(session.clone())
        .with_analyzer_rules(vec![Arc::new(TakeKept)])
        .with_optimizer_rules(Vec::new())
        .build();
    Ok(Arc::new(move |mut config: SessionConfig| {
        let session = match plans.find(&mut config) {
            true => &optimized,
            false => &session,
        };
        with_settings(session, &dependent, config)
    }))
}

/// Returns the functions that depend on settings, as now() does on the time zone.
fn dependent_functions(session: &SessionState) -> Vec<Arc<ScalarUDF>> {
    let options = session.config_options();
    let depends =
        |function: &&Arc<ScalarUDF>| function.inner().with_updated_config(options).is_some();
    let functions = session.scalar_functions().values();
    functions.filter(depends).cloned().collect()
}

/// Copies a session with other settings, and sets these functions to them.
fn with_settings(
    session: &SessionState,
    dependent: &[Arc<ScalarUDF>],
    config: SessionConfig,
) -> Result<SessionState> {
    // Ballista 55's adaptive planner repeats branches of a union, hangs if a plan that it changed fails a check, and
    // handles lost data even worse.
    let config = config.set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false);
    let mut session = session.clone();
    for function in dependent {
        if let Some(set) = function.inner().with_updated_config(config.options()) {
            session.register_udf(Arc::new(set))?;
        }
    }
    *session.table_options_mut() = TableOptions::default_from_session_config(config.options());
    *session.config_mut() = config;
    Ok(session)
}

/// Volley's planner, which has the controller admit gangs first, and keeps optimized plans.
struct AdmittingPlanner {
    control: Control,
    plans: OptimizedPlans,
}

impl fmt::Debug for AdmittingPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdmittingPlanner")
    }
}

#[async_trait]
impl QueryPlanner for AdmittingPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.apply(|node| {
            let LogicalPlan::Extension(extension) = node else {
                return Ok(TreeNodeRecursion::Continue);
            };
            let Some(train) = extension.node.as_any().downcast_ref::<TrainNode>() else {
                return Ok(TreeNodeRecursion::Continue);
            };
            let spec = train.spec();
            let (gang, of_rank) = (gang(spec), spec.rank_memory());
            self.control
                .ask(|control, _| control.admit_gang(&gang, of_rank))
                .map_err(DataFusionError::Plan)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        let physical = caught(planned(plan, session, &self.control)).await?;
        self.plans.keep(session.config_options(), plan);
        Ok(physical)
    }
}

/// Plans the stages of a query.
async fn planned(
    plan: &LogicalPlan,
    session: &dyn Session,
    control: &Control,
) -> Result<Arc<dyn ExecutionPlan>> {
    let physical = VolleyQueryPlanner
        .create_physical_plan(plan, session)
        .await?;
    if physical.is::<ExplainExec>() {
        return Ok(physical);
    }
    refuse_restored_writes(&physical, session.config())?;
    let physical = with_prepared_rows(physical, plan, (control, session)).await?;
    let order = match is_ordered(plan) {
        true => order_to_keep(&physical),
        false => None,
    };
    reuse_exchanges(stages(physical, order, &session.task_ctx())?)
}

/// # Errors
/// When a job that an earlier scheduler may have run adds files in place: they would be there twice.
fn refuse_restored_writes(plan: &Arc<dyn ExecutionPlan>, config: &SessionConfig) -> Result<()> {
    let job = config.options().extensions.get::<JobSettings>();
    if !job.is_some_and(|job| job.restored) {
        return Ok(());
    }
    plan.apply(|operator| match adds_files(operator.as_ref()) {
        Some(target) => plan_err!(
            "the scheduler was restarted while the job wrote {target}: the rows there may be incomplete, and running \
             the job again would add to them; remove them and run the job again"
        ),
        None => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(())
}

/// Checks whether a query asks for an order of its rows.
fn is_ordered(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Limit(limit) => is_ordered(&limit.input),
        LogicalPlan::Projection(projection) => is_ordered(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_ordered(&alias.input),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ballista_core::extension::SessionConfigExt;
    use datafusion::arrow::datatypes::DataType;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};
    use datafusion::prelude::SessionContext;

    use super::super::optimized::{KEY, PlanKey};
    use super::*;
    use crate::handle::testing;

    #[tokio::test]
    async fn equal_queries_are_optimized_once() {
        let (control, _commands) = testing::control();
        let sessions = session_builder(control, &Stores::default()).unwrap();
        let session = |key: &str| {
            let config = session_config().with_option_extension(PlanKey::default());
            sessions(config.set_str(KEY, key)).unwrap()
        };
        let plan = LogicalPlanBuilder::empty(true).project([(lit(1) + lit(2)).alias("n")]);
        let plan = plan.unwrap().build().unwrap();
        let first = session("9-first");
        assert!(!first.optimizers().is_empty());
        let planned = first.create_physical_plan(&plan).await.unwrap();
        let again = session("9-first");
        assert!(again.optimizers().is_empty());
        let optimized = again.optimize(&plan).unwrap();
        assert_eq!(optimized, first.optimize(&plan).unwrap());
        assert_ne!(optimized, plan);
        let replanned = again.create_physical_plan(&plan).await.unwrap();
        let shown = |plan: &Arc<dyn ExecutionPlan>| {
            datafusion::physical_plan::displayable(plan.as_ref())
                .indent(false)
                .to_string()
        };
        assert_eq!(shown(&replanned), shown(&planned));
        // Others have all rules, as has a plan that is explained.
        assert!(!session("9-other").optimizers().is_empty());
        let explained = LogicalPlanBuilder::from(plan).explain(false, false);
        let explained = explained.unwrap().build().unwrap();
        let explaining = session("9-explained");
        explaining.create_physical_plan(&explained).await.unwrap();
        assert!(!session("9-explained").optimizers().is_empty());
    }

    #[tokio::test]
    async fn settings_are_a_session_s_own() {
        let session = default_session_builder(session_config()).unwrap();
        let dependent = dependent_functions(&session);
        let with = |zone: Option<&str>| {
            let mut config = session_config();
            let options = config.options_mut();
            options.execution.time_zone = zone.map(str::to_owned);
            let config = config.set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, true);
            with_settings(&session, &dependent, config).unwrap()
        };
        for zone in [Some("+02:00"), None, Some("+05:30")] {
            let state = with(zone);
            let session = SessionContext::new_with_state(state.clone());
            let now = session.sql("SELECT now() AS now").await.unwrap();
            let now = now.schema().field(0).data_type().clone();
            let DataType::Timestamp(_, found) = &now else {
                panic!("{now}")
            };
            assert_eq!(found.as_deref(), zone);
            let ballista = state.config().ballista_config();
            assert!(!ballista.adaptive_query_planner_enabled());
        }
    }
}
