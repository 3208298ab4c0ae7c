//! Sums over an epoch's evaluation, added up over ranks, and the record they make together with
//! what its steps came to.

use volley_proto::spec::{LabelTransform, Loss};
use volley_proto::store::{Coverage, EpochRecord, RankCoverage, Scale};

use super::loss;
use super::state::Progress;

/// Rows whose label is below are left out of relative errors.
const LEAST_RELATIVE_LABEL: f64 = 0.001;

/// What is added up over rows and ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(usize)]
enum Sum {
    EvalLoss,
    EvalAbsolute,
    EvalSquare,
    /// Of labels less their mean in training.
    EvalLabel,
    EvalLabelSquare,
    EvalWeight,
    EvalRelativeSquare,
    EvalRelativeRows,
    /// Rows whose class was the likeliest, and those of the class that is the most frequent in training.
    EvalCorrect,
    EvalMajority,
    ComputeSeconds,
    ReduceSeconds,
}

const SUMS: usize = Sum::ReduceSeconds as usize + 1;

/// An epoch's sums.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums([f64; SUMS]);

/// What an epoch's steps came to.
#[derive(Debug, Default)]
pub(super) struct Trained {
    pub(super) epoch: usize,
    /// Steps since training began.
    pub(super) steps: u64,
    /// Over all ranks and generations.
    pub(super) progress: Progress,
    /// Of each rank of this generation.
    pub(super) ranks: Vec<RankCoverage>,
    pub(super) earlier: Option<Coverage>,
    /// Whether labels are classes.
    pub(super) classes: bool,
    /// Of the last step.
    pub(super) learn_rate: f64,
    pub(super) seconds: f64,
}

/// How rows are evaluated.
#[derive(Debug)]
pub(super) struct Evaluated<'a> {
    pub(super) loss: &'a Loss,
    pub(super) transform: LabelTransform,
    /// Of the transformed label.
    pub(super) scale: &'a Scale,
    /// The class that is the most frequent in training, if labels are classes.
    pub(super) majority: Option<usize>,
}

impl Sums {
    /// Counts an evaluated row of this weight: outputs and label as the network has them.
    pub(super) fn evaluated(
        &mut self,
        of: &Evaluated<'_>,
        outputs: &[f32],
        label: f32,
        weight: f32,
    ) {
        let weight = f64::from(weight);
        self.add(Sum::EvalWeight, weight);
        let sorted = of.loss.shares().map(|_| {
            let mut quantiles = outputs.to_vec();
            loss::rearrange(&mut quantiles);
            quantiles
        });
        let outputs = sorted.as_deref().unwrap_or(outputs);
        let mut slopes = vec![0.0; outputs.len()];
        let unit = loss::unit(of.loss, of.scale);
        let loss = loss::of_row(of.loss, outputs, label, &mut slopes);
        self.add(Sum::EvalLoss, weight * unit * loss);
        if let Some(majority) = of.majority {
            let counts = |class: usize| weight * f64::from(u8::from(class == label as usize));
            self.add(Sum::EvalCorrect, counts(loss::likeliest(outputs)));
            self.add(Sum::EvalMajority, counts(majority));
            return;
        }
        let (prediction, label) = (f64::from(outputs[of.loss.median()]), f64::from(label));
        let original = |y: f64| match (of.transform, of.scale.undo(y)) {
            (LabelTransform::Identity, y) => y,
            (LabelTransform::Ln, y) => y.exp(),
        };
        let prediction = match of.loss.has_log_link() {
            true => prediction.exp(),
            false => prediction,
        };
        let y = original(label);
        let error = original(prediction) - y;
        self.add(Sum::EvalAbsolute, weight * error.abs());
        self.add(Sum::EvalSquare, weight * error * error);
        let distance = y - original(0.0);
        self.add(Sum::EvalLabel, weight * distance);
        self.add(Sum::EvalLabelSquare, weight * distance * distance);
        if y > LEAST_RELATIVE_LABEL {
            self.add(Sum::EvalRelativeRows, weight);
            self.add(Sum::EvalRelativeSquare, weight * (error / y).powi(2));
        }
    }

    /// Notes how a rank spent its time.
    pub(super) fn spent(&mut self, compute: f64, reduce: f64) {
        self.add(Sum::ComputeSeconds, compute);
        self.add(Sum::ReduceSeconds, reduce);
    }

    /// What is to be added up over ranks.
    pub(super) fn as_mut_slice(&mut self) -> &mut [f64] {
        &mut self.0
    }

    /// The mean loss of evaluated rows, if there are any.
    pub(super) fn mean_loss(&self) -> Option<f64> {
        let weight = self.of(Sum::EvalWeight);
        (weight > 0.0).then(|| self.of(Sum::EvalLoss) / weight)
    }

