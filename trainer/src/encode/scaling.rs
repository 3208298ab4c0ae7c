//! Scaling of raw numbers to numbers that a network learns from, and back.
//!
//! Scaling goes from `f64` to `f32`: numbers far from 0 compared with their spread keep their digits once they are
//! centred, and would lose them in `f32` before. Numbers that are not transformed have the digits of `f32`.
//!
//! A network starts out expecting inputs and labels around 0 with a spread of 1. So continuous features and labels are
//! scaled by statistics of the training rows. Null becomes the mean, or the median of ranked numbers, with an indicator
//! input beside it. The scaling is fitted once, before the first step, is part of the training's state and of the
//! model, and is not learnt: batch norm may follow. The same holds for the bins of piecewise linear embeddings, whose
//! edges are scaled numbers.

use volley_proto::spec::{NumericTransform, PIECEWISE_BINS, TrainSpec};
use volley_proto::store::{Quantiles, Scale, quantile};

use super::settle::{Rows, Settled};
use super::statistics::Statistics;
use crate::network::Normalization;

/// Scaling of all numbers of a training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaling {
    /// Scaling of each continuous feature.
    pub(crate) features: Vec<FeatureScale>,
    /// Scale of each transformed label.
    pub(crate) labels: Vec<Scale>,
}

/// Transformation of a continuous feature's numbers into inputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FeatureScale {
    pub(crate) scale: Scale,
    /// Quantiles by which numbers are ranked instead of scaled, if they are.
    pub(crate) quantiles: Option<Quantiles>,
    /// Bin edges of its piecewise linear embedding, ascending, in scaled numbers; empty without one.
    pub(crate) bins: Vec<f32>,
}

impl FeatureScale {
    /// Returns the input for a number, or for null.
    pub(crate) fn apply(&self, x: Option<f64>) -> f64 {
        let x = x.unwrap_or(self.scale.null);
        match &self.quantiles {
            Some(quantiles) => quantiles.score(x),
            None => self.scale.apply(x),
        }
    }

    /// Checks that the edges ascend and enclose at least one bin.
    pub(crate) fn has_bins(&self) -> bool {
        self.bins.len() > 1 && self.bins.is_sorted_by(|low, high| low < high)
    }

    /// Returns bin edges at quantiles of numbers given in ascending order.
    fn edges(&self, sorted: &[f64]) -> Vec<f32> {
        let edge = |at| self.apply(Some(quantile(sorted, at, PIECEWISE_BINS))) as f32;
        let mut edges: Vec<f32> = (0..=PIECEWISE_BINS).map(edge).collect();
        edges.dedup();
        if edges.len() == 1 {
            let only = edges[0];
            edges.push(only + only.abs().max(1.0));
        }
        edges
    }

    /// Returns the mean and the variance of the inputs over the rows of these statistics.
    fn moments(&self, of: &Statistics) -> [f64; 2] {
        let (known, nulls) = (of.weight, of.null_weight);
        let rows = of.all_weight();
        if let Some(quantiles) = &self.quantiles {
            let [mean, variance] = quantiles.moments();
            let null = self.apply(None);
            let squares = (known * (variance + mean * mean) + nulls * null * null) / rows;
            let mean = (known * mean + nulls * null) / rows;
            return [mean, (squares - mean * mean).max(0.0)];
        }
        // Nulls enter as `scale.null`.
        let scale = &self.scale;
        let mean = (known * of.mean + nulls * scale.null) / rows;
        let squares =
            of.squares + known * (of.mean - mean).powi(2) + nulls * (scale.null - mean).powi(2);
        [scale.apply(mean), squares / rows / scale.unit.powi(2)]
    }
}

impl Scaling {
    /// Checks whether a spec's transform or embedding takes quantiles.
    pub(crate) fn ranks(spec: &TrainSpec) -> bool {
        spec.numeric_transform == NumericTransform::Quantile || spec.network.is_piecewise()
    }

    /// Fits a spec's scaling to the statistics of all training rows and, if the spec [takes quantiles](Self::ranks), to
    /// a sample of each feature's numbers in ascending order.
    pub(crate) fn fit(
        spec: &TrainSpec,
        features: &[Statistics],
        labels: &[Statistics],
        samples: &[Vec<f64>],
    ) -> Self {
        let feature = |(at, of): (usize, &Statistics)| {
            let sorted = samples.get(at).map_or(&[][..], Vec::as_slice);
            let ranked = spec.numeric_transform == NumericTransform::Quantile;
            let quantiles = ranked.then(|| Quantiles::of(sorted));
            let (null, shift, unit) = match spec.numeric_transform {
                NumericTransform::None => (of.mean, 0.0, 1.0),
                NumericTransform::Standardize => (of.mean, of.mean, of.deviation_or_one()),
                NumericTransform::Quantile => {
                    let median = quantiles.as_ref().map_or(0.0, Quantiles::median);
                    (median, 0.0, 1.0)
                }
            };
            let mut feature = FeatureScale {
                scale: Scale {
                    null,
                    shift,
                    unit,
                    indicator: of.nulls > 0,
                },
                quantiles,
                bins: vec![],
            };
            if spec.network.is_piecewise() {
                feature.bins = feature.edges(sorted);
            }
            feature
        };
        let label = |label: &Statistics| match spec.label.standardize {
            // With a log link, predictions start at the mean.
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
            features: features.iter().enumerate().map(feature).collect(),
            labels: labels.iter().map(label).collect(),
        }
    }

