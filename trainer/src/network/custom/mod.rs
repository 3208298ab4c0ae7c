//! Layers that users implement: their traits, and the registry that an executor's binary fills.
//!
//! ```text
//!  custom('rbf', 16) ──CustomLayers──▶ CustomLayer::build(width, [16]) ──▶ CustomOperation: forward, backward
//! ```
//!
//! They compute on the CPU, with a hand-written forward and backward pass like [`host`](super::host)'s own operations;
//! beside a GPU that computes the rest of the network, in [calls](super::plan) between its kernels.
//! Their place in a network, and the names of their parameters there, are the [graph](super::graph)'s.
//!
//! Shapes: B rows, at least one; F input and W output numbers per row; tensors are row-major.

mod check;
mod registry;

use std::error::Error;
use std::fmt;

pub use check::check_layer;
pub(crate) use registry::Custom;
pub use registry::CustomLayers;

use super::Parameter;

/// Factory of the layer `custom('name', argument, …)` in a network.
///
/// [`check_layer`] tests one.
pub trait CustomLayer: fmt::Debug + Send + Sync {
    /// Builds the operation for rows of `width` numbers, F, with the arguments that follow the layer's name.
    ///
    /// It must depend on these alone: each rank builds one, and so does each executor that predicts.
    ///
    /// # Errors
    /// When the width or the arguments are invalid. The message is shown to the user.
    fn build(
        &self,
        width: usize,
        arguments: &[f64],
    ) -> Result<Box<dyn CustomOperation>, Box<dyn Error + Send + Sync>>;
}

/// Operation of a layer, for one width and one list of arguments.
///
/// Each row's output must be deterministic and depend on that row and the parameters alone: the split of rows into
/// batches and ranks must not matter. Threads share an operation.
pub trait CustomOperation: fmt::Debug + Send + Sync {
    /// Returns the output width W, in numbers per row: at least 1.
    fn width(&self) -> usize;

    /// Returns the trainable parameters, in the order in which the methods receive them. Names are unique and consist
    /// of letters, digits and `_`; checkpoints and `weights.safetensors` store them as `custom.0.rbf.NAME`.
    fn parameters(&self) -> Vec<Parameter> {
        vec![]
    }

    /// Writes the output, `[B × W]`, into `y`, which is 0 before.
    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]);

    /// Computes, from the gradient `dy` by the output, the gradient `dx` by the input and, if they are wanted, the
    /// `gradients` by the parameters: each a sum over the rows, in its parameter's shape. `y` is the output of
    /// [`forward`](Self::forward). Buffers to write are 0 before.
    ///
    /// Shapes: `y` and `dy` are `[B × W]`, `dx` is `[B × F]`.
    fn backward(
        &self,
        batch: CustomBatch<'_>,
        y: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        gradients: Option<&mut [&mut [f32]]>,
    );
}

/// Input batch of an operation.
#[derive(Debug, Clone, Copy)]
pub struct CustomBatch<'a> {
    /// Rows, B.
    pub rows: usize,
    /// Input, `[B × F]`.
    pub x: &'a [f32],
    /// Parameters of the operation, in their order.
    pub parameters: &'a [Vec<f32>],
}
