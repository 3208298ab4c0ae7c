//! A trained model: its files, predictions from them, and explanations.
//!
//! The manifest beside the files belongs to the store; here it says what the files must hold. Prediction computes on
//! the CPU or through an [`Accelerator`] on a GPU, explanation on the CPU, whatever the model was trained on. A model
//! may also provide the initial weights of another training.

mod accelerator;
mod explain;
mod files;
#[cfg(test)]
mod fuzz;
mod predict;
mod sound;
mod warm;

pub use accelerator::{AcceleratedModel, Accelerator};
pub use files::{VOCABULARIES, WEIGHTS};
pub(crate) use files::{encode_vocabularies, encode_weights};
pub use predict::Model;
pub(crate) use warm::Successor;

#[cfg(test)]
mod tests;
