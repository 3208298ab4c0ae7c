//! Sums over an epoch's evaluation, added up over ranks, and the record that they form together with the
//! totals of its steps.

use volley_proto::spec::{LabelTransform, Loss};
use volley_proto::store::{Coverage, EpochRecord, LabelRecord, RankCoverage, Scale};

use super::loss;
use super::state::EpochProgress;
use crate::network::{likeliest, rearrange};

/// Labels below this are left out of relative errors.
const LEAST_RELATIVE_LABEL: f64 = 0.001;

/// Sums over rows and ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(usize)]
enum Sum {
    EvalLoss,
    EvalWeight,
    /// Weight of rows predicted correctly, then of rows of the training set's most frequent class.
    EvalCorrect,
    EvalMajority,
    /// Weight of rows with the label between the outermost of several quantiles.
    EvalInside,
    ComputeSeconds,
    ReduceSeconds,
}

const SUMS: usize = Sum::ReduceSeconds as usize + 1;

/// Sums for each numeric label.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(usize)]
enum OfLabel {
    /// Loss of the label; only with several labels.
    Loss,
    Absolute,
    Square,
    /// Labels minus their mean in training.
    Label,
    LabelSquare,
    RelativeSquare,
    RelativeRows,
}

const OF_LABEL: usize = OfLabel::RelativeRows as usize + 1;

/// An epoch's sums: common ones, then those of each label.
#[derive(Debug, Clone)]
pub(super) struct Sums(Vec<f64>);

/// Totals of an epoch's steps.
#[derive(Debug, Default)]
pub(super) struct EpochTotals {
    pub(super) epoch: usize,
    /// Steps since training began.
    pub(super) steps: u64,
    /// Totals over all ranks and generations.
    pub(super) progress: EpochProgress,
    /// Rows of each rank of this generation.
    pub(super) ranks: Vec<RankCoverage>,
    pub(super) earlier: Option<Coverage>,
    /// True if the label is a class.
    pub(super) classes: bool,
    /// True if several quantiles are predicted.
    pub(super) quantiles: bool,
    /// Names of the labels; empty unless there are several.
    pub(super) labels: Vec<String>,
    /// Learning rate of the last step.
    pub(super) learn_rate: f64,
    pub(super) seconds: f64,
}

/// Terms of evaluation.
#[derive(Debug)]
pub(super) struct Evaluated<'a> {
    pub(super) loss: &'a Loss,
    /// Weights of several labels' losses.
    pub(super) loss_weights: &'a [f64],
    pub(super) transform: LabelTransform,
    /// Scale of each transformed label.
    pub(super) scales: &'a [Scale],
    /// The most frequent class in training, if the label is a class.
    pub(super) majority: Option<usize>,
}

impl Sums {
    /// Creates empty sums for `labels` labels.
    pub(super) fn of(labels: usize) -> Self {
        Self(vec![0.0; SUMS + labels * OF_LABEL])
    }

    /// Adds an evaluated row of this weight; outputs and labels are in the network's scale.
    pub(super) fn evaluated(
        &mut self,
        of: &Evaluated<'_>,
        outputs: &[f32],
        labels: &[f32],
        weight: f32,
    ) {
        let weight = f64::from(weight);
        self.add(Sum::EvalWeight, weight);
        let sorted = of.loss.shares().map(|_| {
            let mut quantiles = outputs.to_vec();
            rearrange(&mut quantiles);
            quantiles
        });
        let outputs = sorted.as_deref().unwrap_or(outputs);
        let mut slopes = vec![0.0; outputs.len()];
        let unit = loss::unit_of(of.loss, of.scales);
        let loss = loss::of_labels(of.loss, of.loss_weights, outputs, labels, &mut slopes);
        self.add(Sum::EvalLoss, weight * unit * loss);
        if let (Some(_), [low, .., high], [label]) = (&sorted, outputs, labels) {
            let is_inside = (low..=high).contains(&label);
            self.add(Sum::EvalInside, weight * f64::from(u8::from(is_inside)));
        }
        if let Some(majority) = of.majority {
            let class = labels.first().map_or(0, |label| *label as usize);
            let counts = |other: usize| weight * f64::from(u8::from(other == class));
            self.add(Sum::EvalCorrect, counts(likeliest(outputs)));
            self.add(Sum::EvalMajority, counts(majority));
            return;
        }
        for (at, (label, scale)) in labels.iter().zip(of.scales).enumerate() {
            let output = if labels.len() > 1 {
                let unit = loss::unit(of.loss, scale);
                let loss = loss::of_row(of.loss, &outputs[at..=at], *label, &mut [0.0]);
                self.add_of(at, OfLabel::Loss, weight * unit * loss);
                at
            } else {
                of.loss.median()
            };
            self.measured(at, of, scale, [outputs[output], *label], weight);
        }
    }

