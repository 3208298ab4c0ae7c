//! The interface between training and the code that computes the network: values in, numbers out.

use std::fmt;
use std::ops::{DerefMut, Range};

use super::plan::Resident;
use super::{Architecture, Mask, Update};
use crate::Result;

/// Input batch of the network, in host memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    pub(crate) rows: usize,
    /// Row indices into the embedding table, `[B × C]`.
    pub(crate) codes: Vec<u32>,
    /// Numeric input, normalised where there is batch norm, `[B × N]`.
    pub(crate) continuous: Vec<f32>,
    /// Mask of each [`Dropout`](super::Dropout), `[B × W]` with its width W, if it is applied.
    pub(crate) dropout: Vec<Option<Mask>>,
}

/// Position of a micro-batch in its step: micro-batches are computed in sequence and their gradients accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

impl Piece {
    /// All rows of a step, as one micro-batch.
    pub(crate) const WHOLE: Self = Self {
        first: true,
        last: true,
    };
}

/// A network's weights, in the memory of the device that computes with them.
///
/// Gradients are kept with the weights. In host memory the gradient is `flat`, a buffer that the caller passes in and
/// that ranks exchange: parameter after parameter, unless rows are [picked](Sparse::pick). A device keeps its gradient,
/// and touches `flat` only to [read](Self::read_gradient) and [write](Self::write_gradient) it.
///
/// # Errors
/// Each call fails when a device has failed or is out of memory; its contents may be lost then.
pub(crate) trait Compute {
    /// Device that computes.
    type Device;

    /// One number per weight, parameter after parameter, in the weights' memory.
    type Numbers: Clone + fmt::Debug;

    /// Creates the network with these weights, parameter by parameter.
    ///
    /// # Errors
    /// When the device is out of memory.
    fn new(
        architecture: &Architecture,
        values: Vec<Vec<f32>>,
        device: &Self::Device,
    ) -> Result<Self>
    where
        Self: Sized;

    /// Returns the network's outputs, `[B × K]`: for an ensemble, the mean over its members.
    fn predict(&mut self, input: Input) -> Result<Vec<f32>>;

    /// Returns the outputs of each of the M members, `[B × M·K]`.
    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>>;

    /// Computes the gradient of Σ slope·output over a micro-batch, and accumulates it over the micro-batches of a step.
    /// `slopes` gets the outputs of each of the M members, `[B × M·K]`, and returns a slope for each.
    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        flat: &mut [f32],
    ) -> Result<()>;

    /// Returns the buckets of the gradient in `flat`, which [`gradient_in_buckets`](Self::gradient_in_buckets) completes
    /// in this order; none, if it is not supported. They depend on nothing but the architecture and the picked rows. A
    /// device reserves host memory for them at the first call.
    fn buckets(&mut self) -> Vec<Range<usize>> {
        vec![]
    }

    /// Returns true if a device computes buckets, and leaves the processor to their sums.
    fn leaves_processor(&self) -> bool {
        false
    }

    /// Computes the [`gradient`](Self::gradient) of a step's last micro-batch in its [`buckets`](Self::buckets), and
    /// hands over each as soon as it is complete. Each has at least the numbers of its range; others at its end stay.
    fn gradient_in_buckets<B: DerefMut<Target = [f32]>>(
        &mut self,
        _input: Input,
        _slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        _piece: Piece,
        _buckets: Vec<B>,
        _done: &mut dyn FnMut(B),
    ) -> Result<()> {
        unreachable!("it has no buckets")
    }

    /// Sets the gradient to zero, as for a batch without rows.
    fn zero_gradient(&mut self, flat: &mut [f32]) -> Result<()>;

    /// Ensures that `flat` holds the gradient.
    fn read_gradient(&mut self, flat: &mut [f32]) -> Result<()>;

    /// Sets the gradient to `flat`.
    fn write_gradient(&mut self, flat: &[f32]) -> Result<()>;

    /// Returns the first non-finite number of the gradient.
    fn non_finite_gradient(&mut self, flat: &[f32]) -> Result<Option<f64>>;

    /// Updates the weights by their gradient, which is consumed. `slots` is the optimizer state of each weight.
    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Self::Numbers],
        flat: &mut [f32],
    ) -> Result<()>;

    /// Copies one number per weight to the weights' memory.
    fn upload(&self, numbers: Vec<f32>) -> Result<Self::Numbers>;

    /// Copies them back to host memory.
    fn download(numbers: Self::Numbers) -> Result<Vec<f32>>;

    /// Returns the weights, parameter by parameter.
    fn values(&self) -> Result<Vec<Vec<f32>>>;

    /// Replaces the weights, parameter by parameter.
    fn put(&mut self, values: &[Vec<f32>]) -> Result<()>;

    /// Returns the interface for sparse table gradients, if it is supported.
    fn sparse(&mut self) -> Option<&mut dyn Sparse<Self::Numbers>> {
        None
    }

    /// Returns the interface for steps over rows in the weights' memory, if it is supported.
    fn resident(&mut self) -> Option<&mut dyn Resident<Self::Numbers>> {
        None
    }
}

/// Steps whose table gradients have only the rows that their data picks.
pub(crate) trait Sparse<Numbers> {
    /// Picks the table rows of a step by their codes, each list those of some data rows, and brings them up to date.
    /// `slots` is the optimizer state. Returns the length of the gradient until the next pick: weights outside tables
    /// come first.
    ///
    /// # Panics
    /// If a code is outside its feature's vocabulary.
    fn pick(&mut self, codes: &[Vec<u32>], slots: &mut [Numbers]) -> usize;

    /// Brings all rows up to date and restores the full gradient. After a `pick`, weights are not valid until this
    /// call.
    fn catch_up(&mut self, slots: &mut [Numbers]);
}
