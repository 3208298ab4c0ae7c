//! Sums over an epoch's evaluation, added up over ranks, and the record they make together with
//! what its steps came to.

use volley_proto::spec::{LabelTransform, Loss};
use volley_proto::store::{Coverage, EpochRecord, RankCoverage};

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
    EvalRows,
    EvalRelativeSquare,
    EvalRelativeRows,
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
    pub(super) seconds: f64,
}

impl Sums {
    /// Counts an evaluated row: prediction and label in the transformed scale.
    pub(super) fn evaluated(
        &mut self,
        loss: Loss,
        transform: LabelTransform,
        prediction: f64,
        label: f64,
    ) {
        let error = prediction - label;
        self.add(Sum::EvalRows, 1.0);
        self.add(Sum::EvalLoss, loss::value(loss, error));
        self.add(Sum::EvalAbsolute, error.abs());
        let original = |y: f64| match transform {
            LabelTransform::Identity => y,
            LabelTransform::Ln => y.exp(),
        };
        let y = original(label);
        if y > LEAST_RELATIVE_LABEL {
            self.add(Sum::EvalRelativeRows, 1.0);
            self.add(
                Sum::EvalRelativeSquare,
                ((y - original(prediction)) / y).powi(2),
            );
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

    /// The record of an epoch, from sums over all ranks.
    pub(super) fn record(&self, trained: Trained) -> EpochRecord {
        let mean = |sum, rows| Some(self.of(sum) / self.of(rows)).filter(|_| self.of(rows) > 0.0);
        let Progress { loss, covered } = trained.progress;
        let ranks = trained.ranks.len() as f64;
        EpochRecord {
            epoch: trained.epoch,
            steps: trained.steps,
            rows: covered.rows,
            checksum: covered.hex(),
            ranks: trained.ranks,
            earlier: trained.earlier,
            loss: loss / covered.rows as f64,
            eval_loss: mean(Sum::EvalLoss, Sum::EvalRows),
            eval_mae: mean(Sum::EvalAbsolute, Sum::EvalRows),
            eval_rmspe: mean(Sum::EvalRelativeSquare, Sum::EvalRelativeRows).map(f64::sqrt),
            seconds: trained.seconds,
            compute_seconds: self.of(Sum::ComputeSeconds) / ranks,
            reduce_seconds: self.of(Sum::ReduceSeconds) / ranks,
        }
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
        sums.evaluated(Loss::Mse, LabelTransform::Ln, 0.5_f64.ln(), 0.0); // ŷ = ½, y = 1
        sums.evaluated(Loss::Mse, LabelTransform::Ln, -20.0, -10.0); // y < 0.001
        let covered = Covered {
            rows: 3,
            checksum: 0xab,
        };
        let record = sums.record(Trained {
            progress: Progress { loss: 6.0, covered },
            ..Trained::default()
        });
        assert_eq!(record.checksum, "00000000000000ab");
        assert_eq!((record.loss, record.rows), (2.0, 3));
        let ln2 = 2_f64.ln();
        assert!((record.eval_loss.unwrap() - (ln2 * ln2 + 100.0) / 2.0).abs() < 1e-12);
        assert!((record.eval_mae.unwrap() - (ln2 + 10.0) / 2.0).abs() < 1e-12);
        assert!((record.eval_rmspe.unwrap() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn nothing_evaluated_is_no_metric() {
        let record = Sums::default().record(Trained::default());
        assert_eq!(record.eval_loss, None);
    }
}
