//! Volley's own plan nodes, and marks that planning leaves in a plan.
//!
//! They only describe; [`runtime`](crate::runtime) runs training and prediction.

pub(crate) mod kept;
mod methods;
pub(crate) mod one_task;
pub(crate) mod predict;
pub(crate) mod prepared;
pub(crate) mod result;
pub(crate) mod train;
