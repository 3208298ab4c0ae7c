//! Where the session's plans run: on the cluster, but for what only this process knows.

use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::extension::SessionConfigExt;
use ballista_core::planner::BallistaQueryPlanner;
use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_proto::protobuf::LogicalPlanNode;
use volley_proto::plan::VolleyLogicalCodec;

use super::cancel::{CancelOnDrop, Cancellations, is_distributed};
use super::loss::Effects;
use super::rerun::RerunLost;
use super::{settings, tables};

/// Ballista's planner with the session's settings as they are now, and queries that are cancelled
/// when their rows are dropped, and run again when these are lost.
#[derive(Debug)]
pub(super) struct ClusterPlanner {
    pub(super) scheduler_url: String,
    pub(super) cancellations: Arc<Cancellations>,
}

#[async_trait]
impl QueryPlanner for ClusterPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // DESCRIBE holds a schema, which no wire format carries.
        if let LogicalPlan::DescribeTable(_) = plan {
            return DefaultPhysicalPlanner::default()
                .create_physical_plan(plan, session)
                .await;
        }
        settings::check_config(session.config())?;
        let inlined;
        let plan = match tables::scans(plan)? {
            (true, false) => {
                let planner = DefaultPhysicalPlanner::default();
                return planner.create_physical_plan(plan, session).await;
            }
            (true, true) => {
                inlined = tables::inlined(plan).await?;
                &inlined
            }
            (false, _) => plan,
        };
        let planner = BallistaQueryPlanner::<LogicalPlanNode>::with_extension(
            self.scheduler_url.clone(),
            session.config().ballista_config(),
            Arc::new(VolleyLogicalCodec::default()),
        );
        let physical = planner.create_physical_plan(plan, session).await?;
        if !is_distributed(&physical) {
            return Ok(physical);
        }
        let (effects, cancellations) = (Effects::of(plan), Arc::clone(&self.cancellations));
        let cancelled = CancelOnDrop::new(physical, effects, cancellations);
        Ok(Arc::new(RerunLost::new(Arc::new(cancelled), effects)))
    }
}