    /// Adds a label and its prediction, in the network's scale.
    fn measured(
        &mut self,
        at: usize,
        of: &Evaluated<'_>,
        scale: &Scale,
        row: [f32; 2],
        weight: f64,
    ) {
        let [prediction, label] = row.map(f64::from);
        let original = |y: f64| match (of.transform, scale.undo(y)) {
            (LabelTransform::Identity, y) => y,
            (LabelTransform::Ln, y) => y.exp(),
        };
        let prediction = match of.loss.has_log_link() {
            true => prediction.exp(),
            false => prediction,
        };
        let y = original(label);
        let error = original(prediction) - y;
        self.add_of(at, OfLabel::Absolute, weight * error.abs());
        self.add_of(at, OfLabel::Square, weight * error * error);
        let distance = y - original(0.0);
        self.add_of(at, OfLabel::Label, weight * distance);
        self.add_of(at, OfLabel::LabelSquare, weight * distance * distance);
        if y > LEAST_RELATIVE_LABEL {
            self.add_of(at, OfLabel::RelativeRows, weight);
            let square = (error / y).powi(2);
            self.add_of(at, OfLabel::RelativeSquare, weight * square);
        }
    }

    /// Adds the time that a rank has spent.
    pub(super) fn spent(&mut self, compute: f64, reduce: f64) {
        self.add(Sum::ComputeSeconds, compute);
        self.add(Sum::ReduceSeconds, reduce);
    }

    /// Returns the numbers to sum over ranks.
    pub(super) fn as_mut_slice(&mut self) -> &mut [f64] {
        &mut self.0
    }

    /// Returns the mean loss of evaluated rows, if there are any.
    pub(super) fn mean_loss(&self) -> Option<f64> {
        let weight = self.of_all(Sum::EvalWeight);
        (weight > 0.0).then(|| self.of_all(Sum::EvalLoss) / weight)
    }

    /// Returns the record of an epoch, from sums over all ranks.
    pub(super) fn record(&self, trained: EpochTotals) -> EpochRecord {
        let share =
            |sum| Some(self.of_all(sum) / self.of_all(Sum::EvalWeight)).filter(|x| !x.is_nan());
        let EpochProgress {
            loss,
            weight,
            covered,
        } = trained.progress;
        let ranks = trained.ranks.len() as f64;
        let named = trained.labels.into_iter().enumerate();
        let labels: Vec<_> = named
            .map(|(at, label)| LabelRecord {
                label,
                ..self.label(at)
            })
            .collect();
        let only = match labels[..] {
            [] if !trained.classes => self.label(0),
            [] => LabelRecord::default(),
            // Several labels share no scale.
            _ => LabelRecord {
                eval_r2: mean(labels.iter().map(|label| label.eval_r2)),
                ..LabelRecord::default()
            },
        };
        EpochRecord {
            epoch: trained.epoch,
            steps: trained.steps,
            rows: covered.rows,
            checksum: covered.hex(),
            ranks: trained.ranks,
            earlier: trained.earlier,
            loss: loss / weight,
            eval_loss: self.mean_loss(),
            labels,
            eval_mae: only.eval_mae,
            eval_accuracy: share(Sum::EvalCorrect).filter(|_| trained.classes),
            eval_majority: share(Sum::EvalMajority).filter(|_| trained.classes),
            eval_interval_coverage: share(Sum::EvalInside).filter(|_| trained.quantiles),
            eval_rmse: only.eval_rmse,
            eval_r2: only.eval_r2,
            eval_rmspe: only.eval_rmspe,
            learn_rate: Some(trained.learn_rate),
            ended: None,
            seconds: trained.seconds,
            compute_seconds: self.of_all(Sum::ComputeSeconds) / ranks,
            reduce_seconds: self.of_all(Sum::ReduceSeconds) / ranks,
        }
    }

