//! Sums over an epoch's rows, added up over ranks, and the record they make.

use volley_proto::spec::{LabelTransform, Loss};
use volley_proto::store::EpochRecord;

use super::loss;

/// Rows whose label is below are left out of relative errors.
const LEAST_RELATIVE_LABEL: f64 = 0.001;

/// What is added up over rows and ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(usize)]
enum Sum {
    Loss,
    Rows,
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

impl Sums {
    /// Counts rows that were trained on, with the sum of their losses.
    pub(super) fn trained(&mut self, rows: usize, loss: f64) {
        self.add(Sum::Rows, rows as f64);
        self.add(Sum::Loss, loss);
    }

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

    /// The record of an epoch, from sums over all of `ranks` ranks.
    pub(super) fn record(
        &self,
        epoch: usize,
        steps: u64,
        ranks: usize,
        seconds: f64,
    ) -> EpochRecord {
        let mean = |sum, rows| Some(self.of(sum) / self.of(rows)).filter(|_| self.of(rows) > 0.0);
        EpochRecord {
            epoch,
            steps,
            rows: self.of(Sum::Rows) as u64,
            loss: self.of(Sum::Loss) / self.of(Sum::Rows),
            eval_loss: mean(Sum::EvalLoss, Sum::EvalRows),
            eval_mae: mean(Sum::EvalAbsolute, Sum::EvalRows),
            eval_rmspe: mean(Sum::EvalRelativeSquare, Sum::EvalRelativeRows).map(f64::sqrt),
            seconds,
            compute_seconds: self.of(Sum::ComputeSeconds) / ranks as f64,
            reduce_seconds: self.of(Sum::ReduceSeconds) / ranks as f64,
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
    use super::*;

    #[test]
    fn metrics_by_hand() {
        let mut sums = Sums::default();
        sums.trained(3, 6.0);
        sums.evaluated(Loss::Mse, LabelTransform::Ln, 0.5_f64.ln(), 0.0); // ŷ = ½, y = 1
        sums.evaluated(Loss::Mse, LabelTransform::Ln, -20.0, -10.0); // y < 0.001
        let record = sums.record(2, 10, 1, 0.0);
        assert_eq!((record.loss, record.rows), (2.0, 3));
        let ln2 = 2_f64.ln();
        assert!((record.eval_loss.unwrap() - (ln2 * ln2 + 100.0) / 2.0).abs() < 1e-12);
        assert!((record.eval_mae.unwrap() - (ln2 + 10.0) / 2.0).abs() < 1e-12);
        assert!((record.eval_rmspe.unwrap() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn nothing_evaluated_is_no_metric() {
        let mut sums = Sums::default();
        sums.trained(1, 1.0);
        assert_eq!(sums.record(1, 1, 1, 0.0).eval_loss, None);
    }
}