    /// Returns the number of inputs of a row: the features, then a null indicator for each feature that has nulls.
    pub(crate) fn inputs(&self) -> usize {
        self.features.len() + self.indicators()
    }

    fn indicators(&self) -> usize {
        let indicated = self.features.iter().filter(|of| of.scale.indicator);
        indicated.count()
    }

    /// Returns the bin edges of each input; nothing without piecewise linear embeddings.
    pub(crate) fn bins(&self) -> Vec<Vec<f32>> {
        if !self.features.iter().any(FeatureScale::has_bins) {
            return vec![];
        }
        let features = self.features.iter().map(|of| of.bins.clone());
        let indicators = std::iter::repeat_n(vec![0.0, 1.0], self.indicators());
        features.chain(indicators).collect()
    }

    /// Appends the inputs of a row of features.
    pub(crate) fn encode(&self, row: &[Option<f64>], inputs: &mut Vec<f32>) {
        for (of, x) in self.features.iter().zip(row) {
            inputs.push(of.apply(*x) as f32);
        }
        let indicated = self
            .features
            .iter()
            .zip(row)
            .filter(|(of, _)| of.scale.indicator);
        inputs.extend(indicated.map(|(_, x)| if x.is_none() { 1.0 } else { 0.0 }));
    }

    /// Scales a shard.
    pub(crate) fn apply(&self, shard: Settled<f64>) -> Settled {
        Settled {
            id: shard.id,
            train: self.apply_to_rows(shard.train),
            eval: self.apply_to_rows(shard.eval),
            storage: shard.storage,
        }
    }

    fn apply_to_rows(&self, rows: Rows<f64>) -> Rows {
        let features = self.features.len();
        let mut continuous = Vec::with_capacity(rows.len() * self.inputs());
        let mut row = vec![None; features];
        for numbers in rows.continuous.chunks_exact(features.max(1)) {
            row.iter_mut()
                .zip(numbers)
                .for_each(|(slot, x)| *slot = Some(*x).filter(|x| !x.is_nan()));
            self.encode(&row, &mut continuous);
        }
        let scaled = rows.labels.iter().zip(self.labels.iter().cycle());
        let labels = scaled.map(|(label, scale)| scale.apply(*label) as f32);
        Rows {
            codes: rows.codes,
            continuous: continuous.into(),
            labels: labels.collect(),
            weights: rows.weights,
            keys: rows.keys,
            folds: rows.folds,
            eval_weights: rows.eval_weights,
        }
    }

