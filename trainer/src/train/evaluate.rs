//! Evaluation: this rank's evaluation rows through the current network, and a sample of training rows at the
//! end. A device computes the outputs of rows that it holds without being sent them.

use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::fit::{Fit, check};
use super::metrics::{Evaluated, Sums};
use super::schedule::Place;
use crate::Result;
use crate::collective::Communicator;
use crate::encode::{Rows, Settled};
use crate::network::{Compute, Input, Part};

/// Rows per batch.
pub(super) const BATCH: usize = 4096;
/// Approximate number of training rows evaluated at the end.
const SAMPLE: usize = 1 << 16;

/// Returns a part of a shard's rows.
fn rows_of(part: Part, shard: &Settled) -> &Rows {
    match part {
        Part::Training => &shard.train,
        Part::Evaluation => &shard.eval,
    }
}

/// Members of an ensemble that predict a row.
#[derive(Debug, Clone, Copy)]
enum Predictor {
    /// All members: their mean.
    Ensemble,
    /// The member that holds the row out: an out-of-fold prediction.
    OutOfFold,
}

impl<C: Compute> Fit<'_, C> {
    /// Adds the metrics of this rank's evaluation rows to `sums`.
    pub(super) fn evaluate(&mut self, sums: &mut Sums, cancel: &CancellationToken) -> Result<()> {
        match self.cross_validates {
            true => self.evaluate_rows(
                Part::Training,
                Predictor::OutOfFold,
                usize::MAX,
                sums,
                cancel,
            ),
            false => self.evaluate_rows(
                Part::Evaluation,
                Predictor::Ensemble,
                usize::MAX,
                sums,
                cancel,
            ),
        }
    }

    /// Returns the mean loss of a sample of training rows by the kept weights, computed as in evaluation. If
    /// it is far from the training loss, the model does not do what was trained.
    pub(super) fn evaluate_training(
        &mut self,
        communicator: &mut Communicator,
        cancel: &CancellationToken,
    ) -> Result<f64> {
        let last = self.swap_kept()?;
        let most = SAMPLE.div_ceil(self.spec.shards);
        let mut sums = Sums::of(self.spec.label.columns.len());
        let evaluated =
            self.evaluate_rows(Part::Training, Predictor::Ensemble, most, &mut sums, cancel);
        if let Some(last) = last {
            self.put(&last)?;
        }
        evaluated?;
        communicator.patiently(|peers| peers.all_reduce_sum_f64(sums.as_mut_slice()))?;
        Ok(sums.mean_loss().unwrap_or_default())
    }

    /// Adds the metrics of the first `most` rows of each of this rank's shards; the order of rows carries no
    /// meaning.
    fn evaluate_rows(
        &mut self,
        part: Part,
        by: Predictor,
        most: usize,
        sums: &mut Sums,
        cancel: &CancellationToken,
    ) -> Result<()> {
        let rows = |(shard, settled): (usize, &Settled)| {
            let rows = rows_of(part, settled).len().min(most) as u32;
            (0..rows).map(move |row| Place {
                shard: shard as u32,
                row,
                at: row,
            })
        };
        let mut all = self.shards.iter().enumerate().flat_map(rows);
        let held = self.network.resident().is_some_and(|of| of.holds(part));
        loop {
            let places: Vec<Place> = all.by_ref().take(BATCH).collect();
            if places.is_empty() {
                break;
            }
            check(cancel)?;
            let rows = |shard: usize| rows_of(part, &self.shards[shard]);
            let mut batch = match held {
                true => Batch::labels(rows, &places),
                false => Batch::gather(rows, &places, &self.tools.threads),
            };
            if self.architecture.batch_norm {
                self.running.apply(&mut batch.continuous);
            }
            let Batch {
                codes,
                continuous,
                labels,
                mut weights,
                folds,
                ..
            } = batch;
            if let Predictor::OutOfFold = by {
                let own = |place: &Place| {
                    rows_of(part, &self.shards[place.shard as usize])
                        .eval_weight(place.row as usize)
                };
                weights = places.iter().map(own).collect();
            }
            let mean = matches!(by, Predictor::Ensemble);
            let input = Input {
                rows: weights.len(),
                codes,
                continuous,
                dropout: vec![],
            };
            let found = match (held, mean) {
                (true, _) => self.outputs_of_held(part, &places, mean)?,
                (false, true) => self.network.predict(input)?,
                (false, false) => self.network.predict_by_member(input)?,
            };
            let outputs = match by {
                Predictor::Ensemble => found,
                Predictor::OutOfFold => {
                    let width = self.architecture.outputs;
                    let rows = found
                        .chunks_exact(width * self.architecture.members)
                        .zip(&folds);
                    let own = rows.map(|(row, fold)| &row[usize::from(*fold) * width..][..width]);
                    own.flatten().copied().collect()
                }
            };
            let of = Evaluated {
                loss: &self.spec.loss,
                loss_weights: &self.spec.label.loss_weights,
                transform: self.spec.label.transform,
                scales: &self.scaling.labels,
                majority: self.majority,
            };
            let rows = outputs.chunks_exact(self.architecture.outputs);
            let labels = labels.chunks_exact(self.scaling.labels.len());
            for (outputs, (labels, weight)) in rows.zip(labels.zip(weights)) {
                sums.evaluated(&of, outputs, labels, weight);
            }
        }
        Ok(())
    }

    /// Returns the outputs of rows that the device holds, in runs of rows that follow one another there.
    fn outputs_of_held(&mut self, part: Part, places: &[Place], mean: bool) -> Result<Vec<f32>> {
        let firsts = self.shards.iter().scan(0, |end, shard| {
            let first = *end;
            *end += rows_of(part, shard).len();
            Some(first)
        });
        let firsts: Vec<usize> = firsts.collect();
        let at = |place: &Place| firsts[place.shard as usize] + place.row as usize;
        let device = self.network.resident().expect("the device holds the rows");
        let mut outputs = Vec::new();
        for run in places.chunk_by(|one, next| at(one) + 1 == at(next)) {
            let rows = at(&run[0])..at(&run[0]) + run.len();
            outputs.extend(device.evaluate(part, rows, &self.running, mean)?);
        }
        Ok(outputs)
    }
}
