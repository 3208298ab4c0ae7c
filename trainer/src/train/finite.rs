//! Check for divergence: a loss, a gradient or a weight that is not finite.
//!
//! Each rank checks numbers that have the same bits on all ranks: the all-reduced loss and gradient, and the
//! weights. So all ranks reach the same answer at the same step, without another collective. A diverged state
//! is neither kept as a checkpoint nor published.

use super::fit::Fit;
use crate::network::{Compute, first_non_finite};
use crate::{Error, Result};

impl<C: Compute> Fit<'_, C> {
    /// Checks that the weights and statistics are finite, so that the state may be kept.
    pub(super) fn check_weights(&self) -> Result<()> {
        let weights = self.weights()?;
        let running = &weights.running;
        let mut statistics = running.mean.iter().chain(&running.variance);
        let found = weights.values.iter().find_map(|of| first_non_finite(of));
        match found.or_else(|| statistics.find(|x| !x.is_finite()).copied()) {
            None => Ok(()),
            Some(value) => Err(self.diverged("a weight", value)),
        }
    }

    /// Returns the error of a non-finite number, at this step.
    pub(super) fn diverged(&self, what: &'static str, value: f64) -> Error {
        Error::Diverged {
            position: self.position,
            what,
            value,
        }
    }
}
