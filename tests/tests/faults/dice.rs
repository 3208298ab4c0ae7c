//! Random draws that the same seed repeats.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Stream of random numbers.
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    /// Creates a stream; streams of one seed are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// Draws uniformly from `0..count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    /// Draws uniformly up to `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64((self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// Draws one of the choices.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