    /// Returns the metrics of a label, without its name.
    fn label(&self, at: usize) -> LabelRecord {
        let sum = |of: OfLabel| self.0[SUMS + at * OF_LABEL + of as usize];
        let mean = |of, rows: f64| (rows > 0.0).then(|| sum(of) / rows);
        let rows = self.of_all(Sum::EvalWeight);
        let variance = sum(OfLabel::LabelSquare) - sum(OfLabel::Label).powi(2) / rows;
        LabelRecord {
            label: String::new(),
            eval_loss: mean(OfLabel::Loss, rows),
            eval_mae: mean(OfLabel::Absolute, rows),
            eval_rmse: mean(OfLabel::Square, rows).map(f64::sqrt),
            // Without variance, R² is undefined.
            eval_r2: (variance > 0.0).then(|| 1.0 - sum(OfLabel::Square) / variance),
            eval_rmspe: mean(OfLabel::RelativeSquare, sum(OfLabel::RelativeRows)).map(f64::sqrt),
        }
    }

    fn add(&mut self, sum: Sum, value: f64) {
        self.0[sum as usize] += value;
    }

    fn add_of(&mut self, label: usize, sum: OfLabel, value: f64) {
        self.0[SUMS + label * OF_LABEL + sum as usize] += value;
    }

    fn of_all(&self, sum: Sum) -> f64 {
        self.0[sum as usize]
    }
}

