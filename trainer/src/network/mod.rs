//! The network: its parameters' layout, how they start, and what it computes of a batch.
//!
//! ```text
//!  codes ──▶ embedding ──┐
//!                        ├─▶ dense + ReLU + dropout ─▶ … ─▶ output ─▶ + ─▶ activation
//!  numbers ─▶ x̂ ─▶ γ·x̂+β ┘                                          │
//!  codes, x̂ ─▶ linear ───────────────────────────────────────────────┘
//! ```
//!
//! Either of the two ways may be missing.
//!
//! [`Architecture`] is arithmetic on sizes. What computes it is behind [`Compute`]: on the CPU
//! [`Host`], written out by hand on [`matmul`]; on a GPU [`Tensors`](tensors::Tensors), on Burn. [`norm`] is batch
//! norm's statistics, on the host, since its input is raw data that no gradient flows into. Training
//! order, losses and files are elsewhere.

mod architecture;
mod attribution;
mod compute;
mod host;
mod linear;
mod matmul;
mod norm;
#[cfg(any(test, feature = "cuda"))]
mod tensors;

pub(crate) use architecture::{Architecture, Parameter, Sizes, Start};
pub(crate) use attribution::attribute;
pub(crate) use compute::{Compute, Input};
pub(crate) use host::{Host, Scratch, predict};
pub(crate) use matmul::{Epilogue, Matrix, Workspace};
pub(crate) use norm::{Moments, Normalization};
#[cfg(any(test, feature = "cuda"))]
pub(crate) use tensors::Tensors;
