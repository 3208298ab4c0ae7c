//! The scheduler's sessions: Ballista's, planning Volley's nodes, refusing what can never run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::scheduler_server::SessionBuilder;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use volley_proto::plan::{TrainNode, VolleyQueryPlanner};

use super::VolleyClusterState;
use crate::placement::never_fits;

/// Builds sessions that plan Volley's nodes for this cluster.
pub(crate) fn session_builder(cluster: Arc<VolleyClusterState>) -> SessionBuilder {
    Arc::new(move |config| {
        let planner = Arc::new(AdmittingPlanner {
            cluster: Arc::clone(&cluster),
        });
        let state = default_session_builder(config)?;
        Ok(SessionStateBuilder::new_from_existing(state)
            .with_query_planner(planner)
            .build())
    })
}

/// Volley's planner, behind a check that the cluster is large enough.
struct AdmittingPlanner {
    cluster: Arc<VolleyClusterState>,
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
            let train = extension.node.as_any().downcast_ref::<TrainNode>();
            match train.and_then(|t| never_fits(t.spec().ranks, self.cluster.executors())) {
                Some(reason) => Err(DataFusionError::Plan(reason)),
                None => Ok(TreeNodeRecursion::Continue),
            }
        })?;
        VolleyQueryPlanner.create_physical_plan(plan, session).await
    }
}
