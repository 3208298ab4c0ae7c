//! Random numbers that are the same on every platform.
//!
//! Only additions, multiplications and divisions of `f64` are used here and by everything that
//! draws from here: unlike `exp` or `sin`, they round the same way everywhere.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers, one of many that a seed has.
#[derive(Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    /// Streams of one seed are independent: more draws from one change nothing in another.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// Uniform in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `low..high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count - 1)
    }

    /// Mean 0, variance 1, nearly normal: the sum of four uniform numbers.
    pub(super) fn bell(&mut self) -> f64 {
        const SQRT_3: f64 = 1.732_050_807_568_877_2;
        (self.unit() + self.unit() + self.unit() + self.unit() - 2.0) * SQRT_3
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of `choices`, each as likely as its weight.
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

    /// `count` of `0..of`, in ascending order.
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
