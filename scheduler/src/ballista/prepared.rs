//! Trainings whose rows executors keep: they are planned without their query.

use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use sha2::{Digest, Sha256};
use volley_engine::{PreparedExec, TrainExec, rows_identity};

use super::demands::gang;
use crate::control::{Controller, Topic};
use crate::handle::Control;

/// Time in which the controller is told of a job that is being planned. A plan that no client of Volley's has submitted
/// has no job.
const TOLD: Duration = Duration::from_secs(1);

/// Replaces the query of a training by its prepared rows, if there are any; else has executors keep the rows. Returns
/// other plans unchanged, trainings whose rows may be others each time, and those without an owner.
///
/// # Errors
/// When the query cannot be sent.
pub(super) async fn with_prepared_rows(
    physical: Arc<dyn ExecutionPlan>,
    logical: &LogicalPlan,
    (control, session): (&Control, &dyn Session),
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(train) = physical.downcast_ref::<TrainExec>() else {
        return Ok(physical);
    };
    let Some(identity) = rows_identity(train, logical, session.config_options())? else {
        return Ok(physical);
    };
    let (spec, fingerprint) = (train.spec(), Sha256::digest(&identity).into());
    let wanted = (fingerprint, spec.shards);
    // Rows belong to the job's owner, and Ballista plans a job while the controller is told of it.
    let known = |control: &Controller| control.job_of_run(spec.train_id).map(|_| ());
    let told = control.wait(Topic::Run(spec.train_id), TOLD, known);
    told.await;
    let prepared = control.ask(|control, now| control.prepare(&gang(spec), wanted, now));
    let Some((id, rows)) = prepared else {
        return Ok(physical);
    };
    let input: Arc<dyn ExecutionPlan> = match rows {
        Some(rows) => Arc::new(PreparedExec::new(id, rows, train.input().schema())),
        None => Arc::clone(train.input()),
    };
    Ok(Arc::new(train.preparing(id, input)))
}
