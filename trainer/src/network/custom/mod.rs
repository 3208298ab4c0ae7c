//! Layers that users implement: traits for them, and the registry that an executor's binary fills.
//!
//! ```text
//!  custom('rbf', 16) ──CustomLayers──▶ CustomLayer::build(width, [16]) ──▶ CustomOperation: forward, backward
//! ```
//!
//! They compute on the CPU, forward and backward written out, as [`host`](super::host)'s own operations are. Not here:
//! where they stand in a network's [graph](super::graph), which names their parameters.
//!
//! Shapes: B rows, at least one; F numbers of a row enter and W are put out; tensors are row-major.

mod check;
mod registry;

use std::error::Error;
use std::fmt;

pub use check::check_layer;
pub(crate) use registry::Custom;
pub use registry::CustomLayers;

use super::Parameter;

/// A layer: what `custom('name', argument, …)` in a network is made by.
///
/// [`check_layer`] tests one.
pub trait CustomLayer: fmt::Debug + Send + Sync {
    /// The operation on rows of `width` numbers, F, with the arguments that follow the layer's name.
    ///
    /// It must depend on these alone: each rank makes one, and so does each executor that predicts.
    ///
    /// # Errors
    /// What is wrong with the width or the arguments. The user is told.
    fn build(
        &self,
        width: usize,
        arguments: &[f64],
    ) -> Result<Box<dyn CustomOperation>, Box<dyn Error + Send + Sync>>;
}

/// What a layer computes, for one width and one list of arguments.
///
/// Each row's output must depend on that row and the parameters alone, and be the same each time: how rows are spread
/// over batches and ranks must not matter. Threads share an operation.
pub trait CustomOperation: fmt::Debug + Send + Sync {
    /// Numbers of a row that it puts out, W: at least 1.
    fn width(&self) -> usize;

    /// Its trainable parameters, in the order in which its methods get them. Names are letters, digits and `_`, each
    /// once; checkpoints and `weights.safetensors` have them as `custom.0.rbf.NAME`.
    fn parameters(&self) -> Vec<Parameter> {
        vec![]
    }

    /// Writes the output, `[B × W]`, into `y`, which is 0 before.
    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]);

    /// From the gradient by the output, `dy`, that by the input, `dx`, and those by the parameters, if they are
    /// wanted: each a sum over the rows, of its parameter's shape. `y` is what [`forward`](Self::forward) has written.
    /// What is to be written is 0 before.
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

/// What an operation computes from.
#[derive(Debug, Clone, Copy)]
pub struct CustomBatch<'a> {
    /// Rows, B.
    pub rows: usize,
    /// What enters, `[B × F]`.
    pub x: &'a [f32],
    /// The operation's parameters, in their order.
    pub parameters: &'a [Vec<f32>],
}
