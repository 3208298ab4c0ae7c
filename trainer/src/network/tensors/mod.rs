//! The network as Burn tensors, with a tape for the gradient: used on GPUs, and as a reference for the host's network.
//!
//! Weights, gradient and optimizer state stay on the device, each a flat tensor in the architecture's parameter order.
//! In a step, outputs come to the host, which computes the losses, and slopes go back. With several ranks the gradient
//! comes too, to be summed. Burn's modules, parameter ids and gradient maps are not used: ids differ between processes
//! and maps have no order, while all ranks must agree on the parameter that each number of a gradient belongs to.

mod constants;
mod forward;
mod update;

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};

use self::constants::{Constants, floats};
use self::forward::forward;
use super::graph::Value;
use super::{Architecture, Compute, Input, Parameter, Piece, Update, first_non_finite};
use crate::{Error, Result};

/// Network with its weights.
#[derive(Debug)]
pub(crate) struct Tensors<B: AutodiffBackend> {
    architecture: Architecture,
    constants: Constants<B::InnerBackend>,
    /// The same constants, for the taped backend.
    taped: Constants<B>,
    weights: Tensor<B::InnerBackend, 1>,
    /// Gradient, from its computation until it is consumed.
    gradient: Option<Tensor<B::InnerBackend, 1>>,
    /// 1 for each penalized weight, 0 for the others.
    penalized: Tensor<B::InnerBackend, 1>,
    device: B::Device,
}

impl<B: AutodiffBackend> Compute for Tensors<B> {
    type Device = B::Device;
    type Numbers = Tensor<B::InnerBackend, 1>;

    fn new(architecture: &Architecture, values: Vec<Vec<f32>>, device: &B::Device) -> Result<Self> {
        let parameters = architecture.parameters().iter();
        let penalized = parameters.flat_map(|parameter| {
            let penalized = f32::from(u8::from(parameter.penalized));
            std::iter::repeat_n(penalized, parameter.len())
        });
        Ok(Self {
            constants: Constants::new(architecture, device),
            taped: Constants::new(architecture, device),
            weights: flat(values.concat(), device),
            gradient: None,
            penalized: flat(penalized.collect(), device),
            architecture: architecture.clone(),
            device: device.clone(),
        })
    }

    fn predict(&mut self, input: Input) -> Result<Vec<f32>> {
        self.outputs(input, &[self.architecture.graph.output])
    }

    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>> {
        self.outputs(input, &self.architecture.graph.members)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        _: &mut [f32],
    ) -> Result<()> {
        let leaf = |tensor| Tensor::<B, 1>::from_inner(tensor).require_grad();
        let leaves: Vec<_> = self.parameters().map(leaf).collect();
        let (architecture, device) = (&self.architecture, &self.device);
        let members = &architecture.graph.members;
        let outputs = forward(architecture, &self.taped, &leaves, input, members, device);
        let slopes = slopes(&numbers(outputs.clone().inner())?);
        let slopes = flat::<B>(slopes, device);
        let mut gradients = (outputs * slopes).sum().backward();
        let parts = leaves.into_iter().map(|leaf| {
            let gradient = leaf.grad_remove(&mut gradients);
            gradient.unwrap_or_else(|| leaf.inner().zeros_like())
        });
        let gradient = Tensor::cat(parts.collect(), 0);
        self.gradient = match self.gradient.take().filter(|_| !piece.first) {
            Some(sum) => Some(sum + gradient),
            None => Some(gradient),
        };
        Ok(())
    }

    fn zero_gradient(&mut self, _: &mut [f32]) -> Result<()> {
        self.gradient = None;
        Ok(())
    }

    fn read_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        match &self.gradient {
            Some(gradient) => flat.copy_from_slice(&numbers(gradient.clone())?),
            None => flat.fill(0.0),
        }
        Ok(())
    }

    fn write_gradient(&mut self, flat: &[f32]) -> Result<()> {
        self.gradient = Some(self.upload(flat.to_vec())?);
        Ok(())
    }

    fn non_finite_gradient(&mut self, _: &[f32]) -> Result<Option<f64>> {
        let Some(gradient) = &self.gradient else {
            return Ok(None);
        };
        // x − x is 0 if x is finite, and NaN otherwise.
        let left = numbers((gradient.clone() - gradient.clone()).sum())?;
        Ok(match left == [0.0] {
            true => None,
            false => first_non_finite(&numbers(gradient.clone())?),
        })
    }

    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Self::Numbers],
        _: &mut [f32],
    ) -> Result<()> {
        let gradient = self.gradient.take();
        let gradient = gradient.unwrap_or_else(|| self.weights.zeros_like());
        let gradient = update::clipped(update, gradient);
        update::apply(update, &self.penalized, &mut self.weights, gradient, slots);
        Ok(())
    }

    fn upload(&self, numbers: Vec<f32>) -> Result<Self::Numbers> {
        Ok(flat(numbers, &self.device))
    }

    fn download(tensor: Self::Numbers) -> Result<Vec<f32>> {
        numbers(tensor)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        let all = numbers(self.weights.clone())?;
        let mut rest = all.as_slice();
        let parameters = self.architecture.parameters().iter();
        let values = parameters.map(|parameter| {
            let (own, others) = rest.split_at(parameter.len());
            rest = others;
            own.to_vec()
        });
        Ok(values.collect())
    }

    fn put(&mut self, values: &[Vec<f32>]) -> Result<()> {
        self.weights = self.upload(values.concat())?;
        Ok(())
    }
}

impl<B: AutodiffBackend> Tensors<B> {
    /// Returns the weights, parameter by parameter.
    fn parameters(&self) -> impl Iterator<Item = Tensor<B::InnerBackend, 1>> {
        let lengths = self.architecture.parameters().iter().map(Parameter::len);
        lengths.scan(0, |end, len| {
            let start = *end;
            *end += len;
            Some(self.weights.clone().slice(start..*end))
        })
    }

    /// Computes these values of a batch, side by side.
    fn outputs(&self, input: Input, values: &[Value]) -> Result<Vec<f32>> {
        let parameters: Vec<_> = self.parameters().collect();
        let (architecture, device) = (&self.architecture, &self.device);
        numbers(forward(
            architecture,
            &self.constants,
            &parameters,
            input,
            values,
            device,
        ))
    }
}

fn flat<B: burn::tensor::backend::Backend>(numbers: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let len = numbers.len();
    floats(numbers, [len], device)
}

/// Copies a tensor's numbers to host memory; all backends compute in `f32`.
///
/// # Errors
/// When the device has failed in what is computed up to here.
fn numbers<B: burn::tensor::backend::Backend>(tensor: Tensor<B, 1>) -> Result<Vec<f32>> {
    let device = tensor.device();
    let data: TensorData = tensor
        .try_into_data()
        .map_err(|error| Error::DeviceFailed {
            device: format!("{device:?}"),
            what: "compute".into(),
            reason: error.to_string(),
        })?;
    Ok(data.into_vec().expect("the backend computes in f32"))
}
