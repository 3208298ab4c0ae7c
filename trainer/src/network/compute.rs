//! What training needs of whatever computes the network: values in, numbers out.

use std::fmt;

use super::plan::Resident;
use super::{Architecture, Mask, Update};
use crate::Result;

/// A batch as the network takes it, in host memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    pub(crate) rows: usize,
    /// Rows of the embedding table, `[B × C]`.
    pub(crate) codes: Vec<u32>,
    /// Normalised where there is batch norm, `[B × N]`.
    pub(crate) continuous: Vec<f32>,
    /// What each [`Dropout`](super::Dropout) multiplies by, `[B × W]` of its width W, if by anything.
    pub(crate) dropout: Vec<Option<Mask>>,
}

/// Which micro-batch of a step a gradient is of: they are computed one after the other, and their gradients accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

impl Piece {
    /// All rows at once.
    pub(crate) const WHOLE: Self = Self {
        first: true,
        last: true,
    };
}

/// A network's weights, where they are, and what computes with them.
///
/// Gradients are where the weights are. Of weights in host memory that is a flat buffer, parameter after parameter unless rows
/// are [picked](Sparse::pick), which is handed in as `flat`: what ranks exchange. A device's is kept there, and `flat` is not touched but where it is
/// [read](Self::read_gradient) and [written](Self::write_gradient).
///
/// # Errors
/// Each call fails when a device has failed or has no more memory; its contents may be lost then.
pub(crate) trait Compute {
    /// Where it computes.
    type Device;

    /// A number of each weight, parameter after parameter, where the weights are.
    type Numbers: Clone + fmt::Debug;

    /// The network with these weights, parameter by parameter.
    ///
    /// # Errors
    /// When a device has no memory for it.
    fn new(
        architecture: &Architecture,
        values: Vec<Vec<f32>>,
        device: &Self::Device,
    ) -> Result<Self>
    where
        Self: Sized;

    /// The network's outputs, `[B × K]`; of an ensemble, the mean of its members'.
    fn predict(&mut self, input: Input) -> Result<Vec<f32>>;

    /// The outputs of each of the M members, `[B × M·K]`.
    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>>;

    /// Computes the gradient of Σ slope·output over a micro-batch, and accumulates it over those of a step.
    /// `slopes` gets the outputs of each of the M members, `[B × M·K]`, and returns a slope for each.
    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        flat: &mut [f32],
    ) -> Result<()>;

    /// The gradient of no rows: zeros.
    fn zero_gradient(&mut self, flat: &mut [f32]) -> Result<()>;

    /// Sees that the gradient is in `flat`.
    fn read_gradient(&mut self, flat: &mut [f32]) -> Result<()>;

    /// Sees that the gradient is the one in `flat`.
    fn write_gradient(&mut self, flat: &[f32]) -> Result<()>;

    /// The first number of the gradient that is not finite.
    fn non_finite_gradient(&mut self, flat: &[f32]) -> Result<Option<f64>>;

    /// Changes the weights by their gradient, which is used up. `slots` is what the optimizer keeps of each weight.
    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Self::Numbers],
        flat: &mut [f32],
    ) -> Result<()>;

    /// Brings numbers of each weight to where the weights are.
    fn upload(&self, numbers: Vec<f32>) -> Result<Self::Numbers>;

    /// Brings them back to host memory.
    fn download(numbers: Self::Numbers) -> Result<Vec<f32>>;

    /// The weights' numbers, parameter by parameter.
    fn values(&self) -> Result<Vec<Vec<f32>>>;

    /// Puts weights in, parameter by parameter.
    fn put(&mut self, values: &[Vec<f32>]) -> Result<()>;

    /// Gradients that have rows of tables, where it can compute them.
    fn sparse(&mut self) -> Option<&mut dyn Sparse<Self::Numbers>> {
        None
    }

    /// Steps over rows that lie where the weights are, where it can take them by itself.
    fn resident(&mut self) -> Option<&mut dyn Resident<Self::Numbers>> {
        None
    }
}

/// Steps whose gradients have, of tables, the rows that their data picks.
pub(crate) trait Sparse<Numbers> {
    /// Picks the rows of a step by their codes: each list has those of rows of data. Brings them up to date. `slots` is what
    /// the optimizer keeps. Returns the length of the gradient until others are picked: weights that are in no table come
    /// first.
    ///
    /// # Panics
    /// If a code is not of its feature.
    fn pick(&mut self, codes: &[Vec<u32>], slots: &mut [Numbers]) -> usize;

    /// Brings all rows up to date, and the gradient back to all weights. Weights are not what they are before.
    fn catch_up(&mut self, slots: &mut [Numbers]);
}
