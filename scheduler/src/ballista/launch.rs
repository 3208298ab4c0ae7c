//! Whether a task fits into a message.
//!
//! Ballista sends all tasks that an executor gets at once in one message. If that cannot be sent, it
//! takes the executor for lost, and everybody's work with it. So each task is measured before, and one
//! that is too large fails its own job; messages themselves have no limit but the wire's.

use std::sync::Arc;

use ballista_scheduler::state::execution_stage::RunningStage;
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;
use volley_proto::limits::{MESSAGE_LIMIT, bytes, size};
use volley_proto::plan::VolleyPhysicalCodec;

/// What tasks of a stage lack to be sent, as it is told to whoever submitted the query.
///
/// # Errors
/// When the plan cannot be encoded, or is too large.
pub(super) fn fits(stage: &RunningStage) -> Result<(), String> {
    let plan = Arc::clone(&stage.plan);
    let codec = VolleyPhysicalCodec::default();
    let plan = PhysicalPlanNode::try_from_physical_plan(plan, &codec);
    let plan = plan.map_err(|error| {
        let stage = stage.stage_id;
        format!("stage {stage} of the query cannot be sent to executors: {error}")
    })?;
    task_fits(stage.stage_id, bytes(&plan))
}

/// Whether a task of so many bytes can be sent.
///
/// # Errors
/// What is too large, and the limit.
pub(super) fn task_fits(stage: usize, bytes: usize) -> Result<(), String> {
    if bytes <= MESSAGE_LIMIT {
        return Ok(());
    }
    Err(format!(
        "the query is too large: a task of its stage {stage} takes {} when it is sent to an \
         executor, and the limit is {}; long lists of values (IN (…), VALUES) belong into a table, \
         a file for example, that the query joins",
        size(bytes),
        size(MESSAGE_LIMIT),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_said_with_the_limit() {
        assert_eq!(task_fits(2, MESSAGE_LIMIT), Ok(()));
        let said = task_fits(2, 3 * MESSAGE_LIMIT / 2).unwrap_err();
        assert!(said.contains("stage 2 takes 24.0 MiB"), "{said}");
        assert!(said.contains("the limit is 16.0 MiB"), "{said}");
    }
}
