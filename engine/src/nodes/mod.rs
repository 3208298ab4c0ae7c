//! Volley's own plan nodes, and marks that planning leaves in a plan.
//!
//! They describe; what training and prediction do is behind [`runtime`](crate::runtime).

pub(crate) mod one_task;
pub(crate) mod predict;
pub(crate) mod task;
pub(crate) mod train;
