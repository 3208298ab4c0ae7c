//! Training as a whole, in worlds of several ranks.

mod failures;
mod gradient;
mod learning;
mod speed;
mod worlds;

use crate::network::{Parameter, Start};

/// A parameter for the optimizer.
pub(super) fn parameter(len: usize, penalized: bool) -> Parameter {
    let start = Start::Constant(0.0);
    Parameter {
        name: "w".into(),
        shape: vec![len],
        start,
        penalized,
    }
}
