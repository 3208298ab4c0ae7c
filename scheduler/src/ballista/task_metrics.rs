//! What tasks report of their operators, kept from harming what they report of themselves.
//!
//! Ballista adds the metrics of a stage's tasks up, operator by operator. Where a task reports of another number of
//! operators than the stage has, it refuses the whole status, and the job waits for ever for a task that has ended. So
//! such metrics are left out: the stage then shows less, and the task counts.

use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::protobuf::TaskStatus;
use ballista_scheduler::state::execution_stage::ExecutionStage;
use datafusion::physical_plan::ExecutionPlan;

use super::BallistaScheduler;
use crate::planning::reporting_operators;

/// Leaves out metrics that are not of the operators of the task's stage.
pub(crate) async fn keep_metrics_of_stage(ballista: &BallistaScheduler, status: &mut TaskStatus) {
    if status.metrics.is_empty() {
        return;
    }
    let attempt = JobId::from(status.job_id.clone());
    let graph = {
        let running = ballista.state.task_manager.get_running_job_cache();
        running
            .get(&attempt)
            .map(|info| Arc::clone(&info.execution_graph))
    };
    let Some(graph) = graph else {
        return;
    };
    let graph = graph.read().await;
    let Some(ExecutionStage::Running(stage)) = graph.stages().get(&(status.stage_id as usize))
    else {
        return;
    };
    let expected = expected(&stage.plan, stage.stage_metrics.as_ref().map(Vec::len));
    if expected.is_some_and(|expected| expected != status.metrics.len()) {
        tracing::debug!(
            job = status.job_id,
            stage = status.stage_id,
            task = status.task_id,
            reported = status.metrics.len(),
            expected,
            "metrics of other operators than the stage's are left out"
        );
        status.metrics.clear();
    }
}

/// Of how many operators a stage's tasks report; that of the first task that did, where it is known.
fn expected(writer: &Arc<dyn ExecutionPlan>, reported: Option<usize>) -> Option<usize> {
    reported.or_else(|| reporting_operators(writer))
}
