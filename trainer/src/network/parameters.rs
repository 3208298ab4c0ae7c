//! The weights as Burn's tensors, and the one place that knows how Burn hands out gradients.
//!
//! Weights are a list of flat tensors in the order of the architecture. Burn's modules, parameter
//! ids and gradient maps are not used: their ids differ between processes and their maps have no
//! order, while all ranks must agree on what each number of a gradient belongs to.
//!
//! On the CPU backend, taking a tensor's numbers out and putting them back copies nothing as long
//! as nothing else holds the tensor.

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData, Transaction};

/// The weights of a network.
#[derive(Debug, Clone)]
pub(crate) struct Parameters<B: AutodiffBackend> {
    tensors: Vec<Tensor<B::InnerBackend, 1>>,
    device: B::Device,
}

impl<B: AutodiffBackend> Parameters<B> {
    pub(crate) fn new(values: Vec<Vec<f32>>, device: &B::Device) -> Self {
        let tensors = values
            .into_iter()
            .map(|values| tensor::<B>(values, device))
            .collect();
        Self {
            tensors,
            device: device.clone(),
        }
    }

    /// The weights for computing without gradients.
    pub(crate) fn plain(&self) -> &[Tensor<B::InnerBackend, 1>] {
        &self.tensors
    }

    /// The weights as the leaves of one forward pass.
    pub(crate) fn leaves(&self) -> Vec<Tensor<B, 1>> {
        let leaf = |tensor: &Tensor<_, 1>| Tensor::from_inner(tensor.clone()).require_grad();
        self.tensors.iter().map(leaf).collect()
    }

    /// Writes the gradients of `objective` with regard to `leaves` into one flat buffer.
    pub(crate) fn gradient(leaves: Vec<Tensor<B, 1>>, objective: Tensor<B, 1>, flat: &mut [f32]) {
        let mut gradients = objective.backward();
        drop(objective);
        let mut present = Vec::with_capacity(leaves.len());
        let mut reads = Transaction::default();
        for leaf in leaves {
            let gradient = leaf.grad_remove(&mut gradients);
            present.push((leaf.shape().num_elements(), gradient.is_some()));
            if let Some(gradient) = gradient {
                reads = reads.register(gradient);
            }
        }
        let mut read = reads.execute().into_iter();
        let mut rest = flat;
        for (len, present) in present {
            let (part, tail) = rest.split_at_mut(len);
            rest = tail;
            match present.then(|| read.next()).flatten() {
                Some(data) => part.copy_from_slice(floats(&data)),
                None => part.fill(0.0),
            }
        }
    }

    /// Changes the weights in place: `change` gets each parameter's numbers, in order.
    pub(crate) fn update(&mut self, mut change: impl FnMut(usize, &mut [f32])) {
        let mut reads = Transaction::default();
        for tensor in self.tensors.drain(..) {
            reads = reads.register(tensor);
        }
        for (at, mut data) in reads.execute().into_iter().enumerate() {
            change(at, data.as_mut_slice().expect("parameters are f32"));
            self.tensors.push(Tensor::from_data(data, &self.device));
        }
    }

    /// The weights' numbers, parameter by parameter.
    pub(crate) fn values(&self) -> Vec<Vec<f32>> {
        let data = self.tensors.iter().map(|tensor| tensor.to_data());
        data.map(|data| floats(&data).to_vec()).collect()
    }
}

fn tensor<B: AutodiffBackend>(values: Vec<f32>, device: &B::Device) -> Tensor<B::InnerBackend, 1> {
    let shape = [values.len()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A tensor's numbers; both backends compute in `f32`.
pub(crate) fn floats(data: &TensorData) -> &[f32] {
    data.as_slice().expect("the backend computes in f32")
}
