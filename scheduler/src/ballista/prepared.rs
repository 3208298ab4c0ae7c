//! Trainings whose rows executors keep: they are planned without their query.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use sha2::{Digest, Sha256};
use volley_engine::{PreparedExec, TrainExec, rows_identity};

use super::demands::gang;
use crate::handle::Control;

/// Replaces the query of a training by its prepared rows, if there are any; else has executors keep the rows. Returns
/// other plans unchanged, trainings whose rows may be others each time, and those without an owner.
///
/// # Errors
/// When the query cannot be sent.
pub(super) fn with_prepared_rows(
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
