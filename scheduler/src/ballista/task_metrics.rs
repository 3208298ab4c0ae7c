//! Operator metrics in task statuses, made to fit the task's stage so that no status is lost because of them.
//!
//! Ballista adds up the metrics of a stage's tasks, operator by operator. If a task reports another number of
//! operators than the others, Ballista refuses the whole status, and the job waits for ever for a task that has
//! ended. So only the writer's metrics of such a task are kept: the stage shows less of its operators, and the task
//! and its rows count.

use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::protobuf::{OperatorMetricsSet, TaskStatus};
use ballista_scheduler::state::execution_stage::ExecutionStage;

use super::BallistaScheduler;
use volley_engine::stages::reporting_operators;

/// Keeps only the writer's metrics of a task that reports another number of operators than its stage has.
pub(super) async fn keep_metrics_of_stage(ballista: &BallistaScheduler, status: &mut TaskStatus) {
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
    let reported = stage.stage_metrics.as_ref().map(Vec::len);
    let Some(expected) = reported.or_else(|| reporting_operators(&stage.plan)) else {
        return;
    };
    if expected != status.metrics.len() {
        tracing::debug!(
            job = status.job_id,
            stage = status.stage_id,
            task = status.task_id,
            reported = status.metrics.len(),
            expected,
            "only the writer's metrics of a task are kept: the others are not of the stage's operators"
        );
        only_the_writers(&mut status.metrics, expected);
    }
}

/// Clears all metrics but those of the first operator, the stage's writer, and resizes them to `operators`.
fn only_the_writers(metrics: &mut Vec<OperatorMetricsSet>, operators: usize) {
    metrics.truncate(1);
    metrics.resize_with(operators, OperatorMetricsSet::default);
}

#[cfg(test)]
mod tests {
    use ballista_core::serde::protobuf::{OperatorMetric, operator_metric};

    use super::*;

    #[test]
    fn the_writer_s_rows_are_kept() {
        let rows = |rows| OperatorMetricsSet {
            metrics: vec![OperatorMetric {
                metric: Some(operator_metric::Metric::OutputRows(rows)),
                ..OperatorMetric::default()
            }],
        };
        for operators in [2, 3, 5] {
            let mut metrics = vec![rows(7), rows(8), rows(9)];
            only_the_writers(&mut metrics, operators);
            assert_eq!(metrics.len(), operators);
            assert_eq!(metrics[0], rows(7));
            assert!(metrics[1..].iter().all(|set| set.metrics.is_empty()));
        }
    }
}
