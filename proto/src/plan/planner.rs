//! From Volley's logical nodes to its physical ones, for the scheduler's sessions.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

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
        let slots = session.config().target_partitions();
        let limit = single_task::limit(session.config_options());
        if slots > 1 && limit > 0 && single_task::may_be(run)? {
            // How much is read is known of a plan only. Planning takes less time than a stage.
            let one = with_partitions(session, 1)?;
            let physical = planner.create_physical_plan(run, &one).await?;
            if single_task::fits(&physical, limit) {
                return match explained {
                    true => planner.create_physical_plan(&plan, &one).await,
                    false => Ok(physical),
                };
            }
        }
        let physical = planner.create_physical_plan(run, session).await?;
        // How much is sorted is known now, and it is rarely much.
        let wanted = partitions::wanted(&physical, slots);
        if wanted == slots && !explained {
            return Ok(physical);
        }
        let session = with_partitions(session, wanted)?;
        planner.create_physical_plan(&plan, &session).await
    }
}

/// A copy of a session whose plans have so many partitions.
fn with_partitions(session: &dyn Session, partitions: usize) -> Result<SessionState> {
    let session = session.as_any().downcast_ref::<SessionState>();
    let mut session = session
        .cloned()
        .ok_or_else(|| internal_datafusion_err!("a session of another kind"))?;
    let options = session.config_mut().options_mut();
    options.execution.target_partitions = partitions;
    Ok(session)
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
