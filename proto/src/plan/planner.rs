//! From Volley's logical nodes to its physical ones, for the scheduler's sessions.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::rules::estimates;
use super::train::only;
use super::{
    PredictExec, PredictNode, TrainExec, TrainNode, filtered, partitions, running, single_task,
};

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
        // What is explained is planned as if it were run.
        let (run, explained) = match &plan {
            LogicalPlan::Explain(explain) => (explain.plan.as_ref(), true),
            plan => (plan, false),
        };
        let session = session.as_any().downcast_ref::<SessionState>();
        let session =
            session.ok_or_else(|| internal_datafusion_err!("a session of another kind"))?;
        let slots = session.config().target_partitions();
        let limit = single_task::limit(session.config_options());
        // How much is read is known of a plan only, before it is optimized, which takes longer than to make it.
        let physical = planner
            .create_physical_plan(run, &estimating(session))
            .await?;
        let fits = slots > 1
            && limit > 0
            && single_task::may_be(run)?
            && single_task::fits(&physical, limit);
        let wanted = match fits {
            true => 1,
            false => {
                let physical = planner.optimize_physical_plan(physical, session, |_, _| {})?;
                // How much is sorted is known now, and it is rarely much.
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

/// A copy of a session whose plans are estimated, and not optimized.
fn estimating(session: &SessionState) -> SessionState {
    let rules = session.physical_optimizers().iter();
    let estimates = rules.filter(|rule| estimates(rule.name())).cloned();
    SessionStateBuilder::new_from_existing(session.clone())
        .with_physical_optimizer_rules(estimates.collect())
        .build()
}

/// A copy of a session whose plans have so many partitions.
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