/// Returns the mean of numbers, if all are known.
fn mean(numbers: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    Some(numbers.iter().sum::<f64>() / numbers.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::super::coverage::Covered;
    use super::*;

    #[test]
    fn metrics_by_hand() {
        let mut sums = Sums::of(1);
        // In the network's scale, distances from 3 are doubled.
        let scale = Scale {
            shift: 3.0,
            unit: 0.5,
            ..Scale::IDENTITY
        };
        let of = Evaluated {
            loss: &Loss::Mse,
            loss_weights: &[],
            transform: LabelTransform::Ln,
            scales: &[scale],
            majority: None,
        };
        let mut evaluated = |prediction: f64, label: f64| {
            let [prediction, label] = [prediction, label].map(|y| scale.apply(y) as f32);
            sums.evaluated(&of, &[prediction], &[label], 1.0);
        };
        evaluated(0.5_f64.ln(), 0.0); // ŷ = ½, y = 1
        evaluated(-20.0, -10.0); // y < 0.001
        let covered = Covered {
            rows: 3,
            checksum: 0xab,
        };
        let record = sums.record(EpochTotals {
            progress: EpochProgress {
                loss: 6.0,
                weight: 3.0,
                covered,
            },
            ..EpochTotals::default()
        });
        assert_eq!(record.checksum, "00000000000000ab");
        assert_eq!((record.loss, record.rows), (2.0, 3));
        let ln2 = 2_f64.ln();
        assert!((record.eval_loss.unwrap() - (ln2 * ln2 + 100.0) / 2.0).abs() < 1e-6);
        let small = (-10.0_f64).exp() - (-20.0_f64).exp();
        assert!((record.eval_mae.unwrap() - (0.5 + small) / 2.0).abs() < 1e-6);
        let squares = 0.25 + small * small;
        assert!((record.eval_rmse.unwrap() - (squares / 2.0).sqrt()).abs() < 1e-6);
        // Around their mean, labels of 1 and almost 0 have squares that sum to almost ½.
        let variance = (1.0 - (-10.0_f64).exp()).powi(2) / 2.0;
        assert!((record.eval_r2.unwrap() - (1.0 - squares / variance)).abs() < 1e-5);
        assert!((record.eval_rmspe.unwrap() - 0.5).abs() < 1e-6);
        assert_eq!(record.eval_accuracy, None);
    }

    #[test]
    fn quantiles_are_sorted_and_the_one_at_the_median_is_the_prediction() {
        let scale = Scale {
            shift: 10.0,
            unit: 2.0,
            ..Scale::IDENTITY
        };
        let of = Evaluated {
            loss: &Loss::Quantiles {
                shares: vec![0.1, 0.5, 0.9],
            },
            loss_weights: &[],
            transform: LabelTransform::Identity,
            scales: &[scale],
            majority: None,
        };
        let mut sums = Sums::of(1);
        sums.evaluated(&of, &[1.0, 3.0, -1.0], &[0.0], 1.0);
        let record = sums.record(EpochTotals::default());
        // For −1, 1 and 3: 0.1 · 1, 0.5 · 1 and 0.1 · 3, in units of 2.
        assert!((record.eval_loss.unwrap() - 2.0 * 0.9 / 3.0).abs() < 1e-12);
        assert!((record.eval_mae.unwrap() - 2.0).abs() < 1e-12);
        // A second row, with three times the weight, is outside the interval.
        sums.evaluated(&of, &[1.0, 3.0, -1.0], &[3.5], 3.0);
        let record = sums.record(EpochTotals {
            quantiles: true,
            ..EpochTotals::default()
        });
        assert_eq!(record.eval_interval_coverage, Some(0.25));
    }

    #[test]
    fn labels_are_measured_each_in_its_scale() {
        let scales = [(10.0, 2.0), (-1.0, 0.5)].map(|(shift, unit)| Scale {
            shift,
            unit,
            ..Scale::IDENTITY
        });
        let of = Evaluated {
            loss: &Loss::Mse,
            loss_weights: &[1.0, 0.25],
            transform: LabelTransform::Identity,
            scales: &scales,
            majority: None,
        };
        let mut sums = Sums::of(2);
        sums.evaluated(&of, &[1.0, 2.0], &[0.0, 4.0], 1.0);
        sums.evaluated(&of, &[-1.0, 2.0], &[2.0, -4.0], 1.0);
        let record = sums.record(EpochTotals {
            labels: vec!["a".into(), "b".into()],
            ..EpochTotals::default()
        });
        // Squares of 1 and 9, and of 2 and 6, in standard deviations.
        assert_eq!(
            record.eval_loss,
            Some((1.0 + 9.0 + 0.25 * (4.0 + 36.0)) / 2.0)
        );
        let of = |at: usize| {
            let LabelRecord {
                label,
                eval_loss,
                eval_mae,
                eval_r2,
                ..
            } = record.labels[at].clone();
            (label, eval_loss, eval_mae, eval_r2)
        };
        let due = (
            "a".to_owned(),
            Some(20.0),
            Some(4.0),
            Some(1.0 - 40.0 / 8.0),
        );
        assert_eq!(of(0), due);
        let due = ("b".to_owned(), Some(5.0), Some(2.0), Some(1.0 - 10.0 / 8.0));
        assert_eq!(of(1), due);
        assert_eq!((record.eval_mae, record.eval_r2), (None, Some(-2.125)));
    }

    #[test]
    fn classes_are_counted() {
        let mut sums = Sums::of(1);
        let of = Evaluated {
            loss: &Loss::LogLoss,
            loss_weights: &[],
            transform: LabelTransform::Identity,
            scales: &[Scale::IDENTITY],
            majority: Some(2),
        };
        for label in [0.0, 1.0, 2.0, 2.0] {
            sums.evaluated(&of, &[1.0, 3.0, 2.0], &[label], 2.0);
        }
        let record = sums.record(EpochTotals {
            classes: true,
            ..EpochTotals::default()
        });
        let due = (Some(0.25), Some(0.5), None, None);
        let actual = (
            record.eval_accuracy,
            record.eval_majority,
            record.eval_mae,
            record.eval_r2,
        );
        assert_eq!(actual, due);
    }

    #[test]
    fn nothing_evaluated_is_no_metric() {
        let record = Sums::of(1).record(EpochTotals::default());
        assert_eq!((record.eval_loss, record.eval_r2), (None, None));
    }
}
