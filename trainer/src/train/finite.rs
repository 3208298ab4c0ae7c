//! Whether training has diverged: into a loss, a gradient or a weight that is not finite.
//!
//! Each rank looks for itself, at numbers whose bits all have: the loss and the gradient as the ranks' all-reduce has
//! brought them, and the weights. So all come to the same answer, at the same step, without another
//! collective. What has diverged is neither kept as a checkpoint nor published.

use super::fit::Fit;
use crate::network::Compute;
use crate::{Error, Result};

/// Numbers that are looked at without a branch for each, in as many lanes as there are.
const CHUNK: usize = 1024;

/// The first non-finite number.
pub(super) fn first_non_finite(numbers: &[f32]) -> Option<f64> {
    let is_sound = |chunk: &[f32]| chunk.iter().fold(true, |all, x| all & x.is_finite());
    let chunk = numbers.chunks(CHUNK).find(|chunk| !is_sound(chunk))?;
    let found = chunk.iter().find(|x| !x.is_finite())?;
    Some(f64::from(*found))
}

impl<C: Compute> Fit<'_, C> {
    /// Checks that the state may be kept.
    pub(super) fn check_weights(&self) -> Result<()> {
        let weights = self.weights();
        let running = &weights.running;
        let mut statistics = running.mean.iter().chain(&running.variance);
        let found = weights.values.iter().find_map(|of| first_non_finite(of));
        match found.or_else(|| statistics.find(|x| !x.is_finite()).copied()) {
            None => Ok(()),
            Some(value) => Err(self.diverged("a weight", value)),
        }
    }

    /// The error of a non-finite number, at this step.
    pub(super) fn diverged(&self, what: &'static str, value: f64) -> Error {
        Error::Diverged {
            position: self.position,
            what,
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_found_wherever_it_stands() {
        for len in [0, 1, CHUNK, 3 * CHUNK + 7] {
            let mut numbers = vec![f32::MAX; len];
            assert_eq!(first_non_finite(&numbers), None);
            for at in [0, len / 2, len.saturating_sub(1)] {
                let Some(number) = numbers.get_mut(at) else {
                    continue;
                };
                *number = f32::NEG_INFINITY;
                assert_eq!(first_non_finite(&numbers), Some(f64::NEG_INFINITY));
                numbers[at] = f32::NAN;
                assert!(first_non_finite(&numbers).is_some_and(f64::is_nan));
                numbers[at] = 0.0;
            }
        }
    }
}
