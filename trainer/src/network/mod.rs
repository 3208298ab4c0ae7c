//! The network: its parameters' layout, how they start, and what it computes of a batch.
//!
//! ```text
//!  codes ──▶ embedding ──┐
//!                        ├─▶ dense + ReLU ─▶ … ─▶ dense + ReLU ─▶ dropout ─▶ output ─▶ activation
//!  numbers ─▶ x̂ ─▶ γ·x̂+β ┘
//! ```
//!
//! [`Architecture`] is arithmetic on sizes; [`forward`](forward::forward) is generic over Burn's
//! backends; [`norm`] is batch norm's statistics, on the host, since its input is raw data that no
//! gradient flows into; [`Parameters`] is the one place that knows how Burn hands out gradients.
//! Training order, losses and files are elsewhere.

mod architecture;
mod forward;
mod norm;
mod parameters;

pub(crate) use architecture::{Architecture, Parameter, Start};
pub(crate) use forward::{Input, forward};
pub(crate) use norm::{Moments, Normalization};
pub(crate) use parameters::{Parameters, floats};
