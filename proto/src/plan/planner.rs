//! From Volley's logical nodes to its physical ones, for the scheduler's sessions.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::running;
use super::train::only;
use super::{PredictExec, PredictNode, TrainExec, TrainNode};

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
        DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(VolleyExtensions)])
            .create_physical_plan(&running::rewrite(plan.clone())?, session)
            .await
    }
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
            let (model, column) = (predict.model().clone(), predict.column().to_owned());
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
