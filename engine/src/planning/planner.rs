//! The query planner of the scheduler's sessions, which turns Volley's logical nodes into physical ones.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_datafusion_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use crate::codec::filtered;
use crate::nodes::train::only;
use crate::operators::running;
use crate::planning::estimates::estimates;
use crate::planning::partitions;
use crate::planning::single_task;
use crate::rules::physical::{Rewrite, rule};
use crate::{PredictExec, PredictNode, TrainExec, TrainNode};

/// DataFusion's planner, with Volley's nodes.
#[derive(Debug, Default)]
pub struct VolleyQueryPlanner;

#[async_trait]
impl QueryPlanner for VolleyQueryPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = filtered::rewrite(running::rewrite(plan.clone())?)?;
        let planner =
            DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(VolleyExtensions)]);
        // An explained query is planned as if it were run.
        let (run, explained) = match &plan {
            LogicalPlan::Explain(explain) => (explain.plan.as_ref(), true),
            plan => (plan, false),
        };
        let session = session.as_any().downcast_ref::<SessionState>();
        let session =
            session.ok_or_else(|| internal_datafusion_err!("a session of another kind"))?;
        let slots = session.config().target_partitions();
        let limit = single_task::limit(session.config_options());
        let may_be_small = slots > 1 && limit > 0;
        let physical = match may_be_small && single_task::may_be(run)? {
            true => {
                let session = stopping_at_small(session);
                planner.create_physical_plan(run, &session).await
            }
            false => planner.create_physical_plan(run, session).await,
        };
        let wanted = match physical {
            Err(error) if is_small(&error) => 1,
            physical => {
                let physical = physical?;
                // The number of rows to sort is known now, and it is rarely large.
                let wanted = partitions::wanted(&physical, slots);
                if wanted == slots && !explained {
                    return Ok(physical);
                }
                wanted
            }
        };
        let session = with_partitions(session, wanted);
        planner.create_physical_plan(&plan, &session).await
    }
}

/// Returns a copy of a session that stops planning as soon as a query is known to be small. That takes a plan, but not
/// its optimization, which takes longer than making it.
fn stopping_at_small(session: &SessionState) -> SessionState {
    let mut rules = session.physical_optimizers().to_vec();
    let estimates = rules.iter().take_while(|rule| estimates(rule.name()));
    let stop = rule("stop_at_small", Rewrite::Whole(stop_at_small));
    rules.insert(estimates.count(), stop);
    SessionStateBuilder::new_from_existing(session.clone())
        .with_physical_optimizer_rules(rules)
        .build()
}

/// Fails with [`Small`] if one task [fits](single_task::fits) the query.
fn stop_at_small(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    match single_task::fits(&plan, config) {
        true => Err(DataFusionError::External(Box::new(Small))),
        false => Ok(plan),
    }
}

/// Reason why planning has stopped; never seen outside it.
#[derive(Debug, thiserror::Error)]
#[error("the query is small")]
struct Small;

fn is_small(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::External(error) => error.is::<Small>(),
        _ => false,
    }
}

/// Returns a copy of a session whose plans have this many partitions.
fn with_partitions(session: &SessionState, partitions: usize) -> SessionState {
    let mut session = session.clone();
    let options = session.config_mut().options_mut();
    options.execution.target_partitions = partitions;
    session
}

struct VolleyExtensions;

#[async_trait]
impl ExtensionPlanner for VolleyExtensions {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(train) = node.as_any().downcast_ref::<TrainNode>() {
            let exec = TrainExec::try_new(Arc::clone(train.spec()), only(inputs.to_vec())?)?;
            Ok(Some(Arc::new(exec)))
        } else if let Some(predict) = node.as_any().downcast_ref::<PredictNode>() {
            let (model, column) = (predict.model().clone(), predict.columns().clone());
            Ok(Some(Arc::new(PredictExec::new(
                model,
                column,
                only(inputs.to_vec())?,
            ))))
        } else {
            Ok(None)
        }
    }
}
