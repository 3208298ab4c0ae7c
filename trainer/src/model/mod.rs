//! A trained model: its files, prediction from them, and why.
//!
//! The manifest beside the files is the store's; here it says what the files must hold. Prediction
//! computes on the CPU, whatever the model was trained on. A model may also lend its weights to the
//! start of another training.

mod explain;
mod files;
#[cfg(test)]
mod fuzz;
mod predict;
mod sound;
mod warm;

pub use files::{VOCABULARIES, WEIGHTS};
pub(crate) use files::{encode_vocabularies, encode_weights};
pub use predict::Model;
pub(crate) use warm::Successor;

#[cfg(test)]
mod tests;
