//! The scheduler's sessions: Ballista's, planning Volley's nodes, refusing what can never run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::config::BALLISTA_ADAPTIVE_PLANNER_ENABLED;
use ballista_core::utils::{default_config_producer, default_session_builder};
use ballista_scheduler::scheduler_server::SessionBuilder;
use ballista_scheduler::state::session_manager::share_file_statistics_cache;
use datafusion::catalog::Session;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use volley_proto::plan::{TrainNode, VolleyQueryPlanner, with_rules};
use volley_proto::settings::{JobSettings, set_defaults};
use volley_proto::spec::{TooFew, TrainSpec};

use super::VolleyClusterState;
use crate::placement::never_fits;

/// What a job's settings are put into.
pub(crate) fn session_config() -> SessionConfig {
    let mut config = default_config_producer().with_option_extension(JobSettings::default());
    set_defaults(config.options_mut());
    config
}

/// Builds sessions that plan Volley's nodes for this cluster. Each query has a session of its own; they
/// share what is known of files, which is read from every file otherwise.
pub(crate) fn session_builder(cluster: Arc<VolleyClusterState>) -> SessionBuilder {
    share_file_statistics_cache(Arc::new(move |config| {
        // Ballista 55's adaptive planner repeats branches of a union and hangs where a plan that it
        // changed fails a check; what it makes of lost data is worse.
        let config = config.set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false);
        let mut config = config;
        let optimizer = &mut config.options_mut().optimizer;
        let planner = Arc::new(AdmittingPlanner {
            cluster: Arc::clone(&cluster),
            splits_files: std::mem::take(&mut optimizer.repartition_file_scans),
        });
        let state = default_session_builder(config)?;
        Ok(with_rules(state).with_query_planner(planner).build())
    }))
}

/// Volley's planner, behind a check that the cluster is large enough.
struct AdmittingPlanner {
    cluster: Arc<VolleyClusterState>,
    /// Whether scans take files apart. Only plans are made so: Ballista enforces requirements again
    /// in each stage, by the session's number of partitions, which may be less than the plan's, and
    /// would put the parts together again.
    splits_files: bool,
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
        let session = session.as_any().downcast_ref::<SessionState>();
        let mut session = session
            .cloned()
            .ok_or_else(|| internal_datafusion_err!("a session of another kind"))?;
        let optimizer = &mut session.config_mut().options_mut().optimizer;
        optimizer.repartition_file_scans = self.splits_files;
        VolleyQueryPlanner
            .create_physical_plan(plan, &session)
            .await
    }
}
