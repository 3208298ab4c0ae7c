//! Random numbers that are the same on every platform.
//!
//! This module and its callers use only additions, multiplications and divisions of `f64`: unlike `exp` or `sin`,
//! these round the same way on every platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Stream of random numbers, one of many for the same seed.
#[derive(Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    /// Creates a stream. Streams of one seed are independent: more draws from one change nothing in another.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// Draws uniformly from 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws uniformly from `low..high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Draws uniformly from `0..count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count - 1)
    }

    /// Draws with mean 0 and variance 1, nearly normal: the sum of four uniform numbers.
    pub(super) fn bell(&mut self) -> f64 {
        const SQRT_3: f64 = 1.732_050_807_568_877_2;
        (self.unit() + self.unit() + self.unit() + self.unit() - 2.0) * SQRT_3
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws one of `choices`, with probabilities proportional to the weights.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[(T, u32)]) -> T {
        let total: u32 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.below(total as usize) as u32;
        for &(choice, weight) in choices {
            if left < weight {
                return choice;
            }
            left -= weight;
        }
        choices[choices.len() - 1].0
    }

    /// Draws `count` numbers of `0..of` without repetition, in ascending order.
    pub(super) fn sample(&mut self, of: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        for place in 0..count {
            all.swap(place, place + self.below(of - place));
        }
        all.truncate(count);
        all.sort_unstable();
        all
    }
}
