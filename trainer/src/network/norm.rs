//! Batch norm over the continuous inputs (Ioffe & Szegedy 2015, arXiv:1502.03167), in Keras' form.
//!
//! Its input is raw data, so no gradient flows through the statistics and they are plain arithmetic on the host, in
//! `f64`: each rank sums its rows, the sums are added over the ranks, and every rank normalises by the exact moments of
//! the global batch. γ and β belong to the network.

/// Added to the variance, so that a constant column does not divide by zero.
const EPSILON: f64 = 1e-3;
/// Momentum of the running statistics: weight of their old value in a step.
const MOMENTUM: f64 = 0.99;

/// Moments that normalise a number: x̂ = (x − mean) / √(variance + ε).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Normalization {
    pub(crate) mean: Vec<f64>,
    /// Biased variance.
    pub(crate) variance: Vec<f64>,
}

impl Normalization {
    /// Returns the initial running statistics: mean 0 and variance 1.
    pub(crate) fn unit(features: usize) -> Self {
        Self {
            mean: vec![0.0; features],
            variance: vec![1.0; features],
        }
    }

    /// Normalises rows of `mean.len()` numbers in place.
    pub(crate) fn apply(&self, rows: &mut [f32]) {
        let scale: Vec<f64> = self
            .variance
            .iter()
            .map(|v| (v + EPSILON).sqrt().recip())
            .collect();
        for row in rows.chunks_exact_mut(self.mean.len().max(1)) {
            for ((x, mean), scale) in row.iter_mut().zip(&self.mean).zip(&scale) {
                *x = ((f64::from(*x) - mean) * scale) as f32;
            }
        }
    }

    /// Moves the running statistics towards a batch's.
    pub(crate) fn follow(&mut self, batch: &Self) {
        let blend = |running: &mut f64, batch: &f64| {
            *running = MOMENTUM * *running + (1.0 - MOMENTUM) * batch;
        };
        self.mean
            .iter_mut()
            .zip(&batch.mean)
            .for_each(|(r, b)| blend(r, b));
        self.variance
            .iter_mut()
            .zip(&batch.variance)
            .for_each(|(r, b)| blend(r, b));
    }
}

/// Sums that give a batch's moments, to be added up over ranks.
///
/// They are relative to a shift near the data's mean, the same on all ranks: the difference of two large sums would
/// lose a small variance.
///
/// Every step adds them up over ranks, so other numbers of the batch may ride along.
#[derive(Debug)]
pub(crate) struct Moments {
    shift: Vec<f64>,
    /// `[1 + 2N + riders]`: rows, Σ(x − shift), Σ(x − shift)², the riders.
    sums: Vec<f64>,
}

impl Moments {
    pub(crate) fn around(shift: Vec<f64>, riders: usize) -> Self {
        let sums = vec![0.0; 1 + 2 * shift.len() + riders];
        Self { shift, sums }
    }

    /// Returns the shift that the sums are relative to.
    pub(crate) fn shift(&self) -> &[f64] {
        &self.shift
    }

    /// Sums a batch of `rows` rows, replacing the sums before.
    pub(crate) fn sum(&mut self, rows: usize, numbers: &[f32]) {
        self.sums.fill(0.0);
        self.sums[0] = rows as f64;
        let (first, rest) = self.sums[1..].split_at_mut(self.shift.len());
        let second = &mut rest[..self.shift.len()];
        for row in numbers.chunks_exact(self.shift.len().max(1)) {
            for (at, x) in row.iter().enumerate() {
                let distance = f64::from(*x) - self.shift[at];
                first[at] += distance;
                second[at] += distance * distance;
            }
        }
    }

    /// Replaces the sums by Σ(x − shift) of each number, then Σ(x − shift)² of each, over this many rows.
    pub(crate) fn put(&mut self, rows: f64, moments: &[f64]) {
        self.sums.fill(0.0);
        self.sums[0] = rows;
        self.sums[1..][..moments.len()].copy_from_slice(moments);
    }

    /// Returns the sums to add up over ranks.
    pub(crate) fn sums_mut(&mut self) -> &mut [f64] {
        &mut self.sums
    }

    /// Returns the numbers that ride along; [`sum`](Self::sum) sets them to zero.
    pub(crate) fn riders_mut(&mut self) -> &mut [f64] {
        &mut self.sums[1 + 2 * self.shift.len()..]
    }

    /// Returns the number of rows in the sums.
    pub(crate) fn rows(&self) -> f64 {
        self.sums[0]
    }

    /// Returns the moments of the rows in the sums.
    pub(crate) fn normalization(&self) -> Normalization {
        let rows = self.rows();
        let (first, second) = self.sums[1..].split_at(self.shift.len());
        let mean = first
            .iter()
            .zip(&self.shift)
            .map(|(sum, shift)| shift + sum / rows);
        let variance = first
            .iter()
            .zip(second)
            .map(|(sum, squares)| (squares / rows - (sum / rows).powi(2)).max(0.0));
        Normalization {
            mean: mean.collect(),
            variance: variance.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_sums_give_the_whole_batch_s_moments() {
        let rows: Vec<f32> = (0..14).map(|i| 1e6 + (i * i) as f32 / 8.0).collect(); // 7 × 2
        let mut parts = [0..4, 4..4, 4..14].map(|range| {
            let mut moments = Moments::around(vec![1e6, 1e6], 1);
            moments.sum(range.len() / 2, &rows[range.clone()]);
            moments.riders_mut()[0] = range.len() as f64;
            moments
        });
        let mut total = vec![0.0; 6];
        for part in &mut parts {
            total
                .iter_mut()
                .zip(part.sums_mut())
                .for_each(|(t, s)| *t += *s);
        }
        let mut whole = Moments::around(vec![0.0, 0.0], 1);
        whole.sums_mut().copy_from_slice(&total);
        whole.shift = vec![1e6, 1e6];
        assert_eq!(whole.riders_mut(), [14.0]);
        let Normalization { mean, variance } = whole.normalization();
        for feature in 0..2 {
            let column: Vec<f64> = rows
                .iter()
                .skip(feature)
                .step_by(2)
                .map(|x| f64::from(*x))
                .collect();
            let expected = column.iter().sum::<f64>() / 7.0;
            let spread = column.iter().map(|x| (x - expected).powi(2)).sum::<f64>() / 7.0;
            assert!((mean[feature] - expected).abs() < 1e-9);
            assert!(
                (variance[feature] / spread - 1.0).abs() < 1e-12,
                "{}",
                variance[feature]
            );
        }
    }

    #[test]
    fn normalising_and_following() {
        let batch = Normalization {
            mean: vec![10.0],
            variance: vec![4.0 - EPSILON],
        };
        let mut rows = [12.0, 8.0];
        batch.apply(&mut rows);
        assert_eq!(rows, [1.0, -1.0]);
        let mut running = Normalization::unit(1);
        running.follow(&batch);
        assert!((running.mean[0] - 0.1).abs() < 1e-12);
        assert!((running.variance[0] - (0.99 + 0.01 * (4.0 - EPSILON))).abs() < 1e-12);
    }
}