    /// Returns the moments of the network's inputs over the rows of these statistics.
    pub(crate) fn moments(&self, features: &[Statistics]) -> Normalization {
        let mut moments = Normalization {
            mean: vec![],
            variance: vec![],
        };
        for (feature, of) in self.features.iter().zip(features) {
            let [mean, variance] = feature.moments(of);
            moments.mean.push(mean);
            moments.variance.push(variance);
        }
        for (_, of) in self
            .features
            .iter()
            .zip(features)
            .filter(|(feature, _)| feature.scale.indicator)
        {
            let share = of.null_weight / of.all_weight();
            moments.mean.push(share);
            moments.variance.push(share * (1.0 - share));
        }
        moments
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::NumericEmbedding;

    use super::*;
    use crate::testing;

    fn statistics(numbers: &[f64]) -> Statistics {
        let mut statistics = Statistics::default();
        numbers.iter().for_each(|x| statistics.add(*x, 1.0));
        statistics
    }

    fn sorted(numbers: &[f64]) -> Vec<f64> {
        let known = numbers.iter().copied().filter(|x| !x.is_nan());
        let mut known: Vec<f64> = known.collect();
        known.sort_by(f64::total_cmp);
        known
    }

    fn fitted(
        transform: NumericTransform,
        columns: &[&[f64]],
        labels: &[f64],
    ) -> (Scaling, Rows, Normalization) {
        let mut spec = testing::spec();
        spec.numeric_transform = transform;
        spec.label.standardize = true;
        let features: Vec<_> = columns.iter().map(|column| statistics(column)).collect();
        let samples: Vec<_> = columns.iter().map(|column| sorted(column)).collect();
        let scaling = Scaling::fit(&spec, &features, &[statistics(labels)], &samples);
        let row = |at: usize| columns.iter().map(move |column| column[at]);
        let rows = Rows {
            continuous: (0..labels.len()).flat_map(row).collect(),
            labels: labels.to_vec().into(),
            keys: vec![0; labels.len()].into(),
            ..Rows::default()
        };
        let rows = scaling.apply_to_rows(rows);
        let moments = scaling.moments(&features);
        (scaling, rows, moments)
    }

    const NULL: f64 = f64::NAN;

    #[test]
    fn numbers_are_scaled_and_null_is_the_mean_with_an_input_of_its_own() {
        let columns: [&[f64]; 3] = [&[1.0, NULL, 5.0, NULL], &[7.0; 4], &[NULL; 4]];
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
    fn numbers_far_from_zero_keep_their_digits() {
        let seconds: Vec<f64> = (0..100).map(|i| 1.7e9 + f64::from(i)).collect();
        let labels: Vec<f64> = (0..100).map(|i| -1e12 + f64::from(i)).collect();
        for transform in [NumericTransform::Standardize, NumericTransform::Quantile] {
            let (scaling, rows, _) = fitted(transform, &[&seconds], &labels);
            assert!(rows.continuous.is_sorted_by(|a, b| a < b), "{rows:?}");
            for (label, scaled) in labels.iter().zip(&rows.labels) {
                let undone = scaling.labels[0].undo(f64::from(*scaled));
                assert!((undone - label).abs() < 1e-3, "{label} {undone}");
            }
        }
    }

    #[test]
    fn numbers_may_enter_as_they_are() {
        let (_, rows, moments) = fitted(NumericTransform::None, &[&[1.0, NULL, 5.0]], &[1.0; 3]);
        assert_eq!(rows.continuous, [1.0, 0.0, 3.0, 1.0, 5.0, 0.0]);
        assert_eq!(rows.labels, [0.0; 3], "a constant label");
        assert!((moments.mean[0] - 3.0).abs() < 1e-12);
        assert!((moments.variance[0] - 8.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn numbers_may_be_ranked_and_null_is_their_median() {
        let columns: [&[f64]; 3] = [&[1.0, NULL, 500.0, 2.0], &[7.0; 4], &[NULL; 4]];
        let (scaling, rows, moments) = fitted(NumericTransform::Quantile, &columns, &[1.0; 4]);
        let end: f32 = 5.199_34;
        let due = [
            [-end, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 1.0, 1.0],
            [end, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
        ];
        for (is, due) in rows.continuous.iter().zip(due.as_flattened()) {
            assert!((is - due).abs() < 1e-5, "{:?}", rows.continuous);
        }
        assert_eq!(scaling.features[0].scale.null, 2.0);
        // Numbers beyond the range of the training rows.
        let score = |x| scaling.features[0].apply(Some(x));
        assert_eq!([score(-9.0), score(1e9)], [score(1.0), score(500.0)]);
        let variance = f64::from(end).powi(2) / 2.0;
        for (is, due) in moments
            .mean
            .iter()
            .chain(&moments.variance)
            .zip([0.0, 0.0, 0.0, 0.25, 1.0, variance, 0.0, 0.0, 0.1875, 0.0])
        {
            assert!((is - due).abs() < 1e-4, "{moments:?}");
        }
    }

    #[test]
    fn bins_lie_between_quantiles_of_scaled_numbers() {
        let many: Vec<f64> = (0..=960).map(f64::from).collect();
        let binary: Vec<f64> = (0..=960).map(|i| f64::from(i % 2)).collect();
        let nulls = vec![NULL; 961];
        let mut spec = testing::spec();
        spec.network.batch_norm = false;
        spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
        let columns = [&many, &binary, &nulls];
        let features: Vec<_> = columns.iter().map(|column| statistics(column)).collect();
        let samples: Vec<_> = columns.iter().map(|column| sorted(column)).collect();
        let mut bins = |transform| {
            spec.numeric_transform = transform;
            assert!(Scaling::ranks(&spec));
            let scaling = Scaling::fit(&spec, &features, &[statistics(&[1.0])], &samples);
            assert!(scaling.features.iter().all(FeatureScale::has_bins));
            scaling.bins()
        };
        let plain = bins(NumericTransform::None);
        let every: Vec<f32> = (0..=48).map(|i| i as f32 * 20.0).collect();
        // The last is the null indicator's.
        assert_eq!(
            plain,
            [every, vec![0.0, 1.0], vec![0.0, 1.0], vec![0.0, 1.0]]
        );
        for transform in [NumericTransform::Standardize, NumericTransform::Quantile] {
            let scaled = bins(transform);
            let lengths = |bins: &[Vec<f32>]| bins.iter().map(Vec::len).collect::<Vec<_>>();
            assert_eq!(lengths(&scaled), lengths(&plain));
            assert!(scaled[0][24].abs() < 1e-6, "{scaled:?}");
        }
    }
}
