//! A trained model: its files, predictions from them, and explanations.
//!
//! The manifest beside the files belongs to the store; here it says what the files must hold. Prediction computes on
//! the CPU, whatever the model was trained on; on a GPU, an [`Accelerator`](crate::Accelerator) computes outputs and
//! attributions. A model may also provide the initial weights of another training.

mod explain;
mod files;
#[cfg(test)]
mod fuzz;
mod predict;
mod sound;
mod warm;

pub(crate) use explain::{EXPLAINED, Explanation};
pub use files::{VOCABULARIES, WEIGHTS};
pub(crate) use files::{encode_vocabularies, encode_weights};
pub(crate) use predict::BATCH;
pub use predict::Model;
pub(crate) use warm::{Inherited, Successor};

#[cfg(test)]
mod tests;
