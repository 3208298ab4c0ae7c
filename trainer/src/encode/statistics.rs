//! Statistics of a column's numbers: count, weight, range, mean and spread, in one pass and merged over parts.
//!
//! Mean and spread are weighted: a row of weight 2 counts as two. Rows of weight 0 never reach this module.
//!
//! Parts are merged in the order of their shards, so that the result has the same bits however shards are assigned to
//! ranks. Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".

use serde::{Deserialize, Serialize};

/// Statistics of the numbers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Statistics {
    /// Count of numbers.
    pub(crate) known: u64,
    /// Count of nulls.
    pub(crate) nulls: u64,
    /// Weight of the numbers.
    pub(crate) weight: f64,
    /// Weight of the nulls.
    pub(crate) null_weight: f64,
    pub(crate) mean: f64,
    /// Σ weight · (x − mean)².
    pub(crate) squares: f64,
    /// Smallest and largest number.
    pub(crate) range: Option<[f64; 2]>,
}

impl Statistics {
    /// Adds a number from a row of this weight; NaN counts as null.
    pub(crate) fn add(&mut self, x: f64, weight: f64) {
        if x.is_nan() {
            self.nulls += 1;
            self.null_weight += weight;
            return;
        }
        self.known += 1;
        self.weight += weight;
        let distance = x - self.mean;
        self.mean += distance * (weight / self.weight);
        self.squares += weight * distance * (x - self.mean);
        self.widen([x; 2]);
    }

    fn widen(&mut self, [least, greatest]: [f64; 2]) {
        self.range = Some(match self.range {
            Some([from, to]) => [from.min(least), to.max(greatest)],
            None => [least, greatest],
        });
    }

    /// Adds another part's statistics.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.nulls += other.nulls;
        self.null_weight += other.null_weight;
        if let Some(range) = other.range {
            self.widen(range);
        }
        if other.known == 0 {
            return;
        }
        let distance = other.mean - self.mean;
        let mine = self.weight;
        self.known += other.known;
        self.weight += other.weight;
        let share = other.weight / self.weight;
        self.mean += distance * share;
        self.squares += other.squares + distance * distance * mine * share;
    }

    /// Returns the weight of numbers and nulls; 1 if there are no rows.
    pub(crate) fn all_weight(&self) -> f64 {
        match self.weight + self.null_weight {
            weight if weight > 0.0 => weight,
            _ => 1.0,
        }
    }

    /// Returns the standard deviation of the numbers.
    pub(crate) fn deviation(&self) -> f64 {
        match self.weight > 0.0 {
            true => (self.squares / self.weight).sqrt(),
            false => 0.0,
        }
    }

    /// Returns the standard deviation of the numbers, or 1 where it is too small to divide by.
    pub(crate) fn deviation_or_one(&self) -> f64 {
        let deviation = self.deviation();
        // A smaller deviation is rounding alone.
        let least = 16.0 * f64::EPSILON * self.mean.abs();
        match deviation > least {
            true => deviation,
            false => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> Statistics {
        let mut statistics = Statistics::default();
        numbers.iter().for_each(|x| statistics.add(*x, 1.0));
        statistics
    }

    #[test]
    fn parts_have_the_statistics_of_the_whole() {
        let numbers: Vec<f64> = (0..50).map(|i| 1e6 + f64::from(i * i) / 8.0).collect();
        let mut merged = Statistics::default();
        for part in [&numbers[..0], &numbers[..7], &[f64::NAN], &numbers[7..]] {
            merged.merge(&of(part));
        }
        let mean = numbers.iter().sum::<f64>() / 50.0;
        let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
        assert_eq!((merged.known, merged.nulls), (50, 1));
        assert_eq!((merged.weight, merged.null_weight), (50.0, 1.0));
        assert!((merged.mean / mean - 1.0).abs() < 1e-14);
        assert!((merged.squares / squares - 1.0).abs() < 1e-12);
        assert_eq!(of(&[3e6, 3e6, 3e6]).deviation_or_one(), 1.0);
        assert_eq!(of(&[]).deviation_or_one(), 1.0);
        assert_eq!(of(&[1.0, 3.0]).deviation_or_one(), 1.0);
        assert_eq!(of(&[0.0, 4.0]).deviation_or_one(), 2.0);
        let thirds = [0.1 + 0.2, 0.3];
        assert_eq!(of(&thirds).deviation_or_one(), 1.0, "rounding");
    }

    #[test]
    fn numbers_far_from_zero_keep_their_spread() {
        let numbers: Vec<f64> = (0..100).map(|i| 1.7e9 + f64::from(i)).collect();
        let statistics = of(&numbers);
        assert!((statistics.mean - (1.7e9 + 49.5)).abs() < 1e-5);
        let due = (9999.0_f64 / 12.0).sqrt();
        assert!((statistics.deviation_or_one() - due).abs() < 1e-5);
    }

    #[test]
    fn a_number_of_weight_two_is_two_numbers() {
        let numbers = [3.0, -1.0, f64::NAN, 8.5, 2.0];
        let weighed = numbers.map(|x| (x, 2.0));
        let twice = numbers.into_iter().chain(numbers).map(|x| (x, 1.0));
        let of = |rows: &mut dyn Iterator<Item = (f64, f64)>| {
            let mut parts = [Statistics::default(); 2];
            for (at, (x, weight)) in rows.enumerate() {
                parts[at % 2].add(x, weight);
            }
            let [mut all, other] = parts;
            all.merge(&other);
            all
        };
        let (weighed, twice) = (of(&mut weighed.into_iter()), of(&mut { twice }));
        assert_eq!((weighed.known, twice.known), (4, 8));
        assert_eq!(weighed.null_weight, twice.null_weight);
        for (left, right) in [
            (weighed.weight, twice.weight),
            (weighed.mean, twice.mean),
            (weighed.deviation(), twice.deviation()),
        ] {
            assert!((left - right).abs() < 1e-14, "{weighed:?} {twice:?}");
        }
    }
}
