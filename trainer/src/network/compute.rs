//! What training needs of whatever computes the network: values in, numbers out.

use super::Architecture;

/// A batch as the network takes it, in host memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    pub(crate) rows: usize,
    /// Rows of the embedding table, `[B × C]`.
    pub(crate) codes: Vec<u32>,
    /// Normalised where there is batch norm, `[B × N]`.
    pub(crate) continuous: Vec<f32>,
    /// What each [`Dropout`](super::Dropout) multiplies by, `[B × W]` of its width W, if by anything.
    pub(crate) dropout: Vec<Option<Vec<f32>>>,
}

impl Input {
    /// What a dropout multiplies by, if by anything.
    pub(crate) fn mask(&self, at: usize) -> Option<&[f32]> {
        self.dropout.get(at)?.as_deref()
    }
}

/// A network's weights, where they are, and what computes with them.
pub(crate) trait Compute {
    /// Where it computes.
    type Device;

    /// The network with these weights, parameter by parameter.
    fn new(architecture: &Architecture, values: Vec<Vec<f32>>, device: &Self::Device) -> Self;

    /// The network's outputs, `[B × K]`; of an ensemble, the mean of its members'.
    fn predict(&mut self, input: Input) -> Vec<f32>;

    /// The outputs of each of the M members, `[B × M·K]`.
    fn predict_by_member(&mut self, input: Input) -> Vec<f32>;

    /// Writes the gradient of Σ slope·output over the batch into `flat`, parameter after parameter. `slopes` gets the
    /// outputs of each of the M members, `[B × M·K]`, and returns a slope for each.
    fn gradient(&mut self, input: Input, slopes: impl FnOnce(&[f32]) -> Vec<f32>, flat: &mut [f32]);

    /// Changes the weights in place: `change` gets each parameter's numbers, in order.
    fn update(&mut self, change: impl FnMut(usize, &mut [f32]));

    /// The weights' numbers, parameter by parameter.
    fn values(&self) -> Vec<Vec<f32>>;
}
