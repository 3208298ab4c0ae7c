//! The scheduler's sessions: Ballista's, planning Volley's nodes, refusing what can never run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::config::BALLISTA_ADAPTIVE_PLANNER_ENABLED;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::scheduler_server::SessionBuilder;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use volley_proto::plan::{EstimateScans, TrainNode, VolleyQueryPlanner};
use volley_proto::spec::{TooFew, TrainSpec};

use super::VolleyClusterState;
use crate::placement::never_fits;

/// Builds sessions that plan Volley's nodes for this cluster.
pub(crate) fn session_builder(cluster: Arc<VolleyClusterState>) -> SessionBuilder {
    Arc::new(move |config| {
        // Ballista 55's adaptive planner repeats branches of a union and hangs where a plan that it
        // changed fails a check; what it makes of lost data is worse.
        let config = config.set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false);
        let planner = Arc::new(AdmittingPlanner {
            cluster: Arc::clone(&cluster),
        });
        let state = default_session_builder(config)?;
        let rules = state.physical_optimizers().iter().cloned();
        let estimates = std::iter::once(Arc::new(EstimateScans) as _);
        let rules = estimates.chain(rules).collect();
        Ok(SessionStateBuilder::new_from_existing(state)
            .with_physical_optimizer_rules(rules)
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
            let Some(train) = extension.node.as_any().downcast_ref::<TrainNode>() else {
                return Ok(TreeNodeRecursion::Continue);
            };
            let TrainSpec {
                train_id,
                ranks,
                elastic,
                ..
            } = train.spec().as_ref();
            if elastic.too_few == TooFew::Wait {
                self.cluster.set_patient(*train_id);
            }
            // A run that has begun goes on with what there is.
            let begun = self.cluster.has_begun(*train_id);
            match never_fits(*ranks, self.cluster.rank_executors()) {
                Some(reason) if !begun => Err(DataFusionError::Plan(reason)),
                _ => Ok(TreeNodeRecursion::Continue),
            }
        })?;
        VolleyQueryPlanner.create_physical_plan(plan, session).await
    }
}
