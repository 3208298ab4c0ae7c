//! From numbers as they came to numbers that a network learns from, and back.
//!
//! A network starts for inputs and labels around 0 with a spread of 1. So continuous features and labels are scaled by
//! what the training rows hold, and null, which has no place among numbers, becomes the mean, with an input beside it
//! that says so. It is fitted once, before the first step, is part of the training's state and of the model, and is
//! not learnt: batch norm may follow.

use volley_proto::spec::{NumericTransform, TrainSpec};
use volley_proto::store::Scale;

use super::settle::Rows;
use super::statistics::Statistics;
use crate::network::Normalization;

/// How all numbers of a training are scaled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaling {
    /// Of each continuous feature.
    pub(crate) features: Vec<Scale>,
    /// Of each transformed label.
    pub(crate) labels: Vec<Scale>,
}

impl Scaling {
    /// What a spec asks for, by the statistics of all training rows.
    pub(crate) fn fit(spec: &TrainSpec, features: &[Statistics], labels: &[Statistics]) -> Self {
        let feature = |of: &Statistics| {
            let (shift, unit) = match spec.numeric_transform {
                NumericTransform::None => (0.0, 1.0),
                NumericTransform::Standardize => (of.mean, of.deviation_or_one()),
            };
            Scale {
                null: of.mean,
                shift,
                unit,
                indicator: of.nulls > 0,
            }
        };
        let label = |label: &Statistics| match spec.label.standardize {
            // Its logarithm starts at that of the mean.
            true if spec.loss.has_log_link() => Scale {
                unit: if label.mean > 0.0 { label.mean } else { 1.0 },
                ..Scale::IDENTITY
            },
            true => Scale {
                shift: label.mean,
                unit: label.deviation_or_one(),
                ..Scale::IDENTITY
            },
            false => Scale::IDENTITY,
        };
        Self {
            features: features.iter().map(feature).collect(),
            labels: labels.iter().map(label).collect(),
        }
    }

    /// Numbers that enter the network for a row: those of the features, then whether each was null that may be.
    pub(crate) fn inputs(&self) -> usize {
        let indicators = self.features.iter().filter(|scale| scale.indicator);
        self.features.len() + indicators.count()
    }

    /// Appends what enters the network for a row of features.
    pub(crate) fn encode(&self, row: &[Option<f32>], inputs: &mut Vec<f32>) {
        for (scale, x) in self.features.iter().zip(row) {
            let x = x.map_or(scale.null, f64::from);
            inputs.push(scale.apply(x) as f32);
        }
        let indicated = self
            .features
            .iter()
            .zip(row)
            .filter(|(scale, _)| scale.indicator);
        inputs.extend(indicated.map(|(_, x)| if x.is_none() { 1.0 } else { 0.0 }));
    }

    /// Scales rows in place; their numbers are not when they are null.
    pub(crate) fn apply(&self, rows: &mut Rows) {
        let features = self.features.len();
        if features > 0 {
            let mut inputs = Vec::with_capacity(rows.len() * self.inputs());
            let mut row = vec![None; features];
            for numbers in rows.continuous.chunks_exact(features) {
                row.iter_mut()
                    .zip(numbers)
                    .for_each(|(slot, x)| *slot = Some(*x).filter(|x| !x.is_nan()));
                self.encode(&row, &mut inputs);
            }
            rows.continuous = inputs;
        }
        let scales = self.labels.iter().cycle();
        for (label, scale) in rows.labels.iter_mut().zip(scales) {
            *label = scale.apply(f64::from(*label)) as f32;
        }
    }

    /// The moments of what enters the network, over the rows of these statistics.
    pub(crate) fn moments(&self, features: &[Statistics]) -> Normalization {
        let mut moments = Normalization {
            mean: vec![],
            variance: vec![],
        };
        for (scale, of) in self.features.iter().zip(features) {
            // Nulls are at their own place.
            let (known, nulls) = (of.known as f64, of.nulls as f64);
            let rows = (known + nulls).max(1.0);
            let mean = (known * of.mean + nulls * scale.null) / rows;
            let squares =
                of.squares + known * (of.mean - mean).powi(2) + nulls * (scale.null - mean).powi(2);
            moments.mean.push(scale.apply(mean));
            moments.variance.push(squares / rows / scale.unit.powi(2));
        }
        for (_, of) in self
            .features
            .iter()
            .zip(features)
            .filter(|(scale, _)| scale.indicator)
        {
            let share = of.nulls as f64 / (of.known + of.nulls).max(1) as f64;
            moments.mean.push(share);
            moments.variance.push(share * (1.0 - share));
        }
        moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn statistics(numbers: &[f32]) -> Statistics {
        let mut statistics = Statistics::default();
        numbers.iter().for_each(|x| statistics.add(*x));
        statistics
    }

    fn fitted(
        transform: NumericTransform,
        columns: &[&[f32]],
        labels: &[f32],
    ) -> (Scaling, Rows, Normalization) {
        let mut spec = testing::spec();
        spec.numeric_transform = transform;
        spec.label.standardize = true;
        let features: Vec<_> = columns.iter().map(|column| statistics(column)).collect();
        let scaling = Scaling::fit(&spec, &features, &[statistics(labels)]);
        let row = |at: usize| columns.iter().map(move |column| column[at]);
        let mut rows = Rows {
            continuous: (0..labels.len()).flat_map(row).collect(),
            labels: labels.to_vec(),
            keys: vec![0; labels.len()],
            codes: vec![],
            weights: vec![],
        };
        scaling.apply(&mut rows);
        let moments = scaling.moments(&features);
        (scaling, rows, moments)
    }

    const NULL: f32 = f32::NAN;

    #[test]
    fn numbers_are_scaled_and_null_is_the_mean_with_an_input_of_its_own() {
        let columns: [&[f32]; 3] = [&[1.0, NULL, 5.0, NULL], &[7.0; 4], &[NULL; 4]];
        let labels = [100.0, 300.0, 100.0, 300.0];
        let (scaling, rows, moments) = fitted(NumericTransform::Standardize, &columns, &labels);
        assert_eq!(scaling.inputs(), 5);
        let due = [
            [-1.0, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 1.0, 1.0],
            [1.0, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 1.0, 1.0],
        ];
        assert_eq!(rows.continuous, due.concat());
        assert_eq!(rows.labels, [-1.0, 1.0, -1.0, 1.0]);
        assert_eq!(scaling.labels[0].undo(-1.0), 100.0);
        assert_eq!(moments.mean, [0.0, 0.0, 0.0, 0.5, 1.0]);
        assert_eq!(moments.variance, [0.5, 0.0, 0.0, 0.25, 0.0]);
    }

    #[test]
    fn numbers_may_enter_as_they_are() {
        let (_, rows, moments) = fitted(NumericTransform::None, &[&[1.0, NULL, 5.0]], &[1.0; 3]);
        assert_eq!(rows.continuous, [1.0, 0.0, 3.0, 1.0, 5.0, 0.0]);
        assert_eq!(rows.labels, [0.0; 3], "a constant label");
        assert!((moments.mean[0] - 3.0).abs() < 1e-12);
        assert!((moments.variance[0] - 8.0 / 3.0).abs() < 1e-12);
    }
}
