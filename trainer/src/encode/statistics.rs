//! Statistics of a column's numbers: how many, their range, mean and spread, in one pass and over parts.
//!
//! Parts are merged in the order of their shards, so that the result has the same bits whichever rank had which.
//! Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".

use serde::{Deserialize, Serialize};

/// Of numbers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Statistics {
    /// Numbers.
    pub(crate) known: u64,
    /// Rows that have none.
    pub(crate) nulls: u64,
    pub(crate) mean: f64,
    /// Σ(x − mean)².
    pub(crate) squares: f64,
    /// The least and the greatest.
    pub(crate) range: Option<[f64; 2]>,
}

impl Statistics {
    /// Counts a number, or a null, which is not one.
    pub(crate) fn add(&mut self, x: f32) {
        if x.is_nan() {
            self.nulls += 1;
            return;
        }
        self.known += 1;
        let distance = f64::from(x) - self.mean;
        self.mean += distance / self.known as f64;
        self.squares += distance * (f64::from(x) - self.mean);
        self.widen([f64::from(x); 2]);
    }

    fn widen(&mut self, [least, greatest]: [f64; 2]) {
        self.range = Some(match self.range {
            Some([from, to]) => [from.min(least), to.max(greatest)],
            None => [least, greatest],
        });
    }

    /// Counts what another part has.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.nulls += other.nulls;
        if let Some(range) = other.range {
            self.widen(range);
        }
        if other.known == 0 {
            return;
        }
        let (mine, theirs) = (self.known as f64, other.known as f64);
        let distance = other.mean - self.mean;
        self.known += other.known;
        self.mean += distance * theirs / (mine + theirs);
        self.squares += other.squares + distance * distance * mine * theirs / (mine + theirs);
    }

    /// The standard deviation of the numbers.
    pub(crate) fn deviation(&self) -> f64 {
        (self.squares / self.known.max(1) as f64).sqrt()
    }

    /// The standard deviation of the numbers, or 1 where it is too small to divide by.
    pub(crate) fn deviation_or_one(&self) -> f64 {
        let deviation = self.deviation();
        // Of numbers that differ by the rounding of `f32` alone.
        let least = f64::from(f32::EPSILON) * self.mean.abs();
        match deviation > least {
            true => deviation,
            false => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_statistics_of_the_whole() {
        let numbers: Vec<f32> = (0..50).map(|i| 1e6 + (i * i) as f32 / 8.0).collect();
        let of = |numbers: &[f32]| {
            let mut statistics = Statistics::default();
            numbers.iter().for_each(|x| statistics.add(*x));
            statistics
        };
        let mut merged = Statistics::default();
        for part in [&numbers[..0], &numbers[..7], &[f32::NAN], &numbers[7..]] {
            merged.merge(&of(part));
        }
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / 50.0;
        let squares: f64 = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
        assert_eq!((merged.known, merged.nulls), (50, 1));
        assert!((merged.mean / mean - 1.0).abs() < 1e-14);
        assert!((merged.squares / squares - 1.0).abs() < 1e-12);
        assert_eq!(of(&[3e6, 3e6, 3e6]).deviation_or_one(), 1.0);
        assert_eq!(of(&[]).deviation_or_one(), 1.0);
        assert_eq!(of(&[1.0, 3.0]).deviation_or_one(), 1.0);
        assert_eq!(of(&[0.0, 4.0]).deviation_or_one(), 2.0);
    }
}
