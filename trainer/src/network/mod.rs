//! The network: parameter layout, initial values, forward and backward pass.
//!
//! ```text
//!  spec: Network ──▶ Graph: operations, parameters ──▶ Host     CPU: hand-written forward and backward, on matmul
//!                                                  └──▶ Tensors  GPU: forward on Burn, which derives backward
//! ```
//!
//! [`Architecture`] and its [`Graph`](graph::Graph) are arithmetic on sizes, derived from
//! [the spec's description](volley_proto::spec::Network). The implementations that compute them are behind [`Compute`].
//! [`norm`] computes batch norm's statistics on the host, since its input is raw data without a gradient. [`custom`] is
//! for layers that users implement. Training order, losses and files are elsewhere.

mod architecture;
mod attribution;
mod compute;
mod custom;
mod finite;
mod graph;
mod host;
mod mask;
pub(crate) mod matmul;
mod norm;
mod outputs;
mod plan;
#[cfg(any(test, feature = "cuda", feature = "wgpu"))]
mod tensors;
mod update;

pub(crate) use architecture::{Architecture, Sizes, Table};
pub use architecture::{Initializer, Parameter};
pub(crate) use attribution::{Attributions, attribute};
pub(crate) use compute::{Compute, Input, Piece, Sparse};
pub use custom::{CustomBatch, CustomLayer, CustomLayers, CustomOperation, check_layer};
pub(crate) use finite::first_non_finite;
pub(crate) use graph::Dropout;
pub(crate) use host::{Host, HostDevice, Scratch, is_linear, predict};
pub(crate) use mask::Mask;
pub(crate) use matmul::{Epilogue, Matrix, Workspace};
pub(crate) use norm::{Moments, Normalization};
pub(crate) use outputs::{likeliest, probabilities, rearrange, sigmoid};
pub(crate) use plan::{
    AllRows, EpochRows, Gathered, Inference, Objective, Part, Plan, PlanDevice, RowSource, RowsMut,
    ShardRows, StepTotal, uncovered, unexplained,
};
#[cfg(any(test, feature = "cuda", feature = "wgpu"))]
pub(crate) use tensors::Tensors;
pub(crate) use update::Update;