    /// The record of an epoch, from sums over all ranks.
    pub(super) fn record(&self, trained: Trained) -> EpochRecord {
        let mean = |sum, rows| Some(self.of(sum) / self.of(rows)).filter(|_| self.of(rows) > 0.0);
        let Progress {
            loss,
            weight,
            covered,
        } = trained.progress;
        let ranks = trained.ranks.len() as f64;
        EpochRecord {
            epoch: trained.epoch,
            steps: trained.steps,
            rows: covered.rows,
            checksum: covered.hex(),
            ranks: trained.ranks,
            earlier: trained.earlier,
            loss: loss / weight,
            eval_loss: self.mean_loss(),
            eval_mae: mean(Sum::EvalAbsolute, Sum::EvalWeight).filter(|_| !trained.classes),
            eval_accuracy: mean(Sum::EvalCorrect, Sum::EvalWeight).filter(|_| trained.classes),
            eval_majority: mean(Sum::EvalMajority, Sum::EvalWeight).filter(|_| trained.classes),
            eval_rmse: mean(Sum::EvalSquare, Sum::EvalWeight)
                .map(f64::sqrt)
                .filter(|_| !trained.classes),
            eval_r2: self.explained(),
            eval_rmspe: mean(Sum::EvalRelativeSquare, Sum::EvalRelativeRows).map(f64::sqrt),
            learn_rate: Some(trained.learn_rate),
            ended: None,
            seconds: trained.seconds,
            compute_seconds: self.of(Sum::ComputeSeconds) / ranks,
            reduce_seconds: self.of(Sum::ReduceSeconds) / ranks,
        }
    }

    /// The share of the evaluated labels' variance that is explained; nothing where they have none.
    fn explained(&self) -> Option<f64> {
        let rows = self.of(Sum::EvalWeight);
        let variance = self.of(Sum::EvalLabelSquare) - self.of(Sum::EvalLabel).powi(2) / rows;
        (variance > 0.0).then(|| 1.0 - self.of(Sum::EvalSquare) / variance)
    }

    fn add(&mut self, sum: Sum, value: f64) {
        self.0[sum as usize] += value;
    }

    fn of(&self, sum: Sum) -> f64 {
        self.0[sum as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::coverage::Covered;
    use super::*;

    #[test]
    fn metrics_by_hand() {
        let mut sums = Sums::default();
        // Twice as many in the network's scale, around 3.
        let scale = Scale {
            shift: 3.0,
            unit: 0.5,
            ..Scale::IDENTITY
        };
        let of = Evaluated {
            loss: &Loss::Mse,
            transform: LabelTransform::Ln,
            scale: &scale,
            majority: None,
        };
        let mut evaluated = |prediction: f64, label: f64| {
            let [prediction, label] = [prediction, label].map(|y| scale.apply(y) as f32);
            sums.evaluated(&of, &[prediction], label, 1.0);
        };
        evaluated(0.5_f64.ln(), 0.0); // ŷ = ½, y = 1
        evaluated(-20.0, -10.0); // y < 0.001
        let covered = Covered {
            rows: 3,
            checksum: 0xab,
        };
        let record = sums.record(Trained {
            progress: Progress {
                loss: 6.0,
                weight: 3.0,
                covered,
            },
            ..Trained::default()
        });
        assert_eq!(record.checksum, "00000000000000ab");
        assert_eq!((record.loss, record.rows), (2.0, 3));
        let ln2 = 2_f64.ln();
        assert!((record.eval_loss.unwrap() - (ln2 * ln2 + 100.0) / 2.0).abs() < 1e-6);
        let small = (-10.0_f64).exp() - (-20.0_f64).exp();
        assert!((record.eval_mae.unwrap() - (0.5 + small) / 2.0).abs() < 1e-6);
        let squares = 0.25 + small * small;
        assert!((record.eval_rmse.unwrap() - (squares / 2.0).sqrt()).abs() < 1e-6);
        // Around their mean, labels of 1 and almost 0 have squares of almost ½ in all.
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
            transform: LabelTransform::Identity,
            scale: &scale,
            majority: None,
        };
        let mut sums = Sums::default();
        sums.evaluated(&of, &[1.0, 3.0, -1.0], 0.0, 1.0);
        let record = sums.record(Trained::default());
        // Of −1, 1 and 3: 0.1 · 1, 0.5 · 1 and 0.1 · 3, in units of 2.
        assert!((record.eval_loss.unwrap() - 2.0 * 0.9 / 3.0).abs() < 1e-12);
        assert!((record.eval_mae.unwrap() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn classes_are_counted() {
        let mut sums = Sums::default();
        let of = Evaluated {
            loss: &Loss::LogLoss,
            transform: LabelTransform::Identity,
            scale: &Scale::IDENTITY,
            majority: Some(2),
        };
        for label in [0.0, 1.0, 2.0, 2.0] {
            sums.evaluated(&of, &[1.0, 3.0, 2.0], label, 2.0);
        }
        let record = sums.record(Trained {
            classes: true,
            ..Trained::default()
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
        let record = Sums::default().record(Trained::default());
        assert_eq!((record.eval_loss, record.eval_r2), (None, None));
    }
}
