//! Evaluation: this rank's evaluation rows through the network as it stands.

use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::fit::{Fit, check};
use super::metrics::{Evaluated, Sums};
use super::schedule::Place;
use crate::Result;
use crate::encode::Settled;
use crate::network::{Compute, Input};

/// Rows of one batch.
const BATCH: usize = 4096;

impl<C: Compute> Fit<'_, C> {
    /// Adds up the metrics of this rank's evaluation rows.
    pub(super) fn evaluate(&mut self, sums: &mut Sums, cancel: &CancellationToken) -> Result<()> {
        let eval_rows = |(shard, settled): (usize, &Settled)| {
            let rows = settled.eval.len() as u32;
            (0..rows).map(move |row| Place {
                shard: shard as u32,
                row,
            })
        };
        let places: Vec<Place> = self.shards.iter().enumerate().flat_map(eval_rows).collect();
        for places in places.chunks(BATCH) {
            check(cancel)?;
            let mut batch = Batch::gather(self.shards, |shard| &shard.eval, places);
            if self.architecture.batch_norm {
                self.running.apply(&mut batch.continuous);
            }
            let Batch {
                codes,
                continuous,
                labels,
                weights,
                ..
            } = batch;
            let input = Input {
                rows: labels.len(),
                codes,
                continuous,
                dropout: vec![],
            };
            let outputs = self.network.predict(input);
            let of = Evaluated {
                loss: self.spec.loss,
                transform: self.spec.label.transform,
                scale: &self.scaling.label,
                majority: self.majority,
            };
            let rows = outputs.chunks_exact(self.architecture.outputs);
            for (outputs, (label, weight)) in rows.zip(labels.into_iter().zip(weights)) {
                sums.evaluated(&of, outputs, label, weight);
            }
        }
        Ok(())
    }
}
